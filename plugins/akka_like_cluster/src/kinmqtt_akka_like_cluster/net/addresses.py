"""Addresses of brokers as settings, seeds and handshakes write them: ``host:port`` or ``unix:PATH``."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeAlias

from attrs import frozen

UNIX_PREFIX: Final = "unix:"
MAX_UNIX_PATH_BYTES: Final = 107
"""The longest path of a Unix socket on Linux (unix(7))."""
MAX_ADDRESS_BYTES: Final = 255
"""The longest address as text."""

_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_PORT: Final = re.compile(r"[0-9]{1,5}")

IpAddress: TypeAlias = IPv4Address | IPv6Address


@frozen(slots=True)
class Endpoint:
    """Where a broker listens: a host with a port, or the path of a Unix socket. ``str`` returns its only spelling."""

    host: str = ""
    """An IP address or a name; empty for a Unix socket."""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read ``host:port``, ``[::1]:port`` or ``unix:PATH``. Raises ``ValueError`` that says what is wrong."""
        if len(text.encode(errors="replace")) > MAX_ADDRESS_BYTES:
            raise ValueError(f"an address has at most {MAX_ADDRESS_BYTES} bytes, not {len(text)}")
        if text.startswith(UNIX_PREFIX):
            return cls(path=_checked_path(text.removeprefix(UNIX_PREFIX)))
        host, colon, port = text.rpartition(":")
        if not colon or not host or not _PORT.fullmatch(port):
            raise ValueError(f"{text!r} is not host:port, [IPv6 address]:port or unix:PATH")
        if not 0 < int(port) < 65_536:
            raise ValueError(f"{text!r}: a port is a number from 1 to 65535")
        return cls(_checked_host(host, text), int(port))

    @property
    def is_unix(self) -> bool:
        """Whether this is a Unix socket."""
        return bool(self.path)

    @property
    def ip(self) -> IpAddress | None:
        """The IP address; ``None`` for a name and for a Unix socket."""
        try:
            address = ip_address(self.host)
        except ValueError:
            return None
        return getattr(address, "ipv4_mapped", None) or address

    @property
    def is_wildcard(self) -> bool:
        """Whether this stands for all addresses of a machine."""
        return self.ip is not None and self.ip.is_unspecified

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it: a Unix socket, a loopback address, or the name ``localhost``."""
        return self.is_unix or self.host == "localhost" or (self.ip is not None and self.ip.is_loopback)

    def __str__(self) -> str:
        if self.is_unix:
            return f"{UNIX_PREFIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _checked_path(path: str) -> str:
    if not path.startswith("/") or not path.isprintable():
        raise ValueError(f"{UNIX_PREFIX}{path!r}: the path of a Unix socket is absolute, as unix:/run/kinmqtt.sock")
    if len(path.encode(errors="replace")) > MAX_UNIX_PATH_BYTES:
        raise ValueError(f"{UNIX_PREFIX}{path}: the path of a Unix socket has at most {MAX_UNIX_PATH_BYTES} bytes")
    return path


def _checked_host(host: str, text: str) -> str:
    """Return the host's only spelling. Raises ``ValueError``."""
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed or ":" in host:
        try:
            address = IPv6Address(host[1:-1] if bracketed else host)
        except ValueError:
            raise ValueError(f"{text!r}: {host!r} is not an IPv6 address in brackets") from None
        if not bracketed:
            raise ValueError(f"{text!r}: an IPv6 address is written in brackets, as [{host}]:4883")
        if address.scope_id is not None:
            raise ValueError(f"{text!r}: an address with a scope means another one on each machine")
        return str(address)
    try:
        return str(IPv4Address(host))
    except ValueError:
        pass
    # The system would read 127.1 or 0x7f000001 as an address that no check here knows.
    if not _NAME.fullmatch(host) or _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        raise ValueError(f"{text!r}: {host!r} is neither an IP address nor a host name")
    return host.lower().rstrip(".")
