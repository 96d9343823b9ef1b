"""Hypothesis strategies for every MQTT packet that may be sent, by version.

Its folder is on pytest's ``pythonpath``: ``from core_harness.strategies import packets``.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kinmqtt.mqtt import packets as p
from kinmqtt.mqtt.codec.acks import Acknowledgement
from kinmqtt.mqtt.codec.properties import RULES, WILL, PropertyRule
from kinmqtt.mqtt.packets import V5, V31, V311, Packet, PacketType
from kinmqtt.mqtt.reasons import ALLOWED_REASONS, connack_reason
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode

versions = st.sampled_from((V31, V311, V5))
packet_ids = st.integers(1, 0xFFFF)
qos = st.integers(0, 2)
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=12)
payloads = st.binary(max_size=200)

_levels = st.text(st.sampled_from("ab$ é"), max_size=3)
plain_topics = st.lists(_levels, min_size=1, max_size=5).map("/".join).filter(bool)
"""Topics of few letters, so that filters have a chance to match."""


@st.composite
def filters(draw: st.DrawFn) -> str:
    """Valid Topic Filters that are not shared."""
    levels = draw(st.lists(st.one_of(_levels, st.just("+")), min_size=1, max_size=5))
    if draw(st.booleans()):
        levels.append("#")
    return "/".join(levels) or "#"


@st.composite
def properties(draw: st.DrawFn, owner: int, version: int) -> Properties:
    """Properties that ``owner`` (a packet type, or ``WILL``) may carry."""
    if version != V5 or not draw(st.booleans()):
        return NO_PROPERTIES
    allowed = [rule for rule in RULES if owner in rule.owners]
    chosen = draw(st.lists(st.sampled_from(allowed), unique_by=lambda rule: rule.name, max_size=5))
    present = {rule.name: draw(_value(rule, owner)) for rule in chosen}
    if "authentication_data" in present:
        present.setdefault("authentication_method", "method")
    return Properties.from_wire(present) if present else NO_PROPERTIES


@st.composite
def wills(draw: st.DrawFn, version: int) -> p.ConnectWill:
    """Will messages."""
    return p.ConnectWill(
        draw(topics), draw(payloads), draw(qos), draw(st.booleans()), draw(properties(WILL, version))
    )


@st.composite
def connects(draw: st.DrawFn, version: int) -> p.Connect:
    """CONNECT packets."""
    username = draw(st.none() | text)
    password = draw(st.none() | st.binary(max_size=20))
    if version != V5 and username is None:
        password = None
    client_id = draw(text)
    clean_start = draw(st.booleans()) or (version == V311 and not client_id)
    if version == V31:
        client_id = client_id or "c"
    keep_alive = draw(st.integers(0, 0xFFFF))
    will = draw(st.none() | wills(version))
    listed = draw(properties(PacketType.CONNECT, version))
    is_bridge = version == V311 and draw(st.booleans())
    return p.Connect(version, client_id, clean_start, keep_alive, username, password, will, listed, is_bridge)


@st.composite
def connacks(draw: st.DrawFn, version: int) -> p.Connack:
    """CONNACK packets, with the reasons that the version can tell apart."""
    if version == V5:
        reason = draw(_reasons(PacketType.CONNACK))
    else:
        reason = connack_reason(draw(st.integers(0, 5)), version)
    present = version != V31 and reason == ReasonCode.SUCCESS and draw(st.booleans())
    return p.Connack(present, reason, draw(properties(PacketType.CONNACK, version)))


@st.composite
def publishes(draw: st.DrawFn, version: int) -> p.Publish:
    """PUBLISH packets, now and then with a Topic Alias in place of the topic."""
    level = draw(qos)
    listed = draw(properties(PacketType.PUBLISH, version))
    topic = draw(topics)
    if listed.topic_alias is not None and draw(st.booleans()):
        topic = ""
    return p.Publish.build(
        topic,
        draw(payloads),
        level,
        draw(st.booleans()),
        bool(level) and draw(st.booleans()),
        draw(packet_ids) if level else 0,
        listed,
    )


@st.composite
def acknowledgements(draw: st.DrawFn, version: int) -> Acknowledgement:
    """PUBACK, PUBREC, PUBREL and PUBCOMP packets."""
    kinds: tuple[type[Acknowledgement], ...] = (p.Puback, p.Pubrec, p.Pubrel, p.Pubcomp)
    kind = draw(st.sampled_from(kinds))
    owner = PacketType[kind.__name__.removesuffix("Packet").upper()]
    reason = draw(_reasons(owner)) if version == V5 else ReasonCode.SUCCESS
    return kind(draw(packet_ids), reason, draw(properties(owner, version)))


@st.composite
def subscribes(draw: st.DrawFn, version: int) -> p.Subscribe:
    """SUBSCRIBE packets."""
    requests = draw(st.lists(_requests(version), min_size=1, max_size=4))
    return p.Subscribe(draw(packet_ids), tuple(requests), draw(properties(PacketType.SUBSCRIBE, version)))


@st.composite
def subacks(draw: st.DrawFn, version: int) -> p.Suback:
    """SUBACK packets."""
    allowed = (
        _reasons(PacketType.SUBACK)
        if version == V5
        else st.sampled_from([ReasonCode(code) for code in (0, 1, 2, 0x80)])
    )
    reasons = draw(st.lists(allowed, min_size=1, max_size=4))
    return p.Suback(draw(packet_ids), tuple(reasons), draw(properties(PacketType.SUBACK, version)))


@st.composite
def unsubscribes(draw: st.DrawFn, version: int) -> p.Unsubscribe:
    """UNSUBSCRIBE packets."""
    listed = draw(properties(PacketType.UNSUBSCRIBE, version))
    return p.Unsubscribe(draw(packet_ids), tuple(draw(st.lists(filters(), min_size=1, max_size=4))), listed)


@st.composite
def unsubacks(draw: st.DrawFn, version: int) -> p.Unsuback:
    """UNSUBACK packets."""
    if version != V5:
        return p.Unsuback(draw(packet_ids))
    reasons = draw(st.lists(_reasons(PacketType.UNSUBACK), min_size=1, max_size=4))
    return p.Unsuback(draw(packet_ids), tuple(reasons), draw(properties(PacketType.UNSUBACK, version)))


@st.composite
def disconnects(draw: st.DrawFn, version: int) -> p.DisconnectPacket:
    """DISCONNECT packets of either side."""
    if version != V5:
        return p.DisconnectPacket()
    return p.DisconnectPacket(draw(_reasons(PacketType.DISCONNECT)), draw(properties(PacketType.DISCONNECT, version)))


@st.composite
def auths(draw: st.DrawFn) -> p.Auth:
    """AUTH packets, which MQTT 5.0 alone has."""
    listed = draw(properties(PacketType.AUTH, V5))
    if listed.authentication_method is None:
        listed = Properties.from_wire({**listed.present, "authentication_method": draw(text)})
    return p.Auth(draw(_reasons(PacketType.AUTH)), listed)


def packets(version: int) -> st.SearchStrategy[Packet]:
    """Any packet of the version."""
    kinds: list[st.SearchStrategy[Any]] = [
        connects(version),
        connacks(version),
        publishes(version),
        acknowledgements(version),
        subscribes(version),
        subacks(version),
        unsubscribes(version),
        unsubacks(version),
        st.sampled_from((p.PINGREQ, p.PINGRESP)),
        disconnects(version),
    ]
    return st.one_of(*kinds, auths()) if version == V5 else st.one_of(*kinds)


def _reasons(owner: PacketType) -> st.SearchStrategy[ReasonCode]:
    return st.sampled_from(sorted(ALLOWED_REASONS[owner]))


@st.composite
def _requests(draw: st.DrawFn, version: int) -> p.SubscribeRequest:
    if version != V5:
        return p.SubscribeRequest(draw(filters()), draw(qos))
    return p.SubscribeRequest(
        draw(filters()), draw(qos), draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 2))
    )


def _value(rule: PropertyRule, owner: int) -> st.SearchStrategy[Any]:
    """Values that the property may have."""
    if rule.name == "user_property":
        return st.lists(st.tuples(text, text), min_size=1, max_size=3).map(tuple)
    if rule.name == "subscription_identifier":
        most = 3 if owner in rule.repeats_in else 1
        return st.lists(st.integers(1, 268_435_455), min_size=1, max_size=most).map(tuple)
    if rule.name == "response_topic":
        return topics
    if rule.name in ("correlation_data", "authentication_data"):
        return st.binary(max_size=20)
    if rule.name in _TEXTS:
        return text
    if rule.values == "0 or 1":
        return st.integers(0, 1)
    return st.integers(0 if rule.values == "any value" else 1, 0xFFFF)


_TEXTS = {
    "content_type",
    "assigned_client_identifier",
    "authentication_method",
    "response_information",
    "server_reference",
    "reason_string",
}
