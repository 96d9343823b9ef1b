"""A PUBLISH of a client: the fast way for plain QoS 0, and :class:`IncomingPublish` for everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kinmqtt.broker.handlers.common import session_of
from kinmqtt.broker.handlers.incoming_publish import IncomingPublish
from kinmqtt.mqtt.codec import decode_publish
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi.services.limiter import LimitDecision

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection

_PLAIN_PUBLISH: Final = 0x30
"""The first byte of a PUBLISH of QoS 0 that is neither a repetition nor retained."""


def publish(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Carry out a PUBLISH; ``True`` where what follows it must wait."""
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
                and route.fanout.generation == fanouts.generation  # type: ignore[union-attr]
                and not fanouts.is_busy
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
    return IncomingPublish(connection, session_of(connection), packet).process(frame, body)


def publish_over_limit(connection: Connection, frame: bytes, body: int, limit: LimitDecision) -> bool:
    """A PUBLISH of a read that a limiter has refused; ``True`` where the connection is closed for it."""
    connection.runtime.statistics.messages_received.value += 1
    session = session_of(connection)
    packet = decode_publish(frame, body, connection.version, connection.limits)
    return IncomingPublish(connection, session, packet).stop_by_limit(limit)
