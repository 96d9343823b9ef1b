"""Checks whether a client may receive a message: when it is routed, and again when it leaves a queue.

While a message is queued, another user may take over the client id, or the rules may change.
"""

from __future__ import annotations

from typing import Final

from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.owner import QueueOwner
from kinmqtt_spi.services.authorization import Action, Authorization, AuthorizationRequest, Cache
from kinmqtt_spi.values import Message

CACHED_RIGHTS: Final = 1024
"""The most topics whose rights a session caches."""

MAX_CACHED_LENGTH: Final = 256
"""The longest topic whose rights are cached, in characters: the cache of a session takes at most a megabyte."""


def may_receive(runtime: Runtime, session: QueueOwner, message: Message) -> bool:
    """Return whether a session may receive a message; drop a message that it may not receive.

    Call it only while :attr:`Hooks.authorize_receive` is active.
    """
    if is_allowed(runtime, session, message):
        return True
    runtime.drop(session.client_id, message, "not_authorized")
    return False


def is_allowed(runtime: Runtime, session: QueueOwner, message: Message) -> bool:
    """Return whether a session may receive a message, without dropping it: another session may get it instead."""
    hooks = runtime.hooks
    topic = message.topic
    known = known_right(session, topic)
    if known is not None:
        return known
    request = AuthorizationRequest(session.client, Action.RECEIVE, topic, message.qos, message.retain)
    ruling = hooks.authorize_receive.at_once(request)
    decision = ruling.decision
    if isinstance(decision, Authorization) and decision.cache is Cache.TOPIC:
        if hooks.authorize_receive.asks_one and decision.expires_at is None:
            _remember(session, topic, decision.allowed)
    if decision.allowed:
        return True
    runtime.rights.denials.log(request, ruling)
    if hooks.authorization_refused.active:
        hooks.authorization_refused(request, ruling.by)
    return False


def known_right(session: QueueOwner, topic: str) -> bool | None:
    """Return the cached right of a session to receive a topic; ``None`` if there is none."""
    if session.is_outbox:
        return True
    rights = session.receive_rights
    return None if rights is None else rights.get(topic)


def _remember(session: QueueOwner, topic: str, right: bool) -> None:
    if len(topic) > MAX_CACHED_LENGTH:
        return
    rights = session.receive_rights
    if rights is None or len(rights) >= CACHED_RIGHTS:
        rights = session.receive_rights = {}
    rights[topic] = right
