"""Quality of service, in both directions and in each version (section 4.3)."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V31, V311, DisconnectPacket, Puback, Pubcomp, Publish, Pubrec, Pubrel
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode

VERSIONS = [V31, V311, V5]


def keeper(house: House, client_id: str = "s", **more: Any) -> Peer:
    """A silent subscriber whose session outlives its connection."""
    return house.connect(client_id, clean_start=False, silent=True, **more)


def reasons(packets: list[Any]) -> list[tuple[int, int]]:
    """Identifier and reason of acknowledgements."""
    return [(packet.packet_id, packet.reason) for packet in packets]


# From a client


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("taking", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_the_lower_qos_counts(version: int, taking: int, qos: int, granted: int) -> None:
    """A message goes out with the lower of its own and the granted QoS, between all versions [MQTT-3.8.4-8]."""
    house = House()
    sub = house.connect("s", taking).subscribe("a", qos=granted)

    house.connect("p", version).publish("a", b"x", qos=qos)

    assert sub.messages == [("a", b"x", min(qos, granted))]
    assert not sub.of(Publish)[0].dup


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_1_is_answered_with_puback(version: int) -> None:
    """QoS 1 is answered with PUBACK and its identifier [MQTT-4.3.2-4]."""
    house = House()
    house.connect("s").subscribe("a")

    pub = house.connect("p", version).publish("a", qos=1, packet_id=77)

    assert reasons(pub.of(Puback)) == [(77, 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_2_is_answered_in_two_steps(version: int) -> None:
    """QoS 2 is answered with PUBREC, and its PUBREL with PUBCOMP [MQTT-4.3.3-8, MQTT-4.3.3-11]."""
    house = House()
    house.connect("s").subscribe("a")
    pub = house.connect("p", version, silent=True)

    pub.publish("a", qos=2, packet_id=77)
    before = (len(pub.of(Pubrec)), len(pub.of(Pubcomp)))
    pub.send(Pubrel(77))

    assert before == (1, 0)
    assert reasons(pub.of(Pubcomp)) == [(77, 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_0_is_not_answered(version: int) -> None:
    """QoS 0 gets no answer at all."""
    pub = House().connect("p", version)
    before = len(pub.packets)

    pub.publish("a", b"x")

    assert len(pub.packets) == before


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dup", [False, True])
def test_a_repeated_qos_2_message_is_delivered_once(version: int, dup: bool) -> None:
    """Before its PUBREL a QoS 2 identifier is answered again and not delivered again [MQTT-4.3.3-10]."""
    house = House()
    sub = house.connect("s").subscribe("a", qos=2)
    pub = house.connect("p", version, silent=True)

    pub.publish("a", b"x", qos=2, packet_id=5)
    pub.publish("a", b"x", qos=2, packet_id=5, dup=dup)

    assert len(sub.messages) == 1
    assert reasons(pub.of(Pubrec)) == [(5, 0), (5, 0)]


def test_an_identifier_is_new_behind_its_release() -> None:
    """After PUBCOMP the same identifier is a new message [MQTT-4.3.3-12]."""
    house = House()
    sub = house.connect("s").subscribe("a", qos=2)
    pub = house.connect("p")

    pub.publish("a", b"1", qos=2, packet_id=5)
    pub.publish("a", b"2", qos=2, packet_id=5)

    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]


def test_a_repeated_qos_1_message_is_new() -> None:
    """QoS 1 is delivered as often as it is sent, DUP or not, and without DUP [MQTT-4.3.2-5, MQTT-3.3.1-3]."""
    house = House()
    sub = house.connect("s").subscribe("a", qos=1)
    pub = house.connect("p")

    pub.publish("a", qos=1, packet_id=5).publish("a", qos=1, packet_id=5, dup=True)

    assert [packet.dup for packet in sub.of(Publish)] == [False, False]


@pytest.mark.parametrize(("version", "reason"), [(V31, 0), (V311, 0), (V5, 0x92)])
def test_an_unknown_release_is_answered(version: int, reason: int) -> None:
    """PUBREL for an unknown identifier gets PUBCOMP, in MQTT 5 with 0x92 [MQTT-4.3.3-11]."""
    client = House().connect("c", version)

    client.send(Pubrel(9))

    assert reasons(client.of(Pubcomp)) == [(9, reason)]
    assert not client.closed


@pytest.mark.parametrize(("version", "reason"), [(V31, 0), (V311, 0), (V5, 0x92)])
def test_a_release_that_comes_again_is_answered_as_unknown(version: int, reason: int) -> None:
    """The identifier is free by then: a client whose PUBCOMP was lost reads 0x92, and goes on [MQTT-4.3.3-11]."""
    client = House().connect("c", version, silent=True)
    client.publish("a", qos=2, packet_id=9).send(Pubrel(9))

    client.send(Pubrel(9)).publish("a", qos=2, packet_id=9).send(Pubrel(9))

    assert reasons(client.of(Pubcomp)) == [(9, 0), (9, reason), (9, 0)]
    assert not client.closed


@pytest.mark.parametrize(("version", "reason"), [(V31, 0), (V311, 0), (V5, 0x92)])
def test_an_unknown_pubrec_is_answered(version: int, reason: int) -> None:
    """PUBREC for an unknown identifier gets PUBREL, in MQTT 5 with 0x92 [MQTT-4.3.3-4]."""
    client = House().connect("c", version, silent=True)

    client.send(Pubrec(9))

    assert reasons(client.of(Pubrel)) == [(9, reason)]
    assert not client.closed


@pytest.mark.parametrize("packet", [Puback(9), Pubcomp(9)])
def test_other_unknown_acknowledgements_are_ignored(packet: Any) -> None:
    """A late PUBACK or PUBCOMP does no harm."""
    client = House().connect("c", V5)
    before = len(client.packets)

    client.send(packet)

    assert not client.closed
    assert len(client.packets) == before


@pytest.mark.parametrize("qos", [1, 2])
def test_nobody_wants_it(qos: int) -> None:
    """A message without subscribers is acknowledged with 0x10 in MQTT 5, and a success before."""
    house = House()

    new = house.connect("n", V5).publish("a", qos=qos)
    old = house.connect("o", V311).publish("a", qos=qos)

    answers = [peer.of(Puback if qos == 1 else Pubrec)[0].reason for peer in (new, old)]
    assert answers == [ReasonCode.NO_MATCHING_SUBSCRIBERS, ReasonCode.SUCCESS]


def test_acknowledgements_keep_the_order() -> None:
    """PUBACK and PUBREC come in the order of the messages [MQTT-4.6.0-2, MQTT-4.6.0-3]."""
    house = House()
    pub = house.connect("p", silent=True)
    wanted = [(7, 1), (3, 2), (9, 1), (2, 2)]

    pub.send_bytes(b"".join(encode(Publish.build("a", b"", qos=q, packet_id=i), V311) for i, q in wanted))

    answers = [p for p in pub.packets if isinstance(p, Puback | Pubrec)]
    assert [(p.packet_id, 1 if isinstance(p, Puback) else 2) for p in answers] == wanted


def test_completions_keep_the_order() -> None:
    """PUBCOMPs come in the order of the PUBRELs."""
    pub = House().connect("p", silent=True)
    for packet_id in (1, 2, 3):
        pub.publish("a", qos=2, packet_id=packet_id)

    pub.send_bytes(b"".join(encode(Pubrel(i), V311) for i in (2, 3, 1)))

    assert [p.packet_id for p in pub.of(Pubcomp)] == [2, 3, 1]


def test_the_brokers_receive_maximum_is_told_and_kept() -> None:
    """One QoS 2 message more than the receive maximum is 0x93 [MQTT-3.3.4-7]."""
    house = House(receive_maximum=2)
    pub = house.connect("p", V5, silent=True)

    for packet_id in (1, 2):
        pub.publish("a", qos=2, packet_id=packet_id)
    before = pub.closed
    pub.publish("a", qos=2, packet_id=3)

    assert pub.connack.properties.receive_maximum == 2
    assert not before
    assert pub.of(DisconnectPacket)[0].reason is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    assert pub.closed


@pytest.mark.parametrize("qos", [1, 2])
def test_answered_messages_do_not_count(qos: int) -> None:
    """A client that waits for its answers may send for ever."""
    pub = House(receive_maximum=2).connect("p", V5)

    for _ in range(10):
        pub.publish("a", qos=qos)

    assert not pub.closed


def test_repeats_and_strays_do_not_count() -> None:
    """Neither a repeated QoS 2 message nor a stray PUBREL changes how many more may come."""
    pub = House(receive_maximum=2).connect("p", V5, silent=True)

    for _ in range(3):
        pub.publish("a", qos=2, packet_id=1).send(Pubrel(40))
    pub.publish("a", qos=2, packet_id=2)
    before = pub.closed
    pub.publish("a", qos=2, packet_id=3)

    assert (before, pub.closed) == (False, True)


# To a client


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_2_goes_out_in_two_steps(version: int) -> None:
    """PUBREC is answered with PUBREL, and PUBCOMP ends the delivery [MQTT-4.3.3-4, MQTT-4.3.3-5]."""
    house = House()
    sub = house.connect("s", version, silent=True).subscribe("a", qos=2)
    house.connect("p").publish("a", b"x", qos=2)
    [publish] = sub.of(Publish)
    outgoing = house.broker.sessions.by_id["s"].outgoing

    sub.send(Pubrec(publish.packet_id))
    held = len(outgoing)
    sub.send(Pubcomp(publish.packet_id))

    assert [p.packet_id for p in sub.of(Pubrel)] == [publish.packet_id]
    assert (held, len(outgoing)) == (1, 0)


def test_a_repeated_pubrec_gets_its_release_again() -> None:
    """PUBREL is sent again, and the message is not [MQTT-4.3.3-6]."""
    house = House()
    sub = house.connect("s", silent=True).subscribe("a", qos=2)
    house.connect("p").publish("a", b"x", qos=2)

    sub.send(Pubrec(1)).send(Pubrec(1))

    assert len(sub.of(Pubrel)) == 2
    assert len(sub.of(Publish)) == 1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("qos", "packet"), [(1, Pubrec(1)), (1, Pubcomp(1)), (2, Puback(1)), (2, Pubcomp(1))], ids=repr
)
def test_an_acknowledgement_of_another_qos_is_an_error(version: int, qos: int, packet: Any) -> None:
    """An answer that does not fit the message's QoS closes the connection with 0x82 [MQTT-4.13.1-1]."""
    house = House()
    sub = house.connect("s", version, silent=True).subscribe("a", qos=2)
    house.connect("p").publish("a", b"x", qos=qos)

    sub.send(packet)

    assert sub.closed
    if version == V5:
        assert sub.of(DisconnectPacket)[0].reason is ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
