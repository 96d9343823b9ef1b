"""The broker's own counters, with names and units: plain integers that are read when metrics are collected."""

from __future__ import annotations

from typing import Final

from kinmqtt_spi.services.metric import Counter, Metrics

DROP_REASONS: Final = (
    "expired",
    "intercepted",
    "link_full",
    "node_gone",
    "not_authorized",
    "offline",
    "outbound_buffer_full",
    "packet_too_large",
    "overload",
    "queue_full",
    "retained_full",
    "nested_too_deep",
    "store_failed",
)
"""The reasons for a message not to reach a client, as in the ``dropped`` hook and its metric."""


SUBSCRIPTION_BOUNDS: Final = (
    "max_subscriptions",
    "max_subscription_bytes",
    "max_all_subscription_bytes",
    "user_share",
    "max_match_steps",
)
"""The settings in ``[limits]`` by which a subscription is refused."""

COMMIT_SECONDS: Final[tuple[float, ...]] = (
    0.0002,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    5.0,
)
"""The histogram's bounds for the time that acknowledgements wait for the stores, in seconds."""


REROUTED: Final = ("moved", "no_member", "node_gone")
"""Why a message is sent to another node than first: its session has moved, the node had no member, or is gone."""

REFUSED_WHAT: Final = ("connection", "session", "subscription")
"""The requests that are refused while memory is short."""


class Statistics:
    """The counters of the message path. ``packets`` are MQTT packets of every type, ``messages`` PUBLISH only."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "commits",
        "connections_accepted",
        "connections_cut",
        "connections_refused",
        "dropped",
        "forwarded",
        "from_nodes",
        "malformed",
        "messages_received",
        "messages_sent",
        "overload_refused",
        "packets_received",
        "packets_sent",
        "remote_errors",
        "rerouted",
        "retained_from_nodes",
        "retained_refused",
        "sessions_expired",
        "sessions_taken_over",
        "subscriptions_refused",
        "unrouted",
        "unsynchronised",
        "untold",
    )

    def __init__(self, metrics: Metrics) -> None:
        self.bytes_received = metrics.counter("bytes.received", "bytes")
        self.bytes_sent = metrics.counter("bytes.sent", "bytes")
        self.packets_received = metrics.counter("packets.received", "packets")
        self.packets_sent = metrics.counter("packets.sent", "packets")
        self.messages_received = metrics.counter("messages.received", "messages")
        self.messages_sent = metrics.counter("messages.sent", "messages")
        self.connections_accepted = metrics.counter("connections.accepted", "connections")
        self.connections_refused = metrics.counter("connections.refused", "connections")
        self.connections_cut = metrics.counter("connections.cut", "connections")
        self.overload_refused = {
            what: metrics.counter("overload.refused", "requests", {"what": what}) for what in REFUSED_WHAT
        }
        self.remote_errors = metrics.counter("connections.remote_errors", "errors")
        self.sessions_expired = metrics.counter("sessions.expired", "sessions")
        self.sessions_taken_over = metrics.counter("sessions.taken_over", "sessions")
        self.subscriptions_refused: dict[str, Counter] = {
            bound: metrics.counter("subscriptions.refused", "subscriptions", {"bound": bound})
            for bound in SUBSCRIPTION_BOUNDS
        }
        self.commits = metrics.histogram("stores.commit", "seconds", COMMIT_SECONDS)
        self.forwarded = metrics.counter("messages.forwarded", "messages")
        """Messages sent to other nodes, once for each."""
        self.from_nodes = metrics.counter("messages.from_nodes", "messages")
        self.malformed = metrics.counter("cluster.malformed", "questions")
        """Batches and questions of other nodes that can't be read."""
        self.rerouted: dict[str, Counter] = {
            reason: metrics.counter("cluster.rerouted", "messages", {"reason": reason}) for reason in REROUTED
        }
        self.unsynchronised = metrics.counter("cluster.unsynchronised", "subscriptions")
        """Subscriptions, and sessions that came here, acknowledged before all reachable nodes knew their routes."""
        self.untold = metrics.counter("cluster.untold", "messages")
        """What plugins told other nodes, and these never got."""
        self.retained_from_nodes = metrics.counter("cluster.retained", "messages")
        """Retained messages and deletions of other nodes that were stored here."""
        self.retained_refused = metrics.counter("cluster.retained_refused", "messages")
        """Retained messages of other nodes that the limits of this one forbid."""
        self.unrouted = metrics.counter("messages.unrouted", "messages")
        self.dropped: dict[str, Counter] = {
            reason: metrics.counter("messages.dropped", "messages", {"reason": reason}) for reason in DROP_REASONS
        }
