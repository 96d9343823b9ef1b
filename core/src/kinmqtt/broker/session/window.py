"""What is in flight to one client: bounded by its receive maximum, and in bytes.

A client that reads everything and acknowledges nothing would else make the broker hold a thousand of the largest
messages for it. A message that is in flight to many clients is there once, and counts once for all of them.
"""

from __future__ import annotations

from kinmqtt.broker.buffers import FLOOR_BYTES, Buffers
from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.message.publication import Publication
from kinmqtt.mqtt.qos_state import Outgoing


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
                self._enters(flight.publication)

    def detach(self) -> None:
        """The client is away: what was in flight to it counts among what waits for it."""
        if self._counts:
            for flight in self.flights.values():
                self._leaves(flight.publication)
            self._counts = False

    @property
    def has_capacity(self) -> bool:
        """Whether another message may be sent now (MQTT-4.9.0-2)."""
        if len(self.flights) >= self.window:
            return False
        size = self.size_bytes
        return size < FLOOR_BYTES or size < self._limit_bytes

    def capacity_for(self, average_bytes: int) -> int:
        """How many messages of about that size may be sent now; one at least, where there is room at all."""
        if not self.has_capacity:
            return 0
        left = max(FLOOR_BYTES, self._limit_bytes) - self.size_bytes
        return min(self.window - len(self.flights), 1 + left // (average_bytes + 1))

    def replace(self, flight: Delivery, publication: Publication) -> None:
        """Something else stands for the message of a delivery in flight: it counts from here on."""
        self.ended(flight)
        flight.publication = publication
        self.began(flight)

    def began(self, flight: Delivery) -> None:
        """Count a message in flight."""
        publication = flight.publication
        self.size_bytes += publication.packet_bytes
        if self._counts:
            self._enters(publication)

    def ended(self, flight: Delivery) -> None:
        """Count it no longer."""
        publication = flight.publication
        self.size_bytes -= publication.packet_bytes
        if self._counts:
            self._leaves(publication)

    @property
    def _limit_bytes(self) -> int:
        return min(self.most_bytes, self._buffers.outbound_share())

    def _enters(self, publication: Publication) -> None:
        """A message is in flight to one client more: the first of them counts it."""
        others = publication.in_flight
        publication.in_flight = others + 1
        if not others:
            self._buffers.hold_inflight(publication.packet_bytes)

    def _leaves(self, publication: Publication) -> None:
        """A message is in flight to one client less."""
        others = publication.in_flight - 1
        publication.in_flight = others
        if not others:
            self._buffers.hold_inflight(-publication.packet_bytes)
