"""Helpers shared by handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.mqtt.errors import ProtocolError

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.session.session import Session


def session_of(connection: Connection) -> Session:
    """Returns the session of a connected client; raises :class:`ProtocolError` if there is none."""
    session = connection.session
    if session is None:
        raise ProtocolError("no session")
    return session
