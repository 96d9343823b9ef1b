"""Routes of nodes: a node's own log of changes, what it sends to each other node, and its copies of theirs.

A chunk is ``u8 flags · u64 version before · u64 version · changes``. Its receiver answers with its own version, so
the sender notices a gap and sends all routes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from struct import Struct, error
from typing import Final

from attrs import frozen

from kinmqtt_spi.mesh.frames import MalformedFrame
from kinmqtt_spi.mesh.link import Token
from kinmqtt_spi.services.cluster import RouteChange

CHUNK_ROUTES: Final = 3_000
"""The most changes in a chunk."""
CHUNK_BYTES: Final = 1 << 20
"""A chunk ends with the change that reaches this size."""
LOG_CHANGES: Final = 65_536
"""How many changes a node keeps for others that are behind; beyond it they get all routes."""
WINDOW: Final = 8
"""How many chunks may be on their way to a node."""

FIRST: Final = 1
LAST: Final = 2
SNAPSHOT: Final = 4
"""The chunks have all routes of the node, not changes since the version before."""

_HEAD: Final = Struct(">BQQ")
_VERSION: Final = Struct(">Q")
_CHANGE: Final = Struct(">BH")
_GROUP: Final = Struct(">IH")
_REMOVED: Final = 1
_SHARED: Final = 2
_QOS_SHIFT: Final = 2
_HIGHEST_FLAGS: Final = 2 << _QOS_SHIFT | _SHARED | _REMOVED

Key = tuple[str, str | None]
Changes = tuple[Sequence[RouteChange], Sequence[RouteChange]]


def pack_change(route: RouteChange, removed: bool = False) -> bytes:
    """Return a route that is announced or removed, as bytes."""
    filter = route.filter.encode()
    flags = route.qos << _QOS_SHIFT | removed
    if route.share_group is None:
        return _CHANGE.pack(flags, len(filter)) + filter
    group = route.share_group.encode()
    head = _CHANGE.pack(flags | _SHARED, len(filter))
    return head + filter + _GROUP.pack(route.weight, len(group)) + group


def unpack_changes(data: bytes, offset: int = 0) -> Iterator[tuple[RouteChange, bool]]:
    """Yield routes, and whether each is removed. Raises :class:`~kinmqtt_spi.mesh.frames.MalformedFrame`."""
    size = len(data)
    try:
        while offset < size:
            flags, length = _CHANGE.unpack_from(data, offset)
            if flags > _HIGHEST_FLAGS:
                raise MalformedFrame(f"a route with the flags {flags}")
            offset += _CHANGE.size
            filter = _text(data, offset, length)
            offset += length
            group, weight = None, 1
            if flags & _SHARED:
                weight, length = _GROUP.unpack_from(data, offset)
                offset += _GROUP.size
                group = _text(data, offset, length)
                offset += length
            yield RouteChange(filter, group, flags >> _QOS_SHIFT, weight), bool(flags & _REMOVED)
    except (error, UnicodeDecodeError) as problem:
        raise MalformedFrame(f"routes that can't be read: {problem}") from problem


def _text(data: bytes, offset: int, length: int) -> str:
    if offset + length > len(data):
        raise MalformedFrame("a route that is cut off")
    return data[offset : offset + length].decode()


def _chunks(changes: Iterable[tuple[RouteChange, bool]], flags: int, before: int, version: int) -> Iterator[bytes]:
    """Yield changes as chunks; at least one, and never an empty one after others."""
    first, pieces, size = FIRST, list[bytes](), 0
    for route, removed in changes:
        # Only with another change at hand is a full chunk known not to be the last.
        if len(pieces) >= CHUNK_ROUTES or size >= CHUNK_BYTES:
            yield _HEAD.pack(flags | first, before, version) + b"".join(pieces)
            first, pieces, size = 0, [], 0
        pieces.append(pack_change(route, removed))
        size += len(pieces[-1])
    yield _HEAD.pack(flags | first | LAST, before, version) + b"".join(pieces)


@frozen(slots=True)
class _Delta:
    before: int
    version: int
    changes: tuple[tuple[RouteChange, bool], ...]


class RouteLog:
    """The routes of this node, and its last changes."""

    __slots__ = ("_deltas", "_limit", "_logged", "_routes", "readers", "version")

    def __init__(self, limit: int = LOG_CHANGES) -> None:
        """``limit``: how many changes are kept."""
        self.version = 0
        self.readers = 0
        """The number of nodes that get the changes; without any, none is kept."""
        self._routes: dict[Key, RouteChange] = {}
        self._deltas: deque[_Delta] = deque()
        self._logged = 0
        self._limit = limit

    def routes(self) -> Sequence[RouteChange]:
        """Return all routes."""
        return tuple(self._routes.values())

    def update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
        """Change routes. Raises ``ValueError`` if the version is not above the one before."""
        if version <= self.version:
            raise ValueError(f"routes of version {version} come after those of {self.version}")
        for route in removed:
            self._routes.pop(route.key, None)
        for route in added:
            self._routes[route.key] = route
        before, self.version = self.version, version
        if not self.readers:
            self._deltas.clear()
            self._logged = 0
            return
        changes = (*((route, True) for route in removed), *((route, False) for route in added))
        self._deltas.append(_Delta(before, version, changes))
        self._logged += len(changes) + 1
        while self._logged > self._limit:
            self._logged -= len(self._deltas.popleft().changes) + 1

    def since(self, version: int) -> list[_Delta] | None:
        """Return the changes after a version, or ``None`` if they are no longer kept."""
        found: deque[_Delta] = deque()
        for delta in reversed(self._deltas):
            if delta.version <= version:
                break
            found.appendleft(delta)
        return list(found) if found and found[0].before == version else None

    def snapshot(self) -> Iterator[bytes]:
        """Return all routes as chunks, as they are now."""
        routes = tuple(self._routes.values())
        return _chunks(((route, False) for route in routes), SNAPSHOT, 0, self.version)


class RouteFeed:
    """Sends this node's routes to one other node: all of them at first, then changes, in order."""

    __slots__ = (
        "_chunks",
        "_closed",
        "_log",
        "_outstanding",
        "_progressed",
        "_pump_later",
        "_resync",
        "_send",
        "_sent",
        "known",
        "snapshots",
    )

    def __init__(
        self,
        log: RouteLog,
        send: Callable[[bytes, Token], None],
        progressed: Callable[[], None],
        pump_later: Callable[[], object],
    ) -> None:
        """``send`` sends a chunk, whose token gets the answer; ``progressed`` is called when ``known`` has grown.

        ``pump_later`` lets :meth:`pump` be called after a while: the other node has failed to take a chunk.
        """
        self._log = log
        self._pump_later = pump_later
        self._send = send
        self._progressed = progressed
        self.known = -1
        """The version that the other node has, as it answered; -1 before it has any."""
        self.snapshots = 0
        """How often all routes were sent."""
        self._sent: int | None = None
        self._closed = False
        self._chunks: Iterator[bytes] = iter(())
        self._outstanding = 0
        self._resync = False
        log.readers += 1

    def close(self) -> None:
        """Stop: the node is gone."""
        if not self._closed:
            self._closed = True
            self._log.readers -= 1
            self._chunks = iter(())

    def pump(self) -> None:
        """Send what the other node does not have, as far as the window allows."""
        if self._resync and not self._outstanding:
            self._resync = False
            self._sent = None
            self._chunks = iter(())
        while self._outstanding < WINDOW and not (self._resync or self._closed):
            chunk = next(self._chunks, None)
            if chunk is None:
                if self._sent == self._log.version:
                    return
                self._chunks = self._next()
                continue
            self._outstanding += 1
            flags, _, version = _HEAD.unpack_from(chunk)
            self._send(chunk, _ChunkToken(self, version if flags & LAST else None))

    def _next(self) -> Iterator[bytes]:
        log = self._log
        before, self._sent = self._sent, log.version
        deltas = None if before is None else log.since(before)
        if before is None or deltas is None:
            self.snapshots += 1
            return log.snapshot()
        return _chunks(chain.from_iterable(delta.changes for delta in deltas), 0, before, log.version)

    def answered(self, expected: int | None, answer: bytes) -> None:
        """Take the answer to a chunk; ``expected`` is the version that the other node should have now, if known."""
        self._outstanding -= 1
        version = _VERSION.unpack(answer)[0] - 1 if len(answer) == _VERSION.size else -1
        if expected is not None and version < expected:
            self._resync = True
        elif version > self.known:
            self.known = version
            self._progressed()
        self.pump()

    def failed(self) -> None:
        """Take the failure of a chunk: its receiver is gone, or has a defect."""
        self._outstanding -= 1
        self._resync = True
        # Only then may all be sent again: see pump.
        if not self._outstanding and not self._closed:
            self._pump_later()


