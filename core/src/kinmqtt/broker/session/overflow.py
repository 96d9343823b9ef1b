"""Applies the overflow policy of plugins or settings when a client's queue is full."""

from __future__ import annotations

from typing import Final

from kinmqtt.broker import event_log as events
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.overflow_action import OverflowAction
from kinmqtt.broker.session.owner import QueueOwner
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.queue import OverflowPolicy, QueueFull
from kinmqtt_spi.values import Message

# For speed: looking up an Enum member, or hashing it for a dict, calls a Python function.
DROPPED: Final = OverflowAction.DROPPED
REFUSED: Final = OverflowAction.REFUSED
_QUEUE_DROPPING_OLDEST: Final = OverflowAction.QUEUE_DROPPING_OLDEST
_QUEUE_DROPPING_SAME_TOPIC: Final = OverflowAction.QUEUE_DROPPING_SAME_TOPIC
_DROP_OLDEST: Final = OverflowPolicy.DROP_OLDEST
_KEEP_LATEST: Final = OverflowPolicy.KEEP_LATEST
_REFUSE: Final = OverflowPolicy.REFUSE


def is_queued(action: OverflowAction) -> bool:
    """Return whether the action queues the new message."""
    return action is _QUEUE_DROPPING_OLDEST or action is _QUEUE_DROPPING_SAME_TOPIC


def decide(runtime: Runtime, session: QueueOwner, publication: Publication, is_empty: bool) -> OverflowAction:
    """Choose the action for a new message when the queue is full; a message that is not queued is dropped here.

    ``is_empty``: this queue has no messages, so a total is full: that of all clients, or of this one's user.
    """
    message = publication.stored
    policy = _policy(runtime, session, message)
    # If only a total is too large, this queue may have no message to drop instead.
    if not is_empty:
        if policy is _DROP_OLDEST:
            return _QUEUE_DROPPING_OLDEST
        if policy is _KEEP_LATEST:
            return _QUEUE_DROPPING_SAME_TOPIC
    # Queues hold only QoS 1 and 2: "QoS 0 first" finds none and drops the new message.
    drop(runtime, session, message)
    return REFUSED if policy is _REFUSE else DROPPED


def drop(runtime: Runtime, session: QueueOwner, message: Message) -> None:
    """Drop a message because the queue is full; all drops of a client in one turn share one event."""
    client_id = session.client_id
    runtime.drop(client_id, message, "queue_full")
    session.message_dropped()
    drops = runtime.turn.batch.drops
    event_data = drops.get(client_id)
    if event_data is not None:
        event_data["messages"] += 1
        return
    sizes = session.sizes
    is_connected = session.connection is not None
    runtime.slow_consumers.queue_is_full(session.client, is_connected, sizes.queued, sizes.queued_bytes)
    event_data = drops[client_id] = {"topic": message.topic, "messages": 1}
    events.record_data(runtime, EventKind.QUEUE_DROP, client_id, session.epoch, event_data)


def _policy(runtime: Runtime, session: QueueOwner, message: Message) -> OverflowPolicy:
    if runtime.hooks.queue_full.active:
        client = session.client if session.connection is not None else None
        answer = runtime.hooks.queue_full(QueueFull(session.client_id, client, session.sizes, message))
        if answer is not None:
            return answer
    return runtime.limits.queue_full
