"""Parses the listeners' endpoint strings, checks them all, and opens all or none."""

from __future__ import annotations

import errno
import ipaddress
import re
from asyncio import AbstractEventLoop
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import (
    IListeningPort,
    IStreamServerEndpoint,
)
from twisted.internet.tcp import Port

from kinmqtt.broker.broker import Broker
from kinmqtt.broker.connection.listener import ListenerPlan
from kinmqtt.hooks.awaitables import resolve
from kinmqtt.net.owned import own_sockets
from kinmqtt.net.protocol import MqttFactory, SharedBounds
from kinmqtt.net.proxy import ProxyFactory
from kinmqtt.settings import ListenerSettings
from kinmqtt_spi.errors import AssemblyError

if TYPE_CHECKING:
    from kinmqtt.net.tls import TlsContext

BACKLOG: Final = 4096
"""Length of the accept queue. With Twisted's 50, a storm of reconnecting clients would time out."""

ACCEPTED_AT_ONCE: Final = 4
"""Connections that a listener accepts in one turn of the event loop. In a storm Twisted would accept ever more at
once and delay connected clients."""

_SHORT: Final = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^:\[\]]+):)?(?P<port>\d+)\Z")
_WITH_PORT: Final = ("tcp", "tcp6", "ssl")
_LARGEST_PORT: Final = 65_535


@frozen(slots=True)
class ListenerPort:
    """A place to listen, parsed but not yet open."""

    plan: ListenerPlan
    description: str
    """A full Twisted endpoint string."""
    endpoint: Any
    tls: TlsContext | None = None

    @property
    def summary(self) -> str:
        """The endpoint and its protocols, for people."""
        settings = self.plan.settings
        layers = (("TLS", settings.tls), ("WebSocket", settings.websocket), ("PROXY", settings.proxy_protocol))
        spoken = ", ".join(name for name, layer in layers if layer)
        where = self.description if self.plan.name == settings.endpoint else f"{self.plan.name}: {self.description}"
        return f"{where} ({spoken})" if spoken else where


def accept_in_groups(port: Any) -> None:
    """Limit a listening port to :data:`ACCEPTED_AT_ONCE` connections per turn.

    A port that is not Twisted's own, as a plugin's endpoint may open, stays unchanged.
    """
    if not isinstance(port, Port):
        return
    accept: Any = port.doRead

    def accept_some() -> None:
        # Twisted computes the next number from the accepted ones.
        port.numberAccepts = ACCEPTED_AT_ONCE
        accept()

    port.doRead = accept_some  # type: ignore[method-assign]


def is_local(description: str) -> bool:
    """Tell whether only this machine can reach an endpoint."""
    kind, _, rest = description.partition(":")
    if kind == "unix":
        return True
    if kind not in _WITH_PORT:
        # Through a proxy or an inherited socket, any client may connect.
        return False
    interface = next((part.partition("=")[2] for part in _split(rest) if part.startswith("interface=")), "")
    return is_loopback(interface.replace("\\:", ":"))


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address is a loopback one."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def describe(text: str) -> str:
    """Return the full endpoint string for a settings value: ``1883`` and ``host:1883`` mean TCP."""
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


def parse_listeners(reactor: Any, described: Sequence[tuple[str, str, ListenerSettings]]) -> list[ListenerPort]:
    """Parse the settings' listeners, each given as its name, its place in the settings, and its settings.

    Raises :class:`AssemblyError` for an invalid endpoint, for one that is named twice, and for TLS or WebSocket
    without the library it needs.
    """
    ports: list[ListenerPort] = []
    for name, place, settings in described:
        description = describe(settings.endpoint)
        endpoint = _endpoint(reactor, description, settings.endpoint, place)
        if any(port.description == description for port in ports):
            raise AssemblyError(f"{place} names {settings.endpoint!r} twice; remove one")
        local = is_local(description) and not settings.proxy_protocol
        plan = ListenerPlan(name, local, settings, place)
        if settings.websocket is not None:
            _need(place, "WebSocket", "wsproto", "websocket")
        tls = None
        if settings.tls is not None:
            _need(place, "TLS", "OpenSSL", "tls")
            from kinmqtt.net.tls import TlsContext

            tls = TlsContext(settings.tls, f"{place}.tls", "http/1.1" if settings.websocket else "mqtt")
        ports.append(ListenerPort(plan, description, endpoint, tls))
    return ports


