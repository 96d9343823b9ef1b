"""What is done with a new message when a session's queue is full."""

from __future__ import annotations

from enum import Enum


class OverflowAction(Enum):
    """What is done with a new message when the queue is full."""

    DROPPED = "dropped"
    REFUSED = "refused"
    """The publisher gets reason code 0x97 (quota exceeded)."""
    QUEUE_DROPPING_OLDEST = "queued for oldest"
    """The message is queued, and the oldest is dropped."""
    QUEUE_DROPPING_SAME_TOPIC = "queued for topic"
    """The message is queued, and an older one of its topic is dropped, or else the oldest."""
