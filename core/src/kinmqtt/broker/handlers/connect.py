"""From CONNECT to CONNACK: limits, authentication, the will, the session (sections 3.1, 3.2 and 4.12)."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt.broker import event_log as events
from kinmqtt.broker.connection import connection_log
from kinmqtt.broker.connection.authentication import Authentication
from kinmqtt.broker.handlers.subscribe import subscribe_initially
from kinmqtt.broker.message.names import check_names
from kinmqtt.broker.ownership.capacity import CapacityExceeded, MemoryShort
from kinmqtt.broker.ownership.client_id_reuse import SessionOfAnotherUser
from kinmqtt.broker.ownership.opening import Opening
from kinmqtt.broker.turn.turn import CommitFailed
from kinmqtt.builtins import ANONYMOUS
from kinmqtt.hooks.awaitables import as_deferred, run
from kinmqtt.hooks.denial_log import applicant
from kinmqtt.hooks.dispatch import FailedClosed, HookVerdict
from kinmqtt.mqtt.codec import decode, peek_version
from kinmqtt.mqtt.connection_state import State, check_authentication_step
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.packets import V5, V31, V311, Auth, Connack, Connect
from kinmqtt.settings import NEVER_EXPIRES, LimitSettings
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import (
    Authenticated,
    ConnectRequest,
    Continue,
    ExchangeStep,
    Identity,
    Redirect,
)
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.limiter import LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.services.session import Claimant
from kinmqtt_spi.templates import fill_in
from kinmqtt_spi.values import Client, Decision, Disconnect, Drop, Maybe, Message, Publisher, Reject, Will, deny

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.handlers.subscribe import Made
    from kinmqtt.broker.session.session import Session

T = TypeVar("T")

log = Logger("kinmqtt.connecting")

MAX_PACKET_ID = 65_535

_OURS_ALONE: Final = frozenset(
    {"assigned_client_identifier", "authentication_method", "authentication_data", "session_expiry_interval"}
)
"""Properties of a CONNACK that say what is, and that no plugin can change by saying otherwise."""


class Refused(Exception):
    """The client is not let in; it gets a CONNACK that says why, or is only disconnected."""

    def __init__(
        self, reason: ReasonCode, text: str, server_reference: str | None = None, *, by: str = "", hint: str = ""
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.server_reference = server_reference
        self.by = by
        """The plugin that has decided so; empty where that is not known, or was none."""
        self.hint = hint
        """What the log says besides, and the client is not told."""


def connect(connection: Connection, frame: bytes, body: int) -> bool | None:
    """A CONNECT. One that names another protocol is not answered: its client can't read it (MQTT-3.1.2-1)."""
    level = peek_version(frame, body)
    if level is not None:
        connection.version = level if level in (V31, V311, V5) else _nearest(level)
    connection.enter(State.CONNECTING)
    packet = decode(frame, body, connection.version, connection.limits)
    if not isinstance(packet, Connect):
        raise RemoteError(ReasonCode.PROTOCOL_ERROR, "not a CONNECT")
    limits = connection.runtime.limits
    check_names(limits, packet.client_id, packet.username)
    if packet.will is not None:
        check_names(limits, packet.will.topic, packet.will.properties.response_topic)
    return connection.wait_for(run(_guarded(connection, packet, _begin(connection, packet))))


def _nearest(level: int) -> int:
    """The version in which a client of an unknown one is answered. Bridges of some brokers set the highest bit."""
    return V5 if level & 0x7F >= V5 else V311


def authenticate(connection: Connection, frame: bytes, body: int) -> bool | None:
    """An AUTH packet before the CONNACK."""
    packet = _auth(connection, frame, body)
    connection.enter(State.CONNECTING)
    return connection.wait_for(run(_guarded(connection, _connect_of(connection), _continue(connection, packet))))


def reauthenticate(connection: Connection, frame: bytes, body: int) -> bool | None:
    """An AUTH packet after the CONNACK (section 4.12.1)."""
    packet = _auth(connection, frame, body)
    work = _reauthenticate(connection, packet)
    return connection.wait_for(run(_guarded(connection, _connect_of(connection), work)))


def _auth(connection: Connection, frame: bytes, body: int) -> Auth:
    packet = decode(frame, body, connection.version, connection.limits)
    authentication = connection.authentication
    if not isinstance(packet, Auth):
        raise RemoteError(ReasonCode.PROTOCOL_ERROR, "not an AUTH")
    method = None if authentication is None else authentication.method
    check_authentication_step(method, packet.properties.authentication_method, packet.reason, connection.state)
    return packet