@frozen(slots=True)
class _ChunkToken:
    feed: RouteFeed
    expected: int | None

    def set(self, value: bytes) -> None:
        self.feed.answered(self.expected, value)

    def fail(self, error: Exception) -> None:
        self.feed.failed()


class RouteCopy:
    """The routes of another node."""

    __slots__ = ("_before", "_changes", "_flags", "_routes", "_version", "version")

    def __init__(self) -> None:
        self.version = -1
        """The version of the routes; -1 before there are any."""
        self._routes: dict[Key, RouteChange] = {}
        # Chunks without their last: flags, version before, version, changes.
        self._flags: int | None = None
        self._before = self._version = 0
        self._changes: list[tuple[RouteChange, bool]] = []

    def routes(self) -> Sequence[RouteChange]:
        """Return all routes."""
        return tuple(self._routes.values())

    @property
    def answer(self) -> bytes:
        """The answer to a chunk."""
        return _VERSION.pack(self.version + 1)

    @property
    def awaits_chunk(self) -> bool:
        """Whether there are chunks whose last one has not come."""
        return self._flags is not None

    def forget_chunks(self) -> None:
        """Forget chunks whose last one has not come: those that follow have no effect, so all routes come again."""
        self._flags = None
        self._changes = []

    def take(self, data: bytes) -> Changes | None:
        """Take a chunk; returns the routes that were added or replaced, and those removed, if it was the last one.

        Changes that do not follow the present version have no effect. Raises
        :class:`~kinmqtt_spi.mesh.frames.MalformedFrame`.
        """
        if len(data) < _HEAD.size:
            raise MalformedFrame(f"a chunk of routes of {len(data)} bytes")
        flags, before, version = _HEAD.unpack_from(data)
        if flags > FIRST | LAST | SNAPSHOT or version < before:
            raise MalformedFrame(f"a chunk of routes with the flags {flags}, from version {before} to {version}")
        changes = list(unpack_changes(data, _HEAD.size))
        if flags & FIRST:
            self._flags, self._before, self._version = flags & SNAPSHOT, before, version
            self._changes = changes
        elif (self._flags, self._before, self._version) == (flags & SNAPSHOT, before, version):
            self._changes += changes
        else:
            self.forget_chunks()
            return None
        if not flags & LAST:
            return None
        self._flags = None
        changes, self._changes = self._changes, []
        if not flags & SNAPSHOT and before != self.version:
            return None
        self.version = version
        return self._replace(changes) if flags & SNAPSHOT else self._apply(changes)

    def _apply(self, changes: Iterable[tuple[RouteChange, bool]]) -> Changes:
        last: dict[Key, tuple[RouteChange, bool]] = {}
        for route, removed in changes:
            last[route.key] = (route, removed)
        added, gone = [], []
        for key, (route, removed) in last.items():
            if not removed:
                self._routes[key] = route
                added.append(route)
            elif self._routes.pop(key, None) is not None:
                gone.append(route)
        return added, gone

    def _replace(self, changes: Iterable[tuple[RouteChange, bool]]) -> Changes:
        before, self._routes = self._routes, {route.key: route for route, removed in changes if not removed}
        added = [route for key, route in self._routes.items() if before.get(key) != route]
        return added, [route for key, route in before.items() if key not in self._routes]
