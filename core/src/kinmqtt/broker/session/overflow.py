"""What gives way when a client's queue is full: the plugins' or the settings' policy, carried out."""

from __future__ import annotations

from enum import Enum
from typing import Final

from kinmqtt.broker import event_log as events
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.owner import QueueOwner
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.queue import OverflowPolicy, QueueFull
from kinmqtt_spi.values import Message


class OverflowAction(Enum):
    """What becomes of a message that finds the queue full."""

    DROPPED = "dropped"
    REFUSED = "refused"
    """Its publisher is to be told 0x97 (quota exceeded)."""
    QUEUE_DROPPING_OLDEST = "queued for oldest"
    """It is queued, and the oldest gives way."""
    QUEUE_DROPPING_SAME_TOPIC = "queued for topic"
    """It is queued, and an older one of its topic gives way; where there is none, the oldest."""


# For speed: a member of an Enum costs a Python function to look up, and one to find an entry of a dict by.
DROPPED: Final = OverflowAction.DROPPED
REFUSED: Final = OverflowAction.REFUSED
_QUEUE_DROPPING_OLDEST: Final = OverflowAction.QUEUE_DROPPING_OLDEST
_QUEUE_DROPPING_SAME_TOPIC: Final = OverflowAction.QUEUE_DROPPING_SAME_TOPIC
_DROP_OLDEST: Final = OverflowPolicy.DROP_OLDEST
_KEEP_LATEST: Final = OverflowPolicy.KEEP_LATEST
_REFUSE: Final = OverflowPolicy.REFUSE


def is_queued(action: OverflowAction) -> bool:
    """Whether a message that found the queue full is to be queued."""
    return action is _QUEUE_DROPPING_OLDEST or action is _QUEUE_DROPPING_SAME_TOPIC


def decide(runtime: Runtime, session: QueueOwner, publication: Publication, is_empty: bool) -> OverflowAction:
    """Decide about a message that finds the queue full; one that is not queued is dropped, counted and told of.

    ``is_empty`` says that nothing waits in this queue.
    """
    message = publication.stored
    policy = _policy(runtime, session, message)
    # Where all queues together are full, this one may have nothing that could give way.
    if not is_empty:
        if policy is _DROP_OLDEST:
            return _QUEUE_DROPPING_OLDEST
        if policy is _KEEP_LATEST:
            return _QUEUE_DROPPING_SAME_TOPIC
    # Queues hold QoS 1 and 2 only: "QoS 0 first" finds none and drops the newcomer.
    drop(runtime, session, message)
    return REFUSED if policy is _REFUSE else DROPPED


def drop(runtime: Runtime, session: QueueOwner, message: Message) -> None:
    """A message gives way. One event tells of all that do so for a client in a turn."""
    client_id = session.client_id
    runtime.drop(client_id, message, "queue_full")
    drops = runtime.turn.batch.drops
    told = drops.get(client_id)
    if told is not None:
        told["messages"] += 1
        return
    sizes = session.sizes
    is_connected = session.connection is not None
    runtime.slow_consumers.queue_is_full(session.client, is_connected, sizes.queued, sizes.queued_bytes)
    told = drops[client_id] = {"topic": message.topic, "messages": 1}
    events.record_data(runtime, EventKind.QUEUE_DROP, client_id, session.epoch, told)


def _policy(runtime: Runtime, session: QueueOwner, message: Message) -> OverflowPolicy:
    if runtime.hooks.queue_full.active:
        client = session.client if session.connection is not None else None
        answer = runtime.hooks.queue_full(QueueFull(session.client_id, client, session.sizes, message))
        if answer is not None:
            return answer
    return runtime.limits.queue_full
