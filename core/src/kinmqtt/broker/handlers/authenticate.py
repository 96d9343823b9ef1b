"""Handlers of AUTH: enhanced authentication and re-authentication (section 4.12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve

from kinmqtt.broker.connection.authentication import Authentication
from kinmqtt.broker.handlers.open_session import conclude, identity_of, notify_refused
from kinmqtt.broker.handlers.plugin_answers import while_connected
from kinmqtt.broker.handlers.refusal import Refused, or_refuse
from kinmqtt.hooks.awaitables import run
from kinmqtt.hooks.dispatch import HookVerdict
from kinmqtt.mqtt.codec import decode
from kinmqtt.mqtt.connection_state import State, check_authentication_step
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.packets import Auth, Connect
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Continue, ExchangeStep, Identity
from kinmqtt_spi.values import deny

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.session.session import Session


def authenticate(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle an AUTH packet before the CONNACK."""
    packet = _auth(connection, frame, body)
    connection.enter(State.CONNECTING)
    work = exchange(connection, packet.properties.authentication_data)
    return connection.wait_for(run(or_refuse(connection, _connect_of(connection), work)))


def reauthenticate(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle an AUTH packet after the CONNACK (section 4.12.1)."""
    packet = _auth(connection, frame, body)
    work = _reauthenticate(connection, packet)
    return connection.wait_for(run(or_refuse(connection, _connect_of(connection), work)))


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


async def exchange(connection: Connection, data: bytes | None) -> None:
    """Run one step of the exchange with the client's ``data``; the last step opens the session.

    Raises :class:`~kinmqtt.broker.handlers.connack.Refused` if the client is rejected.
    """
    authentication = connection.authentication
    if authentication is None:
        raise Refused(ReasonCode.BAD_AUTHENTICATION_METHOD, "no authentication is in progress")
    step = ExchangeStep(authentication.method, data, authentication.state, authentication.request)
    ruling = await while_connected(connection, connection.link.listener.exchange(step))
    if connection.is_closed():
        return
    answer: object = ruling.decision
    if isinstance(answer, Continue):
        authentication.state = answer.state
        connection.enter(State.AUTHENTICATING)
        _send_auth(connection, ReasonCode.CONTINUE_AUTHENTICATION, answer.data)
        return
    authentication.state = None
    await conclude(connection, authentication.packet, authentication.request, ruling)


async def _reauthenticate(connection: Connection, packet: Auth) -> None:
    authentication = connection.authentication
    session = connection.session
    if authentication is None or session is None:
        raise Refused(ReasonCode.PROTOCOL_ERROR, "re-authentication without an authentication method")
    if connection.state is State.CONNECTED:
        connection.enter(State.REAUTHENTICATING)
    step = ExchangeStep(
        authentication.method,
        packet.properties.authentication_data,
        authentication.state,
        authentication.request,
        reauthentication=True,
    )
    ruling = await while_connected(connection, connection.link.listener.exchange(step))
    if connection.is_closed():
        return
    decision: Any = ruling.decision
    if isinstance(decision, Continue):
        authentication.state = decision.state
        _send_auth(connection, ReasonCode.CONTINUE_AUTHENTICATION, decision.data)
        return
    authentication.state = None
    identity = _same_user(connection, authentication, session, ruling)
    connection.enter(State.CONNECTED)
    if identity.attributes:
        session.client = evolve(session.client, attributes=identity.attributes)
        session.receive_rights = None
        connection.services.router.changed(session)
    connection.forget_routes()
    connection.watch_identity(identity)
    _send_auth(connection, ReasonCode.SUCCESS, getattr(decision, "data", None))


def _same_user(
    connection: Connection, authentication: Authentication, session: Session, ruling: HookVerdict
) -> Identity:
    """Returns the identity after re-authentication; raises :class:`Refused` if it failed or changed the user."""
    decision = ruling.decision
    if not decision.allowed:
        notify_refused(connection, authentication.request, ruling)
        raise Refused(decision.reason, decision.text or "re-authentication failed", by=ruling.by)
    identity = identity_of(decision)
    if identity.username_of(authentication.request) != session.client.username:
        refused = deny(ReasonCode.NOT_AUTHORIZED, "re-authentication must be by the same user")
        notify_refused(connection, authentication.request, ruling._replace(decision=refused))
        raise Refused(refused.reason, refused.text, by=ruling.by)
    return identity


def _send_auth(connection: Connection, reason: ReasonCode, data: bytes | None) -> None:
    authentication = connection.authentication
    if authentication is None:
        return
    properties = Properties(authentication_method=authentication.method)
    if data is not None:
        properties = properties.replace(authentication_data=data)
    if not connection.send_packet(Auth(reason, properties)):
        raise Refused(ReasonCode.PACKET_TOO_LARGE, "the AUTH packet exceeds the client's maximum packet size")