def _connect_of(connection: Connection) -> Connect | None:
    authentication = connection.authentication
    return None if authentication is None else authentication.packet


async def _guarded(connection: Connection, packet: Connect | None, work: Any) -> None:
    """Carry out a step; a refusal ends the connection the way the protocol has it. ``packet`` is its CONNECT."""
    try:
        await work
    except Refused as refused:
        _refuse(connection, packet, refused)
    finally:
        connection.runtime.turn.touch()


def _refuse(connection: Connection, packet: Connect | None, refused: Refused) -> None:
    if connection.is_closed():
        return
    connection.runtime.statistics.connections_refused.value += 1
    if refused.server_reference is not None and connection.version == V5:
        properties = Properties(server_reference=refused.server_reference)
        connection.send_packet(Connack(False, refused.reason, properties))
        connection.close(f"sent to {refused.server_reference}")
        return
    connection.fail(refused.reason, refused.text, _refused_line(connection, packet, refused))


def _refused_line(connection: Connection, packet: Connect | None, refused: Refused) -> str:
    """How the line about a refusal begins: who it was, by its CONNECT, and which plugin has decided."""
    who = connection.name
    if connection.session is None and packet is not None:
        certified = connection.link.certificate_username
        who += f" ({applicant(packet.client_id, packet.username if certified is None else certified)})"
    who += f" refused by {refused.by}" if refused.by else " refused"
    return f"{who} ({refused.hint})" if refused.hint else who


async def _begin(connection: Connection, packet: Connect) -> None:
    connection.wants_problems = packet.properties.request_problem_information != 0
    connection.max_packet_bytes = packet.properties.maximum_packet_size
    request = _request_of(connection, packet)
    _ask_limiters(connection, request)
    _check_certificate(connection, request)
    request = await _intercepted(connection, request)
    method = packet.properties.authentication_method
    if method is not None:
        connection.authentication = Authentication(method, request, packet)
        await _step(connection, packet.properties.authentication_data)
        return
    ruling = await _while_there(connection, connection.link.listener.authenticate(request))
    await _ruled(connection, packet, request, ruling)


async def _while_there(connection: Connection, answer: Maybe[T]) -> T:
    """Plugins' answer about a client. Where it goes meanwhile what is waited for is cancelled: nobody needs it."""
    if not isinstance(answer, Awaitable):
        return answer
    asked: Deferred[T] = as_deferred(answer)
    connection.asked = asked
    try:
        result: T = await asked
        return result
    finally:
        connection.asked = None


async def _continue(connection: Connection, packet: Auth) -> None:
    await _step(connection, packet.properties.authentication_data)


async def _step(connection: Connection, data: bytes | None) -> None:
    """One step of the exchange that CONNECT began."""
    authentication = connection.authentication
    if authentication is None:
        raise Refused(ReasonCode.BAD_AUTHENTICATION_METHOD, "no authentication is under way")
    step = ExchangeStep(authentication.method, data, authentication.state, authentication.request)
    ruling = await _while_there(connection, connection.link.listener.exchange(step))
    if connection.is_closed():
        return
    answer: object = ruling.decision
    if isinstance(answer, Continue):
        authentication.state = answer.state
        connection.enter(State.AUTHENTICATING)
        _send_auth(connection, ReasonCode.CONTINUE_AUTHENTICATION, answer.data)
        return
    authentication.state = None
    await _ruled(connection, authentication.packet, authentication.request, ruling)


async def _reauthenticate(connection: Connection, packet: Auth) -> None:
    authentication = connection.authentication
    session = connection.session
    if authentication is None or session is None:
        raise Refused(ReasonCode.PROTOCOL_ERROR, "no authentication to repeat")
    if connection.state is State.CONNECTED:
        connection.enter(State.REAUTHENTICATING)
    step = ExchangeStep(
        authentication.method,
        packet.properties.authentication_data,
        authentication.state,
        authentication.request,
        reauthentication=True,
    )
    ruling = await _while_there(connection, connection.link.listener.exchange(step))
    if connection.is_closed():
        return
    decision: Any = ruling.decision
    if isinstance(decision, Continue):
        authentication.state = decision.state
        _send_auth(connection, ReasonCode.CONTINUE_AUTHENTICATION, decision.data)
        return
    authentication.state = None
    if not decision.allowed:
        _tell_refused(connection, authentication.request, ruling)
        raise Refused(decision.reason, decision.text or "re-authentication failed", by=ruling.by)
    identity = _identity(decision)
    if identity.username_of(authentication.request) != session.client.username:
        refused = deny(ReasonCode.NOT_AUTHORIZED, "re-authentication is for the same user")
        _tell_refused(connection, authentication.request, ruling._replace(decision=refused))
        raise Refused(refused.reason, refused.text, by=ruling.by)
    connection.enter(State.CONNECTED)
    if identity.attributes:
        session.client = evolve(session.client, attributes=identity.attributes)
        session.receive_rights = None
        connection.services.router.changed(session)
    connection.forget_routes()
    connection.watch_identity(identity)
    _send_auth(connection, ReasonCode.SUCCESS, getattr(decision, "data", None))


