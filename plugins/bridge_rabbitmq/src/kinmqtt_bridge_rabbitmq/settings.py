"""The settings ``[plugins.bridge_rabbitmq]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from kinmqtt_bridge_rabbitmq.templates import MAX_SHORT_BYTES, is_short, mqtt_topic, routing_key
from kinmqtt_spi.errors import SinkRefused
from kinmqtt_spi.services.bridge import SendSettings
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.settings import checked, problem_with_file, referring, setting
from kinmqtt_spi.templates import of_message
from kinmqtt_spi.tls import ClientTls
from kinmqtt_spi.topics import check_filters

OURS: Final = "mqtt-"
"""The prefix of the header names that the bridge sets itself."""

GUEST: Final = "guest"
"""RabbitMQ's first user and its password; RabbitMQ takes it only from its own machine."""


def is_reserved(name: str) -> bool:
    """Tell whether a header is the bridge's own, or means something to RabbitMQ: it routes by CC and BCC."""
    return name.startswith((OURS, "x-")) or name in ("CC", "BCC")


def address(text: str) -> tuple[str, int]:
    """Split ``host:port`` into host and port; raises ``ValueError`` if it is malformed."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)


def _check_servers(servers: Sequence[str]) -> None:
    if not servers:
        raise ValueError("name at least one server, as host:port")
    for each in servers:
        address(each)


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, text in headers.items():
        if not name or not is_short(name) or is_reserved(name):
            raise ValueError(
                f"{name!r} can't be a header: names that begin with {OURS} are the bridge's own, those that begin "
                f"with x-, CC and BCC are RabbitMQ's, and none has more than {MAX_SHORT_BYTES} bytes"
            )
        of_message(text)


def _check_name(name: str) -> None:
    if not is_short(name):
        raise ValueError(f"a name has at most {MAX_SHORT_BYTES} bytes")


def _check_names(names: Sequence[str]) -> None:
    for each in names:
        _check_name(each)
        if not each:
            raise ValueError("a name is empty")


def _check_queues(queues: Sequence[str]) -> None:
    if not queues:
        raise ValueError("name at least one queue")
    _check_names(queues)
    if len(set(queues)) < len(queues):
        raise ValueError("a queue is named twice")


def _check_binding_keys(keys: Sequence[str]) -> None:
    for each in keys:
        _check_name(each)


def _check_files(settings: object, *names: str) -> None:
    for name in names:
        path = getattr(settings, name)
        problem = None if path is None else problem_with_file(path)
        if problem is not None:
            raise ValueError(f"{name}: {problem}")


@frozen(slots=True)
class ConnectionSettings:
    """A RabbitMQ server or cluster."""

    servers: tuple[str, ...] = setting(
        help="its nodes, as `host:port`, tried in turn", validator=checked(_check_servers)
    )
    virtual_host: str = setting("/", help="the virtual host", validator=checked(_check_name))
    username: str = setting(GUEST, help="the user; guest is taken only on RabbitMQ's own machine")
    password_file: Path | None = setting(None, help="a file with the user's password; read at each connection")
    tls: ClientTls | None = setting(None, help="encryption")
    heartbeat_s: int = setting(
        30, help="how often both sides show that they are there; after two of them the other counts as away",
        unit="s", minimum=1, maximum=3600,
    )  # fmt: skip
    timeout_s: float = setting(
        10.0,
        help="the time limit for an answer; after it RabbitMQ counts as away",
        unit="s",
        minimum=0.1,
        maximum=600,
    )

    @property
    def sends_the_password(self) -> bool:
        """Whether a password of the settings goes over the network as it is."""
        return self.tls is None and self.password_file is not None

    def __attrs_post_init__(self) -> None:
        _check_files(self, "password_file")
        if self.username != GUEST and self.password_file is None:
            raise ValueError("username needs password_file")


@frozen(slots=True)
class _OfAConnection:
    """What uses a connection."""

    connection: str = setting(help="the name of a connection")

    def at_connection(self, error: Exception) -> Exception:
        """Return an error; a refusal names the place in the settings."""
        if isinstance(error, SinkRefused):
            return SinkRefused(f"plugins.bridge_rabbitmq.connections.{self.connection}: {error}")
        return error


@frozen(slots=True)
class SinkSettings(_OfAConnection):
    """Messages that go to RabbitMQ."""

    filters: tuple[str, ...] = setting(
        (), help="topic filters of the messages; without any, only rules feed it", validator=checked(check_filters)
    )
    exchange: str = setting(
        "", help="the exchange; without one, the routing key is the name of a queue", validator=checked(_check_name)
    )
    routing_key: str = setting("${topic}", help="the routing key, a template", validator=checked(routing_key))
    headers: dict[str, str] = setting(
        factory=dict, help="further headers of messages, each a template", validator=checked(_check_headers)
    )
    persistent: bool = setting(True, help="whether RabbitMQ stores messages so that they survive its restart")
    max_message_bytes: int = setting(
        16 << 20, help="longer payloads are poison, without asking RabbitMQ", unit="bytes", minimum=1
    )
    declare: bool = setting(False, help="whether the bridge creates the exchange, the queues and their bindings")
    queues: tuple[str, ...] = setting((), help="with `declare`: the queues", validator=checked(_check_names))
    binding_keys: tuple[str, ...] = setting(
        ("#",), help="with `declare`: what binds each queue to the exchange", validator=checked(_check_binding_keys)
    )
    outbox: OutboxSettings = setting(factory=OutboxSettings, help="the bounds of its outbox")
    sending: SendSettings = setting(factory=SendSettings, help="how it is sent")

    def __attrs_post_init__(self) -> None:
        if self.queues and not self.declare:
            raise ValueError("queues are only for declare = true: the exchange decides where messages go")
        if not self.exchange and not (self.routing_key and routing_key(self.routing_key).is_constant):
            raise ValueError(
                f"without exchange the routing key names a queue, and {self.routing_key!r} would let publishers "
                "choose any queue of the virtual host: name an exchange, or one queue as routing_key"
            )


@frozen(slots=True)
class PublishSettings:
    """What becomes of a delivery in MQTT."""

    topic: str = setting(help="the MQTT topic, a template", validator=checked(mqtt_topic))
    qos: int = setting(1, help="the QoS", minimum=0, maximum=2)
    retain: bool = setting(False, help="whether messages are retained")
    user_properties: bool = setting(True, help="whether headers become user properties")


@frozen(slots=True)
class SourceSettings(_OfAConnection):
    """Messages that come from RabbitMQ."""

    queues: tuple[str, ...] = setting(help="the queues", validator=checked(_check_queues))
    prefetch: int = setting(
        500, help="messages of each queue that RabbitMQ sends ahead, at most", minimum=1, maximum=65_535
    )
    prefetch_bytes: int = setting(
        64 << 20, help="their payloads, at most: fewer are sent ahead if each may be long", unit="bytes", minimum=1
    )
    max_message_bytes: int = setting(
        256 << 10, help="longer payloads are rejected", unit="bytes", minimum=1, maximum=256 << 20
    )
    declare: bool = setting(False, help="whether the bridge creates the queues, the exchange and the bindings")
    exchange: str = setting("", help="with `declare`: what the queues are bound to", validator=checked(_check_name))
    binding_keys: tuple[str, ...] = setting(
        ("#",), help="with `declare`: what binds each queue to the exchange", validator=checked(_check_binding_keys)
    )
    publish: PublishSettings = setting(help="what becomes of a message")

    @property
    def prefetch_messages(self) -> int:
        """How many messages of a queue RabbitMQ may send ahead, so that both bounds hold."""
        return max(1, min(self.prefetch, self.prefetch_bytes // len(self.queues) // self.max_message_bytes))

    def __attrs_post_init__(self) -> None:
        if self.exchange and not self.declare:
            raise ValueError("exchange is only for declare = true: a source reads queues")


@frozen(slots=True)
class BridgeRabbitMQSettings:
    """Connections to RabbitMQ, and the sinks and sources that use them."""

    connections: dict[str, ConnectionSettings] = setting(factory=dict, help="RabbitMQ servers or clusters, by name")
    sinks: dict[str, SinkSettings] = setting(
        factory=dict,
        help="messages that go to RabbitMQ, by name",
        validator=referring("connection", "connections"),
    )
    sources: dict[str, SourceSettings] = setting(
        factory=dict,
        help="messages that come from RabbitMQ, by name",
        validator=referring("connection", "connections"),
    )
