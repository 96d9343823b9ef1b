"""Delivers a message to one session, with the hooks, rights and options that apply to it."""

from __future__ import annotations

from functools import partial

from twisted.logger import Logger

from kinmqtt.broker.message.names import check_made_names
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.target import Target
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.receive_rights import may_receive
from kinmqtt_spi.values import Disconnect, Message

log = Logger("kinmqtt.deliveries")


def deliver(
    runtime: Runtime, target: Target, publication: Publication, retained: bool = False, permitted: bool = False
) -> bool:
    """Deliver to one session, with hooks, rights and subscription options; ``False`` if its queue refused.

    ``retained`` marks a message sent because of a new subscription, which carries RETAIN (MQTT-3.3.1-8).
    ``permitted`` says that the authorizers of deliveries have already allowed it.
    """
    session = target.session
    publish = publication.publish
    if target.no_local and publication.publisher.client_id == session.client_id:
        return True if target.own is None else deliver(runtime, target.own, publication, retained, permitted)
    changed = _intercepted(runtime, target, publication, permitted)
    if changed is None:
        return True
    retain = retained or (target.retain_as_published and publish.retain)
    qos = min(target.qos, changed.publish.qos)
    if qos:
        subscription = target.subscription
        shared_filter = None if subscription.share_group is None else subscription.full_filter
        return session.deliver(changed, qos, retain, target.identifiers, shared_filter)
    session.deliver_particular(changed, retain, target.identifiers)
    return True


def deliver_after_commit(runtime: Runtime, target: Target, publication: Publication, permitted: bool = False) -> bool:
    """Deliver to one session with this turn's commit; ``False`` if its queue refused.

    For messages that are retried if the commit fails: what the turn's writes include is done at once, what would be
    sent without a write is sent after the commit, or not at all.
    """
    session = target.session
    # If the queue is full, the message is dropped, queued or refused, but never sent at once.
    if min(target.qos, publication.publish.qos) and (session.persistent or session.has_no_capacity):
        return deliver(runtime, target, publication, permitted=permitted)
    runtime.turn.batch.after_commit.append(partial(_deliver_now, runtime, target, publication, permitted))
    return True


def _deliver_now(runtime: Runtime, target: Target, publication: Publication, permitted: bool) -> None:
    session = target.session
    if session.persistent or session.connection is not None:
        deliver(runtime, target, publication, permitted=permitted)
    else:
        runtime.drop(session.client_id, publication.message, "offline")


def _intercepted(runtime: Runtime, target: Target, publication: Publication, permitted: bool) -> Publication | None:
    """Return the message as the hooks on deliveries changed it for one client; ``None`` if they drop it."""
    hooks = runtime.hooks
    session = target.session
    if session.is_outbox:
        return publication
    topic = publication.publish.topic
    if not permitted and hooks.authorize_receive.active:
        if not may_receive(runtime, session, publication.stored):
            return None
    intercept = hooks.delivering.for_topic(topic)
    if intercept is None:
        return publication
    outcome = intercept.at_once(session.client, publication.message, target.subscription)
    if outcome is publication.message:
        return publication
    if isinstance(outcome, Message):
        try:
            check_made_names(runtime.limits, outcome, publication.message)
        except ValueError as error:
            log.error("a plugin made an invalid message from one to {topic!r}: {error}", topic=topic, error=error)
            return publication
        return Publication.of(outcome)
    runtime.drop(session.client_id, publication.message, "intercepted")
    if isinstance(outcome, Disconnect) and session.connection is not None:
        session.connection.fail(outcome.reason, outcome.text)
    return None
