"""What several handlers need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.mqtt.errors import ProtocolError

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.session.session import Session


def session_of(connection: Connection) -> Session:
    """The session of a connected client; raises :class:`ProtocolError` where there is none."""
    session = connection.session
    if session is None:
        raise ProtocolError("no session")
    return session
