"""Handler of CONNECT: limiters, interceptors and the start of authentication (section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.broker.connection.authentication import Authentication
from kinmqtt.broker.handlers.authenticate import exchange
from kinmqtt.broker.handlers.open_session import conclude
from kinmqtt.broker.handlers.plugin_answers import while_connected
from kinmqtt.broker.handlers.refusal import Refused, or_refuse, refused_by_plugin
from kinmqtt.broker.message.names import check_names
from kinmqtt.hooks.awaitables import run
from kinmqtt.mqtt.codec import decode, peek_version
from kinmqtt.mqtt.connection_state import State
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.packets import V5, V31, V311, Connect
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.services.limiter import LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.values import Disconnect, Drop, Reject

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection


def connect(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle CONNECT. A CONNECT of another protocol gets no answer, which its client couldn't read (MQTT-3.1.2-1)."""
    level = peek_version(frame, body)
    if level is not None:
        connection.version = level if level in (V31, V311, V5) else _nearest(level)
    connection.enter(State.CONNECTING)
    packet = decode(frame, body, connection.version, connection.limits)
    if not isinstance(packet, Connect):
        raise RemoteError(ReasonCode.PROTOCOL_ERROR, "not a CONNECT")
    connection.is_bridge = packet.is_bridge
    limits = connection.runtime.limits
    check_names(limits, packet.client_id, packet.username)
    if packet.will is not None:
        check_names(limits, packet.will.topic, packet.will.properties.response_topic)
    return connection.wait_for(run(or_refuse(connection, packet, _begin(connection, packet))))


def _nearest(level: int) -> int:
    """Returns the version of a level with the bit of bridges, or the one for answering an unknown level."""
    return V5 if level & 0x7F >= V5 else V311


async def _begin(connection: Connection, packet: Connect) -> None:
    """Ask limiters, interceptors and authenticators, in this order."""
    connection.wants_reason_strings = packet.properties.request_problem_information != 0
    connection.max_packet_bytes = packet.properties.maximum_packet_size
    request = _request_of(connection, packet)
    _ask_limiters(connection, request)
    _check_certificate(connection, request)
    request = await _intercepted(connection, request)
    method = packet.properties.authentication_method
    if method is not None:
        connection.authentication = Authentication(method, request, packet)
        await exchange(connection, packet.properties.authentication_data)
        return
    ruling = await while_connected(connection, connection.link.listener.authenticate(request))
    await conclude(connection, packet, request, ruling)


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


def _ask_limiters(connection: Connection, request: ConnectRequest) -> None:
    resource = Resource(
        ResourceKind.CONNECT, request.listener, request.address.host, request.client_id or None, request.username
    )
    limit = connection.acquire_for_good(resource)
    if limit.verdict is LimitVerdict.DELAY:
        connection.pause_for(limit.delay_s)
    elif limit.verdict is not LimitVerdict.ALLOW:
        raise Refused(limit.reason, f"limited by {limit.rule}")


def _check_certificate(connection: Connection, request: ConnectRequest) -> None:
    """Reject a client whose certificate must give the user name and does not; CONNECT's can't replace it."""
    problem = connection.link.certificate_problem
    if problem is None:
        return
    refused = connection.runtime.hooks.authentication_refused
    if refused.active:
        refused(request, "", ReasonCode.NOT_AUTHORIZED)
    raise Refused(ReasonCode.NOT_AUTHORIZED, problem)


async def _intercepted(connection: Connection, request: ConnectRequest) -> ConnectRequest:
    """Returns the request as changed by plugins; raises :class:`Refused` if one rejects it."""
    connect_received = connection.runtime.hooks.connect_received
    if not connect_received.active:
        return request
    outcome: ConnectRequest | Drop | Reject | Disconnect = await while_connected(
        connection, connect_received(request)
    )
    if isinstance(outcome, ConnectRequest):
        return outcome
    raise refused_by_plugin(outcome)
