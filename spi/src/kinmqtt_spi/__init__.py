"""kinmqtt-spi: everything a plugin needs to be written against, and nothing of the broker itself.

The names here are the ones nearly every plugin uses; those of a single family live in
``kinmqtt_spi.services.<family>``, and the hooks with their documentation in ``kinmqtt_spi.hookspecs.<family>``.
"""

from kinmqtt_spi.markers import fails_closed, hookimpl, on_topics
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.values import (
    ABSTAIN,
    ALLOW,
    Client,
    Decision,
    Disconnect,
    Drop,
    Message,
    Reject,
    Subscription,
    Verdict,
    Will,
    deny,
)

__all__ = [
    "ABSTAIN",
    "ALLOW",
    "NO_PROPERTIES",
    "SPI_VERSION",
    "Client",
    "Decision",
    "Disconnect",
    "Drop",
    "Message",
    "Properties",
    "ReasonCode",
    "Reject",
    "Subscription",
    "Verdict",
    "Will",
    "deny",
    "fails_closed",
    "hookimpl",
    "on_topics",
]

SPI_VERSION = 1
"""Goes up when a plugin written against the last version may no longer work; checked at assembly."""
