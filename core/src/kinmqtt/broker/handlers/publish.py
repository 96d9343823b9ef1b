"""What a connected client sends: PUBLISH, the acknowledgements, PINGREQ and DISCONNECT."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve
from twisted.logger import Logger

from kinmqtt.broker.connection.route import Route
from kinmqtt.broker.message.names import check_made_names, check_names
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.router import Routed
from kinmqtt.hooks.awaitables import as_deferred, run
from kinmqtt.hooks.dispatch import HookVerdict
from kinmqtt.mqtt.codec import decode, decode_publish, encode
from kinmqtt.mqtt.errors import ProtocolError, RemoteError
from kinmqtt.mqtt.packets import V5, Disconnect, PacketType, Puback, Publish, Pubrec
from kinmqtt.mqtt.qos_state import (
    COMPLETE,
    REFUSED,
    RELEASE,
    RELEASE_AGAIN,
    UNKNOWN,
    VIOLATION,
    check_quota,
    written_id,
)
from kinmqtt.mqtt.reasons import fitting
from kinmqtt_spi import values
from kinmqtt_spi.properties import NO_PROPERTIES
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services import queue
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource
from kinmqtt_spi.values import Drop, Message, Reject

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.inbound")

CACHED_ROUTES: Final = 1024
"""Topics a connection remembers its rights and fan-out for."""

LONGEST_CACHED_BYTES: Final = 256
"""Of a topic that a connection remembers: those of one client take a megabyte at most."""

LONGEST_REASON_BYTES: Final = 100
"""Of a reason string in an acknowledgement."""

PINGRESP: Final = b"\xd0\x00"

_SUCCESS: Final = ReasonCode.SUCCESS
_PUBACK: Final = PacketType.PUBACK
_PUBREC: Final = PacketType.PUBREC
_PUBCOMP: Final = PacketType.PUBCOMP
_DELIVERED: Final = Routed.DELIVERED

_PUBACK_OF: Final = b"\x40\x02"
_PUBREL_OF: Final = b"\x62\x02"
"""How the packets begin that end with a packet identifier."""

_TOO_LONG: Final = ""
"""Stands for the topic of an alias that is longer than may be: what comes by that alias is refused as it was."""

_PLAIN_PUBLISH: Final = 0x30
"""The first byte of a PUBLISH of QoS 0 that is neither a repeat nor retained."""


def publish(connection: Connection, frame: bytes, body: int) -> bool | None:
    """A PUBLISH."""
    services = connection.services
    routes = connection.routes
    services.runtime.statistics.messages_received.value += 1
    if frame[0] == _PLAIN_PUBLISH and routes:
        try:
            end = body + 2 + (frame[body] << 8 | frame[body + 1])
            route = routes.get(frame[body + 2 : end])
            if (
                route is not None
                and route.straight
                and route.fanout.generation == services.fanouts.generation  # type: ignore[union-attr]
                and not services.fanouts.is_busy
                # A length that runs past the packet leaves a topic that was cut, and may well be known.
                and end <= len(frame)
                and (connection.version != V5 or not frame[end])
            ):
                route.messages += 1
                route.bytes += len(frame)
                route.fanout.forward(frame)  # type: ignore[union-attr]
                return None
        except IndexError:
            pass  # A packet too short for what it says: the decoder tells what is wrong with it.
    packet = decode_publish(frame, body, connection.version, connection.limits)
    session = _session(connection)
    if packet.properties is not NO_PROPERTIES:
        _resolve_alias(connection, packet)
    if packet.qos and not _admit(connection, session, packet):
        return None
    if services.limiting.topics and connection.limited_to is not None:
        # Before anybody else is asked: a flood must not reach authorizers either.
        stopped = _limited(connection, session, packet, connection.limited_to)
        if stopped is not None:
            return stopped
    if packet.properties is not NO_PROPERTIES:
        problem = _problem_with_topics(connection, packet)
        if problem is not None:
            _refuse(connection, session, packet, ReasonCode.TOPIC_NAME_INVALID, problem)
            return None
    key = packet.topic.encode() if packet.properties is not NO_PROPERTIES else frame[body + 2 : packet.topic_end]
    route = routes.get(key) if routes else None
    if route is None or (route.expires_at is not None and route.expires_at <= services.runtime.clock.now()):
        opened = _open_route(connection, packet)
        if not isinstance(opened, HookVerdict):
            return connection.wait_for(run(_publish_later(connection, session, packet, key, opened)))
        route = _remember(connection, key, Route(packet.topic, opened))
    return _publish_along(connection, session, packet, route)


def _publish_along(connection: Connection, session: Session, packet: Publish, route: Route) -> bool | None:
    services = connection.services
    route.messages += 1
    route.bytes += len(packet.frame)
    if not route.remembered:
        services.traffic.note(session.client_id, route)
    if route.reason is not _SUCCESS:
        _refuse(connection, session, packet, route.reason, route.text)
        return None
    if not packet.qos and services.overload.drops:
        services.runtime.statistics.dropped["overload"].value += 1
        return None
    fanout = route.fanout
    if fanout is None or fanout.generation != services.fanouts.generation:
        route.refresh(services, connection.version)
        fanout = route.fanout
    runtime = services.runtime
    publication = Publication(packet, connection.version, session.publisher, runtime.now(), runtime.mint)
    if route.intercept is not None:
        outcome = route.intercept(session.client, publication.message)
        return _intercepted(connection, session, packet, publication, outcome)
    return _take(connection, session, packet, publication, fanout)


async def _publish_later(
    connection: Connection, session: Session, packet: Publish, key: bytes, opened: Awaitable[HookVerdict]
) -> None:
    routes = connection.routes
    if routes is None:
        routes = connection.routes = {}
    route = Route(packet.topic, await as_deferred(opened))
    if connection.routes is routes:  # Else the rules have changed since, and the answer is for this message only.
        _remember(connection, key, route)
    if connection.session is session and session.connection is connection:
        connection.runtime.turn.touch()
        _publish_along(connection, session, packet, route)


def _open_route(connection: Connection, packet: Publish) -> values.Maybe[HookVerdict]:
    """Ask whether the client may publish to the topic."""
    services = connection.services
    check_names(services.runtime.limits, packet.topic)
    problem = services.runtime.limits.problem_with(packet.topic)
    if problem is not None:
        return HookVerdict(values.deny(ReasonCode.TOPIC_NAME_INVALID, f"the topic: {problem}"), "limits")
    request = AuthorizationRequest(
        _session(connection).client, Action.PUBLISH, packet.topic, packet.qos, packet.retain
    )
    ruling = services.runtime.rights.ask(request)
    if isinstance(ruling, HookVerdict):
        services.runtime.rights.tell(request, ruling)
        return ruling
    return _tell_later(connection, request, ruling)


async def _tell_later(connection: Connection, request: AuthorizationRequest, pending: Awaitable[HookVerdict]) -> HookVerdict:
    ruling = await as_deferred(pending)
    connection.runtime.rights.tell(request, ruling)
    return ruling


def _remember(connection: Connection, key: bytes, route: Route) -> Route:
    if route.cacheable and len(key) <= LONGEST_CACHED_BYTES:
        if connection.routes is not None and len(connection.routes) >= CACHED_ROUTES:
            connection.forget_routes()
        routes = connection.routes
        if routes is None:
            routes = connection.routes = {}
        old = routes.get(key)
        if old is not None:
            # Its answer has expired.
            connection.services.traffic.note(_session(connection).client_id, old)
        routes[key] = route
        route.remembered = True
    return route


def _resolve_alias(connection: Connection, packet: Publish) -> None:
    """Topic aliases of the client (section 3.3.2.3.4), and what a client must not send."""
    properties = packet.properties
    if properties.response_topic is not None:
        check_names(connection.runtime.limits, properties.response_topic)
    if properties.subscription_identifier:
        raise ProtocolError("a client sent a subscription identifier", "MQTT-3.3.4-6")
    alias = properties.topic_alias
    if alias is None:
        return
    if alias > connection.limits.topic_alias_maximum:
        raise RemoteError(ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias} is too high", "MQTT-3.3.2-9")
    if connection.aliases is None:
        connection.aliases = {}
    if packet.topic:
        too_long = connection.runtime.limits.problem_with_length(packet.topic) is not None
        connection.aliases[alias] = _TOO_LONG if too_long else packet.topic
        return
    topic = connection.aliases.get(alias)
    if topic is None:
        raise ProtocolError(f"topic alias {alias} has no topic yet", "MQTT-3.3.2-12")
    packet.topic = topic


def _problem_with_topics(connection: Connection, packet: Publish) -> str | None:
    """What no message may have beside its own topic; ``None`` where all is well."""
    if packet.topic == _TOO_LONG:
        return "the topic of its alias: it is too long"
    response_topic = packet.properties.response_topic
    problem = None if response_topic is None else connection.runtime.limits.problem_with(response_topic)
    return None if problem is None else f"the response topic: {problem}"


def _admit(connection: Connection, session: Session, packet: Publish) -> bool:
    """Count a QoS 1 or 2 message against the receive maximum; ``False`` for a repeat that was answered again."""
    if packet.qos == 2 and packet.packet_id in session.incoming.packet_ids:
        connection.runtime.turn.acknowledge(connection, _short(PacketType.PUBREC, packet.packet_id))
        return False
    connection.unacknowledged += 1
    if connection.version == V5:
        check_quota(connection.unacknowledged, connection.receive_maximum)
    return True


def _limited(connection: Connection, session: Session, packet: Publish, resource: Resource) -> bool | None:
    """Ask a limiter that looks at topics; ``None`` to go on."""
    # Of a topic that is refused in any case, and may be a long one, nobody is to remember anything.
    if packet.topic and connection.runtime.limits.problem_with_length(packet.topic) is None:
        resource = evolve(resource, topic=packet.topic)
    limit = connection.acquire_for_packet(resource, 1)
    if limit.verdict is LimitVerdict.ALLOW:
        return None
    if limit.verdict is LimitVerdict.DELAY:
        connection.pause_for(limit.delay_s)
        return None
    return _stop_by_limit(connection, session, packet, limit)


def _stop_by_limit(connection: Connection, session: Session, packet: Publish, limit: LimitDecision) -> bool:
    if limit.verdict is LimitVerdict.DISCONNECT:
        connection.fail(limit.reason, f"limited by {limit.rule}")
        return True
    if limit.verdict is LimitVerdict.DROP:
        _acknowledge(connection, session, packet, _SUCCESS)
    else:
        if connection.version != V5:
            _tell_silently_limited(connection, limit.rule)
        _refuse(connection, session, packet, limit.reason, f"limited by {limit.rule}")
    return False


def _tell_silently_limited(connection: Connection, rule: str) -> None:
    """A line in the log, once for each connection and rule: no packet of MQTT 3 can tell its client."""
    if connection.tells_first(rule):
        log.info(
            "{client}: a PUBLISH is limited by {rule}; it goes to nobody, and its publisher can't be told",
            client=connection.name,
            rule=rule,
        )


def publish_over_limit(connection: Connection, frame: bytes, body: int, limit: LimitDecision) -> bool:
    """A PUBLISH of a read that a limiter has refused; ``True`` where the connection is closed for it."""
    connection.runtime.statistics.messages_received.value += 1
    session = _session(connection)
    packet = decode_publish(frame, body, connection.version, connection.limits)
    if packet.properties is not NO_PROPERTIES:
        _resolve_alias(connection, packet)
    if packet.qos and not _admit(connection, session, packet):
        return False
    return _stop_by_limit(connection, session, packet, limit)


def _intercepted(
    connection: Connection, session: Session, packet: Publish, publication: Publication, outcome: Any
) -> bool | None:
    """Go on with what the intercepts made of a message."""
    if isinstance(outcome, Awaitable):
        return connection.wait_for(run(_intercepted_later(connection, session, packet, publication, outcome)))
    if isinstance(outcome, Message):
        if outcome is not publication.message:
            try:
                check_made_names(connection.runtime.limits, outcome, publication.message)
                connection.runtime.rights.spaces.check(outcome.topic, packet.topic)
            except ValueError as error:
                log.error(
                    "a plugin made an unfit message of one to {topic!r}: {error}", topic=packet.topic, error=error
                )
                _refuse(connection, session, packet, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "a plugin failed")
                return None
            problem = connection.runtime.limits.problem_with_topics(outcome.topic, outcome.properties)
            if problem is not None:
                _refuse(connection, session, packet, ReasonCode.TOPIC_NAME_INVALID, problem)
                return None
            publication = Publication.of(outcome)
        return _take(connection, session, packet, publication, None)
    if isinstance(outcome, Drop):
        _acknowledge(connection, session, packet, _SUCCESS)
    elif isinstance(outcome, Reject):
        _refuse(connection, session, packet, outcome.reason, outcome.text)
    else:
        connection.fail(outcome.reason, outcome.text)
        return True
    return None


async def _intercepted_later(
    connection: Connection,
    session: Session,
    packet: Publish,
    publication: Publication,
    pending: Awaitable[Any],
) -> None:
    outcome = await as_deferred(pending)
    if session.connection is connection:
        connection.runtime.turn.touch()
        _intercepted(connection, session, packet, publication, outcome)


def _take(
    connection: Connection,
    session: Session,
    packet: Publish,
    publication: Publication,
    fanout: Fanout | None,
) -> bool | None:
    """The message is accepted: from here on it is the broker's."""
    services = connection.services
    if packet.qos == 2:
        session.incoming.open(packet.packet_id)
    # A QoS 2 message of a kept session comes again, under the same identifier, where this turn's writes are not kept.
    routed = services.publishing.take(
        publication,
        fanout,
        after_commit=packet.qos == 2 and session.kept,
        connection=connection if packet.qos else None,
    )
    if not isinstance(routed, Routed):
        return connection.wait_for(run(_routed_later(connection, session, packet, routed)))
    if packet.qos:
        _routed(connection, session, packet, routed)
    return None


