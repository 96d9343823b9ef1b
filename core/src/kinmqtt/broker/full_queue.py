"""What gives way when a client's queue is full: the plugins' or the settings' policy, carried out."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from kinmqtt.broker import events
from kinmqtt.broker.awaiting import as_deferred
from kinmqtt_spi.services import queue
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.queue import Entry, FullPolicy, QueueFull
from kinmqtt_spi.values import Message

if TYPE_CHECKING:
    from kinmqtt.broker.publication import Publication
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session import Session


class Room(Enum):
    """What became of a message that found the queue full."""

    MADE = "made"
    """Something else gave way: the message is to be queued."""
    DROPPED = "dropped"
    REFUSED = "refused"
    """Its publisher is to be told 0x97 (quota exceeded)."""


def make_room(runtime: Runtime, session: Session, publication: Publication) -> Room:
    """Decide about a message that finds the queue full.

    Queues hold QoS 1 and 2 only, so "QoS 0 first" finds none and drops the newcomer.
    """
    message = publication.message
    policy = _policy(runtime, session, message)
    if policy in (FullPolicy.DROP_NEWEST, FullPolicy.DROP_QOS_0, FullPolicy.REFUSE):
        _drop(runtime, session, message)
        return Room.REFUSED if policy is FullPolicy.REFUSE else Room.DROPPED
    topic = message.topic if policy is FullPolicy.KEEP_LATEST else None
    if session.kept:
        _evict_kept(runtime, session, topic)
    else:
        _evict_unkept(runtime, session, topic)
    return Room.MADE


def _policy(runtime: Runtime, session: Session, message: Message) -> FullPolicy:
    if runtime.hooks.queue_full.active:
        client = session.client if session.connection is not None else None
        answer = runtime.hooks.queue_full(QueueFull(session.client_id, client, session.sizes, message))
        if answer is not None:
            return answer
    return runtime.limits.queue_full


def _evict_unkept(runtime: Runtime, session: Session, topic: str | None) -> None:
    waiting = session.waiting
    same = next((d for d in waiting if d.publication.publish.topic == topic), None)
    victim = same or (waiting[0] if waiting else None)
    if victim is not None:
        session.take_from_waiting(victim)
        _drop(runtime, session, victim.publication.message)


def _evict_kept(runtime: Runtime, session: Session, topic: str | None) -> None:
    """Remove one entry from the store, for which the store may have to be read first."""
    limit = 1 if topic is None else session.backlog
    entries = runtime.stores.queue.read(session.client_id, session.cursor, limit)

    def evict(found: Sequence[Entry]) -> None:
        same = next((entry for entry in found if entry.message.topic == topic), None)
        victim = same or (found[0] if found else None)
        if victim is not None:
            session.backlog -= 1
            runtime.turn.batch.queue.append(queue.Remove(session.client_id, session.epoch, victim.sequence))
            _drop(runtime, session, victim.message)
            runtime.turn.touch()

    if isinstance(entries, Awaitable):
        as_deferred(entries).addCallback(evict)
    else:
        evict(entries)


def _drop(runtime: Runtime, session: Session, message: Message) -> None:
    runtime.drop(session.client_id, message, "queue_full")
    events.record(runtime, EventKind.QUEUE_DROP, session.client_id, session.epoch, topic=message.topic)