def test_a_refused_message_is_over(qos: int, answer: Any) -> None:
    """A failing PUBACK or PUBREC ends the delivery: no PUBREL, no repeat, a free place [MQTT-4.4.0-2]."""
    house = House()
    sub = keeper(house, version=V5, expiry_s=60, properties=Properties(receive_maximum=1)).subscribe("a", qos=2)
    house.connect("p").publish("a", b"1", qos=qos).publish("a", b"2", qos=qos)

    sub.send(answer(1, ReasonCode.QUOTA_EXCEEDED))
    sub.drop()
    again = keeper(house, version=V5, expiry_s=60)

    assert sub.of(Pubrel) == []
    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]
    assert [(p.payload, p.dup) for p in again.of(Publish)] == [(b"2", True)]


@pytest.mark.parametrize("qos", [1, 2])
def test_the_clients_receive_maximum_is_kept(qos: int) -> None:
    """No more than the client's receive maximum is unacknowledged, and QoS 0 still goes [MQTT-3.3.4-9]."""
    house = House()
    sub = house.connect("s", V5, properties=Properties(receive_maximum=2), silent=True).subscribe("a", qos=2)
    pub = house.connect("p")
    for number in range(5):
        pub.publish("a", b"%d" % number, qos=qos)
    pub.publish("a", b"zero")

    first = [payload for _, payload, _ in sub.messages]
    sub.silent = False
    sub.send(Puback(1) if qos == 1 else Pubrec(1))
    sub.send(Puback(2) if qos == 1 else Pubrec(2))

    assert first == [b"0", b"1", b"zero"]
    assert [payload for _, payload, level in sub.messages if level] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
