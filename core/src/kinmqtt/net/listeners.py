"""Where the broker listens: endpoint strings, checked before any is opened, and opened all or none."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import IListeningPort, IStreamServerEndpoint, IStreamServerEndpointStringParser
from twisted.plugin import getPlugins

from kinmqtt.broker.awaiting import settle
from kinmqtt.broker.broker import Broker
from kinmqtt.net.protocol import MqttFactory
from kinmqtt_spi.errors import AssemblyError

BACKLOG: Final = 4096
"""How many connections may wait to be accepted. Twisted's 50 lets a storm of reconnecting clients time out."""

_SHORT: Final = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^:\[\]]+):)?(?P<port>\d+)\Z")
_WITH_PORT: Final = ("tcp", "tcp4", "tcp6", "ssl")
_LARGEST_PORT: Final = 65_535


@frozen(slots=True)
class Listener:
    """One place to listen, described but not yet open."""

    description: str
    """A full Twisted endpoint string."""
    endpoint: Any

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        kind, _, rest = self.description.partition(":")
        if kind == "unix":
            return True
        if kind not in _WITH_PORT:
            # Behind a proxy or on a socket that was handed over, anybody may be at the other end.
            return False
        interface = next((part.partition("=")[2] for part in _split(rest) if part.startswith("interface=")), "")
        return is_loopback(interface.replace("\\:", ":"))


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def describe(text: str) -> str:
    """The full endpoint string for what the settings say: ``1883`` and ``host:1883`` mean plain TCP."""
    short = _SHORT.fullmatch(text)
    if short is None or _is_kind(short["host"]):
        full = text
    elif short["host"] is None:
        full = f"tcp:{short['port']}"
    else:
        host = short["host"].strip("[]")
        sort = "tcp6" if ":" in host else "tcp"
        full = f"{sort}:{short['port']}:interface={host.replace(':', chr(92) + ':')}"
    if full.startswith(("tcp:", "tcp6:")) and "backlog=" not in full:
        full += f":backlog={BACKLOG}"
    return full


def parse_listeners(reactor: Any, texts: Sequence[str], place: str = "broker.listen") -> list[Listener]:
    """The listeners of the settings; ``place`` says where they stand, for messages.

    Raises :class:`AssemblyError` for one that no endpoint parser understands, and for one named twice.
    """
    listeners: list[Listener] = []
    if not texts:
        raise AssemblyError(f"{place} is empty: name at least one endpoint, for example 'tcp:1883'")
    for text in texts:
        description = describe(text)
        try:
            _check_port(description)
            endpoint: IStreamServerEndpoint = serverFromString(reactor, description)
        except Exception as error:  # endpoint parsers may be anybody's: they raise what they like
            raise AssemblyError(
                f"{place}: {text!r} is no endpoint ({error}); 'tcp:1883' and 'tcp:1883:interface=127.0.0.1' are"
            ) from error
        if any(listener.description == description for listener in listeners):
            raise AssemblyError(f"{place} names {text!r} twice; remove one")
        listeners.append(Listener(description, endpoint))
    return listeners


async def open_all(broker: Broker, listeners: Sequence[Listener]) -> list[IListeningPort]:
    """Open all listeners, or none: those already open are closed before :class:`AssemblyError` is raised."""
    ports: list[IListeningPort] = []
    for listener in listeners:
        try:
            ports.append(await listener.endpoint.listen(MqttFactory(broker, listener.description)))
        except Exception as error:  # again, endpoints may be anybody's
            await close_all(ports)
            cause = getattr(error, "socketError", error)
            raise AssemblyError(f"can't listen on {listener.description!r}: {cause}") from error
    return ports


async def close_all(ports: Sequence[IListeningPort]) -> None:
    """Accept nothing more."""
    for port in ports:
        stopped: Deferred[None] | None = port.stopListening()
        await settle(stopped)


def _is_kind(word: str | None) -> bool:
    """Whether a word is the name of a sort of endpoint, as in ``tcp:1883``, and no host's."""
    if word is None or word in (*_WITH_PORT, "unix"):
        return word is not None
    return any(parser.prefix == word for parser in getPlugins(IStreamServerEndpointStringParser))


def _check_port(description: str) -> None:
    """Refuse what only the operating system would refuse, and only once the broker has started."""
    kind, _, rest = description.partition(":")
    first, *others = _split(rest)
    if kind == "unix" and not first:
        raise ValueError("the path is missing")
    port = next((part.partition("=")[2] for part in (first, *others) if part.startswith("port=")), first)
    if kind in _WITH_PORT and port.isdecimal() and int(port) > _LARGEST_PORT:
        raise ValueError(f"{port} is more than {_LARGEST_PORT}, the largest port")


def _split(rest: str) -> list[str]:
    """The arguments of an endpoint string; a colon after a backslash does not separate."""
    return re.split(r"(?<!\\):", rest)
