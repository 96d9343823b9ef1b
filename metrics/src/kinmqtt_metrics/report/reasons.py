"""The broker's reasons in plain words: MQTT's reason codes (MQTT 5.0, section 2.4), and the broker's own."""

from __future__ import annotations

from typing import Final

from kinmqtt_metrics import formatting

_CODES: Final = {
    "success": "it went well (success)",
    "granted_qos_1": "QoS 1 was granted",
    "granted_qos_2": "QoS 2 was granted",
    "disconnect_with_will": "the client disconnected, and asked for its will (disconnect with will message)",
    "no_matching_subscribers": "nobody subscribes to it (no matching subscribers)",
    "no_subscription_existed": "there was no such subscription (no subscription existed)",
    "continue_authentication": "authentication goes on (continue authentication)",
    "reauthenticate": "the client authenticates again (re-authenticate)",
    "unspecified_error": "no reason was said (unspecified error)",
    "malformed_packet": "a packet could not be read (malformed packet)",
    "protocol_error": "a packet broke the rules of MQTT (protocol error)",
    "implementation_specific_error": "the other side could not handle a packet (implementation specific error)",
    "unsupported_protocol_version": "the client speaks a version of MQTT that is not served",
    "client_identifier_not_valid": "the client id is not allowed (client identifier not valid)",
    "bad_user_name_or_password": "the user name or the password is wrong",
    "not_authorized": "the client may not do that (not authorized)",
    "server_unavailable": "the broker, or what it needs, was not available (server unavailable)",
    "server_busy": "the broker had too much to do (server busy)",
    "banned": "the client is banned",
    "server_shutting_down": "the broker stopped (server shutting down)",
    "bad_authentication_method": "the authentication method is not served (bad authentication method)",
    "keep_alive_timeout": "the client was silent for too long (keep alive timeout)",
    "session_taken_over": "another connection came with the same client id (session taken over)",
    "topic_filter_invalid": "a topic filter is not allowed (topic filter invalid)",
    "topic_name_invalid": "a topic is not allowed (topic name invalid)",
    "packet_identifier_in_use": "a packet identifier was in use already",
    "packet_identifier_not_found": "a packet identifier was not known",
    "receive_maximum_exceeded": "too many messages were sent without waiting (receive maximum exceeded)",
    "topic_alias_invalid": "a topic alias was not known, or too high (topic alias invalid)",
    "packet_too_large": "a packet was too large",
    "message_rate_too_high": "messages came too fast (message rate too high)",
    "quota_exceeded": "a limit was exceeded (quota exceeded)",
    "administrative_action": "an operator or a plugin ended it (administrative action)",
    "payload_format_invalid": "a payload was not the text that it was said to be (payload format invalid)",
    "retain_not_supported": "retained messages are not served",
    "qos_not_supported": "the QoS is not served",
    "use_another_server": "the client shall use another broker for now (use another server)",
    "server_moved": "the client shall use another broker from now on (server moved)",
    "shared_subscriptions_not_supported": "shared subscriptions are not served",
    "connection_rate_exceeded": "connections came too fast (connection rate exceeded)",
    "maximum_connect_time": "the connection was open for as long as it may be (maximum connect time)",
    "subscription_identifiers_not_supported": "subscription identifiers are not served",
    "wildcard_subscriptions_not_supported": "subscriptions with wildcards are not served",
}
"""By the code's name in small letters, as the sink writes it."""

_ENDS: Final = _CODES | {
    "success": "the client disconnected (normal disconnection)",
    "normal_disconnection": "the client disconnected (normal disconnection)",
    "connection_lost": "the connection broke without a DISCONNECT: the network, or a client that was switched off",
}
_LIMITS: Final = _CODES | {
    "reject": "it was refused",
    "disconnect": "the client was disconnected",
    "drop": "it was dropped in silence",
    "delay": "it was delayed",
}
_DROPS: Final = {
    "expired": "the message expired before it could be sent",
    "intercepted": "a plugin took it out of the way (intercepted)",
    "not_authorized": "the client may not read the topic (not authorized)",
    "offline": "the client was away, and QoS 0 does not wait (offline)",
    "outbound_buffer_full": "the client read too slowly (outbound buffer full)",
    "packet_too_large": "the client takes no packet of this size (packet too large)",
    "overload": "the broker was short of memory (overload)",
    "queue_full": "the client's queue was full",
    "retained_full": "there was no room for another retained message (retained full)",
    "nested_too_deep": "plugins have published it because of one another, without end (nested too deep)",
    "store_failed": "a store failed",
}
_BY_EVENT: Final = {"disconnected": _ENDS, "limited": _LIMITS, "dropped": _DROPS}


def of_event(event: str, reason: str | None) -> str:
    """Why something happened; a reason that is not known here, of a plugin say, with its own words."""
    return _BY_EVENT.get(event, _CODES).get(reason or "") or formatting.spaced(reason)


def of_end(reason: str | None) -> str:
    """Why a connection ended."""
    return of_event("disconnected", reason)


def of_drop(reason: str | None) -> str:
    """Why a message did not reach a client."""
    return of_event("dropped", reason)
