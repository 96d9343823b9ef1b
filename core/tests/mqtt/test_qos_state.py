"""The QoS tables: every stage with every acknowledgement, and packet identifiers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt.mqtt.errors import LocalError, ProtocolError
from kinmqtt.mqtt.packets import PacketType
from kinmqtt.mqtt.qos_state import (
    MAX_PACKET_ID,
    OUTGOING,
    Effect,
    Flight,
    FlightStage,
    Incoming,
    Outgoing,
    check_quota,
)
from kinmqtt_spi.reasons import ReasonCode

ACKNOWLEDGEMENTS = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP)


def test_the_table_is_whole() -> None:
    """Every stage, and no stage, has an answer to every acknowledgement."""
    assert set(OUTGOING) == set(itertools.product((*FlightStage, None), ACKNOWLEDGEMENTS))


@pytest.mark.parametrize("reason", [0x00, 0x10, 0x7F, 0x80, 0x97])
@pytest.mark.parametrize(("stage", "packet_type"), list(itertools.product(FlightStage, ACKNOWLEDGEMENTS)))
def test_acknowledgements_do_what_the_table_says(stage: FlightStage, packet_type: PacketType, reason: int) -> None:
    """An acknowledgement ends, releases or violates; a failure of the right sort ends the delivery [MQTT-4.4.0-2]."""
    outgoing: Outgoing[Flight] = Outgoing(9)
    flying = Flight(stage)
    packet_id = outgoing.assign(flying)

    found, effect = outgoing.acknowledge(packet_id, packet_type, reason)

    expected = OUTGOING[stage, packet_type]
    if reason >= 0x80 and expected in (Effect.COMPLETE, Effect.RELEASE):
        expected = Effect.REFUSED
    assert (found, effect) == (flying, expected)
    assert (packet_id in outgoing.flights) == (effect not in (Effect.COMPLETE, Effect.REFUSED))
    assert flying.stage is (FlightStage.PUBCOMP if effect is Effect.RELEASE else stage)


@pytest.mark.parametrize("packet_type", ACKNOWLEDGEMENTS)
def test_an_unknown_identifier_is_unknown(packet_type: PacketType) -> None:
    """An acknowledgement for nothing is told apart."""
    assert Outgoing[Flight](9).acknowledge(5, packet_type, 0) == (None, Effect.UNKNOWN)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=80))
def test_identifiers_in_use_are_never_given_again(steps: list[tuple[bool, int]]) -> None:
    """An identifier is non-zero and not in use when it is assigned [MQTT-2.2.1-4]."""
    outgoing: Outgoing[Flight] = Outgoing(MAX_PACKET_ID)
    used: set[int] = set()
    for assign, which in steps:
        if assign or not used:
            packet_id = outgoing.assign(Flight(FlightStage.PUBACK))
            assert packet_id not in used
            assert 1 <= packet_id <= MAX_PACKET_ID
            used.add(packet_id)
        else:
            gone = sorted(used)[which % len(used)]
            outgoing.acknowledge(gone, PacketType.PUBACK, 0)
            used.remove(gone)
    assert set(outgoing.flights) == used


def test_identifiers_wrap_around() -> None:
    """After 65,535 comes 1, or the next that is free."""
    outgoing: Outgoing[Flight] = Outgoing(MAX_PACKET_ID)
    outgoing.restore(1, Flight(FlightStage.PUBACK))
    outgoing.restore(MAX_PACKET_ID, Flight(FlightStage.PUBACK))

    assert outgoing.assign(Flight(FlightStage.PUBACK)) == 2


def test_all_identifiers_in_use_is_our_mistake() -> None:
    """The window is never wider than there are identifiers."""
    outgoing: Outgoing[Flight] = Outgoing(MAX_PACKET_ID)
    flying = Flight(FlightStage.PUBACK)
    for packet_id in range(1, MAX_PACKET_ID + 1):
        outgoing.restore(packet_id, flying)

    assert not outgoing.has_capacity
    with pytest.raises(LocalError):
        outgoing.assign(flying)


def test_the_window_has_room_until_it_is_full() -> None:
    """No more than the receive maximum is in flight [MQTT-4.9.0-2]."""
    outgoing: Outgoing[Flight] = Outgoing(2)

    outgoing.assign(Flight(FlightStage.PUBACK))
    assert outgoing.has_capacity
    outgoing.assign(Flight(FlightStage.PUBREC))

    assert not outgoing.has_capacity


def test_incoming_identifiers_open_once() -> None:
    """A repeat of an open identifier is no new message; after PUBREL it is [MQTT-4.3.3-10, MQTT-4.3.3-12]."""
    incoming = Incoming()

    assert [incoming.open(7), incoming.open(7)] == [True, False]
    assert [incoming.close(7), incoming.close(7)] == [ReasonCode.SUCCESS, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND]
    assert incoming.open(7)


def test_the_quota_is_the_receive_maximum() -> None:
    """One message more than the receive maximum is a protocol error with 0x93 [MQTT-3.3.4-9]."""
    check_quota(3, 3)

    with pytest.raises(ProtocolError) as raised:
        check_quota(4, 3)

    assert raised.value.reason is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
