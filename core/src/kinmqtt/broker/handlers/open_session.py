"""Opening of a session, from the authenticators' decision to CONNACK (sections 3.1 and 3.2)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import evolve

from kinmqtt.broker import event_log as events
from kinmqtt.broker.connection import connection_log
from kinmqtt.broker.handlers.connack import connack_properties
from kinmqtt.broker.handlers.plugin_answers import while_connected
from kinmqtt.broker.handlers.refusal import Refused, refused_by_plugin
from kinmqtt.broker.handlers.subscribe import subscribe_initially
from kinmqtt.broker.ownership.capacity import CapacityExceeded, MemoryShort
from kinmqtt.broker.ownership.client_id_reuse import SessionOfAnotherUser
from kinmqtt.broker.ownership.locating import FetchFailed
from kinmqtt.broker.ownership.opening import Opening
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.builtins import ANONYMOUS
from kinmqtt.hooks.dispatch import FailedClosed, HookVerdict
from kinmqtt.mqtt.connection_state import State
from kinmqtt.mqtt.packets import V5, Connack, Connect
from kinmqtt.settings import NEVER_EXPIRES, LimitSettings
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services import bridge, outbox
from kinmqtt_spi.services.authentication import Authenticated, ConnectRequest, Identity, Redirect
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.limiter import Resource, ResourceKind
from kinmqtt_spi.services.session import Claimant
from kinmqtt_spi.values import Client, Decision, Disconnect, Drop, Message, Publisher, Reject, Will

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.handlers.subscribe import Made
    from kinmqtt.broker.session.session import Session

MAX_PACKET_ID: Final = 65_535
"""The highest packet identifier, and the default receive maximum of a client."""

_RESERVED: Final = {outbox.CLIENT_ID_PREFIX: "outboxes", bridge.CLIENT_ID_PREFIX: "bridges"}
"""What the client ids of others than clients begin with, and whose they are."""


def identity_of(decision: Decision) -> Identity:
    """Returns the identity given by an authenticator; an empty one if it only allowed the client."""
    return decision.identity if isinstance(decision, Authenticated) else Identity()


def notify_refused(connection: Connection, request: ConnectRequest, ruling: HookVerdict) -> None:
    """Notify plugins that authentication failed."""
    refused = connection.runtime.hooks.authentication_refused
    if refused.active:
        refused(request, ruling.by, ruling.decision.reason)


async def conclude(connection: Connection, packet: Connect, request: ConnectRequest, ruling: HookVerdict) -> None:
    """Apply the authenticators' decision: open the session and send CONNACK.

    Raises :class:`~kinmqtt.broker.handlers.connack.Refused` if the client is rejected.
    """
    if connection.is_closed():
        return
    decision = ruling.decision
    if not decision.allowed:
        notify_refused(connection, request, ruling)
        raise Refused(decision.reason, decision.text or "authentication failed", by=ruling.by)
    identity = identity_of(decision)
    client = _client_of(connection, packet, request, identity, anonymous=ruling.by == ANONYMOUS)
    if connection.authentication is not None:
        # Re-authentication must be by the same client: keep its names.
        connection.authentication.request = evolve(
            request,
            client_id=client.client_id,
            username=client.username,
            username_verified=client.username is not None,
        )
    hooks = connection.runtime.hooks
    if hooks.authenticated.active:
        hooks.authenticated(client)
    await _redirect(connection, client)
    will = await _will_of(connection, packet, client)
    if connection.is_closed():
        return
    connection.watch_identity(identity)
    await _open_session(connection, packet, request, client, will, getattr(decision, "data", None))


def _client_of(
    connection: Connection, packet: Connect, request: ConnectRequest, identity: Identity, *, anonymous: bool
) -> Client:
    """Returns the client, with the authenticator's names or else those of CONNECT."""
    username = identity.username_of(request)
    if connection.authentication is not None and identity.username is None and not request.username_verified:
        username = None  # Unverified: with enhanced authentication, the method gives the user name.
    client_id = identity.client_id or request.client_id
    limits = connection.runtime.limits
    _check_lengths(limits, client_id, username)
    if not client_id:
        client_id = f"auto-{connection.runtime.random_hex(12)}"
    _check_characters(limits, client_id, username)
    return Client(
        client_id,
        username,
        request.address,
        request.listener,
        packet.version,
        request.certificate_subject,
        identity.attributes,
        anonymous=anonymous,
    )


