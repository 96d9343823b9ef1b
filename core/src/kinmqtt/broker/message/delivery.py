"""One message on its way to one client with QoS 1 or 2."""

from __future__ import annotations

from kinmqtt.broker.message.publication import Publication
from kinmqtt.mqtt.qos_state import AWAITS_PUBACK, AWAITS_PUBREC, Flight
from kinmqtt_spi.services.queue import Entry, entry_bytes


class Delivery(Flight):
    """What is known of it, from the moment it has a place in the window."""

    __slots__ = (
        "committed",
        "identifiers",
        "large_bytes",
        "publication",
        "qos",
        "retain",
        "sent",
        "sequence",
        "shared_filter",
    )

    def __init__(
        self,
        publication: Publication,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        sequence: int,
        shared_filter: str | None = None,
    ) -> None:
        super().__init__(AWAITS_PUBACK if qos == 1 else AWAITS_PUBREC)
        self.publication = publication
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.shared_filter = shared_filter
        """The shared subscription it comes by, as the client wrote it."""
        self.sequence = sequence
        """Its number in the queue store; 0 in a session that is not kept."""
        self.committed = False
        """Whether it may be sent: at once in a session that is not kept, else when the store has kept it."""
        self.large_bytes = 0
        """What it counts for in flight, where it is a large one."""
        self.sent = False
        """Whether it went out before: the next time it carries DUP (MQTT-3.3.1-1)."""

    @property
    def size_bytes(self) -> int:
        """What it counts for where it waits: as much as an entry of a queue store."""
        return entry_bytes(self.publication.size_bytes, self.identifiers, self.shared_filter)

    @classmethod
    def of(cls, entry: Entry) -> Delivery:
        """What an entry of a queue store becomes."""
        publication = Publication.of(entry.message)
        # A store may have read back 0 and 1, and a list.
        retain, identifiers = bool(entry.retain), tuple(entry.identifiers)
        return cls(publication, entry.qos, retain, identifiers, entry.sequence, entry.shared_filter)
