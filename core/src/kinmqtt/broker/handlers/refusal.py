"""Rejected clients: a failed step of connecting or authenticating, its CONNACK and its log line (section 3.2)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from kinmqtt.hooks.denial_log import applicant
from kinmqtt.mqtt.packets import V5, Connack, Connect
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.values import Disconnect, Drop, Reject

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection


class Refused(Exception):
    """Raised to reject a client, by a CONNACK with a reason or only by closing."""

    def __init__(
        self, reason: ReasonCode, text: str, server_reference: str | None = None, *, by: str = "", hint: str = ""
    ) -> None:
        """``server_reference`` names another server for the client (section 4.13)."""
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.server_reference = server_reference
        self.by = by
        """The plugin that rejected the client; empty if unknown, or if the broker did."""
        self.hint = hint
        """Text for the log only; not sent to the client."""


def refused_by_plugin(outcome: Drop | Reject | Disconnect) -> Refused:
    """Returns the error for a plugin's answer; :class:`Drop` counts as "not authorized"."""
    reason = ReasonCode.NOT_AUTHORIZED if isinstance(outcome, Drop) else outcome.reason
    return Refused(reason, outcome.text or "rejected by a plugin")


async def or_refuse(connection: Connection, packet: Connect | None, work: Coroutine[Any, Any, None]) -> None:
    """Run a step of connecting or authenticating; on :class:`Refused`, reject the client.

    ``packet`` is the client's CONNECT, for the log.
    """
    try:
        await work
    except Refused as refused:
        _refuse(connection, packet, refused)
    finally:
        connection.runtime.turn.touch()


def _refuse(connection: Connection, packet: Connect | None, refused: Refused) -> None:
    if connection.is_closed():
        return
    connection.runtime.statistics.connections_refused.value += 1
    if refused.server_reference is not None and connection.version == V5:
        properties = Properties(server_reference=refused.server_reference)
        connection.send_packet(Connack(False, refused.reason, properties))
        connection.close(f"redirected to {refused.server_reference}")
        return
    connection.fail(refused.reason, refused.text, _refused_line(connection, packet, refused))


def _refused_line(connection: Connection, packet: Connect | None, refused: Refused) -> str:
    """Returns the beginning of the log line: the client as named in CONNECT, and the plugin that rejected it."""
    who = connection.name
    if connection.session is None and packet is not None:
        certified = connection.link.certificate_username
        who += f" ({applicant(packet.client_id, packet.username if certified is None else certified)})"
    who += f" refused by {refused.by}" if refused.by else " refused"
    return f"{who} ({refused.hint})" if refused.hint else who
