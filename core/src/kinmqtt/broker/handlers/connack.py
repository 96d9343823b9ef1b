"""CONNACK: its properties, and rejected clients (section 3.2)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from kinmqtt.hooks.denial_log import applicant
from kinmqtt.mqtt.packets import V5, Connack, Connect
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.templates import fill_in
from kinmqtt_spi.values import Disconnect, Drop, Reject

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.session.session import Session

_BROKER_ONLY: Final = frozenset(
    {"assigned_client_identifier", "authentication_method", "authentication_data", "session_expiry_interval"}
)
"""CONNACK properties that plugins can't change, because they describe the session."""


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


def connack_properties(connection: Connection, packet: Connect, session: Session, data: bytes | None) -> Properties:
    """Returns the properties of a CONNACK: the broker's limits, as plugins changed them (section 3.2.2.3).

    ``data`` is the authentication data. Sets the keep alive of the connection where plugins did. Raises
    :class:`Refused` where a plugin rejects the client. MQTT 3 has no properties.
    """
    if packet.version != V5:
        return NO_PROPERTIES
    properties = _own_properties(connection, packet, session, data)
    connack_sending = connection.runtime.hooks.connack_sending
    if not connack_sending.active:
        return properties
    outcome = connack_sending.at_once(session.client, properties)
    if not isinstance(outcome, Properties):
        raise refused_by_plugin(outcome)
    if not packet.properties.request_response_information:
        outcome = outcome.without("response_information")  # MQTT-3.1.2-28
    return _with_keep_alive(connection, packet, _within_limits(outcome, properties, session))


def _own_properties(connection: Connection, packet: Connect, session: Session, data: bytes | None) -> Properties:
    """Returns the broker's own properties, without those that equal what the client assumes."""
    limits = connection.limits
    values: dict[str, Any] = {"receive_maximum": limits.receive_maximum}
    values["maximum_packet_size"] = limits.max_packet_bytes
    if limits.topic_alias_maximum:
        values["topic_alias_maximum"] = limits.topic_alias_maximum
    if session.expiry_s != (packet.properties.session_expiry_interval or 0):
        values["session_expiry_interval"] = session.expiry_s
    if session.client_id != packet.client_id:
        values["assigned_client_identifier"] = session.client_id
    if connection.keep_alive_s != packet.keep_alive:
        values["server_keep_alive"] = connection.keep_alive_s
    template = connection.runtime.settings.response_information
    if template and packet.properties.request_response_information:
        information = fill_in(template, session.client)
        if information is not None:
            values["response_information"] = information
    if connection.authentication is not None:
        values["authentication_method"] = connection.authentication.method
        if data is not None:
            values["authentication_data"] = data
    return Properties(**values)


def _within_limits(wanted: Properties, own: Properties, session: Session) -> Properties:
    """Returns the properties wanted by plugins, limited to the broker's own values."""
    values = {name: value for name, value in wanted.present.items() if name not in _BROKER_ONLY}
    values.update({name: value for name, value in own.present.items() if name in _BROKER_ONLY})
    limits = {
        "receive_maximum": own.receive_maximum,
        "maximum_packet_size": own.maximum_packet_size,
    }
    for name, limit in limits.items():
        if limit is not None:
            values[name] = min(values.get(name, limit), limit)
    if wanted.topic_alias_maximum is not None:
        values["topic_alias_maximum"] = min(wanted.topic_alias_maximum, own.topic_alias_maximum or 0)
    if wanted.session_expiry_interval is not None:
        values["session_expiry_interval"] = session.expiry_s
    return Properties(**values)


def _with_keep_alive(connection: Connection, packet: Connect, properties: Properties) -> Properties:
    """Set the keep alive wanted by plugins on the connection, within the broker's limit (MQTT-3.1.2-22).

    Returns the properties with ``server_keep_alive`` only where it differs from CONNECT's.
    """
    seconds = properties.server_keep_alive
    longest = connection.limits.max_keep_alive_s
    if seconds is None:
        seconds = connection.keep_alive_s
    elif longest < 65_535:
        seconds = min(seconds or longest, longest)
    if seconds != connection.keep_alive_s:
        connection.keep_alive_s = seconds
        connection.watch(connection.keep_alive_limit_s if seconds else None)
    properties = properties.without("server_keep_alive")
    return properties if seconds == packet.keep_alive else properties.replace(server_keep_alive=seconds)
