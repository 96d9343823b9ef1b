"""Counts the bytes that connections hold of inbound and outbound packets, and limits what each may hold.

Each direction has a bound over all connections. A connection may always hold a small floor; above it, at most as much
as is free at that moment. So one client alone may hold nearly half of the bound, no number of clients fills it, and
the next client finds free capacity (dynamic thresholds, as in switches that share memory among their ports; Choudhury
and Hahne 1998). With memory watermarks, the memory left below the highest counts as free, if that is less.

A connection above its inbound share is not read from until there is capacity. So that packets can still be completed,
some connections get a grant: they are read from whatever the others hold, as long as their packets progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from twisted.logger import Logger

from kinmqtt.settings import LimitSettings
from kinmqtt_spi.services.metric import Counter

log = Logger("kinmqtt.buffers")

FLOOR_BYTES: Final = 64 << 10
"""The bytes that a connection may always hold in either direction. A connection that holds no more is never
disconnected to free memory."""

ARRIVING_FLOOR_BYTES: Final = 4 << 10
"""The inbound floor of a client that is not accepted yet: enough for an ordinary CONNECT."""

ARRIVING_PART: Final = 4
"""Clients that are not accepted yet may together hold the inbound bound divided by this."""

READ_BYTES: Final = 256 << 10
"""The most bytes of one read; as much is reserved for each connection that is read from again."""

PROGRESS_BYTES: Final = 16 << 10
"""The bytes a second that a connection with a grant must receive to retain it."""

SHARED_BYTES: Final = 16 << 10
"""A piece of output of this size or more is not copied for each connection, and counts once for all of them."""

MOST_AT_ONCE_BYTES: Final = 512 << 10
LEAST_AT_ONCE_BYTES: Final = 16 << 10
"""Bounds of the output passed to one transport at a time: less if little is free."""

UNLIMITED: Final = 1 << 62


class BufferOwner:
    """The part of a connection that the buffers use: what it holds, and how to pause or disconnect it."""

    __slots__ = ("accepted", "handed_bytes", "inbound_bytes", "stalled")

    def __init__(self) -> None:
        self.accepted = False
        """Whether the client has been sent CONNACK."""
        self.inbound_bytes = 0
        """Bytes received and not processed yet, as counted in the total."""
        self.handed_bytes = 0
        """Bytes that the transport has not written to its socket yet."""
        self.stalled = False
        """Whether the current packet made no progress while it had a grant."""

    @property
    def held_bytes(self) -> int:
        """The bytes that would be freed if the connection ended."""
        raise NotImplementedError

    @property
    def may_go_on(self) -> bool:
        """Whether the connection has an incomplete packet and only waits for capacity."""
        raise NotImplementedError

    @property
    def missing_bytes(self) -> int:
        """The bytes missing from the incomplete packet."""
        raise NotImplementedError

    def wait_for_buffer(self) -> None:
        """Pause reading until there is capacity."""
        raise NotImplementedError

    def buffer_available(self) -> None:
        """Resume reading: there is capacity."""
        raise NotImplementedError

    def cut(self) -> None:
        """Disconnect at once, to free what the connection holds."""
        raise NotImplementedError


class Buffers:
    """The bytes that all connections hold, and the share of each."""

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
        """``connections`` are all open ones; ``cut`` counts those disconnected to free memory."""
        self._connections = connections
        self._call_soon = call_soon
        self._cut_total = cut
        self._on_growth: Callable[[], object] = lambda: None
        self.inbound = 0
        """Bytes of incomplete packets, and of packets that wait for an earlier one."""
        self.arriving = 0
        """The part of ``inbound`` that clients not accepted yet hold."""
        self.outbound = 0
        """Bytes that wait for sockets."""
        self.inflight = 0
        """Bytes of messages sent and not acknowledged; a message in flight to many clients counts once."""
        self.peak = 0
        """The highest total since this was last set."""
        self.allowance = UNLIMITED
        """The highest total that leaves memory below the highest watermark."""
        self.look_at = UNLIMITED
        """The total at which to measure memory."""
        self.at_once = MOST_AT_ONCE_BYTES
        """The most output passed to one transport at a time."""
        self._pieces: dict[int, int] = {}
        """Large pieces of output: the number of connections that hold each, by identity."""
        self.waiting: dict[BufferOwner, None] = {}
        """Connections that are not read from until there is capacity, in order of arrival."""
        self.granted: dict[BufferOwner, int] = {}
        """Connections with a grant, and what they held at the last check."""
        self._largest_packet = 0
        self._released = 0
        self._scheduled = False
        self.limit(limits)

    def limit(self, limits: LimitSettings) -> None:
        """Set the bounds from ``limits``."""
        self._inbound_bound = bound = limits.max_all_inbound_bytes
        self._largest_packet = limits.max_packet_bytes
        self._arriving_bound = bound // ARRIVING_PART
        # The size of a read is known only afterwards, and a packet with a grant may exceed the bound.
        self._hard_bound = bound + bound // 2 + limits.max_packet_bytes
        self._outbound_bound = limits.max_all_outbound_bytes
        self._fit()

    def when_grown(self, call: Callable[[], object]) -> None:
        """Set the ``call`` to make when the total exceeds :attr:`look_at`, which the call sets again."""
        self._on_growth = call

    @property
    def total(self) -> int:
        """All bytes held."""
        return self.inbound + self.outbound + self.inflight

    def allow(self, allowance: int, look_at: int) -> None:
        """Set how much may be held, and the total at which to measure memory again, after a measurement."""
        self.allowance = allowance
        self.look_at = look_at
        self._fit()

    # Inbound

    def inbound_share(self, accepted: bool) -> int:
        """Return how much a connection may hold now; above that it is not read from."""
        free = min(self._inbound_bound - self.inbound, self.allowance - self.total)
        if accepted:
            return max(free, FLOOR_BYTES)
        return max(min(free, self._arriving_bound - self.arriving), ARRIVING_FLOOR_BYTES)

    def hold_inbound(self, more: int, accepted: bool) -> None:
        """Count ``more`` bytes held by a connection, or fewer where it is negative."""
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
        """Count a client as accepted that holds ``held`` bytes."""
        self.arriving -= held

    def wait(self, connection: BufferOwner) -> None:
        """Add a paused connection to those that wait for capacity."""
        self.waiting[connection] = None
        self._admit_later(FLOOR_BYTES)

    def leave(self, connection: BufferOwner) -> None:
        """Remove a connection from those that wait, and take its grant."""
        self.waiting.pop(connection, None)
        self.needs_no_grant(connection)

    def needs_no_grant(self, connection: BufferOwner) -> None:
        """Take the grant of a connection whose packet is complete or discarded: another may get one."""
        if connection in self.granted:
            del self.granted[connection]
            self._admit_later(FLOOR_BYTES)

    async def look(self, now: float) -> None:
        """Take grants from packets without progress, and resume reading where there is capacity; once a second."""
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
        """Resume reading from waiting connections, in order, while there is capacity."""
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
        """Grant waiting connections to complete their packets, whatever the others hold.

        Those with the least missing come first, stalled ones last. All grants together are for no more missing bytes
        than the largest packet has.
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
        """Return the bytes that may wait for a client's socket or be in flight to it; above that it is congested."""
        free = min(self._outbound_bound - self.outbound - self.inflight, self.allowance - self.total)
        return max(free, FLOOR_BYTES)

    def hold_outbound(self, more: int) -> None:
        """Count ``more`` bytes that wait for sockets, or fewer where it is negative."""
        self.outbound += more
        self._fit()
        if more > 0:
            self._grown()

    def hold_inflight(self, more: int) -> None:
        """Count ``more`` bytes in flight, or fewer where it is negative."""
        self.inflight += more
        if more >= SHARED_BYTES:
            self._grown()  # Small messages grow no faster than input, which also triggers a measurement.

    def hold_piece(self, piece: bytes) -> None:
        """Count a piece of output that waits for a socket; a large one counts once for all sockets."""
        if len(piece) >= SHARED_BYTES:
            holders = self._pieces.get(id(piece), 0)
            self._pieces[id(piece)] = holders + 1
            if holders:
                return
        self.hold_outbound(len(piece))

    def release_piece(self, piece: bytes) -> None:
        """Uncount a piece of output for one socket."""
        if len(piece) >= SHARED_BYTES:
            holders = self._pieces[id(piece)] - 1
            if holders:
                self._pieces[id(piece)] = holders
                return
            del self._pieces[id(piece)]
        self.hold_outbound(-len(piece))

    # Both

    def cut(self, excess: int) -> int:
        """Disconnect the connections that hold most until ``excess`` bytes are freed; returns the bytes freed."""
        holders = [each for each in self._connections if each.held_bytes > FLOOR_BYTES]
        holders.sort(key=_held, reverse=True)
        before = self.total
        number = handed = released = 0
        for connection in holders:
            if released >= excess:
                break
            # Bytes in the transport count as held until it has closed.
            handed += connection.handed_bytes
            connection.cut()
            number += 1
            released = before - self.total + handed
        self._log_cut(number, released)
        return released

    def _cut_inbound(self, connections: Iterable[BufferOwner], excess: int, floor: int) -> None:
        """Disconnect the connections that hold most inbound bytes until ``excess`` bytes are freed.

        Those with stalled packets are first; those with a grant are exempt.
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
                "disconnected the {number} connections that held most; they held {released} bytes",
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
        """Set how much output is passed to one transport at a time."""
        self.at_once = max(LEAST_AT_ONCE_BYTES, min(MOST_AT_ONCE_BYTES, self.outbound_share() // 8))


def _held(connection: BufferOwner) -> int:
    return connection.held_bytes


def _missing(connection: BufferOwner) -> tuple[bool, int]:
    return connection.stalled, connection.missing_bytes


def _held_inbound(connection: BufferOwner) -> tuple[bool, int]:
    return connection.stalled, connection.inbound_bytes