def _check_lengths(limits: LimitSettings, client_id: str, username: str | None) -> None:
    if len(client_id.encode()) > limits.max_client_id_bytes:
        raise Refused(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "the client id is too long (limits.max_client_id_bytes)"
        )
    if len((username or "").encode()) > limits.max_username_bytes:
        raise Refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the user name is too long (limits.max_username_bytes)")


def _check_characters(limits: LimitSettings, client_id: str, username: str | None) -> None:
    """Check names given by a plugin or a certificate; those of CONNECT were checked before."""
    problem = limits.problem_with_characters(client_id)
    if problem is not None:
        raise Refused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, f"the client id: {problem}")
    for prefix, whose in _RESERVED.items():
        if client_id.startswith(prefix):
            raise Refused(
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, f"the client id: {prefix} is what those of {whose} begin with"
            )
    problem = None if username is None else limits.problem_with_characters(username)
    if problem is not None:
        raise Refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, f"the user name: {problem}")


async def _redirect(connection: Connection, client: Client) -> None:
    """Raise :class:`Refused` if a plugin redirects the client to another server."""
    choose_server = connection.runtime.hooks.choose_server
    if not choose_server.active:
        return
    asked = choose_server(client, None)
    outcome: Redirect | Drop | Reject | Disconnect | None = await while_connected(connection, asked)
    if isinstance(outcome, Redirect):
        raise Refused(outcome.reason, "another server serves this client", outcome.server_reference)
    if outcome is not None:
        raise refused_by_plugin(outcome)


async def _will_of(connection: Connection, packet: Connect, client: Client) -> Will | None:
    """Returns the will; raises :class:`Refused` if it is invalid or the client may not publish it."""
    if packet.will is None:
        return None
    will = packet.will
    limits = connection.runtime.limits
    problem = limits.problem_with_topics(will.topic, will.properties)
    if problem is not None:
        raise Refused(ReasonCode.TOPIC_NAME_INVALID, f"the will, {problem}")
    properties = will.properties
    message = Message(
        will.topic,
        will.payload,
        will.qos,
        will.retain,
        properties.without("will_delay_interval"),
        Publisher(client.client_id, client.username),
    )
    if message.size_bytes > limits.max_will_bytes:
        raise Refused(
            ReasonCode.QUOTA_EXCEEDED,
            f"the will takes {message.size_bytes} bytes, of {limits.max_will_bytes} at most (limits.max_will_bytes)",
        )
    rights = connection.runtime.rights
    request = AuthorizationRequest(client, Action.WILL, will.topic, will.qos, will.retain)
    ruling = await while_connected(connection, rights.ask(request))
    if not ruling.decision.allowed:
        rights.report_denial(request, ruling)
        raise Refused(ruling.decision.reason, "the will is not authorized", by=ruling.by)
    # It has an id now: who publishes it in the place of this node must not deliver it twice.
    kept = message.received(connection.runtime.message_ids.mint(), 0.0, None)
    return Will(kept, properties.will_delay_interval or 0)


async def _open_session(
    connection: Connection,
    packet: Connect,
    request: ConnectRequest,
    client: Client,
    will: Will | None,
    data: bytes | None,
) -> None:
    """Claim the session, commit it, make its initial subscriptions, and send CONNACK."""
    session, present = await _claim(connection, request, client, will)
    connection.has_resumed = present
    if connection.is_closed():
        return
    if session.persistent:
        # CONNACK guarantees that the session survives a restart.
        try:
            await connection.runtime.turn.committed()
        except CommitFailed as error:
            raise Refused(error.reason, "the session could not be committed") from error
        if connection.is_closed():
            return
    _configure_connection(connection, request, client)
    try:
        subscriptions = await subscribe_initially(connection, session)
    except FailedClosed as error:
        raise Refused(ReasonCode.SERVER_UNAVAILABLE, str(error)) from error
    if connection.is_closed():
        return
    connack = Connack(present, ReasonCode.SUCCESS, connack_properties(connection, packet, session, data))
    connection.enter(State.CONNECTED)
    connection.accept()
    if not connection.send_packet(connack):
        connection.close("the CONNACK exceeds the client's maximum packet size")
        return
    session.resume()
    connection.services.retained.send(session, subscriptions)
    _notify_subscribed(connection, session, subscriptions)
    _notify_connected(connection, session, present, request.clean_start)


