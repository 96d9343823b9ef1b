"""The result of routing a message."""

from __future__ import annotations

from enum import Enum


class Routed(Enum):
    """The result of routing a message."""

    DELIVERED = "delivered"
    UNROUTED = "unrouted"
    """The topic has no subscribers."""
    REFUSED = "refused"
    """A full queue refused it by its overflow policy."""
    NOT_RETAINED = "not retained"
    """A limit forbids to retain it; it was not delivered."""
