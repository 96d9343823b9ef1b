"""What carries out the actions of the table of :mod:`kinmqtt.mqtt.connection_state`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kinmqtt.broker.connection.handler_table import Handler, HandlerTable, Row
from kinmqtt.broker.handlers import authenticate as authenticating
from kinmqtt.broker.handlers import connect as connecting
from kinmqtt.broker.handlers import publish as inbound
from kinmqtt.broker.handlers import subscribe as subscribing
from kinmqtt.mqtt.connection_state import TABLE, Action, State, violation
from kinmqtt.mqtt.packets import PacketType

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt_spi.services.limiter import LimitDecision


def _not_allowed(packet_type: int, state: State) -> Handler:
    def refuse(connection: Connection, frame: bytes, body: int) -> bool | None:
        raise violation(state, packet_type, connection.version)

    return refuse


def _over_limit(handlers: Row, limit: LimitDecision) -> Row:
    """What carries out packets while PUBLISH packets are more than may be."""
    publish = PacketType.PUBLISH
    if handlers[publish] is not inbound.publish:
        return handlers

    def refuse(connection: Connection, frame: bytes, body: int) -> bool | None:
        inbound.publish_over_limit(connection, frame, body, limit)
        return connection.is_closed() or None

    return (*handlers[:publish], refuse, *handlers[publish + 1 :])


_CARRY_OUT: Final[Mapping[Action, Handler]] = {
    Action.CONNECT: connecting.connect,
    Action.AUTHENTICATE: authenticating.authenticate,
    Action.REAUTHENTICATE: authenticating.reauthenticate,
    Action.PUBLISH: inbound.publish,
    Action.PUBACK: inbound.puback,
    Action.PUBREC: inbound.pubrec,
    Action.PUBREL: inbound.pubrel,
    Action.PUBCOMP: inbound.pubcomp,
    Action.SUBSCRIBE: subscribing.subscribe,
    Action.UNSUBSCRIBE: subscribing.unsubscribe,
    Action.PING: inbound.ping,
    Action.DISCONNECT: inbound.disconnect,
}

HANDLERS: Final = HandlerTable(
    {
        state: tuple(
            _CARRY_OUT[row[packet_type]] if packet_type in row else _not_allowed(packet_type, state)  # type: ignore[index]
            for packet_type in range(16)
        )
        for state, row in TABLE.items()
    },
    _over_limit,
)
"""The table of :mod:`kinmqtt.mqtt.connection_state`, with what carries out each action."""
