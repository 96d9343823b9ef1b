"""The output of one connection: sent in one write a turn, or buffered and sent in pieces.

If the transport is ready, a turn's packets go to it in one write. Otherwise, or if there are very many, they wait
uncopied: a message to many clients is stored once. Waiting bytes are counted here and in the transport. The client is
congested when they exceed its limit or its share of the limit for all connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.broker.buffers import FLOOR_BYTES
from kinmqtt.broker.connection.link import Link
from kinmqtt.broker.connection.unsent import Unsent, size_of, without_qos_0
from kinmqtt.broker.turn.ports import Peer
from kinmqtt.broker.turn.turn_buffer import TurnBuffer

if TYPE_CHECKING:
    from kinmqtt.broker.services import Services


class Output(Peer):
    """The output that waits for one client's socket."""

    __slots__ = ("_continues_next_turn", "_unsent", "limits", "link", "runtime", "services", "waiting_bytes")

    def __init__(self, services: Services, link: Link) -> None:
        super().__init__()
        self.services = services
        self.runtime = services.runtime
        self.link = link
        self.limits = link.listener.limits
        self.waiting_bytes = 0
        """Bytes waiting for the socket, here and in the transport."""
        self._unsent: Unsent | None = None
        self._continues_next_turn = False
        """Whether the socket is ready for more, and sending continues in the next turn."""

    def _begin_congestion(self) -> None:
        """Handle that too much output waits for the client."""
        raise NotImplementedError

    def _output_sent(self) -> None:
        """Handle that less output waits than before."""
        raise NotImplementedError

    def _send_unsent_later(self) -> None:
        """Schedule :meth:`send_out` for the next turn, even without new packets."""
        raise NotImplementedError

    def _is_ready(self) -> bool:
        """Read ``link.ready`` again: mypy and mypyc assume that an attribute does not change after a check."""
        return self.link.ready

    @property
    def _outbound_limit(self) -> int:
        """The number of waiting bytes above which the client is congested."""
        return min(self.limits.outbound_buffer_bytes, self.runtime.buffers.outbound_share())

    def send_out(self, packets: list[bytes]) -> None:
        """Send a turn's packets, or buffer them while the transport is busy."""
        if self._continues_next_turn:
            self._continues_next_turn = False
            self._send_unsent()
            self._check_congestion()
            self._output_sent()
        if not packets:
            return  # They were flushed before the turn's end.
        runtime = self.runtime
        is_ready = self.link.ready and not self._unsent
        at_once = self.runtime.buffers.at_once
        # Estimated from the first and last packet: looking at each costs too much.
        looks_small = len(packets) * (len(packets[0]) + len(packets[-1])) <= at_once
        if looks_small and is_ready and not runtime.turn.has_large:
            data = b"".join(packets)
            packets.clear()
            size = len(data)
        else:
            # Joining would copy large pieces once for each connection.
            data = b""
            size = size_of(packets)
        runtime.statistics.bytes_sent.value += size
        if not data and is_ready and size <= at_once:
            data = b"".join(packets)
            packets.clear()
        if not data:
            self._send_later(packets, size)
        elif size > at_once:
            self._send_later([data], size)
        else:
            self.link.write(data)
            if not self._is_ready():
                self._count_handed(size)
                self._check_congestion()

    def _send_later(self, packets: list[bytes], size: int) -> None:
        """Buffer a turn's packets, and send as many as the socket takes now; above the limit, drop QoS 0."""
        unsent = self._unsent
        if unsent is None:
            self._unsent = unsent = Unsent(self.runtime.buffers)
        if size <= FLOOR_BYTES or self.link.ready or self.waiting_bytes + size <= self._outbound_limit:
            unsent.add(packets)
            self.waiting_bytes += size
            packets.clear()
            self._send_unsent()
            self._check_congestion()
            return
        # A single turn must not exceed the limit by much either.
        kept, dropped = without_qos_0(packets)
        kept_size = size_of(kept)
        statistics = self.runtime.statistics
        statistics.dropped["outbound_buffer_full"].value += dropped
        statistics.messages_sent.value -= dropped
        statistics.bytes_sent.value -= size - kept_size
        unsent.add(kept)
        self.waiting_bytes += kept_size
        packets.clear()
        if not self.congested and not self.is_closed():
            self._begin_congestion()

    def _send_unsent(self) -> None:
        """Write waiting output in pieces while the socket is ready and the slice lasts."""
        unsent = self._unsent
        link = self.link
        runtime = self.runtime
        while unsent and link.ready:
            if self._continues_next_turn:
                return
            data = unsent.take(self.runtime.buffers.at_once)
            self.waiting_bytes -= len(data)
            link.write(data)
            if not self._is_ready():
                self._count_handed(len(data))
            elif unsent and runtime.slices.is_over():
                # Continue in the next turn, after connections that were sent nothing in this one.
                self._continues_next_turn = True
                self._send_unsent_later()

    def _send_all_unsent(self) -> None:
        """Write all waiting output although the socket is busy, because the connection is about to close.

        It stays counted here, because the transport holds the same pieces until the connection is gone.
        """
        self._continues_next_turn = False
        if self._unsent:
            for piece in self._unsent.rest():
                self.link.write(piece)

    def _forget_unsent(self) -> None:
        """Discard the waiting output that the transport does not have."""
        if self._unsent is not None:
            self._unsent.clear()
        self.waiting_bytes = self.handed_bytes

    def _count_handed(self, size: int) -> None:
        """Count bytes that the transport buffers because its socket is busy."""
        self.handed_bytes += size
        self.waiting_bytes += size
        self.runtime.buffers.hold_outbound(size)

    def _release_handed(self) -> None:
        """Release the bytes that the transport buffered: they are sent, or the socket is gone."""
        handed, self.handed_bytes = self.handed_bytes, 0
        if handed:
            self.waiting_bytes -= handed
            self.runtime.buffers.hold_outbound(-handed)

    def _check_congestion(self) -> None:
        # Output deferred to the next turn waits for the broker, not for the client.
        is_slow = self.waiting_bytes > self._outbound_limit and not self._continues_next_turn
        if is_slow and not self.congested and not self.is_closed():
            self._begin_congestion()


class ConnectionBuffer(TurnBuffer):
    """The buffer of a connection."""

    __slots__ = ("connection",)

    def __init__(self, connection: Output) -> None:
        super().__init__()
        self.connection = connection

    @property
    def name(self) -> str:
        """The client's name, for log lines."""
        return self.connection.name

    def flush(self) -> None:
        """Send the turn's packets; discard them if the connection was closed meanwhile."""
        connection = self.connection
        if connection.turn_buffer is self:
            connection.send_out(self.packets)