def _endpoint(reactor: Any, description: str, text: str, place: str) -> IStreamServerEndpoint:
    try:
        _check_port(description)
        endpoint: IStreamServerEndpoint = serverFromString(reactor, description)
    except ValueError as error:
        if text.startswith("ws:"):
            raise AssemblyError(
                f"{place}: for WebSocket write `websocket = {{}}` next to the plain endpoint"
            ) from error
        raise AssemblyError(
            f"{place}: {text!r} is not an endpoint ({error}); examples: 'tcp:1883', 'tcp:1883:interface=127.0.0.1'"
        ) from error
    except (IndexError, KeyError) as error:
        raise AssemblyError(f"{place}: {text!r}: no such socket was inherited") from error
    except Exception as error:  # a plugin's endpoint parser may raise anything
        raise AssemblyError(
            f"{place}: {text!r} is not an endpoint ({error}); examples: 'tcp:1883', 'tcp:1883:interface=127.0.0.1'"
        ) from error
    return endpoint


def _need(place: str, what: str, module: str, extra: str) -> None:
    """Raise :class:`AssemblyError` if an optional library is missing."""
    if find_spec(module) is None:
        raise AssemblyError(f"{place}: {what} needs a library: pip install 'kinmqtt-core[{extra}]'")


def factory_for(broker: Broker, port: ListenerPort, bounds: SharedBounds | None = None) -> MqttFactory:
    """Return the protocol factory of a listener; ``bounds`` are shared with other listeners."""
    settings = port.plan.settings
    listener = broker.listeners[port.plan.name]
    if settings.websocket is None:
        return MqttFactory(broker, listener, settings, bounds)
    from kinmqtt.net.websocket import WebSocketMqttFactory

    return WebSocketMqttFactory(broker, listener, settings, bounds)


def wrapped(factory: MqttFactory, port: ListenerPort) -> Any:
    """Wrap the factory in the layers between its protocols and the transport."""
    layered: Any = factory if port.tls is None else port.tls.wrap(factory)
    return ProxyFactory(layered, factory) if port.plan.settings.proxy_protocol else layered


_REMEDIES: Final[dict[object, str]] = {
    errno.EADDRINUSE: "; another process listens there (see `ss -ltnp`): stop it, or choose another port",
    errno.EADDRNOTAVAIL: "; this machine has no such address (see `ip address`)",
    errno.EACCES: "; ports below 1024 need the capability CAP_NET_BIND_SERVICE: choose another, or grant it",
}


async def open_all(
    broker: Broker,
    ports: Sequence[ListenerPort],
    loop: AbstractEventLoop | None = None,
    bounds: SharedBounds | None = None,
) -> list[IListeningPort]:
    """Open all listeners, or none: on failure, close those already open and raise :class:`AssemblyError`.

    With a ``loop``, it owns the sockets of the connections. ``bounds`` are the broker's; with ``None`` each listener
    has its own.
    """
    opened: list[IListeningPort] = []
    for port in ports:
        factory = factory_for(broker, port, bounds)
        try:
            listening = await port.endpoint.listen(wrapped(factory, port))
        except Exception as error:  # a plugin's endpoint may raise anything
            await close_all(opened)
            cause = getattr(error, "socketError", error)
            # Errors of a Unix socket have the same numbers, but other causes.
            remedy = "" if port.description.startswith("unix:") else _REMEDIES.get(getattr(cause, "errno", None), "")
            raise AssemblyError(f"can't listen on {port.description!r}: {cause}{remedy}") from error
        accept_in_groups(listening)
        if loop is not None:
            own_sockets(listening, loop)
        factory.rate.port = listening
        opened.append(listening)
    return opened


async def close_all(ports: Sequence[IListeningPort]) -> None:
    """Close all listening ports."""
    for port in ports:
        stopped: Deferred[None] | None = port.stopListening()
        await resolve(stopped)


def _is_kind(word: str | None) -> bool:
    """Tell whether a word is an endpoint type, as in ``tcp:1883``, and not a host.

    A word without a dot other than ``localhost`` counts as one, so that a misspelt type does not become a host.
    """
    if word is None:
        return False
    return word != "localhost" and word.strip("[]").find(".") < 0 and not word.startswith("[")


def _check_port(description: str) -> None:
    """Raise ``ValueError`` for what the operating system would refuse only when the broker has started."""
    kind, _, rest = description.partition(":")
    first, *others = _split(rest)
    if kind == "unix" and not first:
        raise ValueError("the path is missing")
    port = next((part.partition("=")[2] for part in (first, *others) if part.startswith("port=")), first)
    if kind in _WITH_PORT and port.isdecimal() and int(port) > _LARGEST_PORT:
        raise ValueError(f"{port} is more than {_LARGEST_PORT}, the largest port")


def _split(rest: str) -> list[str]:
    """Split an endpoint string into its arguments; a colon after a backslash does not separate."""
    return re.split(r"(?<!\\):", rest)
