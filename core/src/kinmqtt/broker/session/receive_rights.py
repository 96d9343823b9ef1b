"""Whether a client may receive a message: asked when it is routed, and again when it leaves a queue.

What waited may have been meant for whoever had the client id before, or for rules that have changed since.
"""

from __future__ import annotations

from typing import Final

from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.owner import QueueOwner
from kinmqtt_spi.services.authorization import Action, Authorization, AuthorizationRequest, Cache
from kinmqtt_spi.values import Message

CACHED_RIGHTS: Final = 1024
"""Topics of which it is remembered whether a session may receive them."""

LONGEST_REMEMBERED: Final = 256
"""Of a topic, in characters: those of one session take a megabyte at most."""


def may_receive(runtime: Runtime, session: QueueOwner, message: Message) -> bool:
    """Whether a session may have a message; one that it may not is dropped: told of and counted.

    Only to be asked where :attr:`Hooks.authorize_receive` is active.
    """
    if is_allowed(runtime, session, message):
        return True
    runtime.drop(session.client_id, message, "not_authorized")
    return False


def is_allowed(runtime: Runtime, session: QueueOwner, message: Message) -> bool:
    """Whether a session has the right to a message, where nothing is dropped yet: another may get it instead."""
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
    """Whether a session may receive a topic; ``None`` where that is not known."""
    rights = session.receive_rights
    return None if rights is None else rights.get(topic)


def _remember(session: QueueOwner, topic: str, right: bool) -> None:
    if len(topic) > LONGEST_REMEMBERED:
        return
    rights = session.receive_rights
    if rights is None or len(rights) >= CACHED_RIGHTS:
        rights = session.receive_rights = {}
    rights[topic] = right