async def _routed_later(
    connection: Connection, session: Session, packet: Publish, pending: Awaitable[Routed]
) -> None:
    routed = await as_deferred(pending)
    connection.runtime.turn.touch()
    if packet.qos and session.connection is connection:
        _routed(connection, session, packet, routed)
    elif packet.qos == 2 and routed in (Routed.REFUSED, Routed.NOT_RETAINED):
        session.incoming.forget(packet.packet_id)
    elif packet.qos == 2 and connection.services.sessions.get(session.client_id) is session:
        _open_inbound(connection, session, packet)


def _routed(connection: Connection, session: Session, packet: Publish, routed: Routed) -> None:
    if routed is _DELIVERED:
        _acknowledge(connection, session, packet, _SUCCESS)
    elif routed is Routed.REFUSED:
        _refuse(connection, session, packet, ReasonCode.QUOTA_EXCEEDED, "a subscriber's queue is full")
    elif routed is Routed.NOT_RETAINED:
        _refuse(connection, session, packet, ReasonCode.QUOTA_EXCEEDED, "there are too many retained messages")
    else:
        _acknowledge(connection, session, packet, ReasonCode.NO_MATCHING_SUBSCRIBERS)


def _acknowledge(connection: Connection, session: Session, packet: Publish, reason: ReasonCode) -> None:
    """Answer a message that was taken over, or is treated as if it were."""
    if not packet.qos:
        return
    packet_type = _PUBACK if packet.qos == 1 else _PUBREC
    if packet.qos == 2:
        _open_inbound(connection, session, packet)
    if reason is _SUCCESS or connection.version != V5:
        answer = _short(packet_type, packet.packet_id)
    else:
        answer = _with_reason(packet_type, packet.packet_id, reason)
    connection.runtime.turn.acknowledge(connection, answer)


