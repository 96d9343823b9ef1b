"""The broker's own sections of the settings file."""

from __future__ import annotations

from typing import Final, Literal

from attrs import frozen

from kinmqtt_spi.services.queue import FullPolicy
from kinmqtt_spi.settings import setting

NEVER_EXPIRES: Final = 0xFFFF_FFFF
"""The session expiry interval of a session that never expires (section 3.1.2.11.2)."""

DEFAULT_ENDPOINT: Final = "tcp:1883:interface=127.0.0.1"


@frozen(slots=True)
class BrokerSettings:
    """``[broker]``: where the broker listens and who it is."""

    listen: tuple[str, ...] = setting(
        (DEFAULT_ENDPOINT,), help="Twisted endpoint strings, or a port or host:port for plain TCP"
    )
    data: Literal["memory"] = setting("memory", help="where state is kept; memory keeps nothing over a restart")
    allow_anonymous: bool | None = setting(
        None,
        help="let everybody in for whom no authenticator speaks; left out, this holds while every listener is "
        "on loopback and no authenticator is installed",
    )
    node_name: str = setting("", help="this node's name; the host's name where it is empty")
    sys_interval_s: float = setting(
        10.0, help="how often $SYS topics are published; 0 for never", unit="s", minimum=0
    )


@frozen(slots=True)
class LimitSettings:
    """``[limits]``: how much of everything one client may have. docs/limits.md says what happens at each bound."""

    max_packet_bytes: int = setting(
        8 << 20, help="the largest packet taken from a client", unit="bytes", minimum=64, maximum=268_435_460
    )
    max_connect_bytes: int = setting(
        256 << 10, help="the largest packet taken before a client is let in", unit="bytes", minimum=64
    )
    connect_time_limit_s: float = setting(
        10.0, help="how long a connection may take until it is accepted", unit="s", minimum=0.1
    )
    receive_maximum: int = setting(
        1024, help="QoS 1 and 2 messages a client may have unacknowledged", minimum=1, maximum=65_535
    )
    max_inflight: int = setting(
        1024,
        help="QoS 1 and 2 messages sent to a client and not acknowledged; a lower receive maximum of the "
        "client's own holds",
        minimum=1,
        maximum=65_535,
    )
    max_queued_messages: int = setting(10_000, help="messages that wait for one client", minimum=1)
    max_queued_bytes: int = setting(64 << 20, help="their topics and payloads", unit="bytes", minimum=1024)
    queue_full: FullPolicy = setting(
        FullPolicy.DROP_NEWEST, help="what gives way when a queue is full and no plugin decides"
    )
    outbound_buffer_bytes: int = setting(
        8 << 20,
        help="bytes that wait for a client's socket before QoS 0 messages to it are dropped and it is not read from",
        unit="bytes",
        minimum=1024,
    )
    topic_alias_maximum: int = setting(64, help="topic aliases a client may use", minimum=0, maximum=65_535)
    max_keep_alive_s: int = setting(
        65_535,
        help="a longer keep alive, or none, is replaced in MQTT 5",
        unit="s",
        minimum=1,
        maximum=65_535,
    )
    max_session_expiry_s: int = setting(
        NEVER_EXPIRES,
        help="a longer session expiry interval is cut",
        unit="s",
        minimum=0,
        maximum=NEVER_EXPIRES,
    )
    max_client_id_bytes: int = setting(65_535, help="the longest client id", unit="bytes", minimum=23, maximum=65_535)
    max_topic_levels: int = setting(200, help="levels of a topic or filter", minimum=1)
    max_subscriptions: int = setting(10_000, help="subscriptions of one client", minimum=1)
