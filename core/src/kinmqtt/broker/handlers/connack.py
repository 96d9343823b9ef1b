"""The properties of a CONNACK (section 3.2.2.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kinmqtt.broker.handlers.refusal import refused_by_plugin
from kinmqtt.mqtt.packets import V5, Connect
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.templates import fill_in

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.session.session import Session

_BROKER_ONLY: Final = frozenset(
    {"assigned_client_identifier", "authentication_method", "authentication_data", "session_expiry_interval"}
)
"""CONNACK properties that plugins can't change, because they describe the session."""


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