def test_dup_marks_what_is_sent_again(version: int, qos: int) -> None:
    """Only a message sent before carries DUP, under the same identifier [MQTT-3.3.1-1, MQTT-4.4.0-1]."""
    house = House()
    more: dict[str, Any] = {"expiry_s": 60} if version == V5 else {}
    sub = keeper(house, version=version, **more).subscribe("a", qos=2)
    pub = house.connect("p").publish("a", b"1", qos=qos)
    sub.drop()
    pub.publish("a", b"2", qos=qos)

    again = keeper(house, version=version, **more)

    assert [(p.payload, p.dup, p.packet_id) for p in again.of(Publish)] == [(b"1", True, 1), (b"2", False, 2)]


def test_a_released_message_is_not_sent_again() -> None:
    """After PUBREC only PUBREL is repeated [MQTT-4.3.3-6, MQTT-4.4.0-1]."""
    house = House()
    sub = keeper(house).subscribe("a", qos=2)
    house.connect("p").publish("a", b"1", qos=2)
    sub.send(Pubrec(1)).drop()

    again = keeper(house)

    assert again.messages == []
    assert [p.packet_id for p in again.of(Pubrel)] == [1]


def test_fewer_may_be_in_flight_than_before() -> None:
    """What is sent again stays within the new connection's receive maximum [MQTT-3.3.4-9, MQTT-4.6.0-1]."""
    house = House()
    sub = keeper(house, version=V5, expiry_s=60).subscribe("a", qos=2)
    pub = house.connect("p")
    for number in range(4):
        pub.publish("a", b"%d" % number, qos=1 + number % 2)
    sub.drop()

    again = keeper(house, version=V5, expiry_s=60, properties=Properties(receive_maximum=1))
    first = [payload for _, payload, _ in again.messages]
    again.silent = False
    again.send(Puback(1))
    pub.publish("a", b"4", qos=1)

    assert first == [b"0"]
    assert [(p.payload, p.dup) for p in again.of(Publish)] == [
        (b"0", True),
        (b"1", True),
        (b"2", True),
        (b"3", True),
        (b"4", False),
    ]


def test_too_large_for_the_client() -> None:
    """A message above the client's maximum packet size is as good as acknowledged [MQTT-3.1.2-24, MQTT-3.1.2-25]."""
    house = House()
    properties = Properties(maximum_packet_size=40, receive_maximum=1)
    sub = house.connect("s", V5, properties=properties).subscribe("a", qos=1)
    pub = house.connect("p")

    pub.publish("a", b"x" * 60, qos=1).publish("a", b"x" * 60).publish("a", b"small", qos=1)

    assert [payload for _, payload, _ in sub.messages] == [b"small"]
    assert house.broker.runtime.statistics.dropped["packet_too_large"].value == 2
