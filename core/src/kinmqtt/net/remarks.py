"""Remarks about listeners for the operator, at a start and by ``kinmqtt check``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.net.proxy import trusted_networks

if TYPE_CHECKING:
    from kinmqtt.net.listeners import ListenerPort


def remarks(port: ListenerPort) -> list[str]:
    """Return behaviour of a listener that may surprise."""
    return [*_about_proxies(port), *_about_pages(port)]


def _about_pages(port: ListenerPort) -> list[str]:
    websocket = port.plan.settings.websocket
    if websocket is None or websocket.origins is not None:
        return []
    return [f"{port.plan.name}: web pages may connect from the listener's own host and port; set origins for others"]


def _about_proxies(port: ListenerPort) -> list[str]:
    settings = port.plan.settings
    if not settings.proxy_protocol or port.description.startswith("unix:"):
        return []
    networks = ", ".join(str(network) for network in trusted_networks(settings)) or "no address"
    hint = "; set proxy_trusted for other proxies" if settings.proxy_trusted is None else ""
    return [f"{port.plan.name}: PROXY headers are accepted from {networks}, other connections are refused{hint}"]


def warnings(port: ListenerPort, now: float) -> list[str]:
    """Return probable mistakes at ``now`` (seconds since the epoch)."""
    settings = port.plan.settings
    found = []
    if settings.proxy_protocol and any(not network.prefixlen for network in trusted_networks(settings)):
        found.append(f"{port.plan.name}: PROXY headers are accepted from every address: clients can forge theirs")
    if port.tls is not None:
        found += port.tls.problems(now)
    return found
