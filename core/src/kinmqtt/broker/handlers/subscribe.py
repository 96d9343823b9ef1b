"""Handlers of SUBSCRIBE and UNSUBSCRIBE, and initial subscriptions by plugins (sections 3.8 to 3.11)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from twisted.logger import Logger

from kinmqtt.broker import event_log as events
from kinmqtt.broker.message.names import check_names
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt.mqtt.codec import decode
from kinmqtt.mqtt.codec.subscribe import has_more_filters
from kinmqtt.mqtt.errors import ProtocolError, RemoteError
from kinmqtt.mqtt.packets import (
    V5,
    PacketType,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt.mqtt.reasons import fitting
from kinmqtt.mqtt.topics import split_shared
from kinmqtt_spi.errors import SubscriptionRefused
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.limiter import LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.services.session import RemoveSubscriptions, SaveSubscriptions
from kinmqtt_spi.values import Disconnect, Drop, Reject, Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt.broker.turn.batch import Batch
    from kinmqtt.settings import LimitSettings

log = Logger("kinmqtt.subscribe")

Made = list[tuple[Subscription, bool]]
"""Subscriptions made, each with whether it is new; retained messages are sent for them."""


class _RequestCommits:
    """The commits of one request, which may span turns; it is answered when all its writes are committed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runtime = connection.runtime
        self._joined: Batch | None = None

    def join(self) -> None:
        """Include the current turn's writes in the request."""
        batch = self._runtime.turn.batch
        if batch is not self._joined:
            self._joined = batch
            # Bound to the connection, not to self: a batch must not reference its owner.
            batch.on_commit_failed.append(partial(_disconnect_uncommitted, self._connection))

    def answer(self, call: Callable[[], object]) -> None:
        """Schedule a call for when all writes are committed; batches are released in order."""
        self.join()
        self._runtime.turn.batch.after_commit.append(call)
        self._runtime.turn.touch()


def _disconnect_uncommitted(connection: Connection, reason: ReasonCode) -> None:
    connection.fail(reason, "a store did not commit it")


