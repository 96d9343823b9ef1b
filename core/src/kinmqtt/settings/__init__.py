"""The broker's own sections of the settings file."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from attrs import evolve, fields, frozen

from kinmqtt.mqtt.characters import disallowed_in
from kinmqtt.networks import parse_network
from kinmqtt.origins import check_origin
from kinmqtt.settings.defaults import FileShare, MachineDefault, MemoryShare
from kinmqtt.settings.machine import Machine
from kinmqtt_spi.markers import NOTICE_LIMIT_S
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.queue import OverflowPolicy
from kinmqtt_spi.settings import setting

NEVER_EXPIRES: Final = 0xFFFF_FFFF
"""The session expiry interval of a session that never expires (section 3.1.2.11.2)."""

DEFAULT_ENDPOINT: Final = "tcp:1883:interface=127.0.0.1"

MEMORY: Final = "memory"
"""Stands in place of a directory where nothing is kept."""

WEBSOCKET_PREFIX: Final = "ws:"
"""Stands before an endpoint over which MQTT goes in WebSocket, where a listener is written as one string."""


ControlCharacters: TypeAlias = Literal["refuse", "allow"]
WATERMARKS: Final = ("memory_slow_bytes", "memory_drop_bytes", "memory_refuse_bytes")
"""The memory watermarks, the lowest first."""

REFUSE_SHARE: Final = 0.85
"""The part of the memory limit above which nobody more is accepted, by default. What is left is for what is on its
way at that moment, for the kernel's socket buffers, which a container's limit counts too, and for stores' files."""


EventLoop: TypeAlias = Literal["auto", "uvloop", "asyncio"]

ClientIdReuse: TypeAlias = Literal["same_user", "anybody"]


@frozen(slots=True)
class BrokerSettings:
    """``[broker]``: where the broker listens and who it is."""

    listen: tuple[str, ...] | None = setting(
        None,
        help="Twisted endpoint strings, or a port or host:port for plain TCP; ws: in front for WebSocket. Left out: "
        f"the tables [listeners.NAME], and without those {DEFAULT_ENDPOINT!r}",
    )
    data: str | None = setting(
        None,
        help="the directory where state is kept, or memory to keep nothing over a restart; left out: "
        "$STATE_DIRECTORY, /var/lib/kinmqtt for root, $XDG_STATE_HOME/kinmqtt (~/.local/state/kinmqtt) for others",
    )
    event_loop: EventLoop = setting(
        "auto",
        help="uvloop, which must be installed; asyncio, which always is; auto for the first that there is. twistd "
        "--reactor decides before it",
    )
    allow_anonymous: bool | None = setting(
        None,
        help="let everybody in for whom no authenticator speaks; left out, this holds while every listener is "
        "on loopback and no authenticator is installed. Listeners with authenticators of their own are not meant",
    )
    client_id_reuse: ClientIdReuse = setting(
        "same_user",
        help="who may take over the connection and the session of a client id: a client of the same user name (all "
        "without one count as one user), or anybody who gives the client id, as with Mosquitto and EMQX",
    )
    response_information: str = setting(
        "",
        help="told to MQTT 5 clients that ask for it: by convention the beginning of their response topics; "
        "${clientid} and ${username} are filled in",
    )
    node_name: str = setting("", help="this node's name; the host's name where it is empty")
    sys_interval_s: float = setting(
        10.0, help="how often $SYS topics are published; 0 for never", unit="s", minimum=0
    )

    def __attrs_post_init__(self) -> None:
        if self.data == "":
            raise ValueError("data is empty: name a directory, or memory")

    @property
    def data_directory(self) -> Path | None:
        """Where state is kept; ``None`` for memory."""
        return None if self.data in (None, MEMORY) else Path(str(self.data)).expanduser().absolute()


