"""kinmqtt-spi: the interface between the kinmqtt broker and its plugins.

This module has the names that most plugins use. ``kinmqtt_spi.services.<family>`` has those of a family, and
``kinmqtt_spi.hookspecs.<family>`` its hooks with their documentation.
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

SPI_VERSION = 2
"""The version of the SPI. It increases with incompatible changes, and is checked at assembly."""
