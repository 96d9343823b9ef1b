"""What an operator should know of the listeners before anybody connects: said at a start and by ``kinmqtt check``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.net.proxy import trusted_networks

if TYPE_CHECKING:
    from kinmqtt.net.listeners import ListenerPort


def remarks(port: ListenerPort) -> list[str]:
    """How a listener behaves where that may surprise."""
    return [*_about_proxies(port), *_about_pages(port)]


def _about_pages(port: ListenerPort) -> list[str]:
    websocket = port.plan.settings.websocket
    if websocket is None or websocket.origins is not None:
        return []
    return [f"{port.plan.name}: web pages may connect to the host and port they come from; origins names other pages"]


def _about_proxies(port: ListenerPort) -> list[str]:
    settings = port.plan.settings
    if not settings.proxy_protocol or port.description.startswith("unix:"):
        return []
    networks = ", ".join(str(network) for network in trusted_networks(settings)) or "no address"
    hint = "; proxy_trusted names other proxies" if settings.proxy_trusted is None else ""
    return [f"{port.plan.name}: PROXY headers are believed from {networks}, and others are refused{hint}"]


def warnings(port: ListenerPort, now: float) -> list[str]:
    """What is probably not meant, at ``now`` (seconds since the epoch)."""
    settings = port.plan.settings
    found = []
    if settings.proxy_protocol and any(not network.prefixlen for network in trusted_networks(settings)):
        found.append(f"{port.plan.name}: PROXY headers are believed from everywhere: clients can say who they are")
    if port.tls is not None:
        found += port.tls.problems(now)
    return found