def _send_auth(connection: Connection, reason: ReasonCode, data: bytes | None) -> None:
    authentication = connection.authentication
    if authentication is None:
        return
    properties = Properties(authentication_method=authentication.method)
    if data is not None:
        properties = properties.replace(authentication_data=data)
    if not connection.send_packet(Auth(reason, properties)):
        raise Refused(ReasonCode.PACKET_TOO_LARGE, "the client takes no packet as large as this step")


def _ask_limiters(connection: Connection, request: ConnectRequest) -> None:
    resource = Resource(
        ResourceKind.CONNECT, request.listener, request.address.host, request.client_id or None, request.username
    )
    limit = connection.acquire_for_good(resource)
    if limit.verdict is LimitVerdict.DELAY:
        connection.pause_for(limit.delay_s)
    elif limit.verdict is not LimitVerdict.ALLOW:
        raise Refused(limit.reason, f"limited by {limit.rule}")


def _request_of(connection: Connection, packet: Connect) -> ConnectRequest:
    link = connection.link
    certified = link.certificate_username
    return ConnectRequest(
        packet.client_id,
        packet.username if certified is None else certified,
        packet.password,
        link.address,
        link.listener.name,
        packet.version,
        packet.clean_start,
        packet.keep_alive,
        link.certificate_subject,
        packet.properties,
        username_verified=certified is not None,
    )


def _check_certificate(connection: Connection, request: ConnectRequest) -> None:
    """Refuse a client whose certificate was to name its user, and does not: CONNECT's name does not stand in."""
    problem = connection.link.certificate_problem
    if problem is None:
        return
    refused = connection.runtime.hooks.authentication_refused
    if refused.active:
        refused(request, "", ReasonCode.NOT_AUTHORIZED)
    raise Refused(ReasonCode.NOT_AUTHORIZED, problem)


async def _intercepted(connection: Connection, request: ConnectRequest) -> ConnectRequest:
    connect_received = connection.runtime.hooks.connect_received
    if not connect_received.active:
        return request
    outcome: ConnectRequest | Drop | Reject | Disconnect = await _while_there(connection, connect_received(request))
    if isinstance(outcome, ConnectRequest):
        return outcome
    raise _stopped(outcome)


def _stopped(outcome: Drop | Reject | Disconnect) -> Refused:
    reason = ReasonCode.NOT_AUTHORIZED if isinstance(outcome, Drop) else outcome.reason
    return Refused(reason, outcome.text or "refused by a plugin")


async def _ruled(connection: Connection, packet: Connect, request: ConnectRequest, ruling: HookVerdict) -> None:
    """Authentication has been answered."""
    if connection.is_closed():
        return
    decision = ruling.decision
    if not decision.allowed:
        _tell_refused(connection, request, ruling)
        raise Refused(decision.reason, decision.text or "authentication failed", by=ruling.by)
    identity = _identity(decision)
    username = identity.username_of(request)
    if connection.authentication is not None and identity.username is None and not request.username_verified:
        username = None  # CONNECT's own words alone: a mechanism names whom it has verified.
    client_id = identity.client_id or request.client_id
    limits = connection.runtime.limits
    if len(client_id.encode()) > limits.max_client_id_bytes:
        raise Refused(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "the client id is too long (limits.max_client_id_bytes)"
        )
    if len((username or "").encode()) > limits.max_username_bytes:
        raise Refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the user name is too long (limits.max_username_bytes)")
    if not client_id:
        client_id = f"auto-{connection.runtime.random_hex(12)}"
    _check_made_names(limits, client_id, username)
    client = Client(
        client_id,
        username,
        request.address,
        request.listener,
        packet.version,
        request.certificate_subject,
        identity.attributes,
        anonymous=ruling.by == ANONYMOUS,
    )
    if connection.authentication is not None:
        # Re-authentication is the same client's: a mechanism is shown who that is.
        connection.authentication.request = evolve(
            request, client_id=client_id, username=username, username_verified=username is not None
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


def _check_made_names(limits: LimitSettings, client_id: str, username: str | None) -> None:
    """Refuse what CONNECT could not have named: a plugin or a certificate may have named it."""
    problem = limits.problem_with_characters(client_id)
    if problem is not None:
        raise Refused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, f"the client id: {problem}")
    problem = None if username is None else limits.problem_with_characters(username)
    if problem is not None:
        raise Refused(ReasonCode.BAD_USER_NAME_OR_PASSWORD, f"the user name: {problem}")


