"""The output of one connection: what its socket does not take waits, is counted, and goes out a little at a time.

A turn's packets go to the transport in one write where it takes them. Where it does not, or where there are very
many, they wait as they are: a message to many is not copied for each. What waits counts here and in the transport,
and the client is congested when that is more than its limit, or more than is free of what all connections may hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.broker.buffers import FLOOR_BYTES
from kinmqtt.broker.connection.link import Link
from kinmqtt.broker.connection.unsent import Unsent, size_of, without_qos_0
from kinmqtt.broker.turn.outbox import Outbox
from kinmqtt.broker.turn.ports import Peer

if TYPE_CHECKING:
    from kinmqtt.broker.services import Services


class Output(Peer):
    """What waits for one client's socket."""

    __slots__ = ("_continues_next_turn", "_unsent", "limits", "link", "runtime", "services", "waiting_bytes")

    def __init__(self, services: Services, link: Link) -> None:
        super().__init__()
        self.services = services
        self.runtime = services.runtime
        self.link = link
        self.limits = link.listener.limits
        self.waiting_bytes = 0
        """Bytes that wait for the socket, here and in the transport."""
        self._unsent: Unsent | None = None
        self._continues_next_turn = False
        """Whether the socket takes more of what waits, and is handed it in the next turn."""

    def _begin_congestion(self) -> None:
        """The client takes too little."""
        raise NotImplementedError

    def _output_sent(self) -> None:
        """Less waits than before: whoever waited for that may go on."""
        raise NotImplementedError

    def _send_unsent_later(self) -> None:
        """Have :meth:`send_out` called in the next turn, whatever that brings."""
        raise NotImplementedError

    def _is_ready(self) -> bool:
        """Asked anew: a type checker, and the compiler with it, believes what it was told of an attribute."""
        return self.link.ready

    @property
    def _outbound_limit(self) -> int:
        """How much may wait before the client counts as one that takes too little."""
        return min(self.limits.outbound_buffer_bytes, self.runtime.buffers.outbound_share())

    def send_out(self, packets: list[bytes]) -> None:
        """Hand a turn's packets to the transport, or keep them while it is busy."""
        if self._continues_next_turn:
            self._continues_next_turn = False
            self._send_unsent()
            self._check_congestion()
            self._output_sent()
        if not packets:
            return  # It went out before the turn's end.
        runtime = self.runtime
        is_ready = self.link.ready and not self._unsent
        at_once = self.runtime.buffers.at_once
        # The sizes of the first and the last tell those of the others, as a rule: to look at each costs a good deal.
        looks_small = len(packets) * (len(packets[0]) + len(packets[-1])) <= at_once
        if looks_small and is_ready and not runtime.turn.has_large:
            data = b"".join(packets)
            packets.clear()
            size = len(data)
        else:
            # Joined for each of the connections they go to, large pieces would be there as many times.
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
        """Have a turn's packets wait for the socket, and send as many of them as it takes now."""
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
        # What one turn brings must not go far beyond the limit either.
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
        """Hand on what waits, a little at a time, for as long as the socket takes it and there is time."""
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
                # In the next turn, behind those that have been sent nothing in this one.
                self._continues_next_turn = True
                self._send_unsent_later()

    def _send_all_unsent(self) -> None:
        """Hand on all that waits, though the socket does not take it: the connection is about to be closed.

        It goes on to count here: the transport has the same pieces until it is gone.
        """
        self._continues_next_turn = False
        if self._unsent:
            for piece in self._unsent.rest():
                self.link.write(piece)

    def _forget_unsent(self) -> None:
        """Forget what waits and the transport does not have."""
        if self._unsent is not None:
            self._unsent.clear()
        self.waiting_bytes = self.handed_bytes

    def _count_handed(self, size: int) -> None:
        """The transport has bytes that its socket does not take yet."""
        self.handed_bytes += size
        self.waiting_bytes += size
        self.runtime.buffers.hold_outbound(size)

    def _release_handed(self) -> None:
        """The socket has taken what the transport had, or is gone."""
        handed, self.handed_bytes = self.handed_bytes, 0
        if handed:
            self.waiting_bytes -= handed
            self.runtime.buffers.hold_outbound(-handed)

    def _check_congestion(self) -> None:
        # What the socket would take waits for its turn, not for the client.
        is_slow = self.waiting_bytes > self._outbound_limit and not self._continues_next_turn
        if is_slow and not self.congested and not self.is_closed():
            self._begin_congestion()


class ConnectionOutbox(Outbox):
    """What goes out on a connection."""

    __slots__ = ("connection",)

    def __init__(self, connection: Output) -> None:
        super().__init__()
        self.connection = connection

    @property
    def name(self) -> str:
        """The client's."""
        return self.connection.name

    def flush(self) -> None:
        """Send the turn's packets; nobody gets them where the connection has been closed meanwhile."""
        connection = self.connection
        if connection.outbox is self:
            connection.send_out(self.packets)
