"""The PROXY protocol, versions 1 and 2: a proxy in front says who connects. Twisted parses it."""

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
"""Proxies tell little beside the addresses; version 2 would let a header have 64 KiB."""
V1_UNKNOWN: Final = b"PROXY UNKNOWN\r\n"
"""What version 1 says where the proxy speaks for nobody. Twisted's parser wants a space before the line ends."""


class ProxyProtocol(HAProxyProtocolWrapper):
    """Twisted's wrapper decides by the first piece of data; this one waits until that is long enough to decide."""

    def __init__(self, factory: Any, wrapped: Any) -> None:
        super().__init__(factory, wrapped)
        self._early: bytes | None = b""

    def dataReceived(self, data: bytes) -> None:
        """Bytes arrived, of the header or behind it."""
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
            # A port that is no number, an address that is no text: Twisted's parser lets these through.
            self.loseConnection()  # type: ignore[no-untyped-call]

    def _may_become_header(self, data: bytes) -> bool:
        """Whether there is too little to tell, and what there is fits."""
        return any(
            len(data) < needed and prefix.startswith(data[: len(prefix)])
            for prefix, needed in ((V1_PREFIX, V1_NEEDED_BYTES), (V2_PREFIX, V2_NEEDED_BYTES))
        ) or (data.startswith(V1_PREFIX) and b"\r\n" not in data and len(data) <= V1_LONGEST_BYTES)


def _is_long_v2(data: bytes) -> bool:
    """Whether it begins with a header of version 2 that is longer than any that is taken."""
    length = int.from_bytes(data[V2_NEEDED_BYTES - 2 : V2_NEEDED_BYTES], "big")
    return data.startswith(V2_PREFIX) and V2_NEEDED_BYTES + length > V2_LONGEST_BYTES


def _is_v1(data: bytes) -> bool:
    """Whether it begins with a line of version 1, written as the protocol has it: Twisted looks less closely."""
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
    """Puts the header's reader in front of each protocol, where a proxy connects that is believed."""

    noisy = False
    protocol = ProxyProtocol  # type: ignore[assignment]

    def __init__(self, wrapped: Any, factory: MqttFactory) -> None:
        """``factory`` is the listener's own, ``wrapped`` the same with what lies between them, if anything does."""
        super().__init__(wrapped)  # type: ignore[no-untyped-call]
        self._factory = factory
        self._trusted = trusted_networks(factory.settings)

    def buildProtocol(self, addr: IAddress | None) -> Any:
        """A new connection; nothing is read from one whose header could say what it likes."""
        if not is_trusted(addr, self._trusted):
            self._factory.refuse(
                f"{_named(addr)}, which is none of its proxies ({', '.join(map(str, self._trusted)) or 'none'}); "
                "proxy_trusted names those that are believed"
            )
            return None
        return super().buildProtocol(addr)


def trusted_networks(settings: ListenerSettings) -> tuple[Network, ...]:
    """Where proxies are that a listener believes, besides Unix sockets."""
    texts = LOOPBACK if settings.proxy_trusted is None else settings.proxy_trusted
    return tuple(parse_network(text) for text in texts)


def is_trusted(addr: object, networks: Sequence[Network]) -> bool:
    """Whether what comes from an address is believed: from a Unix socket, whose file says who may use it, always."""
    if isinstance(addr, UNIXAddress):
        return True
    return isinstance(addr, TcpAddress4 | TcpAddress6) and is_within(addr.host, networks)


def _named(addr: object) -> str:
    return addr.host if isinstance(addr, TcpAddress4 | TcpAddress6) else "an unknown address"
