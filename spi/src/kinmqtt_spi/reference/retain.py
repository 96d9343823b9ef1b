"""Retained messages in memory: a dict for exact topics, a trie for wildcards, so that no match scans all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from attrs import frozen

from kinmqtt_spi.reference._deadlines import Deadlines
from kinmqtt_spi.services.retain import RetainContents, RetainPage, RetainStore, RetainVersion, RetainWrite
from kinmqtt_spi.values import Message

VISITS: Final = 1000
"""How many nodes one page looks at, whatever it finds there: some filters find nothing among very many topics."""


class _Node:
    """A level of the trie. It stands as long as a retained message lies at or below it."""

    __slots__ = ("children", "message", "version")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.message: Message | None = None
        self.version: RetainVersion | None = None


@frozen(slots=True)
class _Frame:
    """Nodes still to be visited: from ``position`` on, each against the filter's levels from ``level`` on."""

    nodes: tuple[_Node, ...]
    position: int
    level: int


@frozen(slots=True)
class _Cursor:
    """Where a match stands.

    A frame holds the children a node had when it was reached: what was put since is not seen, what was
    deleted is empty by now, and a topic that stays keeps its node and so is seen once.
    """

    frames: tuple[_Frame, ...]


class MemoryRetainStore(RetainStore):
    """Keeps retained messages in a trie; every write is kept when :meth:`put` returns.

    ``tombstones`` bounds how many deletions are remembered against older writes that arrive late; beyond it
    the oldest deletion is forgotten. A message that expired counts as deleted by its own version.
    """

    def __init__(self, *, tombstones: int = 10_000) -> None:
        self._root = _Node()
        self._topics: dict[str, _Node] = {}
        self._tombstones: OrderedDict[str, RetainVersion] = OrderedDict()
        self._max_tombstones = tombstones
        self._bytes = 0
        self._expiry = Deadlines()

    def put(self, writes: Sequence[RetainWrite]) -> None:
        for write in writes:
            message, version = write.message, write.version
            topic = message.topic
            node = self._topics.get(topic)
            known = self._tombstones.get(topic) if node is None else node.version
            if known is not None and version < known:
                continue
            if message.payload:
                self._tombstones.pop(topic, None)
                self._hold(topic, node, message, version)
            else:
                if node is not None:
                    self._remove(topic, node)
                self._bury(topic, version)

    def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
        if "+" not in filter and "#" not in filter:
            node = self._topics.get(filter)
            return RetainPage(() if node is None or node.message is None else (node.message,))
        levels = filter.split("/")
        found: list[Message] = []
        left = self._walk(
            cursor, limit, found, lambda node, level, frames: self._visit(node, levels, level, frames, found)
        )
        return RetainPage(tuple(found), left)

    def iterate(self, cursor: object = None, limit: int = 1000) -> RetainContents:
        found: list[RetainWrite] = []

        def visit(node: _Node, level: int, frames: list[_Frame]) -> None:
            if node.message is not None and node.version is not None:
                found.append(RetainWrite(node.message, node.version))
            if node.children:
                frames.append(_Frame(tuple(node.children.values()), 0, level + 1))

        left = self._walk(cursor, limit, found, visit)
        return RetainContents(tuple(found), left)

    @property
    def remembers_deletions(self) -> bool:
        """Whether an older write to a topic without a message could be refused."""
        return bool(self._tombstones)

    def forget_deletions(self) -> None:
        """Forget what is remembered against older writes that arrive late."""
        self._tombstones.clear()

    def count(self) -> int:
        return len(self._topics)

    def size_bytes(self) -> int:
        return self._bytes

    def expire(self, now: float, limit: int) -> Sequence[Message]:
        removed: list[Message] = []
        for topic in self._expiry.due(now, limit):
            node = self._topics[topic]
            if node.message is not None and node.version is not None:
                removed.append(node.message)
                self._bury(topic, node.version)
                self._remove(topic, node)
        return removed

    def _walk(
        self,
        cursor: object,
        limit: int,
        found: Sequence[object],
        visit: Callable[[_Node, int, list[_Frame]], None],
    ) -> _Cursor | None:
        """Visit nodes from where the cursor stands until enough is found or looked at; answers where to go on."""
        frames = list(cursor.frames) if isinstance(cursor, _Cursor) else [_Frame((self._root,), 0, 0)]
        visits = 0
        while frames and len(found) < limit and visits < VISITS:
            visits += 1
            frame = frames.pop()
            if frame.position + 1 < len(frame.nodes):
                frames.append(_Frame(frame.nodes, frame.position + 1, frame.level))
            visit(frame.nodes[frame.position], frame.level, frames)
        return _Cursor(tuple(frames)) if frames else None

    def _visit(self, node: _Node, levels: list[str], level: int, frames: list[_Frame], found: list[Message]) -> None:
        """Match one node against the rest of the filter: report it, and put its children on the pile."""
        wanted = levels[level] if level < len(levels) else None
        if wanted is None or wanted == "#":  # "#" takes the parent too (section 4.7.1.2)
            if node.message is not None:
                found.append(node.message)
            if wanted is None:
                return
        if wanted not in ("+", "#"):
            child = node.children.get(wanted)
            if child is not None:
                frames.append(_Frame((child,), 0, level + 1))
            return
        if node is self._root:  # MQTT-4.7.2-1: a wildcard in the first place matches no topic with "$"
            children = tuple(child for name, child in node.children.items() if name[:1] != "$")
        else:
            children = tuple(node.children.values())
        if children:
            frames.append(_Frame(children, 0, level if wanted == "#" else level + 1))

    def _hold(self, topic: str, node: _Node | None, message: Message, version: RetainVersion) -> None:
        if node is None:
            node = self._root
            for level in topic.split("/"):
                child = node.children.get(level)
                if child is None:
                    child = node.children[level] = _Node()
                node = child
            self._topics[topic] = node
        elif node.message is not None:
            self._bytes -= node.message.size_bytes
        node.message = message
        node.version = version
        self._bytes += message.size_bytes
        self._expiry.set(topic, message.expires_at)

    def _remove(self, topic: str, node: _Node) -> None:
        del self._topics[topic]
        if node.message is not None:
            self._bytes -= node.message.size_bytes
        node.message = node.version = None
        self._expiry.set(topic, None)
        if not node.children:
            self._prune(topic.split("/"))

    def _prune(self, levels: list[str]) -> None:
        """Cut the branch to an empty leaf where its last fork, or the last message on its way, is."""
        cut, key = self._root, levels[0]
        node = self._root.children[levels[0]]
        for level in levels[1:]:
            if len(node.children) > 1 or node.message is not None:
                cut, key = node, level
            node = node.children[level]
        del cut.children[key]

    def _bury(self, topic: str, version: RetainVersion) -> None:
        self._tombstones.pop(topic, None)
        self._tombstones[topic] = version
        if len(self._tombstones) > self._max_tombstones:
            self._tombstones.popitem(last=False)
