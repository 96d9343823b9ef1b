"""The broker's own gauges, read on demand; docs/metric.md lists them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.cluster import MemberState

if TYPE_CHECKING:
    from kinmqtt.broker.cluster.listener import Nodes
    from kinmqtt.broker.connection.listener import Listener
    from kinmqtt.broker.services import Services


def register_gauges(metrics: MetricRegistry, services: Services, listeners: Iterable[Listener], nodes: Nodes) -> None:
    """Register all gauges of a broker, and one of each listener's connections."""
    _register_cluster_gauges(metrics, services, nodes)
    _register_connection_gauges(metrics, services, listeners)
    _register_session_gauges(metrics, services)


def _register_connection_gauges(metrics: MetricRegistry, services: Services, listeners: Iterable[Listener]) -> None:
    sessions, overload, buffers = services.sessions, services.overload, services.runtime.buffers
    metrics.gauge("clients.connected", "clients", lambda: sessions.connected)
    metrics.gauge("overload.level", "level", lambda: overload.level)
    metrics.gauge("buffers.inbound", "bytes", lambda: buffers.inbound)
    metrics.gauge("buffers.outbound", "bytes", lambda: buffers.outbound)
    metrics.gauge("buffers.inflight", "bytes", lambda: buffers.inflight)
    metrics.gauge("buffers.waiting", "connections", lambda: len(buffers.waiting))
    metrics.gauge("connections.open", "connections", lambda: len(services.connections))
    for listener in listeners:
        metrics.gauge(
            "listeners.connections",
            "connections",
            partial(getattr, listener, "connections"),
            {"listener": listener.name},
        )


def _register_cluster_gauges(metrics: MetricRegistry, services: Services, nodes: Nodes) -> None:
    forwarder = services.forwarder
    backend = forwarder.backend
    for state in MemberState:
        metrics.gauge(
            "cluster.members",
            "nodes",
            partial(lambda state: sum(each.state is state for each in backend.members()), state),
            {"state": state.value},
        )
    metrics.gauge("cluster.unreachable", "nodes", lambda: sum(not each.reachable for each in backend.members()))
    metrics.gauge("cluster.routes_own", "routes", lambda: len(services.router.announcer))
    metrics.gauge("cluster.routes_others", "routes", lambda: len(forwarder.routes))
    metrics.gauge("cluster.unanswered", "messages", lambda: forwarder.unanswered)
    metrics.gauge("cluster.queued", "bytes", forwarder.queued_bytes)
    metrics.gauge("cluster.held", "messages", lambda: nodes.rerouter.held)


def _register_session_gauges(metrics: MetricRegistry, services: Services) -> None:
    sessions, runtime = services.sessions, services.runtime
    stores = runtime.stores
    metrics.gauge("clients.total", "clients", lambda: sessions.clients)
    metrics.gauge("subscriptions.count", "subscriptions", services.router.index.count)
    totals = runtime.accounts.all
    metrics.gauge("subscriptions.size", "bytes", lambda: totals.subscription_bytes)
    metrics.gauge("wills.size", "bytes", lambda: totals.will_bytes)
    metrics.gauge("retained.count", "messages", stores.retain.count)
    metrics.gauge("retained.size", "bytes", stores.retain.size_bytes)
    metrics.gauge("queued.count", "messages", lambda: runtime.queued.messages)
    metrics.gauge("queued.size", "bytes", lambda: runtime.queued.size_bytes)
    metrics.gauge("sessions.stored", "sessions", stores.session.count)
    metrics.gauge("inflight.count", "messages", lambda: sum(len(s.outgoing) for s in sessions.by_id.values()))
