"""A message for many subscribers: decoded once, and encoded once for all that can share the bytes."""

from __future__ import annotations

from math import ceil
from typing import Final, final

from mypy_extensions import mypyc_attr

from kinmqtt.broker.message.audience import Audience
from kinmqtt.broker.message.message_ids import MessageIds
from kinmqtt.broker.message.ticket import Ticket
from kinmqtt.mqtt.codec.properties import written_properties
from kinmqtt.mqtt.codec.publish import publish_without_payload
from kinmqtt.mqtt.packets import V5, PacketType, Publish
from kinmqtt_spi.properties import NO_PROPERTIES, Properties, text_bytes
from kinmqtt_spi.values import MESSAGE_BYTES, Message, MessageId, Publisher, make_message

NOT_FORWARDED = ("topic_alias", "subscription_identifier")
"""PUBLISH properties that apply to one connection only (sections 3.3.2.3.4 and 3.3.2.3.8)."""

_NO_IDS: Final = MessageIds(0)
"""For publications of messages, which have their ids."""


@final
class Lineage:
    """The messages that taps have published because of one message, and of those again."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@mypyc_attr(acyclic=True, free_list_len=1)
class Publication:
    """An accepted PUBLISH packet, or a message from another source, with the bytes shared by its deliveries.

    The SPI's :class:`Message` is made on first use by a hook or a store; most QoS 0 messages never need one.
    """

    __slots__ = (
        "_counter",
        "_ids",
        "_message",
        "_parts",
        "_parts_key",
        "_parts_others",
        "_payload",
        "_uid",
        "_written",
        "audience",
        "depth",
        "epoch",
        "expires_at",
        "frame_version",
        "in_flight",
        "is_identified",
        "lineage",
        "packet_bytes",
        "publish",
        "publisher",
        "received_at",
        "ticket",
    )

    def __init__(
        self,
        publish: Publish,
        frame_version: int,
        publisher: Publisher,
        received_at: float,
        ids: MessageIds,
    ) -> None:
        """``frame_version`` is the protocol version of ``publish.frame``; 0 if it is not a whole packet."""
        self.publish = publish
        self.packet_bytes = len(publish.frame)
        """The size of the packet it came in, which counts while in flight even after the packet is released."""
        self.frame_version = frame_version
        self.publisher = publisher
        self.received_at = received_at
        self.expires_at: float | None = None
        self.in_flight = 0
        """The number of connected clients to which it is in flight."""
        self.depth = 0
        """How many taps have published a message because of another, up to this one."""
        self.is_identified = False
        """Whether it is a client's QoS 2 message whose packet identifier is stored with its commit."""
        self.lineage: Lineage | None = None
        """What taps have made of it, or of the message that it was made of; ``None`` if they have made nothing."""
        self.epoch = 0
        """The epoch of the session of the client that has sent it here; 0 if it comes from elsewhere."""
        self.ticket: Ticket | None = None
        """The answers that it awaits, of other nodes and of outboxes; ``None`` if there are none."""
        self.audience: Audience | None = None
        """Which subscribers of this node it is for; ``None`` for all."""
        self._ids = ids
        self._uid = ids.uid
        self._counter = -1
        """The counter of its message id; below 0 until it is minted."""
        self._message: Message | None = None
        self._parts: tuple[bytes, bytes] | None = None
        self._parts_key = 0
        self._payload: bytes | None = None
        self._parts_others: dict[int, tuple[bytes, bytes]] | None = None
        """Encodings for further combinations of version, QoS and retain flag; few messages need them."""
        self._written: bytes | None = None
        """The encoded properties common to all subscribers."""
        if publish.properties is not NO_PROPERTIES:
            interval = publish.properties.message_expiry_interval
            if interval is not None:
                self.expires_at = received_at + interval

    @classmethod
    def of(cls, message: Message) -> Publication:
        """Returns the publication of a message from a store or a plugin, or of a will."""
        publish = Publish.build(
            message.topic,
            message.payload,
            qos=message.qos,
            retain=message.retain,
            packet_id=1 if message.qos else 0,
            properties=message.properties,
        )
        publication = cls(publish, 0, message.publisher, message.received_at, _NO_IDS)
        publication.use_id(message.id)
        publication.expires_at = message.expires_at
        publication._message = message
        publication._payload = message.payload
        return publication

    @property
    def id(self) -> MessageId:
        """The message id; minted on first use."""
        return MessageId(self._uid, self.counter)

    @property
    def counter(self) -> int:
        """The counter of the message id; minted on first use."""
        counter = self._counter
        if counter < 0:
            counter = self._counter = self._ids.reserve(1)
        return counter

    @property
    def uid(self) -> int:
        """The uid of the node of the message id."""
        return self._uid

    def use_id(self, id: MessageId) -> None:
        """Set the message id that another node, or this one before, has given."""
        self._uid = id.node
        self._counter = id.counter

    def use_number(self, uid: int, counter: int) -> None:
        """Set the message id, like :meth:`use_id`, without making one: few messages need it."""
        self._uid = uid
        self._counter = counter

    def serve_only(self, groups: frozenset[tuple[str, str]]) -> None:
        """Note that other nodes have it already, and which shared subscriptions are served on this one."""
        before = self.audience
        if before is None:
            self.audience = Audience(groups)
        else:
            self.audience = Audience(groups, before.without, before.is_forwarded)

    def leave_out(self, client_ids: frozenset[str]) -> None:
        """Note the clients whose sessions have it already."""
        before = self.audience
        if before is None:
            self.audience = Audience(None, client_ids)
        else:
            self.audience = Audience(before.groups, client_ids, before.is_forwarded)

    @property
    def message(self) -> Message:
        """The message for hooks, with the packet it came in."""
        if self._message is None:
            self._message = self._make_message(self.publish.frame if self.frame_version else None, self.frame_version)
        return self._message

    @property
    def stored(self) -> Message:
        """The message for stores: without the packet, which would hold the payload twice."""
        if self._message is None:
            self._message = self._make_message(None, 0)
        elif self._message.frame is not None:
            self._message = self._message.replace()
        return self._message

    @property
    def size_bytes(self) -> int:
        """The size of its message (:attr:`Message.size_bytes`), without making one; it never changes.

        The topic alias in its packet is included.
        """
        publish = self.publish
        size_bytes = MESSAGE_BYTES + text_bytes(publish.topic) + publish.payload_size
        return size_bytes if publish.properties is NO_PROPERTIES else size_bytes + publish.properties.size_bytes

    def has_expired(self, now: float) -> bool:
        """Whether the message must no longer be delivered at ``now`` (seconds since the epoch)."""
        return self.expires_at is not None and now >= self.expires_at

    def rest(self) -> None:
        """Release the packet and the encoded bytes, to hold the message only once while it waits."""
        publish = self.publish
        payload = self.stored.payload
        packet_id = 1 if publish.qos else 0
        self.publish = Publish.build(
            publish.topic, payload, publish.qos, publish.retain, False, packet_id, publish.properties
        )
        self.frame_version = 0
        self._parts = self._parts_others = None

    @property
    def payload(self) -> bytes:
        """The payload, extracted from the packet on first use."""
        if self._payload is None:
            self._payload = self.publish.payload
        return self._payload

    def _make_message(self, frame: bytes | None, frame_version: int) -> Message:
        publish = self.publish
        properties = publish.properties
        return make_message(
            publish.topic,
            self.payload,
            publish.qos,
            publish.retain,
            properties if properties is NO_PROPERTIES else properties.without(*NOT_FORWARDED),
            self.publisher,
            self.id,
            self.received_at,
            self.expires_at,
            frame,
            frame_version,
        )

    def parts(self, version: int, qos: int, retain: bool) -> tuple[bytes, bytes]:
        """Returns the bytes before and after the packet identifier, shared by all with this version, QoS and flag."""
        key = (version == V5) << 3 | qos << 1 | retain
        parts = self._parts
        if parts is not None and self._parts_key == key:
            return parts
        others = self._parts_others
        found = None if others is None else others.get(key)
        if found is not None:
            return found
        made = self._forwarded(version, qos, retain)
        if made is None:
            made = self.encode(version, qos, retain, NO_PROPERTIES)
        if parts is None:
            self._parts, self._parts_key = made, key
        elif others is None:
            self._parts_others = {key: made}
        else:
            others[key] = made
        return made

    def encode(
        self,
        version: int,
        qos: int,
        retain: bool,
        extra: Properties,
        now: float | None = None,
        topic: str | None = None,
    ) -> tuple[bytes, bytes]:
        """Encode the bytes before and after the packet identifier for one delivery.

        ``extra`` are its own properties. At ``now``, in seconds since the epoch, the remaining expiry is written.
        ``topic`` replaces the message's own; it is empty if ``extra`` has an alias for it.
        """
        head, written = self.encode_start(version, qos, retain, extra, now, topic)
        return head, written + self.payload

    def encode_start(
        self,
        version: int,
        qos: int,
        retain: bool,
        extra: Properties,
        now: float | None = None,
        topic: str | None = None,
    ) -> tuple[bytes, bytes]:
        """Encode the bytes before and after the packet identifier like :meth:`encode`, but without the payload."""
        publish = self.publish
        if version != V5:
            return publish_without_payload(publish, version, qos, retain, NO_PROPERTIES, topic=topic)
        own = publish.properties
        if now is None and not extra:
            whole = own.without(*NOT_FORWARDED) if own else NO_PROPERTIES
            return publish_without_payload(publish, version, qos, retain, whole, topic=topic)
        if own and own.message_expiry_interval is not None:
            extra = extra.replace(message_expiry_interval=self._expiry_left(own.message_expiry_interval, now))
        # The properties common to all subscribers are encoded once.
        written = self._written
        if written is None:
            written = self._written = self._common(own)
        return publish_without_payload(publish, version, qos, retain, extra, topic=topic, written=written)

    def _expiry_left(self, interval: int, now: float | None) -> int:
        if now is None or self.expires_at is None:
            return interval
        # MQTT-3.3.2-6, in whole seconds; minus 0.001 s against floating-point errors.
        # Not above the interval, even if the clock was set back.
        return min(interval, max(0, ceil(self.expires_at - now - 0.001)))

    @staticmethod
    def _common(own: Properties) -> bytes:
        common = own.without(*NOT_FORWARDED, "message_expiry_interval") if own else NO_PROPERTIES
        return written_properties(common, PacketType.PUBLISH) if common else b""

    def _forwarded(self, version: int, qos: int, retain: bool) -> tuple[bytes, bytes] | None:
        """Returns the received packet cut at its identifier, if it can be forwarded unchanged; else ``None``."""
        publish = self.publish
        came = self.frame_version
        if not came or (came == V5) != (version == V5) or bool(publish.qos) != bool(qos):
            return None
        properties = publish.properties
        if properties is not NO_PROPERTIES and any(name in properties.present for name in NOT_FORWARDED):
            return None
        frame = publish.frame
        cut = publish.topic_end
        first_byte = 0x30 | qos << 1 | retain
        head = frame[:cut] if frame[0] == first_byte else bytes((first_byte,)) + frame[1:cut]
        if version != V5:
            return head, self.payload  # Before 5.0 only the payload follows the packet identifier.
        return head, frame[cut + 2 :] if qos else frame[cut:]


def ticket_of(publication: Publication) -> Ticket:
    """Return a message's ticket; made on first use."""
    ticket = publication.ticket
    if ticket is None:
        ticket = publication.ticket = Ticket()
    return ticket
