"""The properties of MQTT 5 on their way through a bridge, and the names that end loops."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from kinmqtt_bridge_mqtt.mapping import Mapping
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.values import Message

VIA: Final = "via"
"""The user property that names the brokers through whose bridges a message has come, one each."""


class Packed(PahoProperties):
    """Properties that are packed once, for many messages."""

    _data: bytes

    def __init__(self, data: bytes) -> None:
        object.__setattr__(self, "packetType", PacketTypes.PUBLISH)
        object.__setattr__(self, "_data", data)

    def pack(self) -> bytes:
        """Return the bytes."""
        return self._data


def names_of(properties: Properties) -> list[str]:
    """Return the brokers through whose bridges a message has come."""
    return [value for name, value in properties.user_property if name == VIA]


class Outgoing:
    """Makes paho's properties of messages that leave."""

    def __init__(self, via: str, mapping: Mapping, now: Callable[[], float]) -> None:
        """``now`` returns seconds since the epoch."""
        self._via = (VIA, via)
        self._mapping = mapping
        self._now = now
        bare = PahoProperties(PacketTypes.PUBLISH)
        bare.UserProperty = self._via
        self._bare = Packed(bare.pack())

    def of(self, message: Message) -> PahoProperties:
        """Return a message's properties: its own, the time that it has left, and our name."""
        properties = message.properties
        if not properties and message.expires_at is None:
            return self._bare
        made = PahoProperties(PacketTypes.PUBLISH)
        made.UserProperty = [*(pair for pair in properties.user_property if pair != self._via), self._via]
        if message.expires_at is not None:
            made.MessageExpiryInterval = max(1, ceil(message.expires_at - self._now()))
        if properties.payload_format_indicator is not None:
            made.PayloadFormatIndicator = properties.payload_format_indicator
        if properties.content_type is not None:
            made.ContentType = properties.content_type
        if properties.response_topic is not None:
            made.ResponseTopic = self._mapping.response_out(properties.response_topic)
        if properties.correlation_data is not None:
            made.CorrelationData = properties.correlation_data
        return made


class Incoming:
    """Makes properties of what paho has received."""

    def __init__(self, via: str, mapping: Mapping) -> None:
        self._via = (VIA, via)
        self._mapping = mapping
        self._bare = Properties(user_property=(self._via,))

    def of(self, found: PahoProperties | None) -> Properties | None:
        """Return a message's properties, with our name behind them; ``None`` if our name is there: it made a loop."""
        values: dict[str, Any] = {} if found is None else vars(found)
        pairs = tuple(values.get("UserProperty", ()))
        if self._via in pairs:
            return None
        present = {ours: values[theirs] for theirs, ours in _NAMES.items() if theirs in values}
        if not pairs and not present:
            return self._bare
        if "response_topic" in present:
            present["response_topic"] = self._mapping.response_into(present["response_topic"])
        return NO_PROPERTIES.replace(**present, user_property=(*pairs, self._via))


_NAMES: Final = {
    "PayloadFormatIndicator": "payload_format_indicator",
    "MessageExpiryInterval": "message_expiry_interval",
    "ContentType": "content_type",
    "ResponseTopic": "response_topic",
    "CorrelationData": "correlation_data",
}
