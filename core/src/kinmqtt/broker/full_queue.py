"""What gives way when a client's queue is full: the plugins' or the settings' policy, carried out."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from kinmqtt.broker import events
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.queue import FullPolicy, QueueFull
from kinmqtt_spi.values import Message

if TYPE_CHECKING:
    from kinmqtt.broker.publication import Publication
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session import Session


class Fate(Enum):
    """What becomes of a message that finds the queue full."""

    DROPPED = "dropped"
    REFUSED = "refused"
    """Its publisher is to be told 0x97 (quota exceeded)."""
    QUEUED_FOR_OLDEST = "queued for oldest"
    """It is queued, and the oldest gives way."""
    QUEUED_FOR_TOPIC = "queued for topic"
    """It is queued, and an older one of its topic gives way; where there is none, the oldest."""

    @property
    def is_queued(self) -> bool:
        """Whether the message is to be queued."""
        return self is Fate.QUEUED_FOR_OLDEST or self is Fate.QUEUED_FOR_TOPIC


_FATES: Final = {
    FullPolicy.DROP_NEWEST: Fate.DROPPED,
    # Queues hold QoS 1 and 2 only: "QoS 0 first" finds none and drops the newcomer.
    FullPolicy.DROP_QOS_0: Fate.DROPPED,
    FullPolicy.REFUSE: Fate.REFUSED,
    FullPolicy.DROP_OLDEST: Fate.QUEUED_FOR_OLDEST,
    FullPolicy.KEEP_LATEST: Fate.QUEUED_FOR_TOPIC,
}


def decide(runtime: Runtime, session: Session, publication: Publication) -> Fate:
    """Decide about a message that finds the queue full; one that is not queued is dropped, counted and told of."""
    message = publication.stored
    fate = _FATES[_policy(runtime, session, message)]
    if fate.is_queued and not session.waiting.count:
        fate = Fate.DROPPED  # All queues together are full, and this one has nothing that could give way.
    if not fate.is_queued:
        drop(runtime, session, message)
    return fate


def drop(runtime: Runtime, session: Session, message: Message) -> None:
    """A message gives way. One event tells of all that do so for a client in a turn."""
    client_id = session.client_id
    runtime.drop(client_id, message, "queue_full")
    drops = runtime.turn.batch.drops
    told = drops.get(client_id)
    if told is not None:
        told["messages"] += 1
        return
    runtime.slow_consumers.queue_is_full(session)
    told = drops[client_id] = {"topic": message.topic, "messages": 1}
    events.record_data(runtime, EventKind.QUEUE_DROP, client_id, session.epoch, told)


def _policy(runtime: Runtime, session: Session, message: Message) -> FullPolicy:
    if runtime.hooks.queue_full.active:
        client = session.client if session.connection is not None else None
        answer = runtime.hooks.queue_full(QueueFull(session.client_id, client, session.sizes, message))
        if answer is not None:
            return answer
    return runtime.limits.queue_full
