"""A message on its way to many: one decoding, and one encoding for all subscribers that can share it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from kinmqtt.mqtt.codec.properties import written_properties
from kinmqtt.mqtt.codec.publish import publish_without_payload
from kinmqtt.mqtt.packets import V5, PacketType, Publish
from kinmqtt_spi.properties import NO_PROPERTIES, Properties, text_bytes
from kinmqtt_spi.values import MESSAGE_BYTES, Message, MessageId, Publisher, make_message

NOT_FORWARDED = ("topic_alias", "subscription_identifier")
"""Properties of a PUBLISH that concern one connection only (sections 3.3.2.3.4 and 3.3.2.3.8)."""


class Publication:
    """A PUBLISH packet that was accepted, or a message from elsewhere, with the bytes its deliveries share.

    The SPI's :class:`Message` is made when a hook or a store first asks for it; most QoS 0 messages never need one.
    """

    __slots__ = (
        "_message",
        "_mint",
        "_parts",
        "_parts_key",
        "_parts_others",
        "_payload",
        "_written",
        "expires_at",
        "frame_version",
        "in_flight",
        "packet_bytes",
        "publish",
        "publisher",
        "received_at",
    )

    def __init__(
        self,
        publish: Publish,
        frame_version: int,
        publisher: Publisher,
        received_at: float,
        mint: Callable[[], MessageId],
    ) -> None:
        """``frame_version`` is the protocol version of ``publish.frame``, 0 where it holds no whole packet."""
        self.publish = publish
        self.packet_bytes = len(publish.frame)
        """Of the packet it came in: what it counts for while it is in flight, also once that is no longer held."""
        self.frame_version = frame_version
        self.publisher = publisher
        self.received_at = received_at
        self.expires_at: float | None = None
        self.in_flight = 0
        """To how many clients that are there it is in flight."""
        self._mint = mint
        self._message: Message | None = None
        self._parts: tuple[bytes, bytes] | None = None
        self._parts_key = 0
        self._payload: bytes | None = None
        self._parts_others: dict[int, tuple[bytes, bytes]] | None = None
        """What a second sort of subscribers takes: of most messages there is none."""
        self._written: bytes | None = None
        """The properties that all subscribers get, as bytes: there may be very many of both."""
        if publish.properties is not NO_PROPERTIES:
            interval = publish.properties.message_expiry_interval
            if interval is not None:
                self.expires_at = received_at + interval

    @classmethod
    def of(cls, message: Message) -> Publication:
        """A message that did not come in a packet just now: from a store, a plugin, or as a will."""
        publish = Publish.build(
            message.topic,
            message.payload,
            qos=message.qos,
            retain=message.retain,
            packet_id=1 if message.qos else 0,
            properties=message.properties,
        )
        publication = cls(publish, 0, message.publisher, message.received_at, lambda: message.id)
        publication.expires_at = message.expires_at
        publication._message = message
        publication._payload = message.payload
        return publication

    @property
    def message(self) -> Message:
        """The message as hooks see it, with the packet it came in."""
        if self._message is None:
            self._message = self._make_message(self.publish.frame if self.frame_version else None, self.frame_version)
        return self._message

    @property
    def stored(self) -> Message:
        """The message as stores keep it: without the packet, which would hold the payload twice."""
        if self._message is None:
            self._message = self._make_message(None, 0)
        elif self._message.frame is not None:
            self._message = self._message.replace()
        return self._message

    @property
    def size_bytes(self) -> int:
        """What its message counts for (:attr:`Message.size_bytes`), without making one; it never changes.

        A topic alias that it came by counts too.
        """
        publish = self.publish
        size_bytes = MESSAGE_BYTES + text_bytes(publish.topic) + publish.payload_size
        return size_bytes if publish.properties is NO_PROPERTIES else size_bytes + publish.properties.size_bytes

    def has_expired(self, now: float) -> bool:
        """Whether the message must no longer be delivered at ``now`` (seconds since the epoch)."""
        return self.expires_at is not None and now >= self.expires_at

    def rest(self) -> None:
        """Hold the message once, for it waits: neither the packet it came in nor what was encoded of it."""
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
        """The payload, cut out of the packet once for all who want it."""
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
            self._mint(),
            self.received_at,
            self.expires_at,
            frame,
            frame_version,
        )

    def parts(self, version: int, qos: int, retain: bool) -> tuple[bytes, bytes]:
        """What stands before and after the packet identifier, for every subscriber of this version, QoS and flag."""
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
        """The same, made anew: with properties of one delivery, and at ``now`` with the expiry that is left.

        ``topic`` stands in place of the message's own: empty where ``extra`` has an alias for it.
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
        """The same, but for the payload, which comes last and is the same for everybody."""
        publish = self.publish
        if version != V5:
            return publish_without_payload(publish, version, qos, retain, NO_PROPERTIES, topic=topic)
        own = publish.properties
        if now is None and not extra:
            whole = own.without(*NOT_FORWARDED) if own else NO_PROPERTIES
            return publish_without_payload(publish, version, qos, retain, whole, topic=topic)
        if own and own.message_expiry_interval is not None:
            extra = extra.replace(message_expiry_interval=self._expiry_left(own.message_expiry_interval, now))
        # Made for one subscriber, but what it has in common with others' is written once.
        written = self._written
        if written is None:
            written = self._written = self._common(own)
        return publish_without_payload(publish, version, qos, retain, extra, topic=topic, written=written)

    def _expiry_left(self, interval: int, now: float | None) -> int:
        if now is None or self.expires_at is None:
            return interval
        # MQTT-3.3.2-6, in whole seconds; a thousandth off for what floating point makes of the difference.
        # Not more than it was, where the clock was set back meanwhile.
        return min(interval, max(0, ceil(self.expires_at - now - 0.001)))

    @staticmethod
    def _common(own: Properties) -> bytes:
        common = own.without(*NOT_FORWARDED, "message_expiry_interval") if own else NO_PROPERTIES
        return written_properties(common, PacketType.PUBLISH) if common else b""

    def _forwarded(self, version: int, qos: int, retain: bool) -> tuple[bytes, bytes] | None:
        """The packet that came in, cut at its identifier, where it can go out as it is."""
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
            return head, self.payload  # Before 5.0 nothing else stands behind the packet identifier.
        return head, frame[cut + 2 :] if qos else frame[cut:]
