"""The settings ``[plugins.bridge_mqtt]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from attrs import frozen

from kinmqtt_bridge_mqtt.topic_line import TopicLine
from kinmqtt_spi.services.bridge import SendSettings
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.settings import check_names, checked, problem_with_file, setting
from kinmqtt_spi.tls import ClientTls

NEVER_EXPIRES_S: Final = 0xFFFF_FFFF
"""The session expiry interval of a session that never expires, as the far broker's limits allow."""

MAX_NAME_BYTES: Final = 65_535

_LOOPBACK: Final = ("127.", "localhost", "[::1]")


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


def _check_topics(topics: Sequence[str]) -> None:
    if not topics:
        raise ValueError("name at least one topic, as in sensors/# out 1")
    for each in topics:
        TopicLine.parse(each)


def _check_text(text: str) -> None:
    if "\0" in text or len(text.encode()) > MAX_NAME_BYTES:
        raise ValueError("a text of MQTT has no U+0000 and at most 65535 bytes")


def _check_topic(topic: str) -> None:
    _check_text(topic)
    if "+" in topic or "#" in topic:
        raise ValueError(f"{topic!r} has a wildcard: it is the name of one topic")


@frozen(slots=True)
class TlsSettings(ClientTls):
    """How a connection is encrypted."""

    alpn: str = setting("", help="the protocol to ask for by ALPN")


@frozen(slots=True)
class ConnectionSettings:
    """A connection to a far broker, and the topics that are bridged."""

    servers: tuple[str, ...] = setting(
        help="its addresses, as `host:port`, in the order of preference", validator=checked(_check_servers)
    )
    round_robin: bool = setting(
        False, help="go on with the next server after a failure; otherwise return to the first one"
    )
    topics: tuple[str, ...] = setting(
        help="what is bridged: `PATTERN [out|in|both [QOS [LOCAL_PREFIX [REMOTE_PREFIX]]]]`",
        validator=checked(_check_topics),
    )
    version: Literal["5", "3.1.1"] = setting("5", help="the version of MQTT")
    bridge: bool = setting(
        True, help="say that it is a bridge, so that its own messages do not come back: No Local, or a bit in 3.1.1"
    )
    client_id: str = setting(
        "",
        help="the client id; by default the broker's name, a dot and the connection's",
        validator=checked(_check_text),
    )
    username: str = setting("", help="the user", validator=checked(_check_text))
    password_file: Path | None = setting(None, help="a file with the user's password; read at each connection")
    tls: TlsSettings | None = setting(None, help="encryption")
    keep_alive_s: int = setting(60, help="the keep alive", unit="s", minimum=1, maximum=65_535)
    timeout_s: float = setting(
        10.0,
        help="the time limit for an answer; after it the broker counts as away",
        unit="s",
        minimum=0.1,
        maximum=600,
    )
    clean_start: bool = setting(False, help="begin with an empty session; what came for it meanwhile is then lost")
    session_expiry_s: int = setting(
        NEVER_EXPIRES_S,
        help="how long the far broker keeps the session without a connection (MQTT 5)",
        unit="s",
        minimum=1,
        maximum=NEVER_EXPIRES_S,
    )
    share: str = setting(
        "",
        help="the group of a shared subscription for what comes in, so that brokers divide it",
        validator=checked(_check_topic),
    )
    via: str = setting("", help="the name that ends loops; by default the broker's", validator=checked(_check_text))
    max_inflight: int = setting(
        1000, help="messages under way that are not acknowledged, in each direction", minimum=1, maximum=65_535
    )
    max_packet_bytes: int = setting(
        1 << 20, help="the longest packet from the far broker", unit="bytes", minimum=1024, maximum=268_435_455
    )
    notifications: bool = setting(False, help="publish the connection's state, 1 or 0, retained, at the far broker")
    notification_topic: str = setting(
        "", help="where; by default `$SYS/broker/connection/CLIENT_ID/state`", validator=checked(_check_topic)
    )
    outbox: OutboxSettings = setting(factory=OutboxSettings, help="the bounds of what waits for the far broker")
    sending: SendSettings = setting(factory=SendSettings, help="how it is sent")

    def __attrs_post_init__(self) -> None:
        problem = None if self.password_file is None else problem_with_file(self.password_file)
        if problem is not None:
            raise ValueError(f"password_file: {problem}")
        if self.password_file is not None and not self.username:
            raise ValueError("password_file needs username")
        if "/" in self.share:
            raise ValueError(f"share: {self.share!r} can't be the name of a group: it has a slash")
        if self.share and self.version != "5":
            raise ValueError('share needs version = "5"')

    @property
    def lines(self) -> list[TopicLine]:
        """The lines of ``topics``."""
        return [TopicLine.parse(each) for each in self.topics]

    @property
    def sends_the_password(self) -> bool:
        """Whether the password goes over a network as it is."""
        return (
            self.password_file is not None
            and self.tls is None
            and any(not each.startswith(_LOOPBACK) for each in self.servers)
        )


@frozen(slots=True)
class BridgeMqttSettings:
    """Connections to other brokers."""

    connections: dict[str, ConnectionSettings] = setting(
        factory=dict, help="connections to other brokers, by name", validator=check_names
    )