def _identity(decision: Decision) -> Identity:
    return decision.identity if isinstance(decision, Authenticated) else Identity()


def _tell_refused(connection: Connection, request: ConnectRequest, ruling: HookVerdict) -> None:
    refused = connection.runtime.hooks.authentication_refused
    if refused.active:
        refused(request, ruling.by, ruling.decision.reason)


async def _redirect(connection: Connection, client: Client) -> None:
    choose_server = connection.runtime.hooks.choose_server
    if not choose_server.active:
        return
    asked = choose_server(client, None)
    outcome: Redirect | Drop | Reject | Disconnect | None = await _while_there(connection, asked)
    if isinstance(outcome, Redirect):
        raise Refused(outcome.reason, "another server serves this client", outcome.server_reference)
    if outcome is not None:
        raise _stopped(outcome)


async def _will_of(connection: Connection, packet: Connect, client: Client) -> Will | None:
    """The will as it would be published, if the client may publish it."""
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
    ruling = await _while_there(connection, rights.ask(request))
    if not ruling.decision.allowed:
        rights.tell(request, ruling)
        raise Refused(ruling.decision.reason, "the client may not leave this will", by=ruling.by)
    return Will(message, properties.will_delay_interval or 0)


async def _open_session(
    connection: Connection,
    packet: Connect,
    request: ConnectRequest,
    client: Client,
    will: Will | None,
    data: bytes | None,
) -> None:
    services = connection.services
    properties = request.properties
    opening = Opening(
        connection,
        connection.use,
        client,
        Claimant(client.username, request.username),
        request.clean_start,
        _expiry(connection, request),
        will,
        properties.receive_maximum or MAX_PACKET_ID,
        properties.maximum_packet_size,
        min(properties.topic_alias_maximum or 0, connection.limits.topic_aliases_used),
    )
    try:
        session, present = await services.sessions.open(opening)
    except CommitFailed as error:
        raise Refused(error.reason, "what the session before has left could not be kept") from error
    except MemoryShort as error:
        raise Refused(ReasonCode.SERVER_BUSY, "memory is short") from error
    except CapacityExceeded as error:
        raise Refused(ReasonCode.QUOTA_EXCEEDED, str(error)) from error
    except SessionOfAnotherUser as error:
        # It is a good client id, and "not allowed by the Server": what 0x85 means, and 2 before MQTT 5 (3.2.2.2).
        raise Refused(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, str(error), hint=error.owner) from error
    if connection.is_closed():
        return
    if session.kept:
        # A CONNACK promises a session that is there after a restart.
        try:
            await services.runtime.turn.committed()
        except CommitFailed as error:
            raise Refused(error.reason, "the session could not be kept") from error
        if connection.is_closed():
            return
    _settle_in(connection, request, client)
    try:
        subscriptions = await subscribe_initially(connection, session)
    except FailedClosed as error:
        raise Refused(ReasonCode.SERVER_UNAVAILABLE, str(error)) from error
    if connection.is_closed():
        return
    connack = Connack(present, ReasonCode.SUCCESS, _connack_properties(connection, packet, request, session, data))
    connection.enter(State.CONNECTED)
    connection.let_in()
    if not connection.send_packet(connack):
        connection.close("its maximum packet size leaves no room for a CONNACK")
        return
    session.resume()
    services.retained.send(session, subscriptions)
    _tell_subscribed(connection, session, subscriptions)
    _tell_connected(connection, session, present, request.clean_start)


def _tell_subscribed(connection: Connection, session: Session, made: Made) -> None:
    """Once they are kept, tell the plugins of the subscriptions that plugins have made."""
    runtime = connection.runtime
    subscribed = runtime.hooks.subscribed
    if subscribed.active and made:
        client = session.client
        runtime.turn.batch.afterwards.extend(partial(subscribed, client, subscription) for subscription, _ in made)


