"""Retained messages in memory: a dict for exact topics and a trie for wildcards, so that no match scans all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from attrs import frozen

from kinmqtt_spi.memory._deadlines import Deadlines
from kinmqtt_spi.properties import text_bytes
from kinmqtt_spi.services.retain import (
    DELETION_S,
    RetainContents,
    RetainPage,
    RetainStore,
    RetainVersion,
    RetainWrite,
    retained_bytes,
)
from kinmqtt_spi.values import Message, MessageId

VISITS: Final = 1000
"""The number of nodes that one page visits, because some filters match nothing among very many topics."""

TOMBSTONE_BYTES: Final = 4 << 20
"""The limit of the sizes of the topics of remembered deletions, whatever their number."""


class _Node:
    """A level of the trie. It exists as long as there is a retained message at or below it.

    The children of a node are also linked, in the order of their creation, so that a cursor at one of them can
    continue without a copy of all. A removed child keeps its link to the next one: from there a cursor reaches all
    later children that still exist.
    """

    __slots__ = ("children", "first", "last", "message", "next", "previous", "version")

    def __init__(self) -> None:
        self.children: dict[str, _Node] | None = None
        """``None`` in leaves, which are the most nodes."""
        self.first: _Node | None = None
        self.last: _Node | None = None
        """The first and the last of the children."""
        self.previous: _Node | None = None
        self.next: _Node | None = None
        """The neighbours below the same parent."""
        self.message: Message | None = None
        self.version: RetainVersion | None = None

    def grow(self, level: str) -> _Node:
        """Add a child and return it."""
        child = _Node()
        if self.children is None:
            self.children = {}
        self.children[level] = child
        last = self.last
        if last is None:
            self.first = child
        else:
            last.next = child
            child.previous = last
        self.last = child
        return child

    def cut(self, level: str) -> None:
        """Remove a child and everything below it."""
        assert self.children is not None
        child = self.children.pop(level)
        if not self.children:
            self.children = None  # An empty dict does not shrink.
        before, after = child.previous, child.next
        if before is None:
            self.first = after
        else:
            before.next = after
        if after is None:
            self.last = before
        else:
            after.previous = before
        child.previous = None


@frozen(slots=True)
class _Frame:
    """Nodes to be visited: ``node`` and the next ones, each matched against the filter's levels from ``level`` on.

    ``left`` is the number of nodes when the frame was made, so that a walk ends even if nodes are added quickly.
    """

    node: _Node
    left: int
    level: int


@frozen(slots=True)
class _Cursor:
    """The position of a match.

    Messages that are put later may be seen or not, deleted ones leave an empty node, and a topic that stays keeps its
    node and so is seen once.
    """

    frames: tuple[_Frame, ...]


@frozen(slots=True)
class _Topics:
    """The position in the deletions: topics that are left."""

    topics: tuple[str, ...]


class MemoryRetainStore(RetainStore):
    """Holds retained messages in a trie; every write is committed when :meth:`put` returns.

    ``tombstones`` is the maximum number of deletions that are remembered to refuse older writes. Above it, or above
    :data:`TOMBSTONE_BYTES`, the oldest deletion is forgotten; one that is older than
    :data:`~kinmqtt_spi.services.retain.DELETION_S` is forgotten at the next :meth:`expire`. An expired message counts
    as deleted by its own version. ``shared`` says that several brokers of one process use it.
    """

    def __init__(self, *, tombstones: int = 10_000, shared: bool = False) -> None:
        self.is_shared = shared
        self._root = _Node()
        self._dollar = _Node()
        """The root of topics with ``$``, which a wildcard in the first level does not match (MQTT-4.7.2-1)."""
        self._topics: dict[str, _Node] = {}
        self._tombstones: OrderedDict[str, RetainVersion] = OrderedDict()
        self._max_tombstones = tombstones
        self._tombstone_bytes = 0
        self._newest = 0.0
        self._bytes = 0
        self._by_user: dict[str, tuple[int, int]] = {}
        self._expiry = Deadlines()

    def put(self, writes: Sequence[RetainWrite]) -> None:
        for write in writes:
            message, version = write.message, write.version
            topic = message.topic
            self._newest = max(self._newest, version.received_at)
            node = self._topics.get(topic)
            known = self._tombstones.get(topic) if node is None else node.version
            if known is not None and version < known:
                continue
            if write.expected is not None and write.expected != known:
                continue
            self._set(topic, node, message, version)

    def restore(self, writes: Sequence[RetainWrite]) -> None:
        """Apply writes that a store has accepted, in their order, whatever is known of older and newer ones here."""
        for write in writes:
            topic = write.message.topic
            self._newest = max(self._newest, write.version.received_at)
            self._set(topic, self._topics.get(topic), write.message, write.version)

    def _set(self, topic: str, node: _Node | None, message: Message, version: RetainVersion) -> None:
        if message.payload:
            self._remove_tombstone(topic)
            self._hold(topic, node, message, version)
        else:
            if node is not None:
                self._remove(topic, node)
            self._add_tombstone(topic, version)

    def version_of(self, topic: str) -> RetainVersion | None:
        """Return the version of a topic, or of its deletion if that is remembered."""
        node = self._topics.get(topic)
        return self._tombstones.get(topic) if node is None else node.version

    def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
        if "+" not in filter and "#" not in filter:
            node = self._topics.get(filter)
            return RetainPage(() if node is None or node.message is None else (node.message,))
        levels = filter.split("/")
        found: list[Message] = []
        left = self._walk(
            cursor or _Cursor((_Frame(self._root_of(filter), 1, 0),)),
            limit,
            found,
            lambda node, level, frames: self._visit(node, levels, level, frames, found),
        )
        return RetainPage(tuple(found), left)

    def iterate(self, cursor: object = None, limit: int = 1000) -> RetainContents:
        found: list[RetainWrite] = []

        def visit(node: _Node, level: int, frames: list[_Frame]) -> None:
            if node.message is not None and node.version is not None:
                found.append(RetainWrite(node.message, node.version))
            if node.first is not None and node.children is not None:
                frames.append(_Frame(node.first, len(node.children), level + 1))

        start = _Cursor((_Frame(self._dollar, 1, 0), _Frame(self._root, 1, 0)))
        left = self._walk(cursor or start, limit, found, visit)
        return RetainContents(tuple(found), left)

    def deletions(self, cursor: object = None, limit: int = 1000) -> RetainContents:
        left = cursor if isinstance(cursor, _Topics) else _Topics(tuple(self._tombstones))
        writes = []
        for topic in left.topics[:limit]:
            version = self._tombstones.get(topic)
            if version is not None:
                id = MessageId(version.node, version.counter)
                message = Message(topic, b"", 0, True).received(id, version.received_at, None)
                writes.append(RetainWrite(message, version))
        rest = left.topics[limit:]
        return RetainContents(tuple(writes), _Topics(rest) if rest else None)

    @property
    def deletion_bytes(self) -> int:
        """The sizes of the topics of all deletions that are remembered."""
        return self._tombstone_bytes

    @property
    def deletion_count(self) -> int:
        """The number of deletions that are remembered."""
        return len(self._tombstones)

    def forget_deletions(self) -> None:
        """Forget all deletions, so that older writes are accepted."""
        self._tombstones.clear()
        self._tombstone_bytes = 0

    def count(self) -> int:
        return len(self._topics)

    def size_bytes(self) -> int:
        return self._bytes

    def newest(self) -> float:
        return self._newest

    def held_by(self, username: str) -> tuple[int, int]:
        return self._by_user.get(username, (0, 0))

    def expire(self, now: float, limit: int) -> Sequence[Message]:
        removed: list[Message] = []
        for topic in self._expiry.due(now, limit):
            node = self._topics[topic]
            if node.message is not None and node.version is not None:
                removed.append(node.message)
                self._add_tombstone(topic, node.version)
                self._remove(topic, node)
        self._forget_old_deletions(now - DELETION_S)
        return removed

    def _forget_old_deletions(self, before: float) -> None:
        """Forget deletions from before that time, in the order in which they came."""
        while self._tombstones:
            topic, version = next(iter(self._tombstones.items()))
            if version.received_at >= before:
                return
            self._remove_tombstone(topic)

    def _walk(
        self,
        cursor: object,
        limit: int,
        found: Sequence[object],
        visit: Callable[[_Node, int, list[_Frame]], None],
    ) -> _Cursor | None:
        """Visit nodes from the cursor on until the limit is reached; return the next cursor."""
        frames = list(cursor.frames) if isinstance(cursor, _Cursor) else []
        visits = 0
        while frames and len(found) < limit and visits < VISITS:
            visits += 1
            frame = frames.pop()
            node = frame.node
            if frame.left > 1 and node.next is not None:
                frames.append(_Frame(node.next, frame.left - 1, frame.level))
            visit(node, frame.level, frames)
        return _Cursor(tuple(frames)) if frames else None

    def _visit(self, node: _Node, levels: list[str], level: int, frames: list[_Frame], found: list[Message]) -> None:
        """Match one node against the rest of the filter: add its message, and push its children."""
        wanted = levels[level] if level < len(levels) else None
        if wanted is None or wanted == "#":  # "#" takes the parent too (section 4.7.1.2)
            if node.message is not None:
                found.append(node.message)
            if wanted is None:
                return
        if node.first is None or node.children is None:
            return
        if wanted == "#":
            frames.append(_Frame(node.first, len(node.children), level))
        elif wanted == "+":
            frames.append(_Frame(node.first, len(node.children), level + 1))
        else:
            child = node.children.get(wanted)
            if child is not None:
                frames.append(_Frame(child, 1, level + 1))

    def _root_of(self, topic: str) -> _Node:
        return self._dollar if topic[:1] == "$" else self._root

    def _hold(self, topic: str, node: _Node | None, message: Message, version: RetainVersion) -> None:
        if node is None:
            node = self._root_of(topic)
            for level in topic.split("/"):
                child = None if node.children is None else node.children.get(level)
                node = node.grow(level) if child is None else child
            self._topics[topic] = node
        elif node.message is not None:
            self._count(node.message, -1)
        node.message = message
        node.version = version
        self._count(message, 1)
        self._expiry.set(topic, message.expires_at)

    def _remove(self, topic: str, node: _Node) -> None:
        del self._topics[topic]
        if node.message is not None:
            self._count(node.message, -1)
        node.message = node.version = None
        self._expiry.set(topic, None)
        if node.children is None:
            self._prune(self._root_of(topic), topic.split("/"))

    def _count(self, message: Message, sign: int) -> None:
        size_bytes = sign * retained_bytes(message)
        self._bytes += size_bytes
        username = message.publisher.username
        if username is not None:
            messages, its_bytes = self._by_user.get(username, (0, 0))
            if messages + sign:
                self._by_user[username] = (messages + sign, its_bytes + size_bytes)
            else:
                del self._by_user[username]

    def _prune(self, root: _Node, levels: list[str]) -> None:
        """Remove the branch to an empty leaf, below its last fork or the last message on its path."""
        fork, key = root, levels[0]
        node = root
        for level in levels:
            children = node.children
            assert children is not None
            if len(children) > 1 or node.message is not None:
                fork, key = node, level
            node = children[level]
        fork.cut(key)

    def _add_tombstone(self, topic: str, version: RetainVersion) -> None:
        self._remove_tombstone(topic)
        self._tombstones[topic] = version
        self._tombstone_bytes += text_bytes(topic)
        while len(self._tombstones) > self._max_tombstones or self._tombstone_bytes > TOMBSTONE_BYTES:
            self._tombstone_bytes -= text_bytes(self._tombstones.popitem(last=False)[0])

    def _remove_tombstone(self, topic: str) -> None:
        if self._tombstones.pop(topic, None) is not None:
            self._tombstone_bytes -= text_bytes(topic)
