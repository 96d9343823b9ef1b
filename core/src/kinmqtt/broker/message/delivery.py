"""The delivery of one QoS 1 or 2 message to one client."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kinmqtt.broker.message.publication import Publication
from kinmqtt.mqtt.qos_state import AWAITS_PUBACK, AWAITS_PUBREC, Flight
from kinmqtt_spi.services.queue import Entry, entry_bytes


@mypyc_attr(acyclic=True)
class Delivery(Flight):
    """A delivery in the inflight window."""

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
        """The filter of the shared subscription it is for, as in SUBSCRIBE."""
        self.sequence = sequence
        """Its number in the queue store; 0 for a non-persistent session."""
        self.committed = False
        """Whether it may be sent: for a persistent session after the commit, else at once."""
        self.large_bytes = 0
        """Its size in the limit for large inflight messages; 0 if it is small."""
        self.sent = False
        """Whether it was sent before: then it is sent again with DUP (MQTT-3.3.1-1)."""

    @property
    def size_bytes(self) -> int:
        """Its size in limits, the same as its queue store entry."""
        return entry_bytes(self.publication.size_bytes, self.identifiers, self.shared_filter)

    @classmethod
    def of(cls, entry: Entry) -> Delivery:
        """Returns the delivery of a queue store entry."""
        publication = Publication.of(entry.message)
        # A store may return 0 or 1, and a list.
        retain, identifiers = bool(entry.retain), tuple(entry.identifiers)
        return cls(publication, entry.qos, retain, identifiers, entry.sequence, entry.shared_filter)
