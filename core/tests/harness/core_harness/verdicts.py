"""What a broker with nothing but its built-in plugins answers to each packet of the corpus.

The corpus says what a packet means by itself. A few good packets are refused all the same, because of what was, or
was not, said before them; they stand in :data:`REFUSED_BY_STATE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from core_harness.corpus import Entry
from kinmqtt.mqtt.codec import peek_version
from kinmqtt.mqtt.packets import (
    V5,
    Connack,
    DisconnectPacket,
    Packet,
    PacketType,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Unsuback,
)
from kinmqtt.mqtt.reasons import ALLOWED_REASONS, DISCONNECT_FROM_SERVER, has_connack_code
from kinmqtt_spi.reasons import ReasonCode

ANSWERS: Final[dict[str, type[Packet] | None]] = {
    "CONNECT": Connack,
    "PUBACK": None,
    "PUBREC": Pubrel,
    "PUBREL": Pubcomp,
    "PUBCOMP": None,
    "SUBSCRIBE": Suback,
    "UNSUBSCRIBE": Unsuback,
    "PINGREQ": Pingresp,
}
"""A good packet's type, and what the broker answers to it."""

REFUSED_BY_STATE: Final[dict[str, ReasonCode]] = {
    # No plugin knows an authentication method, and an AUTH needs one that CONNECT named.
    "connect-5-authentication": ReasonCode.BAD_AUTHENTICATION_METHOD,
    "connect-5-authentication-method-alone": ReasonCode.BAD_AUTHENTICATION_METHOD,
    "connect-5-all-properties": ReasonCode.BAD_AUTHENTICATION_METHOD,
    "auth-5-continue": ReasonCode.PROTOCOL_ERROR,
    "auth-5-reauthenticate": ReasonCode.PROTOCOL_ERROR,
    # The alias is beyond what the broker's CONNACK allowed.
    "publish-5-topic-alias-alone": ReasonCode.TOPIC_ALIAS_INVALID,
    # The decoder takes any filter, so that in MQTT 5 each can be answered by itself.
    "subscribe-3-misplaced-wildcard": ReasonCode.TOPIC_FILTER_INVALID,
    # The decoder takes every character that MQTT allows; the settings refuse some of them in names.
    "connect-311-client-id-control-character": ReasonCode.MALFORMED_PACKET,
    "connect-5-username-control-character": ReasonCode.MALFORMED_PACKET,
    "publish-3-topic-control-character": ReasonCode.MALFORMED_PACKET,
    "publish-3-topic-non-character": ReasonCode.MALFORMED_PACKET,
    "publish-5-non-character": ReasonCode.MALFORMED_PACKET,
    "publish-5-response-topic-control-character": ReasonCode.MALFORMED_PACKET,
    "subscribe-3-control-character": ReasonCode.MALFORMED_PACKET,
    "unsubscribe-3-non-character": ReasonCode.MALFORMED_PACKET,
}
"""Good packets that a broker refuses nevertheless, by name."""


@frozen
class Verdict:
    """What comes of a packet: one answer or none, and whether the broker closes."""

    answer: type[Packet] | None
    closes: bool
    reason: ReasonCode | None = None
    """What the answer says, where it says why the connection is refused or closed."""

    def describe(self, answers: Sequence[Packet], closed: bool) -> str:
        """What is wrong with what the broker did; empty where all is well."""
        expected = [] if self.answer is None else [self.answer]
        told = [answer for answer in answers if not isinstance(answer, Publish)]
        if [type(answer) for answer in told] != expected or closed != self.closes:
            return f"expected {expected}, closed={self.closes}; got {told}, closed={closed}"
        if self.reason is not None and told and getattr(told[0], "reason", None) != self.reason:
            return f"expected {self.reason.name}, got {told}"
        return ""


def is_connect(entry: Entry) -> bool:
    """Whether the packet is for the beginning of a connection."""
    return entry.data[0] >> 4 == PacketType.CONNECT


def verdict(entry: Entry, version: int) -> Verdict:
    """What a broker makes of an entry that a client sends, after a plain CONNECT where it is none itself."""
    reason = entry.reason or REFUSED_BY_STATE.get(entry.name)
    if reason is not None:
        return _refusal(entry, version, reason)
    assert entry.expected is not None
    sort = entry.expected["type"]
    if sort == "DISCONNECT":
        return Verdict(None, True)
    if sort == "PUBLISH":
        return Verdict({0: None, 1: Puback, 2: Pubrec}[entry.expected.get("qos", 0)], False)
    if sort == "PUBREC" and ReasonCode[entry.expected.get("reason", "SUCCESS")].is_failure:
        return Verdict(None, False)  # The receiver has refused the message: nothing is left to be released.
    return Verdict(ANSWERS[sort], False, ReasonCode.SUCCESS if sort == "CONNECT" else None)


def _refusal(entry: Entry, version: int, reason: ReasonCode) -> Verdict:
    if not is_connect(entry):
        if version != V5:
            return Verdict(None, True)
        return Verdict(DisconnectPacket, True, _fitting(reason, DISCONNECT_FROM_SERVER))
    level = None if entry.framing else peek_version(entry.data, entry.body)
    if level is None:
        return Verdict(None, True)
    if version == V5:
        return Verdict(Connack, True, _fitting(reason, ALLOWED_REASONS[PacketType.CONNACK]))
    return Verdict(Connack, True, reason) if has_connack_code(reason, version) else Verdict(None, True)


def _fitting(reason: ReasonCode, allowed: frozenset[ReasonCode]) -> ReasonCode:
    return reason if reason in allowed else ReasonCode.UNSPECIFIED_ERROR
