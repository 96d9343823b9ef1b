"""Handler of PUBLISH: a fast path for plain QoS 0, and :class:`IncomingPublish` for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kinmqtt.broker.handlers.common import session_of
from kinmqtt.broker.handlers.incoming_publish import IncomingPublish
from kinmqtt.mqtt.codec import decode_publish
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi.services.limiter import LimitDecision

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.routing.fanout import Fanout

_PLAIN_PUBLISH: Final = 0x30
"""The first byte of a QoS 0 PUBLISH without DUP and RETAIN."""


def publish(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle a PUBLISH; returns ``True`` if later packets must wait."""
    routes = connection.routes
    connection.runtime.statistics.messages_received.value += 1
    if frame[0] == _PLAIN_PUBLISH and routes:
        fanouts = connection.services.fanouts
        try:
            end = body + 2 + (frame[body] << 8 | frame[body + 1])
            route = routes.get(frame[body + 2 : end])
            if (
                route is not None
                and route.straight
                and (route.fanout.generation == fanouts.generation or fanouts.renew(route.fanout))  # type: ignore[union-attr, arg-type]
                and not fanouts.is_busy
                # A length beyond the packet cuts the topic, and the cut topic may be cached.
                and end <= len(frame)
                and (connection.version != V5 or not frame[end])
            ):
                route.messages += 1
                route.bytes += len(frame)
                fanout = route.fanout
                if fanout.links is not None:  # type: ignore[union-attr]
                    _forward(connection, fanout, frame)  # type: ignore[arg-type]
                fanout.forward(frame)  # type: ignore[union-attr]
                return None
        except IndexError:
            pass  # The packet is too short; the decoder below raises the error.
    packet = decode_publish(frame, body, connection.version, connection.limits)
    return IncomingPublish(connection, session_of(connection), packet).process(frame, body)


def _forward(connection: Connection, fanout: Fanout, frame: bytes) -> None:
    """Forward a plain QoS 0 packet to the nodes that have subscribers for it."""
    publisher = session_of(connection).publisher
    links = fanout.links or ()
    connection.services.forwarder.forward_packet(links, frame, publisher, connection.version == V5, fanout.topic)


def publish_over_limit(connection: Connection, frame: bytes, body: int, limit: LimitDecision) -> bool:
    """Handle a PUBLISH that limiters refused; returns ``True`` if that closed the connection."""
    connection.runtime.statistics.messages_received.value += 1
    session = session_of(connection)
    packet = decode_publish(frame, body, connection.version, connection.limits)
    return IncomingPublish(connection, session, packet).stop_by_limit(limit)
