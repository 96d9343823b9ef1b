"""A packet that can't be is refused by its first byte: nobody waits for the rest of it (sections 2.1.2 and 2.1.3)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.connection_state import State, check_first_byte
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.packets import V5, V31, V311, Auth, Connect, DisconnectPacket, Pingresp
from kinmqtt_spi import hookimpl
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.authentication import Continue, ExchangeStep
from kinmqtt_spi.values import ALLOW, Decision

VERSIONS = [V31, V311, V5]

PUBLISHES = {0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3A, 0x3B, 0x3C, 0x3D}

FLAGLESS = {0x40, 0x50, 0x70, 0xC0, 0xE0}

REQUESTS = {0x62, 0x82, 0xA2}

CONNECTED = {
    V311: PUBLISHES | FLAGLESS | REQUESTS,
    V5: PUBLISHES | FLAGLESS | REQUESTS | {0xF0},
    # MQTT 3.1 looks at the QoS of requests only.
    V31: PUBLISHES
    | {first | flags for first in FLAGLESS for flags in range(16)}
    | {first | flags for first in REQUESTS for flags in (0, 1, 8, 9)},
}
"""The first bytes of all packets that a connected client may send."""


class Mechanism:
    """Asks for one more step, and for another each time."""

    @hookimpl
    def exchange(self, step: ExchangeStep) -> Decision | Continue:
        return Continue(b"more", None) if step.data != b"enough" else ALLOW


def authenticating(house: House) -> Peer:
    """A client that was asked for the next step."""
    properties = Properties(authentication_method="M", authentication_data=b"1")
    peer = house.open(V5).send(Connect(V5, "c", properties=properties))
    assert isinstance(peer.packets[-1], Auth)
    return peer


@pytest.mark.parametrize("first_byte", range(256))
def test_before_connect_only_a_connect_begins(first_byte: int) -> None:
    """0x10, and nothing else, is waited for [MQTT-3.1.0-1]; the others are closed without a word."""
    peer = House().open().send_bytes(bytes((first_byte,)))

    assert (peer.closed, peer.packets) == (first_byte != 0x10, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_what_no_client_may_send_is_refused_at_once(version: int) -> None:
    """A reserved type, flags that can't be, a second CONNECT, what servers send [MQTT-2.1.3-1, MQTT-2.2.2-2]."""
    house = House()
    waited_for = set()

    for first_byte in range(256):
        peer = house.connect("c", version).send_bytes(bytes((first_byte,)))
        if not peer.closed:
            waited_for.add(first_byte)

    assert waited_for == CONNECTED[version]


@pytest.mark.parametrize("first_byte", sorted(set(range(256)) - CONNECTED[V5]))
def test_the_answer_is_that_to_the_whole_packet(first_byte: int) -> None:
    """The reason is the same, whether one byte has come or all."""
    house = House()
    whole = bytes((first_byte, 10)) + b"\x00\x01a\x00\x01" + bytes(5)

    early = house.connect("early", V5).send_bytes(whole[:1])
    late = house.connect("late", V5).send_bytes(whole)

    assert early.of(DisconnectPacket) == late.of(DisconnectPacket) != []


def test_during_authentication_only_auth_and_disconnect_begin() -> None:
    """Everything else is refused by its first byte [MQTT-3.1.2-30]."""
    house = House(plugins={"mechanism": Mechanism()})
    waited_for = set()

    for first_byte in range(256):
        peer = authenticating(house).send_bytes(bytes((first_byte,)))
        if not peer.closed:
            waited_for.add(first_byte)
        peer.drop()

    assert waited_for == {0xF0, 0xE0}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_comes_ahead_of_connack_is_judged_behind_it(version: int) -> None:
    """A client need not wait for its CONNACK: the packet that follows CONNECT is met when it is connected."""
    house = House()
    connect = encode(Connect(version, "c"), version)
    ping = b"\xc0\x00"

    good = house.open(version).send_bytes(connect + ping[:1])
    before = (good.closed, len(good.packets))
    good.send_bytes(ping[1:])
    bad = house.open(version).send_bytes(encode(Connect(version, "d"), version) + b"\xd0")

    assert before == (False, 1)
    assert isinstance(good.packets[-1], Pingresp)
    assert bad.closed


@pytest.mark.parametrize("version", VERSIONS)
def test_good_packets_before_it_are_carried_out(version: int) -> None:
    """What stands before a packet that can't be is answered first."""
    peer = House().connect("c", version).send_bytes(b"\xc0\x00\xc0\x00\x36")

    assert len(peer.of(Pingresp)) == 2
    assert peer.closed


PIECES = [
    b"\xc0\x00",
    b"\x30\x04\x00\x01ax",
    b"\x32\x06\x00\x01a\x00\x07x",
    b"\x82\x06\x00\x01\x00\x01a\x01",
    b"\x62\x02\x00\x05",
    b"\xa2\x05\x00\x02\x00\x01a",
    b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01d",
    b"\x36\x04\x00\x01ax",
    b"\x00\x00",
    b"\xd0\x00",
    b"\x80\x06\x00\x01\x00\x01a\x01",
    b"\xe0\x00",
]


@given(st.lists(st.sampled_from(PIECES), max_size=5), st.lists(st.integers(0, 40), max_size=6))
@example([b"\x82\x06\x00\x01\x00\x01a\x01", b"\x32\x06\x00\x01a\x00\x07x", b"\xc0\x00"], [17])
def test_pieces_are_judged_like_the_whole(packets: list[bytes], cuts: list[int]) -> None:
    """However a stream is cut, as many packets are carried out, and the end is the same."""
    stream = b"".join(packets)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    # A client that acknowledges would put its PUBACK into the middle of a packet.
    whole, pieces = (House().connect("c", V311, silent=True) for _ in range(2))

    whole.send_bytes(stream)
    for start, end in pairwise(edges):
        if start < end and not pieces.closed:
            pieces.send_bytes(stream[start:end])

    # Acknowledgements wait for the end of their turn: they may be late for the close, and come behind a PINGRESP.
    def seen(peer: Peer) -> tuple[bool, int]:
        return peer.closed, len(peer.of(Pingresp))

    assert seen(pieces) == seen(whole)


@given(st.integers(0, 255), st.sampled_from(list(State)), st.sampled_from(VERSIONS))
def test_nothing_but_remote_errors(first_byte: int, state: State, version: int) -> None:
    """Whatever byte comes in whichever state; and nothing at all while a CONNECT is being judged."""
    try:
        check_first_byte(first_byte, state, version)
    except RemoteError as error:
        assert state is not State.CONNECTING
        assert error.reason.is_failure
