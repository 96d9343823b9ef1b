"""The inflight window of one client: bounded by its receive maximum, and in bytes.

Without the bound in bytes, a client that acknowledges nothing would make the broker hold a thousand of the largest
messages. A message in flight to many clients is in memory once, and counts once for all of them.
"""

from __future__ import annotations

from kinmqtt.broker.buffers import FLOOR_BYTES, Buffers
from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.message.publication import Publication
from kinmqtt.mqtt.qos_state import Outgoing


class Window(Outgoing[Delivery]):
    """The messages in flight, with their size in bytes."""

    __slots__ = ("_buffers", "_is_attached", "most_bytes", "size_bytes")

    def __init__(self, buffers: Buffers, window: int, most_bytes: int) -> None:
        """At most ``most_bytes`` may be in flight, exceeded by at most one message."""
        super().__init__(window)
        self._buffers = buffers
        self._is_attached = False
        self.most_bytes = most_bytes
        self.size_bytes = 0
        """The size of the packets of all messages in flight."""

    def attach(self, window: int, most_bytes: int) -> None:
        """Set the limits of a new connection; messages in flight count as held by connections."""
        self.window = window
        self.most_bytes = most_bytes
        if not self._is_attached:
            self._is_attached = True
            for flight in self.flights.values():
                self._add_client(flight.publication)

    def detach(self) -> None:
        """Stop counting messages in flight as held by connections: they count as queued."""
        if self._is_attached:
            for flight in self.flights.values():
                self._remove_client(flight.publication)
            self._is_attached = False

    @property
    def has_capacity(self) -> bool:
        """Whether another message may be sent now (MQTT-4.9.0-2)."""
        if len(self.flights) >= self.window:
            return False
        size = self.size_bytes
        return size < FLOOR_BYTES or size < self._limit_bytes

    def capacity_for(self, average_bytes: int) -> int:
        """Return how many messages of that average size may be sent now; at least one if there is capacity."""
        if not self.has_capacity:
            return 0
        left = max(FLOOR_BYTES, self._limit_bytes) - self.size_bytes
        return min(self.window - len(self.flights), 1 + left // (average_bytes + 1))

    def replace(self, flight: Delivery, publication: Publication) -> None:
        """Replace the message of a delivery in flight; from now on its replacement is counted."""
        self.ended(flight)
        flight.publication = publication
        self.began(flight)

    def began(self, flight: Delivery) -> None:
        """Count a message in flight."""
        publication = flight.publication
        self.size_bytes += publication.packet_bytes
        if self._is_attached:
            self._add_client(publication)

    def ended(self, flight: Delivery) -> None:
        """Uncount a message that is no longer in flight."""
        publication = flight.publication
        self.size_bytes -= publication.packet_bytes
        if self._is_attached:
            self._remove_client(publication)

    @property
    def _limit_bytes(self) -> int:
        return min(self.most_bytes, self._buffers.outbound_share())

    def _add_client(self, publication: Publication) -> None:
        """Count one more client of a message; the first client adds its bytes."""
        others = publication.in_flight
        publication.in_flight = others + 1
        if not others:
            self._buffers.hold_inflight(publication.packet_bytes)

    def _remove_client(self, publication: Publication) -> None:
        """Count one client less of a message; the last client subtracts its bytes."""
        others = publication.in_flight - 1
        publication.in_flight = others
        if not others:
            self._buffers.hold_inflight(-publication.packet_bytes)
