"""The connection's state table: every state with every packet."""

from __future__ import annotations

import itertools

import pytest

from core_harness.house import House
from kinmqtt.broker.handlers.table import HANDLERS
from kinmqtt.mqtt.connection_state import (
    TABLE,
    TRANSITIONS,
    PacketAction,
    State,
    check_authentication_step,
    check_first_byte,
    violation,
)
from kinmqtt.mqtt.errors import LocalError, MalformedPacket, ProtocolError, RemoteError
from kinmqtt.mqtt.packets import V5, V31, V311, PacketType
from kinmqtt_spi.reasons import ReasonCode

FOR_CLIENTS = {
    PacketType.CONNACK,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
    PacketType.PINGRESP,
}


@pytest.mark.parametrize(("state", "packet_type"), list(itertools.product(State, range(16))))
def test_every_pair_is_decided(state: State, packet_type: int) -> None:
    """Each state carries out a packet or answers it with an error; there is no third way [MQTT-3.1.0-1]."""
    row = TABLE[state]
    handler = HANDLERS.by_state[state][packet_type]

    if packet_type in row:
        assert handler.__module__.startswith("kinmqtt.broker.")
        assert handler.__name__ == row[PacketType(packet_type)].value
    else:
        connection = House().open(V5).connection
        connection.version = V5
        with pytest.raises(RemoteError):
            handler(connection, bytes((packet_type << 4, 0)), 2)


@pytest.mark.parametrize("packet_type", [p for p in PacketType if p is not PacketType.CONNECT])
def test_nothing_precedes_connect(packet_type: PacketType) -> None:
    """The first packet must be CONNECT [MQTT-3.1.0-1]."""
    assert packet_type not in TABLE[State.AWAITING_CONNECT]
    assert violation(State.AWAITING_CONNECT, packet_type, V5).reason is ReasonCode.PROTOCOL_ERROR


def test_a_second_connect_is_an_error() -> None:
    """CONNECT comes once [MQTT-3.1.0-2]."""
    error = violation(State.CONNECTED, PacketType.CONNECT, V5)

    assert (type(error), error.clause) == (ProtocolError, "MQTT-3.1.0-2")


@pytest.mark.parametrize("version", [V31, V311])
def test_auth_is_reserved_before_mqtt_5(version: int) -> None:
    """Packet type 15 is malformed in old versions."""
    assert isinstance(violation(State.AWAITING_CONNECT, PacketType.AUTH, version), MalformedPacket)


def test_type_0_is_reserved() -> None:
    """Packet type 0 is malformed in every state (section 2.1.2)."""
    assert isinstance(violation(State.CONNECTED, 0, V5), MalformedPacket)


def test_a_server_takes_no_packets_for_clients() -> None:
    """No state has an action for what only servers send."""
    assert not any(FOR_CLIENTS & row.keys() for row in TABLE.values())


def test_while_authenticating_only_auth_and_disconnect_come() -> None:
    """During the exchange a client sends nothing else [MQTT-3.1.2-30]."""
    assert set(TABLE[State.AUTHENTICATING]) == {PacketType.AUTH, PacketType.DISCONNECT}


def test_every_action_is_reachable() -> None:
    """No action is in no row, and no state can't be reached."""
    assert {action for row in TABLE.values() for action in row.values()} == set(PacketAction)
    assert set().union(*TRANSITIONS.values()) | {State.AWAITING_CONNECT} == set(State)


def test_closed_is_the_end() -> None:
    """Every state can end in CLOSED, and nothing follows it."""
    assert all(State.CLOSED in after for state, after in TRANSITIONS.items() if state is not State.CLOSED)
    assert not TRANSITIONS[State.CLOSED]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_listed_transitions_are_made(before: State, after: State) -> None:
    """A transition that the table does not list is our own mistake, and said to be."""
    connection = House().open().connection
    connection.state = before

    if after in TRANSITIONS[before]:
        connection.enter(after)
        assert connection.state is after
    else:
        with pytest.raises(LocalError):
            connection.enter(after)


@pytest.mark.parametrize(
    ("method", "offered", "reason", "state", "clause"),
    [
        (None, "M", ReasonCode.REAUTHENTICATE, State.CONNECTED, "MQTT-4.12.0-7"),
        ("M", "N", ReasonCode.REAUTHENTICATE, State.CONNECTED, "MQTT-4.12.0-5"),
        ("M", None, ReasonCode.CONTINUE_AUTHENTICATION, State.AUTHENTICATING, "MQTT-4.12.0-5"),
        ("M", "M", ReasonCode.REAUTHENTICATE, State.AUTHENTICATING, "MQTT-4.12.0-3"),
        ("M", "M", ReasonCode.CONTINUE_AUTHENTICATION, State.CONNECTED, "MQTT-4.12.1-1"),
        ("M", "M", ReasonCode.SUCCESS, State.CONNECTED, "MQTT-4.12.1-1"),
    ],
)
def test_an_auth_out_of_step_is_an_error(
    method: str | None, offered: str | None, reason: ReasonCode, state: State, clause: str
) -> None:
    """AUTH must keep to the method of CONNECT and to the step that is due."""
    with pytest.raises(ProtocolError) as raised:
        check_authentication_step(method, offered, reason, state)

    assert raised.value.clause == clause


def test_a_tls_handshake_where_there_is_no_tls_is_told_in_words() -> None:
    """Its first byte is a CONNECT with flags in MQTT's eyes; that would help nobody (MQTT-2.1.3-1)."""
    with pytest.raises(MalformedPacket, match="this is a TLS handshake, but this listener has no TLS"):
        check_first_byte(0x16, State.AWAITING_CONNECT, 0)
    with pytest.raises(MalformedPacket) as told:
        check_first_byte(0x17, State.AWAITING_CONNECT, 0)

    assert "TLS" not in str(told.value)
