"""What is in flight to one client: bounded by its receive maximum, and in bytes.

A client that reads everything and acknowledges nothing would else make the broker hold a thousand of the largest
messages for it. A message that is in flight to many clients is there once, and counts once for all of them.
"""

from __future__ import annotations

from kinmqtt.broker.buffers import FLOOR_BYTES, Buffers
from kinmqtt.broker.delivery import Delivery
from kinmqtt.broker.publication import Publication
from kinmqtt.mqtt.packets import PacketType
from kinmqtt.mqtt.session import Effect, Outgoing


class Window(Outgoing[Delivery]):
    """Messages in flight, with their bytes."""

    __slots__ = ("_buffers", "_counts", "most_bytes", "size_bytes")

    def __init__(self, buffers: Buffers, window: int, most_bytes: int) -> None:
        """``most_bytes`` may be in flight, and the rest of a message that goes beyond."""
        super().__init__(window)
        self._buffers = buffers
        self._counts = False
        self.most_bytes = most_bytes
        self.size_bytes = 0
        """Of the packets of all messages in flight."""

    def attach(self, window: int, most_bytes: int) -> None:
        """The client is there: what is in flight to it counts among what connections hold."""
        self.window = window
        self.most_bytes = most_bytes
        if not self._counts:
            self._counts = True
            for flight in self.flights.values():
                self._count(flight, 1)

    def detach(self) -> None:
        """The client is away: what was in flight to it counts among what waits for it."""
        if self._counts:
            for flight in self.flights.values():
                self._count(flight, -1)
            self._counts = False

    @property
    def has_room(self) -> bool:
        """Whether another message may be sent now (MQTT-4.9.0-2)."""
        if len(self.flights) >= self.window:
            return False
        size = self.size_bytes
        return size < FLOOR_BYTES or size < self._limit_bytes

    def room_for(self, average_bytes: int) -> int:
        """How many messages of about that size may be sent now; one at least, where there is room at all."""
        if not self.has_room:
            return 0
        left = max(FLOOR_BYTES, self._limit_bytes) - self.size_bytes
        return min(self.window - len(self.flights), 1 + left // (average_bytes + 1))

    def assign(self, flight: Delivery) -> int:
        """See :meth:`Outgoing.assign`."""
        packet_id = super().assign(flight)
        self._holds(flight)
        return packet_id

    def restore(self, packet_id: int, flight: Delivery) -> None:
        """See :meth:`Outgoing.restore`."""
        self.forget(packet_id)
        super().restore(packet_id, flight)
        self._holds(flight)

    def clear(self) -> None:
        """See :meth:`Outgoing.clear`."""
        for flight in self.flights.values():
            self._releases(flight)
        super().clear()

    def acknowledge(self, packet_id: int, packet_type: PacketType, reason: int) -> tuple[Delivery | None, Effect]:
        """See :meth:`Outgoing.acknowledge`."""
        flight, effect = super().acknowledge(packet_id, packet_type, reason)
        if flight is not None and (effect is Effect.COMPLETE or effect is Effect.REFUSED):
            self._releases(flight)
        return flight, effect

    def forget(self, packet_id: int) -> None:
        """See :meth:`Outgoing.forget`."""
        flight = self.flights.get(packet_id)
        if flight is not None:
            self._releases(flight)
            super().forget(packet_id)

    def replace(self, flight: Delivery, publication: Publication) -> None:
        """Something else stands for the message of a delivery in flight: it counts from here on."""
        self._releases(flight)
        flight.publication = publication
        self._holds(flight)

    @property
    def _limit_bytes(self) -> int:
        return min(self.most_bytes, self._buffers.outbound_share())

    def _holds(self, flight: Delivery) -> None:
        self.size_bytes += flight.publication.packet_bytes
        if self._counts:
            self._count(flight, 1)

    def _releases(self, flight: Delivery) -> None:
        self.size_bytes -= flight.publication.packet_bytes
        if self._counts:
            self._count(flight, -1)

    def _count(self, flight: Delivery, by: int) -> None:
        """Count a message where it is the first that is in flight, or the last."""
        publication = flight.publication
        before = publication.in_flight
        publication.in_flight = after = before + by
        if not before or not after:
            self._buffers.hold_inflight(by * publication.packet_bytes)