def _expiry(connection: Connection, request: ConnectRequest) -> int:
    """The session expiry interval in seconds; MQTT 3 has only "with the connection" and "never"."""
    if connection.version == V5:
        wanted = request.properties.session_expiry_interval or 0
    else:
        wanted = 0 if request.clean_start else NEVER_EXPIRES
    return min(wanted, connection.runtime.limits.max_session_expiry_s)


def _settle_in(connection: Connection, request: ConnectRequest, client: Client) -> None:
    services = connection.services
    limits = connection.limits
    keep_alive_s = request.keep_alive_s
    if connection.version == V5 and (keep_alive_s > limits.max_keep_alive_s or not keep_alive_s):
        keep_alive_s = limits.max_keep_alive_s if limits.max_keep_alive_s < 65_535 else keep_alive_s
    connection.keep_alive_s = keep_alive_s
    connection.expiry_asked_s = request.properties.session_expiry_interval or 0
    connection.watch(connection.patience_s if keep_alive_s else None)
    if services.limiting.publishes or services.limiting.topics:
        connection.limited_to = Resource(
            ResourceKind.PUBLISH, client.listener, client.address.host, client.client_id, client.username
        )


def _connack_properties(
    connection: Connection, packet: Connect, request: ConnectRequest, session: Session, data: bytes | None
) -> Properties:
    """What an MQTT 5 client is told of the broker's limits (section 3.2.2.3)."""
    if packet.version != V5:
        return NO_PROPERTIES
    limits = connection.limits
    told: dict[str, Any] = {"receive_maximum": limits.receive_maximum}
    told["maximum_packet_size"] = limits.max_packet_bytes
    if limits.topic_alias_maximum:
        told["topic_alias_maximum"] = limits.topic_alias_maximum
    if session.expiry_s != (packet.properties.session_expiry_interval or 0):
        told["session_expiry_interval"] = session.expiry_s
    if session.client_id != packet.client_id:
        told["assigned_client_identifier"] = session.client_id
    if connection.keep_alive_s != packet.keep_alive:
        told["server_keep_alive"] = connection.keep_alive_s
    template = connection.runtime.settings.response_information
    if template and packet.properties.request_response_information:
        information = fill_in(template, session.client)
        if information is not None:
            told["response_information"] = information
    if connection.authentication is not None:
        told["authentication_method"] = connection.authentication.method
        if data is not None:
            told["authentication_data"] = data
    properties = Properties(**told)
    connack_sending = connection.runtime.hooks.connack_sending
    if connack_sending.active:
        outcome = connack_sending.at_once(session.client, properties)
        if not isinstance(outcome, Properties):
            raise _stopped(outcome)
        if not packet.properties.request_response_information:
            outcome = outcome.without("response_information")  # MQTT-3.1.2-28
        return _keeping_alive(connection, packet, _within_limits(outcome, properties, session))
    return properties


def _within_limits(wanted: Properties, ours: Properties, session: Session) -> Properties:
    """What plugins made of our properties, without the promises that the broker does not keep."""
    theirs = {name: value for name, value in wanted.present.items() if name not in _OURS_ALONE}
    kept = {**theirs, **{name: value for name, value in ours.present.items() if name in _OURS_ALONE}}
    limits = {
        "receive_maximum": ours.receive_maximum,
        "maximum_packet_size": ours.maximum_packet_size,
    }
    for name, limit in limits.items():
        if limit is not None:
            kept[name] = min(kept.get(name, limit), limit)
    if wanted.topic_alias_maximum is not None:
        kept["topic_alias_maximum"] = min(wanted.topic_alias_maximum, ours.topic_alias_maximum or 0)
    if wanted.session_expiry_interval is not None:
        kept["session_expiry_interval"] = session.expiry_s
    return Properties(**kept)


def _keeping_alive(connection: Connection, packet: Connect, told: Properties) -> Properties:
    """The keep alive that plugins set, within the broker's limit, and kept to from here on (MQTT-3.1.2-22)."""
    seconds = told.server_keep_alive
    longest = connection.limits.max_keep_alive_s
    if seconds is None:
        seconds = connection.keep_alive_s
    elif longest < 65_535:
        seconds = min(seconds or longest, longest)
    if seconds != connection.keep_alive_s:
        connection.keep_alive_s = seconds
        connection.watch(connection.patience_s if seconds else None)
    told = told.without("server_keep_alive")
    return told if seconds == packet.keep_alive else told.replace(server_keep_alive=seconds)


def _tell_connected(connection: Connection, session: Session, present: bool, clean_start: bool) -> None:
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
    )