def subscribe(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle a SUBSCRIBE."""
    _check_count(connection, frame, body)
    packet = decode(frame, body, connection.version, connection.limits)
    session = connection.session
    if not isinstance(packet, Subscribe) or session is None:
        raise ProtocolError("not a SUBSCRIBE")
    check_names(connection.runtime.limits, *(request.filter for request in packet.requests))
    return connection.wait_for(run(_subscribe(connection, session, packet)))


def unsubscribe(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle an UNSUBSCRIBE."""
    _check_count(connection, frame, body)
    packet = decode(frame, body, connection.version, connection.limits)
    session = connection.session
    if not isinstance(packet, Unsubscribe) or session is None:
        raise ProtocolError("not an UNSUBSCRIBE")
    check_names(connection.runtime.limits, *packet.filters)
    return connection.wait_for(run(_unsubscribe(connection, session, packet)))


def _check_count(connection: Connection, frame: bytes, body: int) -> None:
    """Refuse a packet with too many topic filters before decoding them."""
    connection.runtime.slices.hurry()
    most = connection.runtime.limits.max_filters
    if has_more_filters(frame, body, connection.version, most):
        raise RemoteError(ReasonCode.QUOTA_EXCEEDED, f"more than {most} topic filters in one packet")


async def subscribe_initially(connection: Connection, session: Session) -> Made:
    """Make the initial subscriptions from plugins; returns them."""
    made: Made = []
    collect = connection.runtime.hooks.initial_subscriptions
    if not collect.active:
        return made
    for plugin, subscriptions in await collect(session.client):
        if session.connection is not connection:
            return made
        for subscription in subscriptions or ():
            try:
                _check_subscription(subscription, connection.runtime)
                made.append((subscription, _add_subscription(connection, session, subscription)))
            except (RemoteError, SubscriptionRefused, ValueError) as error:
                log.error(
                    "plugin {plugin}: the initial subscription {filter!r} is refused: {error}",
                    plugin=plugin,
                    filter=subscription.full_filter,
                    error=error,
                )
    return made


async def _subscribe(connection: Connection, session: Session, packet: Subscribe) -> None:
    reasons: list[ReasonCode] = []
    made: Made = []
    refused = _limited(connection, session, len(packet.requests))
    identifiers = packet.properties.subscription_identifier
    runtime = connection.runtime
    commits = _RequestCommits(connection)
    is_full = False
    for request in packet.requests:
        if runtime.slices.is_over():
            await runtime.slices.turn()
            if session.connection is not connection:
                return
        if refused is not None:
            reasons.append(refused)
            continue
        if is_full and request.filter not in session.subscriptions:
            # Beyond max_subscriptions plugins are not asked, which saves their calls.
            runtime.statistics.subscriptions_refused["max_subscriptions"].value += 1
            reasons.append(ReasonCode.QUOTA_EXCEEDED)
            continue
        outcome = await _subscribe_filter(connection, session, request, identifiers[0] if identifiers else None)
        if session.connection is not connection:
            return
        if isinstance(outcome, ReasonCode):
            reasons.append(outcome)
            is_full = len(session.subscriptions) >= runtime.limits.max_subscriptions
            continue
        commits.join()
        made.append(outcome)
        reasons.append(ReasonCode(outcome[0].qos))
    await _wait_for_routes(connection)
    if session.connection is not connection:
        return
    answer = Suback(packet.packet_id, tuple(reasons))
    commits.answer(lambda: _answer_granted(connection, session, answer, made))


def _answer_granted(connection: Connection, session: Session, answer: Suback, made: Made) -> None:
    """Send SUBACK and retained messages after the commit."""
    if session.connection is not connection:
        return
    connection.send_packet(answer)
    subscribed = connection.runtime.hooks.subscribed
    if subscribed.active:
        for subscription, _ in made:
            subscribed(session.client, subscription)
    connection.services.retained.send(session, made)


async def _wait_for_routes(connection: Connection) -> None:
    laggards = await resolve(connection.services.router.routes_known())
    if laggards:
        log.warn("{count} nodes have not confirmed the latest routes yet", count=len(laggards))


async def _subscribe_filter(
    connection: Connection, session: Session, request: SubscribeRequest, identifier: int | None
) -> tuple[Subscription, bool] | ReasonCode:
    """Handle one topic filter of a SUBSCRIBE; returns the subscription and whether it is new, or a failure reason."""
    runtime = connection.runtime
    try:
        group, filter = split_shared(request.filter)
        _check_bounds(request.filter, filter, runtime.limits)
    except RemoteError as error:
        if connection.version != V5:
            raise
        return error.reason
    is_bridge = connection.is_bridge
    subscription = Subscription(
        filter,
        request.qos,
        group,
        request.no_local or (is_bridge and group is None),
        request.retain_as_published or is_bridge,
        request.retain_handling,
        identifier,
    )
    question = AuthorizationRequest(session.client, Action.SUBSCRIBE, filter, request.qos, share_group=group)
    ruling = await resolve(runtime.rights.ask(question))
    if session.connection is not connection:
        return ReasonCode.UNSPECIFIED_ERROR
    if not ruling.decision.allowed:
        runtime.rights.report_denial(question, ruling)
        return _suback_reason(ruling.decision.reason)
    changed = await _intercepted(connection, session, subscription)
    if session.connection is not connection:
        return ReasonCode.UNSPECIFIED_ERROR
    if isinstance(changed, ReasonCode):
        return changed
    if runtime.refuses and changed.full_filter not in session.subscriptions:
        runtime.statistics.overload_refused["subscription"].value += 1
        return ReasonCode.QUOTA_EXCEEDED
    bound = _bound_reached(session, changed, runtime)
    if bound is not None:
        _log_bound_reached(connection, session, bound)
        return ReasonCode.QUOTA_EXCEEDED
    try:
        return changed, _add_subscription(connection, session, changed)
    except SubscriptionRefused as error:
        return _suback_reason(error.reason)


def _bound_reached(session: Session, subscription: Subscription, runtime: Runtime) -> str | None:
    """Returns the limit that a new subscription would exceed; ``None`` for none, and for a replacement."""
    if subscription.full_filter in session.subscriptions:
        return None
    limits = runtime.limits
    size_bytes = subscription.size_bytes
    if len(session.subscriptions) >= limits.max_subscriptions:
        return "max_subscriptions"
    if session.subscription_bytes + size_bytes > limits.max_subscription_bytes:
        return "max_subscription_bytes"
    most = limits.max_all_subscription_bytes
    if runtime.accounts.all.subscription_bytes + size_bytes > most:
        return "max_all_subscription_bytes"
    if session.account.subscription_bytes + size_bytes > limits.share_of(most):
        return "user_share"
    if session.match_steps_with(subscription) > limits.max_match_steps:
        return "max_match_steps"
    return None


def _log_bound_reached(connection: Connection, session: Session, bound: str) -> None:
    """Count a subscription refused for a limit; log it once for each connection and limit."""
    runtime = connection.runtime
    runtime.statistics.subscriptions_refused[bound].value += 1
    if connection.first_to_log(f"limits.{bound}"):
        log.info(
            "{client}: a subscription is refused because limits.{bound} is reached; current subscriptions: "
            "{count} of the client ({its} bytes), {user} bytes of its user, {all} bytes of all clients",
            client=connection.name,
            bound=bound,
            count=len(session.subscriptions),
            its=session.subscription_bytes,
            user=session.account.subscription_bytes,
            all=runtime.accounts.all.subscription_bytes,
        )


async def _intercepted(
    connection: Connection, session: Session, subscription: Subscription
) -> Subscription | ReasonCode:
    subscribing = connection.runtime.hooks.subscribing
    if not subscribing.active:
        return subscription
    outcome: Subscription | Drop | Reject | Disconnect = await resolve(subscribing(session.client, subscription))
    if isinstance(outcome, Subscription):
        try:
            _check_subscription(outcome, connection.runtime)
        except (RemoteError, ValueError) as error:
            log.error(
                "a plugin made an invalid subscription from {filter!r}: {error}",
                filter=subscription.filter,
                error=error,
            )
            return ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        return outcome
    if isinstance(outcome, Disconnect):
        raise RemoteError(outcome.reason, outcome.text or "a plugin rejected a subscription")
    # A dropped request is answered as if it were granted.
    return ReasonCode(subscription.qos) if isinstance(outcome, Drop) else _suback_reason(outcome.reason)


def _check_bounds(full_filter: str, filter: str, limits: LimitSettings) -> None:
    """Raise :class:`RemoteError` with 0x8F for a filter that is too long or has too many levels.

    The share name, which only ``full_filter`` contains, counts for the length but not as a level.
    """
    problem = limits.problem_with(filter) or limits.problem_with_length(full_filter)
    if problem is not None:
        raise RemoteError(ReasonCode.TOPIC_FILTER_INVALID, f"the filter: {problem}")


def _check_subscription(subscription: Subscription, runtime: Runtime) -> None:
    """Raise :class:`RemoteError` or ``ValueError`` for a plugin's subscription that no SUBSCRIBE could make."""
    group, filter = split_shared(subscription.full_filter)
    if (group, filter) != (subscription.share_group, subscription.filter):
        raise ValueError("a shared subscription needs its share name in share_group and the rest in filter")
    _check_bounds(subscription.full_filter, filter, runtime.limits)
    problem = runtime.limits.problem_with_characters(subscription.share_group or "")
    if problem is not None:
        raise ValueError(f"the share name: {problem}")
    refusal = runtime.rights.spaces.refusal(Action.SUBSCRIBE, filter)
    if refusal is not None:
        raise ValueError(refusal.text)
    if subscription.qos not in (0, 1, 2) or subscription.retain_handling not in (0, 1, 2):
        raise ValueError(f"QoS {subscription.qos!r}, retain handling {subscription.retain_handling!r}")


def _add_subscription(connection: Connection, session: Session, subscription: Subscription) -> bool:
    """Add a subscription to index, session and store; returns whether it is new."""
    services = connection.services
    services.router.subscribe(session.client_id, subscription)
    new = session.add_subscription(subscription)
    if session.persistent:
        services.runtime.turn.batch.sessions.append(
            SaveSubscriptions(session.client_id, session.epoch, (subscription,))
        )
    events.record(
        services.runtime,
        EventKind.SUBSCRIBE,
        session.client_id,
        session.epoch,
        username=session.client.username,
        filter=subscription.full_filter,
        qos=subscription.qos,
        no_local=subscription.no_local,
        retain_as_published=subscription.retain_as_published,
        retain_handling=int(subscription.retain_handling),
        identifier=subscription.identifier,
    )
    return new


def _limited(connection: Connection, session: Session, amount: int) -> ReasonCode | None:
    client = session.client
    resource = Resource(
        ResourceKind.SUBSCRIBE, client.listener, client.address.host, client.client_id, client.username
    )
    limit = connection.acquire_for_packet(resource, amount)
    if limit.verdict is LimitVerdict.DELAY:
        connection.pause_for(limit.delay_s)
        return None
    if limit.verdict is LimitVerdict.DISCONNECT:
        raise RemoteError(limit.reason, f"limited by {limit.rule}")
    return None if limit.verdict is LimitVerdict.ALLOW else _suback_reason(limit.reason)


async def _unsubscribe(connection: Connection, session: Session, packet: Unsubscribe) -> None:
    reasons = []
    slices = connection.runtime.slices
    commits = _RequestCommits(connection)
    for filter in packet.filters:
        if slices.is_over():
            await slices.turn()
            if session.connection is not connection:
                return
        reason = await _unsubscribe_filter(connection, session, filter)
        if session.connection is not connection:
            return
        reasons.append(reason)
        if reason is ReasonCode.SUCCESS:
            commits.join()
    answer = Unsuback(packet.packet_id, tuple(reasons))
    commits.answer(lambda: _send(connection, session, answer))


def _send(connection: Connection, session: Session, answer: Unsuback) -> None:
    if session.connection is connection:
        connection.send_packet(answer)


async def _unsubscribe_filter(connection: Connection, session: Session, filter: str) -> ReasonCode:
    """Handle one topic filter of an UNSUBSCRIBE, compared character by character (MQTT-3.10.4-1)."""
    services = connection.services
    hooks = services.runtime.hooks
    try:
        split_shared(filter)
    except RemoteError as error:
        if connection.version != V5:
            raise
        return error.reason
    if services.runtime.limits.problem_with_length(filter) is not None and filter not in session.subscriptions:
        # It can't exist, unless it is older than the limit: plugins are not asked.
        return ReasonCode.TOPIC_FILTER_INVALID
    if hooks.unsubscribing.active:
        outcome: str | Drop | Reject | Disconnect = await resolve(hooks.unsubscribing(session.client, filter))
        if session.connection is not connection:
            return ReasonCode.UNSPECIFIED_ERROR
        if isinstance(outcome, Disconnect):
            raise RemoteError(outcome.reason, outcome.text or "a plugin rejected an unsubscription")
        if isinstance(outcome, Drop):
            return ReasonCode.SUCCESS
        if not isinstance(outcome, str):
            return fitting(outcome.reason, PacketType.UNSUBACK, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        filter = outcome
    subscription = session.remove_subscription(filter)
    if subscription is None:
        return ReasonCode.NO_SUBSCRIPTION_EXISTED
    services.router.unsubscribe(session.client_id, subscription)
    if session.persistent:
        services.runtime.turn.batch.sessions.append(RemoveSubscriptions(session.client_id, session.epoch, (filter,)))
    events.record(
        services.runtime,
        EventKind.UNSUBSCRIBE,
        session.client_id,
        session.epoch,
        username=session.client.username,
        filter=filter,
    )
    if hooks.unsubscribed.active:
        services.runtime.turn.batch.after_commit.append(partial(hooks.unsubscribed, session.client, filter))
    return ReasonCode.SUCCESS


def _suback_reason(reason: ReasonCode) -> ReasonCode:
    """Returns the reason if SUBACK may carry it, else "implementation specific error" (section 3.9.3)."""
    return fitting(reason, PacketType.SUBACK, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
