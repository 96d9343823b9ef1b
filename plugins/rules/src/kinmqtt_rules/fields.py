"""What rules can select from: messages, and events of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from attrs import frozen

from kinmqtt_rules.json_values import text_or_bytes, value_of
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.event import Event
from kinmqtt_spi.values import Client, Message, NodeIdentity

EVENT_TOPICS: Final = "$events/"

Read: TypeAlias = Callable[["Subject"], Any]
"""Returns a field."""


class About(Protocol):
    """What fields need to know besides the message: a part of a plugin's context."""

    @property
    def node(self) -> NodeIdentity:
        """This broker's name."""

    def client(self, client_id: str) -> Client | None:
        """Return a connected client."""


class Subject:
    """A message or an event that rules are applied to: it has the fields, and decodes the payload once for all."""

    __slots__ = ("_clock", "_document", "_now", "_text", "about", "event", "message", "values")

    def __init__(
        self,
        event: str,
        message: Message,
        clock: Callable[[], float],
        about: About,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        """``clock`` returns the moment, and is called once at most; ``values``: the fields of an event."""
        self.event = event
        self.message = message
        self._clock = clock
        self._now: float | None = None
        self.about = about
        self.values = values
        self._document: Any = Subject
        self._text: Any = None

    @property
    def now(self) -> float:
        """The moment, in seconds since the epoch, the same for all rules."""
        if self._now is None:
            self._now = self._clock()
        return self._now

    def document(self) -> Any:
        """Return the payload's value if it is JSON, else ``None``."""
        if self._document is Subject:
            self._document = value_of(self.message.payload)
        return self._document

    def take_document(self, value: Any) -> None:
        """Take the payload's value from who has decoded it already; ``None`` if it is no JSON."""
        self._document = value

    def text(self) -> str | bytes:
        """Return the payload as a text, or its bytes if it is not UTF-8."""
        if self._text is None:
            self._text = text_or_bytes(self.message.payload)
        text: str | bytes = self._text
        return text


def _names(properties: Properties) -> dict[str, Any]:
    """Return the properties of a PUBLISH under the names of the specification."""
    if not properties:
        return {}
    found: dict[str, Any] = {
        "Payload-Format-Indicator": properties.payload_format_indicator,
        "Message-Expiry-Interval": properties.message_expiry_interval,
        "Content-Type": properties.content_type,
        "Response-Topic": properties.response_topic,
        "User-Property": dict(properties.user_property) or None,
    }
    if properties.correlation_data is not None:
        found["Correlation-Data"] = text_or_bytes(properties.correlation_data)
    return {name: value for name, value in found.items() if value is not None}


def _peer_host(subject: Subject) -> str | None:
    client = subject.about.client(subject.message.publisher.client_id)
    return None if client is None else client.address.host


def _attributes(subject: Subject) -> dict[str, str]:
    client = subject.about.client(subject.message.publisher.client_id)
    return {} if client is None else dict(client.attributes)


def _milliseconds(at: float) -> int:
    return int(at * 1000)


MESSAGE_FIELDS: Final[Mapping[str, tuple[Read, str]]] = {
    "id": (lambda s: f"{s.message.id.node:016X}{s.message.id.counter:016X}", "the broker's id of the message"),
    "clientid": (lambda s: s.message.publisher.client_id or None, "the publisher's client id"),
    "username": (lambda s: s.message.publisher.username, "the publisher's user name"),
    "payload": (Subject.text, "the payload: a text, or bytes if it is not UTF-8; `payload.x` is a part of JSON"),
    "topic": (lambda s: s.message.topic, "the topic"),
    "qos": (lambda s: int(s.message.qos), "the QoS"),
    "retain": (lambda s: s.message.retain, "whether it is to be retained"),
    "flags": (lambda s: {"retain": s.message.retain}, "`flags.retain`, as `retain`"),
    "pub_props": (
        lambda s: _names(s.message.properties),
        'the properties of MQTT 5, as `pub_props."User-Property".site`',
    ),
    "peerhost": (_peer_host, "the publisher's address, while it is connected to this node"),
    "timestamp": (lambda s: _milliseconds(s.now), "the moment, in ms since 1970"),
    "publish_received_at": (lambda s: _milliseconds(s.message.received_at), "when the broker received it, in ms"),
    "node": (lambda s: s.about.node.name, "the name of the node"),
    "client_attrs": (_attributes, "the publisher's attributes from its authenticator, while it is connected"),
    "event": (lambda s: s.event, "`message.publish`"),
}
"""The fields of messages, each with how it is read and what it is."""


@frozen(slots=True)
class EventTopic:
    """A topic of events, for FROM."""

    name: str
    event: str
    """The field ``event``."""
    fields: tuple[str, ...]
    is_durable: bool
    """Whether the events come from the feed, each at least once."""
    about: str


CLIENT_FIELDS: Final = ("event", "clientid", "username", "timestamp", "node")
"""The fields of each durable event."""
_OF_MESSAGE: Final = (*MESSAGE_FIELDS, "from_clientid", "from_username", "reason")

EVENTS: Final = {
    topic.name: topic
    for topic in (
        EventTopic(
            "$events/client/connected",
            "client.connected",
            (*CLIENT_FIELDS, "peerhost", "peername", "clean_start", "proto_ver", "keepalive", "expiry_interval",
             "listener", "connected_at", "session_present"),
            True,
            "a client got a successful CONNACK",
        ),
        EventTopic(
            "$events/client/disconnected",
            "client.disconnected",
            (*CLIENT_FIELDS, "reason", "by", "disconnected_at"),
            True,
            "a connection has ended",
        ),
        EventTopic(
            "$events/session/subscribed", "session.subscribed", (*CLIENT_FIELDS, "topic", "qos", "sub_opts"), True,
            "a subscription was made or replaced",
        ),
        EventTopic(
            "$events/session/unsubscribed", "session.unsubscribed", (*CLIENT_FIELDS, "topic"), True,
            "a subscription was removed",
        ),
        EventTopic(
            "$events/message/delivered", "message.delivered", _OF_MESSAGE, False, "a message was sent to a client",
        ),
        EventTopic(
            "$events/message/acked", "message.acked", _OF_MESSAGE, False, "a client has acknowledged a message",
        ),
        EventTopic(
            "$events/message/dropped", "message.dropped", _OF_MESSAGE, False,
            "a message was not delivered to a client",
        ),
    )
}  # fmt: skip
"""The topics of events."""

OLD_NAMES: Final = {
    name.replace("client/", "client_").replace("session/", "session_").replace("message/", "message_"): name
    for name in EVENTS
}
"""Older names of EMQX for them, each with the present one."""


def event_topic(name: str) -> EventTopic | None:
    """Return the topic of events with a name, new or old."""
    return EVENTS.get(OLD_NAMES.get(name, name))


_BY_KIND: Final[Mapping[str, str]] = {
    "CONNECT": "$events/client/connected",
    "DISCONNECT": "$events/client/disconnected",
    "CONNECTION_LOST": "$events/client/disconnected",
    "SUBSCRIBE": "$events/session/subscribed",
    "UNSUBSCRIBE": "$events/session/unsubscribed",
}


def topic_of(event: Event) -> str | None:
    """Return the topic of an event of the feed, if rules can have it."""
    return _BY_KIND.get(event.kind.value)


def values_of(event: Event) -> dict[str, Any]:
    """Return the fields of an event of the feed, without those of each event."""
    data = event.data
    found = {"username": data.get("username")}
    at = _milliseconds(event.at)
    match event.kind.value:
        case "CONNECT":
            peer = str(data.get("address") or "")
            host, colon, port = peer.rpartition(":")
            return found | {
                "peerhost": (host if colon and port.isdecimal() else peer).strip("[]") or None,
                "peername": peer or None,
                "clean_start": data.get("clean_start"),
                "proto_ver": data.get("version"),
                "keepalive": data.get("keep_alive_s"),
                "expiry_interval": data.get("expiry_s"),
                "listener": data.get("listener"),
                "session_present": data.get("session_present"),
                "connected_at": at,
            }
        case "DISCONNECT":
            return found | {"reason": data.get("reason"), "by": data.get("by"), "disconnected_at": at}
        case "CONNECTION_LOST":
            return found | {"reason": None, "by": "network", "disconnected_at": at}
        case "SUBSCRIBE":
            options = {
                name: data[key]
                for name, key in (
                    ("qos", "qos"), ("nl", "no_local"), ("rap", "retain_as_published"), ("rh", "retain_handling"),
                )
                if key in data
            }  # fmt: skip
            return found | {"topic": data.get("filter"), "qos": data.get("qos"), "sub_opts": options}
        case _:
            return found | {"topic": data.get("filter")}


def _of_event(name: str) -> Read:
    def read(subject: Subject) -> Any:
        return None if subject.values is None else subject.values.get(name)

    return read


def _either(name: str, of_message: Read) -> Read:
    """Return what reads a field of an event, or else of its message."""

    def read(subject: Subject) -> Any:
        values = subject.values
        return values[name] if values is not None and name in values else of_message(subject)

    return read


_OF_EVENTS: Final[Mapping[str, Read]] = {
    name: _either(name, MESSAGE_FIELDS[name][0]) if name in MESSAGE_FIELDS else _of_event(name)
    for topic in EVENTS.values()
    for name in topic.fields
}


def reader_of(name: str, *, of_events: bool) -> Read:
    """Return what reads a field; a rule that also has events reads those first."""
    return _OF_EVENTS[name] if of_events and name in _OF_EVENTS else MESSAGE_FIELDS[name][0]


def fields_of(topics: tuple[str, ...]) -> dict[str, None]:
    """Return the names of the fields that a rule about these topics and events has, in order."""
    names: dict[str, None] = {}
    for topic in topics:
        events = event_topic(topic)
        names.update(dict.fromkeys(MESSAGE_FIELDS if events is None else events.fields))
    return names
