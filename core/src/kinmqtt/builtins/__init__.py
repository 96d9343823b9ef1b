"""The embedded defaults. They are plugins as any other, found by a list instead of entry points.

A list, because the broker must work from a source tree and in a frozen application, where no entry point of the
core's own is to be found, and because a built-in is what a family falls back to.
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
    "rate_limits": "kinmqtt.builtins.rate_limits:RateLimits",
    "bans": "kinmqtt.builtins.bans:Bans",
    "scram": "kinmqtt.builtins.scram:Scram",
    "auto_subscriptions": "kinmqtt.builtins.auto_subscriptions:AutoSubscriptions",
    "topic_rewrite": "kinmqtt.builtins.topic_rewrite:TopicRewrite",
    "share_strategy": "kinmqtt.builtins.share_strategy:ShareStrategy",
    "delayed": "kinmqtt.builtins.delayed:Delayed",
    "direct": "kinmqtt.builtins.direct:Direct",
}
"""Plugin name to ``module:attribute``, in the order in which they stand behind installed plugins."""

DEFAULTS: Final[dict[str, str]] = {
    "subscription": "trie",
    "queue": "memory",
    "retain": "memory",
    "session": "memory",
    "event": "memory",
    "cluster": "single_node",
}
"""The built-in that serves an exclusive family when neither the settings nor an installed plugin does."""

PERSISTENT_DEFAULTS: Final[dict[str, str]] = dict.fromkeys(("queue", "retain", "session", "event"), "embedded")
"""The same where there is a data directory."""

ANONYMOUS: Final = "anonymous"
"""Accepts clients that show nothing."""
CERTIFICATE: Final = "certificate"
"""Accepts clients that have shown a certificate; only listeners that name it ask it."""