def _open_inbound(connection: Connection, session: Session, packet: Publish) -> None:
    """A QoS 2 message was taken over: a repeat must not be. Kept in the turn in which its deliveries are."""
    session.incoming.open(packet.packet_id)
    if session.kept:
        connection.runtime.turn.batch.queue.append(
            queue.InboundOpen(session.client_id, session.epoch, packet.packet_id)
        )


def _refuse(connection: Connection, session: Session, packet: Publish, reason: ReasonCode, text: str) -> None:
    """Refuse a message. MQTT 3 has no way to say so but to close, so its clients are answered as if all were well."""
    if not packet.qos:
        return
    if connection.version != V5:
        _acknowledge(connection, session, packet, _SUCCESS)
        return
    packet_type = PacketType.PUBACK if packet.qos == 1 else PacketType.PUBREC
    reason = fitting(reason, packet_type, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
    if packet.qos == 2 and packet.packet_id in session.incoming.packet_ids:
        session.incoming.forget(packet.packet_id)
        if session.kept:
            connection.runtime.turn.batch.queue.append(
                queue.InboundClose(session.client_id, session.epoch, packet.packet_id)
            )
    answer = _with_text(connection, packet_type, packet.packet_id, reason, text)
    connection.runtime.turn.acknowledge(connection, answer)


def _with_text(
    connection: Connection, packet_type: PacketType, packet_id: int, reason: ReasonCode, text: str
) -> bytes:
    """An acknowledgement with its reason string, where the client wants it and it fits (MQTT-3.4.2-2)."""
    # Cut so that the length of the packet stays one byte: acknowledgements are looked into on their way.
    properties = connection.problem(text.encode()[:LONGEST_REASON_BYTES].decode(errors="ignore"))
    if properties:
        made = encode((Puback if packet_type is PacketType.PUBACK else Pubrec)(packet_id, reason, properties), V5)
        session = connection.session
        limit = None if session is None else session.max_packet_bytes
        if limit is None or len(made) <= limit:
            return made
    return _with_reason(packet_type, packet_id, reason)


def puback(connection: Connection, frame: bytes, body: int) -> bool | None:
    """A PUBACK."""
    return _acknowledged(connection, frame, body, _PUBACK, 0x40)


def pubrec(connection: Connection, frame: bytes, body: int) -> bool | None:
    """A PUBREC."""
    return _acknowledged(connection, frame, body, _PUBREC, 0x50)


def pubcomp(connection: Connection, frame: bytes, body: int) -> bool | None:
    """A PUBCOMP."""
    return _acknowledged(connection, frame, body, _PUBCOMP, 0x70)


def _acknowledged(
    connection: Connection, frame: bytes, body: int, packet_type: PacketType, first_byte: int
) -> bool | None:
    session = _session(connection)
    packet_id, reason = _read_acknowledgement(connection, frame, body, first_byte)
    delivery, effect = session.outgoing.acknowledge(packet_id, packet_type, reason)
    if effect is VIOLATION:
        raise ProtocolError(f"{packet_type.name} for a message of another QoS", "MQTT-4.3.2-3")
    if effect is UNKNOWN:
        if packet_type is _PUBREC and reason < 0x80:
            connection.send(_released(connection, packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
        return None
    if delivery is None:
        return None
    if packet_type is not _PUBCOMP and effect is not RELEASE_AGAIN:
        runtime = connection.runtime
        if runtime.tells_acknowledged:
            message = delivery.publication.message
            runtime.hooks.acknowledged.about(message.topic, session.client, message, ReasonCode(reason))
    if effect is COMPLETE or effect is REFUSED:
        session.settled(delivery)
        return None
    turn = connection.runtime.turn
    if effect is RELEASE:
        session.released(delivery)
        if session.kept:
            turn.batch.queue.append(queue.Release(session.client_id, session.epoch, delivery.sequence))
    turn.acknowledge(connection, _released(connection, packet_id, _SUCCESS))
    return None


def _read_acknowledgement(connection: Connection, frame: bytes, body: int, first_byte: int) -> tuple[int, int]:
    """The packet identifier and reason; nearly every acknowledgement is four bytes long and a success."""
    if len(frame) == 4 and frame[0] == first_byte:
        packet_id = frame[2] << 8 | frame[3]
        if packet_id:
            return packet_id, 0
    packet: Any = decode(frame, body, connection.version, connection.limits)
    return packet.packet_id, packet.reason


def pubrel(connection: Connection, frame: bytes, body: int) -> bool | None:
    """A PUBREL: the identifier of a QoS 2 message may be used anew."""
    session = _session(connection)
    packet_id, _ = _read_acknowledgement(connection, frame, body, 0x62)
    reason = session.incoming.close(packet_id)
    turn = connection.runtime.turn
    if session.kept and reason is _SUCCESS:
        turn.batch.queue.append(queue.InboundClose(session.client_id, session.epoch, packet_id))
    if reason is _SUCCESS or connection.version != V5:
        answer = _short(PacketType.PUBCOMP, packet_id)
    else:
        connection.unacknowledged += 1  # The answer takes it off again: nothing was counted for this identifier.
        answer = _with_reason(PacketType.PUBCOMP, packet_id, reason)
    turn.acknowledge(connection, answer)
    return None


def ping(connection: Connection, frame: bytes, body: int) -> bool | None:
    """A PINGREQ (MQTT-3.12.4-1)."""
    decode(frame, body, connection.version, connection.limits)
    connection.send(PINGRESP)
    return None


def disconnect(connection: Connection, frame: bytes, body: int) -> bool | None:
    """A DISCONNECT: nothing more is read; the session expiry interval may change (section 3.14.2.2.2)."""
    packet = decode(frame, body, connection.version, connection.limits)
    session = connection.session
    if not isinstance(packet, Disconnect):
        raise ProtocolError("not a DISCONNECT")
    expiry_s = packet.properties.session_expiry_interval
    if session is not None and expiry_s is not None:
        if expiry_s and not connection.expiry_asked_s:
            raise ProtocolError("DISCONNECT must not make the session outlive it", "MQTT-3.14.2-2")
        session.expiry_s = min(expiry_s, connection.runtime.limits.max_session_expiry_s)
    connection.goodbye(packet.reason)
    return True


def _session(connection: Connection) -> Session:
    session = connection.session
    if session is None:
        raise ProtocolError("no session")
    return session


def _short(packet_type: PacketType, packet_id: int) -> bytes:
    """An acknowledgement in its shortest form: a success."""
    return (_PUBACK_OF if packet_type is _PUBACK else bytes((packet_type << 4, 2))) + written_id(packet_id)


def _with_reason(packet_type: PacketType, packet_id: int, reason: ReasonCode) -> bytes:
    return bytes((packet_type << 4, 3, packet_id >> 8, packet_id & 0xFF, reason))


def _released(connection: Connection, packet_id: int, reason: ReasonCode) -> bytes:
    if reason is _SUCCESS or connection.version != V5:
        return _PUBREL_OF + written_id(packet_id)
    return bytes((0x62, 3, packet_id >> 8, packet_id & 0xFF, reason))
