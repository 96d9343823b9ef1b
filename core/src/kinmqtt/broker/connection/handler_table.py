"""Which function carries out a packet: by the state of the connection and the type of the packet.

The table is made by :mod:`kinmqtt.broker.handlers.table` and handed to each connection, which knows no handler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from kinmqtt.mqtt.connection_state import State
from kinmqtt_spi.services.limiter import LimitDecision

Handler = Callable[[Any, bytes, int], bool | None]
"""Takes the connection, a packet, and where its body begins; answers ``True`` where what follows must wait.

The connection is :class:`kinmqtt.broker.connection.connection.Connection`, which is above this module.
"""

Row = tuple[Handler, ...]
"""The handlers of one state, by packet type."""


@frozen(slots=True)
class HandlerTable:
    """The handlers of all packets."""

    by_state: Mapping[State, Row]
    over_limit: Callable[[Row, LimitDecision], Row]
    """The row to use while PUBLISH packets are more than limiters allow."""
