"""The settings of one listener: its endpoint, its limits, TLS, WebSocket and the PROXY protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from attrs import evolve, fields, frozen

from kinmqtt.networks import parse_network
from kinmqtt.origins import check_origin
from kinmqtt.settings.limits import LimitSettings
from kinmqtt_spi.settings import setting

WEBSOCKET_PREFIX: Final = "ws:"
"""The prefix of an endpoint that is served over WebSocket, where a listener is one string."""


@frozen(slots=True)
class ListenerLimitSettings:
    """``[listeners.NAME.limits]``: limits of this listener's clients; ``None`` takes the value of ``[limits]``."""

    max_connections: int | None = setting(None, help="connections at one time", minimum=1)
    connections_per_s: float | None = setting(
        None, help="connections accepted a second; further ones wait in the accept queue", minimum=0.1
    )
    connect_time_limit_s: float | None = setting(
        None, help="how long a connection may take until it is accepted", unit="s", minimum=0.1
    )
    packet_time_limit_s: float | None = setting(
        None, help="how long a client may take over one packet", unit="s", minimum=1
    )
    max_connect_bytes: int | None = setting(
        None, help="the largest packet accepted before a client is", unit="bytes", minimum=64
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
        """Returns the broker's limits, overridden by those that this listener sets."""
        known = {attribute.name for attribute in fields(LimitSettings)}
        own = {name: getattr(self, name) for name in known if getattr(self, name, None) is not None}
        own.pop("max_connections", None)
        return evolve(limits, **own)


@frozen(slots=True)
class TlsSettings:
    """``[listeners.NAME.tls]``: certificates, and what clients must present."""

    certificate: Path = setting(path="file", help="the certificate and its intermediates, PEM")
    private_key: Path = setting(path="file", help="its private key, PEM; it may be the same file")
    client_certificates: Literal["none", "optional", "required"] = setting(
        "none", help="whether clients are asked for a certificate, and accepted without one"
    )
    client_ca: Path | None = setting(
        None, path="file", help="the authorities that clients' certificates must come from, PEM"
    )
    username_from: Literal["common_name", "subject"] | None = setting(
        None, help="the part of a client's certificate that is its user name, instead of CONNECT's"
    )
    minimum_version: Literal["1.2", "1.3"] = setting("1.2", help="the oldest supported version of TLS")
    ciphers: str | None = setting(
        None, help="cipher suites of TLS 1.2 in OpenSSL's notation; default: those with forward secrecy and AEAD"
    )

    def __attrs_post_init__(self) -> None:
        asks = self.client_certificates != "none"
        if asks and self.client_ca is None:
            raise ValueError("client_certificates needs client_ca: the authorities of accepted certificates")
        if not asks and (self.client_ca is not None or self.username_from is not None):
            raise ValueError('client_ca and username_from need client_certificates = "optional" or "required"')


@frozen(slots=True)
class WebSocketSettings:
    """``[listeners.NAME.websocket]``: the path, and the origins that are allowed."""

    path: str | None = setting(None, help="the only path that is served; default: any")
    origins: tuple[str, ...] | None = setting(
        None,
        help="web pages whose scripts may connect, such as https://example.org, or * for all; default: pages of the "
        "host and port that they connect to. Clients that are not browsers need no origin",
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
                f"proxy_trusted: {text!r} is not an address or network such as 192.0.2.7 or 10.0.0.0/8: {error}"
            ) from None


@frozen(slots=True)
class ListenerSettings:
    """``[listeners.NAME]``: one listener."""

    endpoint: str = setting(help="a Twisted endpoint string, or a port or host:port for TCP")
    proxy_protocol: bool = setting(
        False, help="whether a proxy in front sends the client's address by PROXY v1 or v2"
    )
    proxy_trusted: tuple[str, ...] | None = setting(
        None,
        help="with proxy_protocol: the addresses and networks of trusted proxies, such as 10.0.0.0/8; default: "
        "loopback. Other connections are refused; Unix sockets are always trusted",
        validator=_check_networks,
    )
    authenticators: tuple[str, ...] | None = setting(
        None, help="the authenticators of this listener, in this order; default: all"
    )
    tls: TlsSettings | None = setting(None, help="TLS, as below; default: none")
    websocket: WebSocketSettings | None = setting(None, help="WebSocket, as below; default: none")
    limits: ListenerLimitSettings = setting(ListenerLimitSettings(), help="limits of its own, as below")

    def __attrs_post_init__(self) -> None:
        if self.authenticators is not None and not self.authenticators:
            raise ValueError('authenticators is empty: name plugins, or "anonymous" to accept all clients')
        if self.proxy_trusted is not None and not self.proxy_protocol:
            raise ValueError("proxy_trusted needs proxy_protocol = true")


def from_text(text: str) -> tuple[str, ListenerSettings]:
    """Returns the name and the settings of a listener given as one endpoint string; ``ws:`` means WebSocket."""
    if text.startswith(WEBSOCKET_PREFIX):
        return text, ListenerSettings(endpoint=text.removeprefix(WEBSOCKET_PREFIX), websocket=WebSocketSettings())
    return text, ListenerSettings(endpoint=text)