@frozen(slots=True)
class LimitSettings:
    """``[limits]``: how much of everything one client may have. docs/limits.md says what happens at each bound."""

    max_connections: int = setting(
        FileShare(), help="connections at one time, by all listeners together; 0 for no limit", minimum=0
    )
    max_packet_bytes: int = setting(
        8 << 20, help="the largest packet taken from a client", unit="bytes", minimum=64, maximum=268_435_460
    )
    max_connect_bytes: int = setting(
        64 << 10, help="the largest packet taken before a client is let in", unit="bytes", minimum=64
    )
    connect_time_limit_s: float = setting(
        10.0, help="how long a connection may take until it is accepted", unit="s", minimum=0.1
    )
    packet_time_limit_s: float = setting(
        60.0,
        help="how long a client may take over one packet; longer while 64 KiB of it arrive in each such time",
        unit="s",
        minimum=1,
    )
    max_all_inbound_bytes: int = setting(
        MemoryShare(0.1, 256 << 20),
        help="of all clients together, bytes of packets that have not arrived in full, or that wait for an answer to "
        "an earlier one",
        unit="bytes",
        minimum=1024,
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
    max_inflight_bytes: int = setting(
        64 << 20,
        help="what messages sent to a client and not acknowledged may take, where they are large (over 16 KiB)",
        unit="bytes",
        minimum=1024,
    )
    max_queued_messages: int = setting(10_000, help="messages that wait for one client", minimum=1)
    max_queued_bytes: int = setting(64 << 20, help="what they may take in memory, about", unit="bytes", minimum=1024)
    max_all_queued_bytes: int = setting(
        MemoryShare(0.2, 2 << 30), help="the same of all clients together", unit="bytes", minimum=1024
    )
    queue_full: OverflowPolicy = setting(
        OverflowPolicy.DROP_NEWEST, help="what gives way when a queue is full and no plugin decides"
    )
    outbound_buffer_bytes: int = setting(
        8 << 20,
        help="bytes that wait for a client's socket before QoS 0 messages to it are dropped and it is not read from",
        unit="bytes",
        minimum=1024,
    )
    outbound_time_limit_s: float = setting(
        300.0, help="how long so much may wait for a client's socket before it is disconnected", unit="s", minimum=1
    )
    notice_time_limit_s: float = setting(
        NOTICE_LIMIT_S,
        help="how long a plugin may take over one notice, while its others wait; then it is cancelled",
        unit="s",
        minimum=0.1,
    )
    max_all_outbound_bytes: int = setting(
        MemoryShare(0.1, 512 << 20),
        help="bytes that wait for the sockets of all clients together, or are sent and not acknowledged",
        unit="bytes",
        minimum=1024,
    )
    max_filters: int = setting(1000, help="topic filters in one SUBSCRIBE or UNSUBSCRIBE", minimum=1)
    max_user_properties: int = setting(
        100,
        help="user properties (and subscription identifiers) in one packet, those of its will counted for themselves",
        minimum=0,
    )
    max_properties_bytes: int = setting(
        128 << 10,
        help="the properties of one packet, those of its will counted for themselves",
        unit="bytes",
        minimum=64,
    )
    memory_slow_bytes: int = setting(
        MemoryShare(0.6),
        help="resident memory above which publishers are read from slowly; 0 for never",
        unit="bytes",
        minimum=0,
    )
    memory_drop_bytes: int = setting(
        MemoryShare(0.75),
        help="resident memory above which messages of QoS 0 are dropped; 0 for never",
        unit="bytes",
        minimum=0,
    )
    memory_refuse_bytes: int = setting(
        MemoryShare(REFUSE_SHARE),
        help="resident memory above which new connections, subscriptions and persistent sessions are refused, and "
        "the connections that hold the most are disconnected; 0 for never",
        unit="bytes",
        minimum=0,
    )
    topic_alias_maximum: int = setting(64, help="topic aliases a client may use", minimum=0, maximum=65_535)
    topic_aliases_used: int = setting(
        16,
        help="topic aliases the broker uses towards a client that takes them; packets to such a client are made for "
        "it alone",
        minimum=0,
        maximum=65_535,
    )
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
    max_client_id_bytes: int = setting(1024, help="the longest client id", unit="bytes", minimum=23, maximum=65_535)
    max_username_bytes: int = setting(
        1024,
        help="the longest user name, as the authenticator gives it or else as CONNECT does",
        unit="bytes",
        minimum=1,
        maximum=65_535,
    )
    max_topic_levels: int = setting(200, help="levels of a topic or filter", minimum=1)
    max_topic_bytes: int = setting(
        4096,
        help="the longest topic or filter, in UTF-8; $share/NAME/ counts with the filter behind it",
        unit="bytes",
        minimum=1,
        maximum=65_535,
    )
    control_characters: ControlCharacters = setting(
        "refuse",
        help="whether control characters and non-characters may stand in topics, filters, client ids and user names; "
        "a packet that has one is malformed, or is taken as it is",
    )
    max_subscriptions: int = setting(10_000, help="subscriptions of one client", minimum=1)
    max_subscription_bytes: int = setting(
        8 << 20, help="what they may take in memory, about", unit="bytes", minimum=1024
    )
    max_all_subscription_bytes: int = setting(
        MemoryShare(0.1, 512 << 20), help="the same of all clients together", unit="bytes", minimum=1024
    )
    max_will_bytes: int = setting(
        128 << 10, help="what the will of one client may take in memory, about", unit="bytes", minimum=0
    )
    max_all_will_bytes: int = setting(
        MemoryShare(0.05, 256 << 20),
        help="the same of all clients together, of those too that are gone and whose will is not due yet",
        unit="bytes",
        minimum=0,
    )
    max_match_steps: int = setting(
        1000,
        help="what one client's filters may add to matching one message: each distinct pattern of + adds its levels "
        "from the first + on, and each pattern of each shared subscription's group ten more",
        minimum=1,
    )
    max_sessions: int = setting(
        1_000_000, help="sessions that outlive their connection, with or without one", minimum=0
    )
    max_retained_messages: int = setting(1_000_000, help="topics that hold a retained message", minimum=0)
    max_retained_bytes: int = setting(
        MemoryShare(0.1, 1 << 30), help="what they may take in memory, about", unit="bytes", minimum=0
    )

    user_share: float = setting(
        0.5,
        help="how much of max_sessions, max_all_subscription_bytes, max_all_will_bytes, max_all_queued_bytes, "
        "max_retained_messages and max_retained_bytes one user may take, or (but for what is retained) one address "
        "of those without a user name that was checked; 1 for all of it",
        minimum=0.001,
        maximum=1,
    )

    def share_of(self, most: int) -> int:
        """How much one user may take of something of which there is so much for all."""
        return ceil(most * self.user_share)

    def resolved(self, machine: Machine) -> LimitSettings:
        """These limits with plain numbers for what was left out and follows from the machine.

        Where ``memory_refuse_bytes`` is set, and says that the broker is to have less than there is, shares are of
        that.
        """
        most = self.memory_refuse_bytes
        if most and not isinstance(most, MachineDefault):
            meant = int(most / REFUSE_SHARE)
            machine = evolve(machine, memory_bytes=min(meant, machine.memory_bytes or meant))
        found = {name: value.on(machine) for name, value in self._left_out}
        for position, name in enumerate(WATERMARKS):
            if found.get(name):
                given = [0 if each in found else getattr(self, each) for each in WATERMARKS]
                above = [each for each in given[position:] if each]
                found[name] = min([max(found[name], *given[: position + 1]), *above])
        changes: dict[str, Any] = dict(found)
        return evolve(self, **changes)

    @property
    def of_machine(self) -> dict[str, int]:
        """The limits that follow from the machine where they are left out, by name."""
        names = (each.name for each in fields(LimitSettings) if isinstance(each.default, MachineDefault))
        return {name: getattr(self, name) for name in names}

    @property
    def _left_out(self) -> list[tuple[str, MachineDefault]]:
        return [(name, value) for name, value in self.of_machine.items() if isinstance(value, MachineDefault)]

    def problem_with(self, name: str) -> str | None:
        """What of a topic or filter is beyond its bounds, in words; ``None`` where nothing is."""
        problem = self.problem_with_characters(name)
        if problem is not None:
            return problem
        if name.count("/") >= self.max_topic_levels:
            return "it has too many levels"
        return self.problem_with_length(name)

    def problem_with_topics(self, topic: str, properties: Properties) -> str | None:
        """The same of all topics of a message: its own, and the response topic."""
        problem = self.problem_with(topic)
        if problem is not None:
            return f"the topic: {problem}"
        response_topic = properties.response_topic
        problem = None if response_topic is None else self.problem_with(response_topic)
        return None if problem is None else f"the response topic: {problem}"

    def problem_with_length(self, name: str) -> str | None:
        """The same, of its length alone."""
        # No character takes more than four bytes in UTF-8.
        if len(name) * 4 > self.max_topic_bytes and len(name.encode("utf-8", "surrogatepass")) > self.max_topic_bytes:
            return "it is too long"
        return None

    @property
    def refuses_control_characters(self) -> bool:
        """Whether a packet with a control character or a non-character in a name is malformed."""
        return self.control_characters == "refuse"

    def problem_with_characters(self, name: str) -> str | None:
        """Which character may not stand in a name, in words; ``None`` where all may."""
        found = disallowed_in(name) if self.refuses_control_characters else None
        return None if found is None else f"it has {found} in it, a control character or a non-character"

    def __attrs_post_init__(self) -> None:
        given = [watermark for name in WATERMARKS if (watermark := getattr(self, name))]
        if given != sorted(given):
            raise ValueError(
                "the watermarks must rise: memory_slow_bytes, then memory_drop_bytes, then memory_refuse_bytes"
            )


@frozen(slots=True)
class ListenerLimitSettings:
    """``[listeners.NAME.limits]``: what holds for those who come in here; what is left out is as in ``[limits]``."""

    max_connections: int | None = setting(None, help="connections at one time", minimum=1)
    connections_per_s: float | None = setting(
        None, help="connections accepted a second; those above it wait their turn", minimum=0.1
    )
    connect_time_limit_s: float | None = setting(
        None, help="how long a connection may take until it is accepted", unit="s", minimum=0.1
    )
    packet_time_limit_s: float | None = setting(
        None, help="how long a client may take over one packet", unit="s", minimum=1
    )
    max_connect_bytes: int | None = setting(
        None, help="the largest packet taken before a client is let in", unit="bytes", minimum=64
    )
    max_packet_bytes: int | None = setting(
        None, help="the largest packet taken from a client", unit="bytes", minimum=64, maximum=268_435_460
    )
    receive_maximum: int | None = setting(
        None, help="QoS 1 and 2 messages a client may have unacknowledged", minimum=1, maximum=65_535
    )
    topic_alias_maximum: int | None = setting(None, help="topic aliases a client may use", minimum=0, maximum=65_535)
    max_keep_alive_s: int | None = setting(
        None, help="a longer keep alive, or none, is replaced in MQTT 5", unit="s", minimum=1, maximum=65_535
    )
    outbound_buffer_bytes: int | None = setting(
        None,
        help="bytes that wait for a client's socket before QoS 0 messages to it are dropped",
        unit="bytes",
        minimum=1024,
    )

    def over(self, limits: LimitSettings) -> LimitSettings:
        """The broker's limits with those of the listener in their place."""
        known = {attribute.name for attribute in fields(LimitSettings)}
        own = {name: getattr(self, name) for name in known if getattr(self, name, None) is not None}
        own.pop("max_connections", None)
        return evolve(limits, **own)


@frozen(slots=True)
class TlsSettings:
    """``[listeners.NAME.tls]``."""

    certificate: Path = setting(path="file", help="the certificate and those between it and the root, PEM")
    private_key: Path = setting(path="file", help="its private key, PEM; it may be the same file")
    client_certificates: Literal["none", "optional", "required"] = setting(
        "none", help="whether clients are asked for a certificate, and let in without one"
    )
    client_ca: Path | None = setting(
        None, path="file", help="the authorities that clients' certificates must come from, PEM"
    )
    username_from: Literal["common_name", "subject"] | None = setting(
        None, help="what of a client's certificate becomes its user name, in place of CONNECT's"
    )
    minimum_version: Literal["1.2", "1.3"] = setting("1.2", help="the oldest version of TLS that is spoken")
    ciphers: str | None = setting(
        None, help="cipher suites of TLS 1.2 in OpenSSL's words; left out for those with forward secrecy and AEAD"
    )

    def __attrs_post_init__(self) -> None:
        asks = self.client_certificates != "none"
        if asks and self.client_ca is None:
            raise ValueError("client_certificates needs client_ca: whose certificates are good")
        if not asks and (self.client_ca is not None or self.username_from is not None):
            raise ValueError('client_ca and username_from need client_certificates = "optional" or "required"')


@frozen(slots=True)
class WebSocketSettings:
    """``[listeners.NAME.websocket]``."""

    path: str | None = setting(None, help="the only path that is served; left out for any")
    origins: tuple[str, ...] | None = setting(
        None,
        help="pages whose scripts may connect, such as https://example.org, or * for all; left out for those of the "
        "host and port that they connect to. Clients that are no browsers need no origin",
    )

    def __attrs_post_init__(self) -> None:
        if self.path is not None and not self.path.startswith("/"):
            raise ValueError(f"path {self.path!r} does not begin with a slash")
        for origin in self.origins or ():
            check_origin(origin)


def _check_networks(settings: ListenerSettings, attribute: object, texts: tuple[str, ...] | None) -> None:
    for text in texts or ():
        try:
            parse_network(text)
        except ValueError as error:
            raise ValueError(
                f"proxy_trusted: {text!r} is no address or network, as 192.0.2.7 or 10.0.0.0/8 are: {error}"
            ) from None


@frozen(slots=True)
class ListenerSettings:
    """``[listeners.NAME]``: one way in."""

    endpoint: str = setting(help="a Twisted endpoint string, or a port or host:port for TCP")
    proxy_protocol: bool = setting(
        False, help="whether a proxy stands in front and says, by PROXY v1 or v2, who connects"
    )
    proxy_trusted: tuple[str, ...] | None = setting(
        None,
        help="with proxy_protocol: the addresses and networks of proxies that are believed, such as 10.0.0.0/8; left "
        "out for loopback. Who connects from elsewhere is refused; Unix sockets are always believed",
        validator=_check_networks,
    )
    authenticators: tuple[str, ...] | None = setting(
        None, help="the plugins that are asked here, in this order; left out for all"
    )
    tls: TlsSettings | None = setting(None, help="TLS, as below; left out for none")
    websocket: WebSocketSettings | None = setting(None, help="WebSocket, as below; left out for none")
    limits: ListenerLimitSettings = setting(ListenerLimitSettings(), help="limits of its own, as below")

    def __attrs_post_init__(self) -> None:
        if self.authenticators is not None and not self.authenticators:
            raise ValueError('authenticators is empty: name plugins, or "anonymous" to let everybody in')
        if self.proxy_trusted is not None and not self.proxy_protocol:
            raise ValueError("proxy_trusted needs proxy_protocol = true")


def from_text(text: str) -> tuple[str, ListenerSettings]:
    """The name and the settings of a listener that is written as one endpoint; ``ws:`` in front means WebSocket."""
    if text.startswith(WEBSOCKET_PREFIX):
        return text, ListenerSettings(endpoint=text.removeprefix(WEBSOCKET_PREFIX), websocket=WebSocketSettings())
    return text, ListenerSettings(endpoint=text)
