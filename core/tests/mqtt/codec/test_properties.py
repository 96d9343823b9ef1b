"""Property lists."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness.strategies import properties
from kinmqtt.mqtt.codec.primitives import Cursor, write_varint
from kinmqtt.mqtt.codec.properties import (
    RULES,
    WILL,
    FixedLimits,
    PropertyRule,
    read_properties,
    write_properties,
)
from kinmqtt.mqtt.errors import LocalError, MalformedPacket, PacketTooLarge, ProtocolError, RemoteError
from kinmqtt.mqtt.packets import V5, PacketType
from kinmqtt_spi.properties import NO_PROPERTIES, PROPERTY_NAMES, Properties

OWNERS = [WILL, *(each for each in PacketType if each not in (PacketType.PINGREQ, PacketType.PINGRESP))]


def sample(rule: PropertyRule) -> object:
    """A value of the property's type."""
    return rule.kind.read(Cursor(b"\x00\x01a\x00\x01b", 0)) or 1


def read(encoded: bytes, owner: int) -> Properties:
    """Read a whole list."""
    reader = Cursor(encoded, 0)
    present = read_properties(reader, owner)
    reader.finish()
    return present


def test_the_table_has_every_property() -> None:
    """All 27 properties of section 2.2.2.2 are in the table, each once."""
    assert {rule.name for rule in RULES} == PROPERTY_NAMES
    assert len({rule.identifier for rule in RULES}) == len(RULES) == 27


@given(st.sampled_from(OWNERS).flatmap(lambda owner: st.tuples(st.just(owner), properties(owner, V5))))
def test_round_trip(case: tuple[int, Properties]) -> None:
    """What is written is read back, in every packet that has properties."""
    owner, present = case

    assert read(write_properties(present, owner), owner) == present


def test_no_properties_are_one_zero_byte() -> None:
    """An absent list is a Property Length of 0 and the one shared object (MQTT-2.2.2-1)."""
    assert write_properties(NO_PROPERTIES, PacketType.PUBLISH) == b"\0"
    assert read(b"\0", PacketType.PUBLISH) is NO_PROPERTIES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_property_belongs_to_its_packets(rule: PropertyRule) -> None:
    """In any other packet a property is malformed, and cannot be sent (section 2.2.2.2)."""
    value = sample(rule)
    encoded = bytes((rule.identifier,)) + rule.kind.write(value)
    listed = write_varint(len(encoded)) + encoded
    present = Properties.from_wire({rule.name: (value,) if rule.is_tuple else value})
    for owner in set(OWNERS) - rule.owners:
        with pytest.raises(MalformedPacket, match="does not belong"):
            read(listed, owner)
        with pytest.raises(LocalError, match="does not belong"):
            write_properties(present, owner)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_second_occurrence_is_a_protocol_error(rule: PropertyRule) -> None:
    """Only a User Property, and in a PUBLISH a Subscription Identifier, may be given twice."""
    encoded = (bytes((rule.identifier,)) + rule.kind.write(sample(rule))) * 2
    listed = write_varint(len(encoded)) + encoded
    for owner in rule.owners:
        if owner in rule.repeats_in:
            assert len(getattr(read(listed, owner), rule.name)) == 2
        else:
            with pytest.raises(ProtocolError, match="twice"):
                read(listed, owner)


@pytest.mark.parametrize(
    "present",
    [
        Properties(receive_maximum=0),
        Properties(maximum_packet_size=0),
        Properties(request_problem_information=2),
        Properties(authentication_data=b""),
        Properties(session_expiry_interval=1 << 32),
        Properties(user_property=(("a", "\0"),)),
    ],
)
def test_values_that_cannot_be_sent(present: Properties) -> None:
    """A value that its property forbids is a fault of ours."""
    with pytest.raises(LocalError):
        write_properties(present, PacketType.CONNECT)


def test_one_subscription_identifier_in_a_subscribe() -> None:
    """A SUBSCRIBE has one Subscription Identifier at most (section 3.8.2.1.2)."""
    with pytest.raises(LocalError, match="once"):
        write_properties(Properties(subscription_identifier=(1, 2)), PacketType.SUBSCRIBE)


def test_many_user_properties_take_linear_time() -> None:
    """Tens of thousands of User Properties in one packet do not stop the broker."""

    def seconds(count: int) -> float:
        encoded = b"\x26\x00\x00\x00\x00" * count
        listed = write_varint(len(encoded)) + encoded
        started = time.process_time()
        assert len(read(listed, PacketType.PUBLISH).user_property) == count
        return time.process_time() - started

    small = min(seconds(5_000) for _ in range(3))
    large = min(seconds(50_000) for _ in range(3))

    assert large < small * 10 * 4


PAIR = b"\x26\0\0\0\0"
IDENTIFIER = b"\x0b\x01"
INDICATOR = b"\x01\x01"


@given(st.lists(st.sampled_from([PAIR, IDENTIFIER, INDICATOR]), max_size=12), st.integers(0, 6))
def test_reading_stops_at_the_bound(parts: list[bytes], most: int) -> None:
    """A list is refused exactly where one more is repeated than may be, and never for what stands once."""
    listed = b"".join(parts)
    repeats = 0
    wanted: int | None = None
    indicators = 0
    for part in parts:
        repeats += part != INDICATOR
        indicators += part == INDICATOR
        if repeats > most or indicators > 1:
            wanted = 0x97 if repeats > most else 0x82
            break
    reader = Cursor(write_varint(len(listed)) + listed, 0)

    try:
        read_properties(reader, PacketType.PUBLISH, FixedLimits(most, 1000))
    except RemoteError as error:
        assert error.reason == wanted
    else:
        assert wanted is None


def test_a_list_that_is_too_long_is_not_read() -> None:
    """0x95, by its length alone."""
    reader = Cursor(write_varint(10) + PAIR * 2, 0)

    with pytest.raises(PacketTooLarge, match="at most 9"):
        read_properties(reader, PacketType.PUBLISH, FixedLimits(100, 9))
