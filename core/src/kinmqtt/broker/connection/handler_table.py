"""The type of the handler table: a function for each connection state and packet type.

:mod:`kinmqtt.broker.handlers.table` builds the table and passes it to each connection, so that this package does not
depend on the handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from kinmqtt.mqtt.connection_state import State
from kinmqtt_spi.services.limiter import LimitDecision

Handler = Callable[[Any, bytes, int], bool | None]
"""Takes the connection, a packet and the offset of its body; returns ``True`` if later packets must wait.

The connection is :class:`kinmqtt.broker.connection.connection.Connection`, which is above this module.
"""

Row = tuple[Handler, ...]
"""The handlers of one state, by packet type."""


@frozen(slots=True)
class HandlerTable:
    """The handlers of all packets."""

    by_state: Mapping[State, Row]
    over_limit: Callable[[Row, LimitDecision], Row]
    """Returns the row to use while limiters refuse PUBLISH packets."""
