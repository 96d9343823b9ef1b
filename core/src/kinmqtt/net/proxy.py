"""The PROXY protocol, versions 1 and 2: a proxy passes on the client's address. Twisted parses the header."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.address import IPv4Address as TcpAddress4
from twisted.internet.address import IPv6Address as TcpAddress6
from twisted.internet.address import UNIXAddress
from twisted.protocols.haproxy._wrapper import HAProxyProtocolWrapper, HAProxyWrappingFactory

from kinmqtt.networks import LOOPBACK, Network, is_within, parse_network

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from kinmqtt.net.protocol import MqttFactory
    from kinmqtt.settings import ListenerSettings

V1_PREFIX: Final = b"PROXY "
V2_PREFIX: Final = b"\r\n\r\n\x00\r\nQUIT\n"
V1_NEEDED_BYTES: Final = 8
V1_LONGEST_BYTES: Final = 107
V2_NEEDED_BYTES: Final = 16
V2_LONGEST_BYTES: Final = 16 << 10
"""Maximum size of a version 2 header, which could have 64 KiB; real proxies send little besides the addresses."""
V1_UNKNOWN: Final = b"PROXY UNKNOWN\r\n"
"""A version 1 header without addresses. Twisted's parser expects a space before the end of the line."""


class ProxyProtocol(HAProxyProtocolWrapper):
    """Waits until the data is long enough to tell the version; Twisted's wrapper decides by the first piece."""

    def __init__(self, factory: Any, wrapped: Any) -> None:
        super().__init__(factory, wrapped)
        self._early: bytes | None = b""

    def dataReceived(self, data: bytes) -> None:
        """Handle received data, of the header or after it."""
        if self._early is not None:
            data = self._early + data
            if self._may_become_header(data):
                self._early = data
                return
            self._early = None
            if (data.startswith(V1_PREFIX) and not _is_v1(data)) or _is_long_v2(data):
                self.loseConnection()  # type: ignore[no-untyped-call]
                return
            if data.startswith(V1_UNKNOWN):
                data = V1_UNKNOWN[:-2] + b" " + data[len(V1_UNKNOWN) - 2 :]
        try:
            super().dataReceived(data)
        except ValueError:
            if self._proxyInfo is not None:
                raise
            # Twisted's parser fails on a port that is not a number or an address that is not text.
            self.loseConnection()  # type: ignore[no-untyped-call]

    @property
    def is_health_check(self) -> bool:
        """Whether the header says that the proxy speaks for itself; it sees whether the listener answers."""
        return self._proxyInfo is not None and self._proxyInfo.source is None

    def _may_become_header(self, data: bytes) -> bool:
        """Tell whether the data is an incomplete header so far."""
        return any(
            len(data) < needed and prefix.startswith(data[: len(prefix)])
            for prefix, needed in ((V1_PREFIX, V1_NEEDED_BYTES), (V2_PREFIX, V2_NEEDED_BYTES))
        ) or (data.startswith(V1_PREFIX) and b"\r\n" not in data and len(data) <= V1_LONGEST_BYTES)


def _is_long_v2(data: bytes) -> bool:
    """Tell whether the data begins with a version 2 header that is too long."""
    length = int.from_bytes(data[V2_NEEDED_BYTES - 2 : V2_NEEDED_BYTES], "big")
    return data.startswith(V2_PREFIX) and V2_NEEDED_BYTES + length > V2_LONGEST_BYTES


def _is_v1(data: bytes) -> bool:
    """Tell whether the data begins with a valid version 1 line; Twisted's check is weaker."""
    line, end, _ = data.partition(b"\r\n")
    if not end or len(line) + 2 > V1_LONGEST_BYTES:
        return False
    fields = line.decode("latin-1").split(" ")
    if fields[1] == "UNKNOWN":
        return True
    sort = {"TCP4": IPv4Address, "TCP6": IPv6Address}.get(fields[1])
    if sort is None or len(fields) != 6:
        return False
    try:
        sort(fields[2]), sort(fields[3])
    except ValueError:
        return False
    return all(port.isascii() and port.isdecimal() and str(int(port)) == port for port in fields[4:]) and all(
        int(port) < 1 << 16 for port in fields[4:]
    )


class ProxyFactory(HAProxyWrappingFactory):
    """Puts the header's reader in front of each protocol, for connections from trusted proxies."""

    noisy = False
    protocol = ProxyProtocol  # type: ignore[assignment]

    def __init__(self, wrapped: Any, factory: MqttFactory) -> None:
        """``factory`` is the listener's own; ``wrapped`` may add layers around it."""
        super().__init__(wrapped)  # type: ignore[no-untyped-call]
        self._factory = factory
        self._trusted = trusted_networks(factory.settings)

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """Return a protocol for a new connection; one from an untrusted address is closed unread."""
        if not is_trusted(addr, self._trusted):
            self._factory.refuse(
                f"{_named(addr)}, which is not a trusted proxy ({', '.join(map(str, self._trusted)) or 'none'}); "
                "set proxy_trusted to change that"
            )
            return None
        return super().buildProtocol(addr)


def trusted_networks(settings: ListenerSettings) -> tuple[Network, ...]:
    """Return the networks whose proxies a listener trusts, besides Unix sockets."""
    texts = LOOPBACK if settings.proxy_trusted is None else settings.proxy_trusted
    return tuple(parse_network(text) for text in texts)


def is_trusted(addr: object, networks: Sequence[Network]) -> bool:
    """Tell whether an address is trusted. A Unix socket always is, because its file's mode controls access."""
    if isinstance(addr, UNIXAddress):
        return True
    return isinstance(addr, TcpAddress4 | TcpAddress6) and is_within(addr.host, networks)


def _named(addr: object) -> str:
    return addr.host if isinstance(addr, TcpAddress4 | TcpAddress6) else "an unknown address"
