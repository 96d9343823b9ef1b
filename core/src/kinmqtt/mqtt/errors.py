"""Errors of the protocol layer, by the side that caused them.

A :class:`RemoteError` is the peer's and has the reason code of the answer. A :class:`LocalError` is this side's: it
tried to encode an impossible packet. Data from a peer raises nothing but :class:`RemoteError`.

Clauses are the statement numbers of MQTT 5.0. A rule that only older versions have has its number in MQTT 3.1.1 and
says so: ``"MQTT-3.1.2-22 (3.1.1)"``. For a rule without a number its section is given: ``"section 2.2.2.2"``.
"""

from __future__ import annotations

from kinmqtt_spi.reasons import ReasonCode


class MqttError(Exception):
    """Any error of the protocol layer."""


class RemoteError(MqttError):
    """The peer violated MQTT, so the network connection must be closed (MQTT 5.0 section 4.13).

    ``reason`` is the code of the answer, ``text`` a sentence for the log or a Reason String, ``clause`` the
    normative statement (``"MQTT-3.3.1-4"``) or its section; it is empty for a rule of this broker.
    """

    def __init__(self, reason: ReasonCode, text: str, clause: str = "") -> None:
        super().__init__(reason, text, clause)
        self.reason = reason
        self.text = text
        self.clause = clause

    def __str__(self) -> str:
        clause = f" [{self.clause}]" if self.clause else ""
        return f"{self.text} (0x{self.reason:02X} {self.reason.name}){clause}"


class MalformedPacket(RemoteError):
    """The bytes can't be parsed according to the specification (reason 0x81)."""

    def __init__(self, text: str, clause: str = "") -> None:
        super().__init__(ReasonCode.MALFORMED_PACKET, text, clause)


class ProtocolError(RemoteError):
    """The packet can be parsed, but violates the protocol (reason 0x82)."""

    def __init__(self, text: str, clause: str = "") -> None:
        super().__init__(ReasonCode.PROTOCOL_ERROR, text, clause)


class PacketTooLarge(RemoteError):
    """The packet is larger than this receiver accepts (reason 0x95)."""

    def __init__(self, text: str, clause: str = "") -> None:
        super().__init__(ReasonCode.PACKET_TOO_LARGE, text, clause)


class UnsupportedVersion(RemoteError):
    """A CONNECT has a protocol name or ``level`` (the byte after the name) that is not supported (0x84)."""

    def __init__(self, level: int, text: str, clause: str = "") -> None:
        super().__init__(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, text, clause)
        self.level = level


class LocalError(MqttError):
    """This side tried to send something that MQTT can't express or forbids: a bug here, not the peer's fault."""
