"""paho's MQTT 5 client, with the refusals at QoS 2 that paho leaves out."""

from __future__ import annotations

import importlib.metadata
import socket
import ssl
from typing import Final

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MessageState, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from kinmqtt_metrics.source.messages import NotPublished

_NOT_FOUND: Final = 0x92
"""What a broker says to a PUBREL for which it has no message."""


class Mqtt5Client(Client):
    """paho's client, with correct QoS 2.

    paho answers every PUBREC with a PUBREL. A PUBREC with a reason code of 0x80 or more refuses the message and ends
    the exchange (MQTT 5, 4.3.3), and paho drops the reason: neither a callback nor its log has it. It also resends a
    PUBREL to a broker that has lost the session. paho has no public way to see a PUBREC or to change what is resent,
    so this class overrides ``_handle_pubrec`` and uses four private names, which are the same in 2.1 and 2.2. If any
    of them is missing, the error names the versions that have them.
    """

    def __init__(self, client_id: str) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=True,
        )
        self._accepted: dict[int, int] = {}
        """The messages that the broker has taken but is not done with: by mid, the number of the connection."""
        self._connections = 0
        needed = ("_handle_pubrec", "_do_on_publish")
        missing = [name for name in needed if not callable(getattr(Client, name, None))]
        missing += [name for name in ("_in_packet", "_out_messages", "_out_message_mutex") if not hasattr(self, name)]
        if missing:
            raise NotPublished(
                f"paho-mqtt {importlib.metadata.version('paho-mqtt')} has no {', '.join(missing)}, "
                "which are needed to see refusals at QoS 2: install paho-mqtt 2.1 or 2.2"
            )

    # All of these are called in the client's thread.

    def _handle_pubrec(self) -> MQTTErrorCode:
        packet = bytes(self._in_packet["packet"])
        mid = int.from_bytes(packet[:2], "big")
        with self._out_message_mutex:
            if mid in self._out_messages and len(packet) > 1:
                if len(packet) > 2 and packet[2] >= 0x80:
                    self._accepted.pop(mid, None)
                    # As paho does it for PUBACK and PUBCOMP.
                    return self._do_on_publish(mid, _pubrec_reason(packet[2]), Properties(PacketTypes.PUBREC))
                self._accepted[mid] = self._connections
            return super()._handle_pubrec()

    def connected(self, resumed: bool) -> None:
        """Call it before anything is sent again: without the broker's session no PUBREL says anything to it."""
        self._connections += 1
        if resumed:
            return
        with self._out_message_mutex:
            self._accepted.clear()
            for message in self._out_messages.values():
                message.dup = False
                if message.state == MessageState.MQTT_MS_RESEND_PUBREL:
                    message.state = MessageState.MQTT_MS_PUBLISH

    def refusal(self, mid: int, reason: ReasonCode) -> str:
        """Why a message that is done with is not published; empty where it is."""
        if reason.packetType != PacketTypes.PUBCOMP:
            return str(reason) if reason.is_failure else ""
        accepted = self._accepted.pop(mid, None)
        if accepted is None:
            return "there was a PUBCOMP, and no PUBREC that took it"
        # The broker was done with it before the connection was lost: no error then (MQTT 5, 3.7.2.1).
        if reason.value == _NOT_FOUND and accepted < self._connections:
            return ""
        return str(reason) if reason.is_failure else ""


def _pubrec_reason(value: int) -> ReasonCode:
    try:
        return ReasonCode(PacketTypes.PUBREC, identifier=value)
    except (KeyError, ValueError):
        # None of MQTT's: refused all the same.
        return ReasonCode(PacketTypes.PUBREC, identifier=0x80)


def is_final(error: OSError) -> bool:
    """Whether another try would end the same way: a name that nobody knows, a certificate that is not good."""
    if isinstance(error, socket.gaierror):
        # Nobody could be asked for the name: that passes.
        return error.errno != socket.EAI_AGAIN
    # A connection that is cut while the two agree on keys is a lost one.
    cut = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, cut)
