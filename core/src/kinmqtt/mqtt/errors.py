"""What can go wrong in the protocol, told apart by whose fault it is.

A :class:`RemoteError` is the peer's: it carries the reason code to answer with. A :class:`LocalError` is
ours: a packet was put together that MQTT cannot express. Nothing that a peer sends may raise anything but a
:class:`RemoteError`.

Clauses are the statement numbers of MQTT 5.0. A rule that only older versions have is numbered as in MQTT
3.1.1 and says so: ``"MQTT-3.1.2-22 (3.1.1)"``. A rule without a number names its section: ``"section 2.2.2.2"``.
"""

from __future__ import annotations

from kinmqtt_spi.reasons import ReasonCode


class MqttError(Exception):
    """Any error of the protocol layer."""


class RemoteError(MqttError):
    """The peer broke a rule of MQTT; the network connection cannot go on (MQTT 5.0 section 4.13).

    ``reason`` is the code to answer with, ``text`` a sentence for the log or a Reason String, ``clause`` the
    normative statement (``"MQTT-3.3.1-4"``) or its section, empty where the rule is this broker's own.
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
    """The bytes cannot be parsed as the specification has them (reason 0x81)."""

    def __init__(self, text: str, clause: str = "") -> None:
        super().__init__(ReasonCode.MALFORMED_PACKET, text, clause)


class ProtocolError(RemoteError):
    """The packet parses, and says what the protocol does not allow (reason 0x82)."""

    def __init__(self, text: str, clause: str = "") -> None:
        super().__init__(ReasonCode.PROTOCOL_ERROR, text, clause)


class PacketTooLarge(RemoteError):
    """The packet is larger than this receiver accepts (reason 0x95)."""

    def __init__(self, text: str, clause: str = "") -> None:
        super().__init__(ReasonCode.PACKET_TOO_LARGE, text, clause)


class UnsupportedVersion(RemoteError):
    """A CONNECT names a protocol or ``level`` (the byte after the name) that is not spoken here (0x84)."""

    def __init__(self, level: int, text: str, clause: str = "") -> None:
        super().__init__(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, text, clause)
        self.level = level


class LocalError(MqttError):
    """This side tried to send what MQTT cannot express, or must not: a bug here, never the peer's doing."""