async def _claim(
    connection: Connection, request: ConnectRequest, client: Client, will: Will | None
) -> tuple[Session, bool]:
    """Claim the client's session; returns it and whether it was present before (section 3.2.2.1.1)."""
    properties = request.properties
    opening = Opening(
        connection,
        connection.use,
        client,
        Claimant(client.username, request.username),
        request.clean_start,
        _expiry_s(connection, request),
        will,
        properties.receive_maximum or MAX_PACKET_ID,
        properties.maximum_packet_size,
        min(properties.topic_alias_maximum or 0, connection.limits.topic_aliases_used),
    )
    try:
        return await connection.services.sessions.open(opening)
    except CommitFailed as error:
        raise Refused(error.reason, "the previous session's state could not be committed") from error
    except FetchFailed as error:
        raise Refused(error.reason, "the session could not be fetched from another node", hint=str(error)) from error
    except MemoryShort as error:
        raise Refused(ReasonCode.SERVER_BUSY, "memory is short") from error
    except CapacityExceeded as error:
        raise Refused(ReasonCode.QUOTA_EXCEEDED, str(error)) from error
    except SessionOfAnotherUser as error:
        # The client id is valid, but "not allowed by the Server": 0x85, and 2 before MQTT 5 (section 3.2.2.2).
        raise Refused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, str(error), hint=error.owner) from error


def _expiry_s(connection: Connection, request: ConnectRequest) -> int:
    """Returns the session expiry interval in seconds; MQTT 3 sessions end with the connection or never expire."""
    if connection.version == V5:
        wanted = request.properties.session_expiry_interval or 0
    else:
        wanted = 0 if request.clean_start else NEVER_EXPIRES
    return min(wanted, connection.runtime.limits.max_session_expiry_s)


def _configure_connection(connection: Connection, request: ConnectRequest, client: Client) -> None:
    """Set the keep alive, the expiry and the limited resource on the connection."""
    services = connection.services
    limits = connection.limits
    keep_alive_s = request.keep_alive_s
    if connection.version == V5 and (keep_alive_s > limits.max_keep_alive_s or not keep_alive_s):
        keep_alive_s = limits.max_keep_alive_s if limits.max_keep_alive_s < 65_535 else keep_alive_s
    connection.keep_alive_s = keep_alive_s
    connection.expiry_asked_s = request.properties.session_expiry_interval or 0
    connection.watch(connection.keep_alive_limit_s if keep_alive_s else None)
    if services.limiting.publishes or services.limiting.topics:
        connection.limited_to = Resource(
            ResourceKind.PUBLISH, client.listener, client.address.host, client.client_id, client.username
        )


def _notify_subscribed(connection: Connection, session: Session, made: Made) -> None:
    """Notify plugins of the initial subscriptions once they are committed."""
    runtime = connection.runtime
    subscribed = runtime.hooks.subscribed
    if subscribed.active and made:
        client = session.client
        runtime.turn.batch.after_commit.extend(partial(subscribed, client, subscription) for subscription, _ in made)


def _notify_connected(connection: Connection, session: Session, present: bool, clean_start: bool) -> None:
    """Count, log and record the accepted client, and notify plugins."""
    runtime = connection.runtime
    runtime.statistics.connections_accepted.value += 1
    connection_log.connected(runtime.log_lines, session.client, connection.keep_alive_s, present)
    if runtime.hooks.connected.active:
        runtime.hooks.connected(session.client, present)
    events.record(
        runtime,
        EventKind.CONNECT,
        session.client_id,
        session.epoch,
        address=str(session.client.address),
        clean_start=clean_start,
        version=session.version,
        username=session.client.username,
        listener=session.client.listener,
        expiry_s=session.expiry_s,
        keep_alive_s=connection.keep_alive_s,
        session_present=present,
        created_at=session.created_at,
    )
