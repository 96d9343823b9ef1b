"""How many bytes connections hold of packets on their way in and out, and how many each may hold.

Both directions have a bound over all connections. A connection may always hold a small floor, and above that no more
than what is free at that moment: the more the others hold, the less. So one client alone may hold nearly half of the
bound, no number of clients fills it, and what is free is there for whoever comes next (dynamic thresholds, as in
switches that share memory among their ports; Choudhury and Hahne 1998). Where memory watermarks are set, what is left
below the highest counts as free, if that is less.

Inbound a connection above its share is not read from until there is capacity. Then nobody might ever be able to
finish a packet: so some may, whatever the others hold, for as long as their packets keep coming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from twisted.logger import Logger

from kinmqtt.settings import LimitSettings
from kinmqtt_spi.services.metric import Counter

log = Logger("kinmqtt.buffers")

FLOOR_BYTES: Final = 64 << 10
"""What a connection may hold in either direction, whatever the others hold. One that holds no more is never
disconnected for the sake of memory."""

ARRIVING_FLOOR_BYTES: Final = 4 << 10
"""The same inbound before the client is accepted: an ordinary CONNECT."""

ARRIVING_PART: Final = 4
"""Clients that are not accepted yet may together hold a quarter of the inbound bound."""

READ_BYTES: Final = 256 << 10
"""As much may come with one read: so much is set aside for each connection that is read from again."""

PROGRESS_BYTES: Final = 16 << 10
"""How much must come each second of a packet that may be finished whatever the others hold."""

SHARED_BYTES: Final = 16 << 10
"""A piece of output of this size or more is not copied for each connection, and counts once for all of them."""

MOST_AT_ONCE_BYTES: Final = 512 << 10
LEAST_AT_ONCE_BYTES: Final = 16 << 10
"""How much output is handed to one transport at a time: less, the less is free."""

UNLIMITED: Final = 1 << 62


class BufferOwner:
    """A connection, as the buffers know it: what it holds, and what can be done about that."""

    __slots__ = ("accepted", "handed_bytes", "inbound_bytes", "stalled")

    def __init__(self) -> None:
        self.accepted = False
        """Whether the client has its CONNACK, or had it."""
        self.inbound_bytes = 0
        """Bytes that have come and are not carried out: as much as is counted among those of all connections."""
        self.handed_bytes = 0
        """Bytes that the transport has, and its socket does not take yet."""
        self.stalled = False
        """Whether the packet that is arriving did not come when it alone might have."""

    @property
    def held_bytes(self) -> int:
        """What would be free if the connection ended."""
        raise NotImplementedError

    @property
    def may_go_on(self) -> bool:
        """Whether a packet is arriving that the broker would read on, if there were capacity."""
        raise NotImplementedError

    @property
    def missing_bytes(self) -> int:
        """How much is missing of the packet that is arriving."""
        raise NotImplementedError

    def wait_for_buffer(self) -> None:
        """Read nothing until there is capacity for more."""
        raise NotImplementedError

    def buffer_available(self) -> None:
        """Read on: there is capacity."""
        raise NotImplementedError

    def cut(self) -> None:
        """Disconnect at once, for the sake of what is held for the client."""
        raise NotImplementedError


class Buffers:
    """What all connections hold, and what one may hold."""

    __slots__ = (
        "_arriving_bound",
        "_call_soon",
        "_connections",
        "_cut_total",
        "_hard_bound",
        "_inbound_bound",
        "_largest_packet",
        "_on_growth",
        "_outbound_bound",
        "_pieces",
        "_released",
        "_scheduled",
        "allowance",
        "arriving",
        "at_once",
        "granted",
        "inbound",
        "inflight",
        "look_at",
        "outbound",
        "peak",
        "waiting",
    )

    def __init__(
        self,
        limits: LimitSettings,
        connections: Iterable[BufferOwner],
        call_soon: Callable[[Callable[[], object]], object],
        cut: Counter,
    ) -> None:
        """``connections`` are all that are open; ``cut`` counts those that are disconnected for what they hold."""
        self._connections = connections
        self._call_soon = call_soon
        self._cut_total = cut
        self._on_growth: Callable[[], object] = lambda: None
        self.inbound = 0
        """Bytes of packets that have not arrived in full, and of those that wait behind an answer."""
        self.arriving = 0
        """Those of clients that are not accepted yet, among them."""
        self.outbound = 0
        """Bytes that wait for sockets."""
        self.inflight = 0
        """Bytes of messages that are sent and not acknowledged; what is in flight to many counts once."""
        self.peak = 0
        """The most that was held in all since somebody set this anew."""
        self.allowance = UNLIMITED
        """How much may be held in all for memory to stay below the highest watermark."""
        self.look_at = UNLIMITED
        """When so much is held in all memory is to be looked at."""
        self.at_once = MOST_AT_ONCE_BYTES
        """How much output may be handed to one transport at a time."""
        self._pieces: dict[int, int] = {}
        """Large pieces of output by identity: by how many connections each is held."""
        self.waiting: dict[BufferOwner, None] = {}
        """Those that are not read from until there is capacity, in the order of their coming."""
        self.granted: dict[BufferOwner, int] = {}
        """Those that may finish a packet whatever the others hold, with what they held when that was looked at."""
        self._largest_packet = 0
        self._released = 0
        self._scheduled = False
        self.limit(limits)

    def limit(self, limits: LimitSettings) -> None:
        """Take other bounds."""
        self._inbound_bound = bound = limits.max_all_inbound_bytes
        self._largest_packet = limits.max_packet_bytes
        self._arriving_bound = bound // ARRIVING_PART
        # What a read brings is known when it is there. And a packet may always be finished.
        self._hard_bound = bound + bound // 2 + limits.max_packet_bytes
        self._outbound_bound = limits.max_all_outbound_bytes
        self._fit()

    def when_grown(self, call: Callable[[], object]) -> None:
        """Have ``call`` made when more is held than :attr:`look_at`; it sets that anew."""
        self._on_growth = call

    @property
    def total(self) -> int:
        """What is held in all."""
        return self.inbound + self.outbound + self.inflight

    def allow(self, allowance: int, look_at: int) -> None:
        """Memory has been looked at: how much may be held, and when it is to be looked at again."""
        self.allowance = allowance
        self.look_at = look_at
        self._fit()

    # Inbound

    def inbound_share(self, accepted: bool) -> int:
        """How much a connection may hold now before it is not read from."""
        free = min(self._inbound_bound - self.inbound, self.allowance - self.total)
        if accepted:
            return max(free, FLOOR_BYTES)
        return max(min(free, self._arriving_bound - self.arriving), ARRIVING_FLOOR_BYTES)

    def hold_inbound(self, more: int, accepted: bool) -> None:
        """A connection holds so much more than before, or less where it is below 0."""
        self.inbound += more
        if not accepted:
            self.arriving += more
        if more > 0:
            self._grown()
            if self.inbound > self._hard_bound:
                self._cut_inbound(self._connections, self.inbound - self._inbound_bound, FLOOR_BYTES)
            elif not accepted and self.arriving > self._arriving_bound + self._arriving_bound // 2:
                arriving = [connection for connection in self._connections if not connection.accepted]
                self._cut_inbound(arriving, self.arriving - self._arriving_bound, ARRIVING_FLOOR_BYTES)
        else:
            self._admit_later(-more)

    def accept(self, held: int) -> None:
        """A client is accepted that holds so much."""
        self.arriving -= held

    def wait(self, connection: BufferOwner) -> None:
        """A connection that is not read from waits for capacity."""
        self.waiting[connection] = None
        self._admit_later(FLOOR_BYTES)

    def leave(self, connection: BufferOwner) -> None:
        """A connection waits no longer, and needs no grant."""
        self.waiting.pop(connection, None)
        self.needs_no_grant(connection)

    def needs_no_grant(self, connection: BufferOwner) -> None:
        """A packet is complete, or given up: another may be finished."""
        if connection in self.granted:
            del self.granted[connection]
            self._admit_later(FLOOR_BYTES)

    async def look(self, now: float) -> None:
        """Once a second: take the grant from packets that do not come, and read again from whoever fits."""
        for connection, before in list(self.granted.items()):
            come = connection.inbound_bytes - before
            if come >= PROGRESS_BYTES and connection.may_go_on:
                self.granted[connection] = connection.inbound_bytes
                continue
            del self.granted[connection]
            connection.stalled = connection.may_go_on
            connection.wait_for_buffer()
        if self.waiting:
            self._admit()

    def _admit_later(self, released: int) -> None:
        if self.waiting:
            self._released += released
            if self._released >= FLOOR_BYTES and not self._scheduled:
                self._scheduled = True
                self._call_soon(self._admit)

    def _admit(self) -> None:
        """Have those be read from again for whom there is capacity, in the order of their coming."""
        self._scheduled = False
        self._released = 0
        set_aside = 0
        for connection in list(self.waiting):
            accepted = connection.accepted
            floor = FLOOR_BYTES if accepted else ARRIVING_FLOOR_BYTES
            if connection.inbound_bytes <= max(self.inbound_share(accepted) - set_aside, floor):
                del self.waiting[connection]
                set_aside += READ_BYTES
                connection.buffer_available()
        self._grant()

    def _grant(self) -> None:
        """Let packets be finished whatever the others hold: those with the least missing first, and before those that
        were let before and did not come; of all together no more is missing than the largest packet has.
        """
        missing = sum(connection.missing_bytes for connection in self.granted)
        while True:
            candidates = [each for each in self.waiting if each.accepted and each.may_go_on]
            if not candidates:
                return
            chosen = min(candidates, key=_missing)
            missing += chosen.missing_bytes
            if self.granted and missing > self._largest_packet:
                return
            del self.waiting[chosen]
            self.granted[chosen] = chosen.inbound_bytes
            chosen.buffer_available()

    # Outbound

    def outbound_share(self) -> int:
        """How much may wait for one client's socket before it is congested, or be in flight to it."""
        free = min(self._outbound_bound - self.outbound - self.inflight, self.allowance - self.total)
        return max(free, FLOOR_BYTES)

    def hold_outbound(self, more: int) -> None:
        """So much more waits for sockets, or less where it is below 0."""
        self.outbound += more
        self._fit()
        if more > 0:
            self._grown()

    def hold_inflight(self, more: int) -> None:
        """So much more is in flight, or less where it is below 0."""
        self.inflight += more
        if more >= SHARED_BYTES:
            self._grown()  # Small ones can't grow faster than what comes in, at which memory is looked at, too.

    def hold_piece(self, piece: bytes) -> None:
        """A piece of output waits for a socket; a large one counts once, for however many it waits."""
        if len(piece) >= SHARED_BYTES:
            holders = self._pieces.get(id(piece), 0)
            self._pieces[id(piece)] = holders + 1
            if holders:
                return
        self.hold_outbound(len(piece))

    def release_piece(self, piece: bytes) -> None:
        """A piece of output waits no longer for one of the sockets."""
        if len(piece) >= SHARED_BYTES:
            holders = self._pieces[id(piece)] - 1
            if holders:
                self._pieces[id(piece)] = holders
                return
            del self._pieces[id(piece)]
        self.hold_outbound(-len(piece))

    # Both

    def cut(self, excess: int) -> int:
        """Disconnect those that hold most, until so much less is held; answers how much less that is."""
        holders = [each for each in self._connections if each.held_bytes > FLOOR_BYTES]
        holders.sort(key=_held, reverse=True)
        before = self.total
        number = handed = released = 0
        for connection in holders:
            if released >= excess:
                break
            # What the transport has counts until it has closed.
            handed += connection.handed_bytes
            connection.cut()
            number += 1
            released = before - self.total + handed
        self._log_cut(number, released)
        return released

    def _cut_inbound(self, connections: Iterable[BufferOwner], excess: int, floor: int) -> None:
        """The same where reads have brought more than may be held, and only of what has come in.

        Those whose packets did not come go first; those that are just finishing one stay.
        """
        holders = [each for each in connections if each.inbound_bytes > floor and each not in self.granted]
        holders.sort(key=_held_inbound, reverse=True)
        before = self.inbound
        number = released = 0
        for connection in holders:
            if released >= excess:
                break
            connection.cut()
            number += 1
            released = before - self.inbound
        self._log_cut(number, released)

    def _log_cut(self, number: int, released: int) -> None:
        if number:
            self._cut_total.value += number
            log.warn(
                "{number} connections that held most are disconnected; they held {released} bytes",
                number=number,
                released=released,
            )

    def _grown(self) -> None:
        total = self.inbound + self.outbound + self.inflight
        if total > self.peak:
            self.peak = total
        if total > self.look_at:
            self._on_growth()

    def _fit(self) -> None:
        """What may be handed to one transport at a time."""
        self.at_once = max(LEAST_AT_ONCE_BYTES, min(MOST_AT_ONCE_BYTES, self.outbound_share() // 8))


def _held(connection: BufferOwner) -> int:
    return connection.held_bytes


def _missing(connection: BufferOwner) -> tuple[bool, int]:
    return connection.stalled, connection.missing_bytes


def _held_inbound(connection: BufferOwner) -> tuple[bool, int]:
    return connection.stalled, connection.inbound_bytes
