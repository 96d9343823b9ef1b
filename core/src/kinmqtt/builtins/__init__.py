"""The embedded defaults: plugins like any other, but found by a list instead of entry points.

A source tree or a frozen application has no entry points of the core, and every service family needs a fallback.
"""

from __future__ import annotations

from typing import Final

BUILTINS: Final[dict[str, str]] = {
    "anonymous": "kinmqtt.builtins.anonymous:Anonymous",
    "certificate": "kinmqtt.builtins.certificate",
    "hash": "kinmqtt.builtins.hash",
    "trie": "kinmqtt.builtins.trie",
    "memory": "kinmqtt.builtins.memory",
    "embedded": "kinmqtt.builtins.embedded:Embedded",
    "single_node": "kinmqtt.builtins.single_node",
    "local_feed": "kinmqtt.builtins.local_feed",
    "rate_limits": "kinmqtt.builtins.rate_limits:RateLimits",
    "bans": "kinmqtt.builtins.bans:Bans",
    "scram": "kinmqtt.builtins.scram:Scram",
    "auto_subscriptions": "kinmqtt.builtins.auto_subscriptions:AutoSubscriptions",
    "topic_rewrite": "kinmqtt.builtins.topic_rewrite:TopicRewrite",
    "share_strategy": "kinmqtt.builtins.share_strategy:ShareStrategy",
    "delayed": "kinmqtt.builtins.delayed:Delayed",
    "direct": "kinmqtt.builtins.direct:Direct",
}
"""Plugin name to ``module:attribute``, in the order in which they follow installed plugins."""

DEFAULTS: Final[dict[str, str]] = {
    "subscription": "trie",
    "queue": "memory",
    "retain": "memory",
    "session": "memory",
    "event": "memory",
    "feed": "local_feed",
    "cluster": "single_node",
}
"""Exclusive family to the built-in that serves it if neither the settings nor an installed plugin does."""

PERSISTENT_DEFAULTS: Final[dict[str, str]] = dict.fromkeys(("queue", "retain", "session", "event"), "embedded")
"""The same for a broker with a data directory."""

ANONYMOUS: Final = "anonymous"
"""Accepts clients without credentials."""
CERTIFICATE: Final = "certificate"
"""Accepts clients with a TLS certificate. Only listeners that name it use it."""
