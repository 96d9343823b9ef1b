"""The handler table: a handler for each action of :mod:`kinmqtt.mqtt.connection_state`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kinmqtt.broker.connection.handler_table import Handler, HandlerTable, Row
from kinmqtt.broker.handlers import acknowledge, authenticate, connect, disconnect, publish, subscribe
from kinmqtt.mqtt.connection_state import TABLE, PacketAction, State, violation
from kinmqtt.mqtt.packets import PacketType

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt_spi.services.limiter import LimitDecision


_PUBLISH: Final = PacketType.PUBLISH


def _not_allowed(packet_type: int, state: State) -> Handler:
    def refuse(connection: Connection, frame: bytes, body: int) -> bool | None:
        raise violation(state, packet_type, connection.version)

    return refuse


def _over_limit(handlers: Row, limit: LimitDecision) -> Row:
    """Returns a row of handlers that refuses PUBLISH because of a limit."""
    if handlers[_PUBLISH] is not publish.publish:
        return handlers

    def refuse(connection: Connection, frame: bytes, body: int) -> bool | None:
        publish.publish_over_limit(connection, frame, body, limit)
        return connection.is_closed() or None

    return (*handlers[:_PUBLISH], refuse, *handlers[_PUBLISH + 1 :])


_HANDLERS_BY_ACTION: Final[Mapping[PacketAction, Handler]] = {
    PacketAction.CONNECT: connect.connect,
    PacketAction.AUTHENTICATE: authenticate.authenticate,
    PacketAction.REAUTHENTICATE: authenticate.reauthenticate,
    PacketAction.PUBLISH: publish.publish,
    PacketAction.PUBACK: acknowledge.puback,
    PacketAction.PUBREC: acknowledge.pubrec,
    PacketAction.PUBREL: acknowledge.pubrel,
    PacketAction.PUBCOMP: acknowledge.pubcomp,
    PacketAction.SUBSCRIBE: subscribe.subscribe,
    PacketAction.UNSUBSCRIBE: subscribe.unsubscribe,
    PacketAction.PING: disconnect.ping,
    PacketAction.DISCONNECT: disconnect.disconnect,
}

HANDLERS: Final = HandlerTable(
    {
        state: tuple(
            _HANDLERS_BY_ACTION[row[packet_type]] if packet_type in row else _not_allowed(packet_type, state)  # type: ignore[index]
            for packet_type in range(16)
        )
        for state, row in TABLE.items()
    },
    _over_limit,
)
"""The handlers of all packets, by connection state and packet type."""
