"""Messages for subscribers of other nodes, through whole brokers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness.house import Peer, back, payloads
from core_harness.nodes import Nodes
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, Connack, Puback, Publish, Pubrec
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.cluster import LinkState, Member, MemberState


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("versions", [(V311, V311), (V5, V5), (V5, V311), (V311, V5)])
def test_a_message_reaches_the_subscriber_of_another_node(qos: int, versions: tuple[int, int]) -> None:
    """Once, with the QoS that both have chosen."""
    nodes = Nodes(2)
    sub = nodes.brokers[1].connect("sub", versions[0]).subscribe("a/+", qos=2)
    nodes.settle()
    pub = nodes.brokers[0].connect("pub", versions[1])
    for number in range(3):
        pub.publish("a/b", b"%d" % number, qos=qos)

    assert sub.messages == [("a/b", b"0", qos), ("a/b", b"1", qos), ("a/b", b"2", qos)]


PUBLISHED = st.tuples(st.sampled_from(["a", "a/b", "c"]), st.integers(0, 1), st.booleans())


@given(st.sampled_from([V311, V5]), st.sampled_from([V311, V5]), st.lists(PUBLISHED, max_size=12))
def test_runs_of_packets_reach_another_node_as_they_reach_this_one(
    version: int, subscribed: int, published: list[tuple[str, int, bool]]
) -> None:
    """Whether the packets of a turn have one topic or several; those of one QoS in the same order."""
    nodes = Nodes(2)
    here, there = (broker.connect(f"sub{n}", subscribed).subscribe("a/#") for n, broker in enumerate(nodes.brokers))
    nodes.settle()
    pub = nodes.brokers[0].connect("pub", version)
    for _ in range(2):
        packets = [
            encode(Publish.build(topic, b"%d" % qos, qos, retain, packet_id=number + 1 if qos else 0), version)
            for number, (topic, qos, retain) in enumerate(published)
        ]
        pub.connection.receive(b"".join(packets))
        nodes.settle()

    for qos in (b"0", b"1"):
        assert [each for each in here.messages if each[1] == qos] == [
            each for each in there.messages if each[1] == qos
        ]
    assert len(here.messages) == 2 * len([topic for topic, _, _ in published if topic != "c"])


def test_a_message_for_another_node_only_is_acknowledged_with_success() -> None:
    """MQTT-3.4.2-1: 0x10 is for a message without subscribers, on any node."""
    nodes = Nodes(2)
    nodes.brokers[1].connect("sub").subscribe("a", qos=1)
    nodes.settle()
    pub = nodes.brokers[0].connect("pub", V5).publish("a", b"x", qos=1).publish("b", b"x", qos=1)

    assert [each.reason for each in pub.of(Puback)] == [ReasonCode.SUCCESS, ReasonCode.NO_MATCHING_SUBSCRIBERS]


@pytest.mark.parametrize("qos", [1, 2])
def test_no_acknowledgement_before_the_other_node_has_committed(qos: int) -> None:
    """MQTT-4.6.0-2: and those behind it wait, although nobody else is asked about them."""
    nodes = Nodes(2)
    nodes.brokers[1].connect("sub").subscribe("a", qos=2)
    nodes.settle()
    n1, n2 = (each.me for each in nodes.backends)
    pub = nodes.brokers[0].connect("pub", V5)
    nodes.wires.cut.add((n2, n1))
    pub.publish("a", b"1", qos=qos).publish("b", b"2", qos=qos)
    answers: type[Puback] | type[Pubrec] = Puback if qos == 1 else Pubrec
    before = list(pub.of(answers))
    nodes.wires.cut.clear()
    nodes.settle()

    assert before == []
    assert [each.packet_id for each in pub.of(answers)] == [1, 2]


def test_one_slow_node_delays_only_those_who_publish_to_it() -> None:
    """C16."""
    nodes = Nodes(3)
    nodes.brokers[1].connect("sub2").subscribe("two", qos=1)
    nodes.brokers[2].connect("sub3").subscribe("three", qos=1)
    nodes.settle()
    n1, n2, _ = (each.me for each in nodes.backends)
    local = nodes.brokers[0].connect("local").subscribe("one", qos=1)
    nodes.wires.cut.add((n1, n2))
    slow = nodes.brokers[0].connect("slow").publish("two", b"x", qos=1)
    quick = nodes.brokers[0].connect("quick").publish("three", b"x", qos=1)
    local.publish("one", b"x", qos=1)

    assert slow.of(Puback) == []
    assert len(quick.of(Puback)) == 1
    assert len(local.of(Puback)) == 1


def test_who_publishes_to_a_link_without_credit_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the node has answered; others go on (C16)."""
    nodes = Nodes(2)
    nodes.brokers[1].connect("sub").subscribe("a", qos=1)
    nodes.settle()
    n1, n2 = (each.me for each in nodes.backends)
    pub, other = nodes.brokers[0].connect("pub"), nodes.brokers[0].connect("other")
    nodes.wires.cut.add((n1, n2))
    monkeypatch.setattr(nodes.backends[0], "link", lambda node: LinkState(0, 5 << 20, 0.0))
    pub.publish("a", b"1", qos=1)
    before = pub.link.reading
    pub.publish("a", b"2", qos=1)
    other.publish("b", b"x", qos=1)
    without_credit = pub.link.reading
    monkeypatch.undo()
    nodes.wires.cut.clear()
    nodes.settle()

    assert (before, without_credit, other.link.reading) == (True, False, True)
    assert pub.link.reading
    assert len(pub.of(Puback)) == 2


def test_a_repeated_qos_2_packet_gets_no_early_pubrec() -> None:
    """MQTT-4.3.3-10: the other node has not committed the message, so its publisher must keep it."""
    nodes = Nodes(2)
    sub = nodes.brokers[1].connect("sub").subscribe("a", qos=2)
    nodes.settle()
    n1, n2 = (each.me for each in nodes.backends)
    pub = back(nodes.brokers[0], "pub", silent=True)
    nodes.wires.cut.add((n1, n2))
    pub.publish("a", b"x", qos=2, packet_id=7).publish("a", b"x", qos=2, packet_id=7, dup=True)
    before = list(pub.of(Pubrec))
    nodes.wires.cut.clear()
    nodes.settle()

    assert before == []
    assert [each.packet_id for each in pub.of(Pubrec)] == [7]
    assert payloads(sub) == [b"x"]


def test_a_publisher_that_comes_back_hears_of_the_first_packet() -> None:
    """MQTT-4.4.0-1: it sends its QoS 2 message again on a new connection, and other nodes get it once."""
    nodes = Nodes(2)
    sub = nodes.brokers[1].connect("sub").subscribe("a", qos=2)
    nodes.settle()
    n1, n2 = (each.me for each in nodes.backends)
    pub = back(nodes.brokers[0], "pub", silent=True)
    nodes.wires.cut.add((n1, n2))
    pub.publish("a", b"x", qos=2, packet_id=7).drop()
    again = back(nodes.brokers[0], "pub").publish("a", b"x", qos=2, packet_id=7, dup=True)
    nodes.wires.cut.clear()
    nodes.settle()

    assert [each.packet_id for each in again.of(Pubrec)] == [7]
    assert payloads(sub) == [b"x"]


def test_a_shared_subscription_is_served_once_in_the_cluster() -> None:
    """MQTT-4.8.2: each message goes to one member, and nodes get messages by their connected members."""
    nodes = Nodes(3)
    members: list[list[Peer]] = [
        [nodes.brokers[number].connect(f"m{number}{each}").subscribe("$share/g/a", qos=1) for each in range(count)]
        for number, count in enumerate((1, 2, 3))
    ]
    nodes.settle()
    pub = nodes.brokers[0].connect("pub")
    for number in range(60):
        pub.publish("a", b"%d" % number, qos=number % 2)

    assert sorted(payloads(*[peer for some in members for peer in some])) == sorted(b"%d" % n for n in range(60))
    assert [len(payloads(*some)) for some in members] == [10, 20, 30]


def test_a_member_that_left_meanwhile_is_replaced() -> None:
    """The elected node says that it has no member any more, and another one is elected."""
    nodes = Nodes(2)
    gone = nodes.brokers[1].connect("gone").subscribe("$share/g/a", qos=1)
    nodes.settle()
    stays = nodes.brokers[0].connect("stays")
    n1, n2 = (each.me for each in nodes.backends)
    nodes.wires.cut.add((n2, n1))
    gone.unsubscribe("$share/g/a")
    stays.subscribe("$share/g/a", qos=1)
    pub = nodes.brokers[0].connect("pub")
    for number in range(4):
        pub.publish("a", b"%d" % number, qos=1)
    nodes.wires.cut.clear()
    nodes.settle()

    assert sorted(payloads(stays)) == [b"0", b"1", b"2", b"3"]
    assert len(pub.of(Puback)) == 4


def test_a_message_follows_a_session_that_has_moved() -> None:
    """What its old node gets for it goes to the new one, before it is acknowledged."""
    nodes = Nodes(3)
    back(nodes.brokers[1], "sub").subscribe("a", qos=1).drop()
    nodes.settle()
    n1, _, n3 = (each.me for each in nodes.backends)
    nodes.wires.cut |= {(n3, n1), (n1, n3)}
    moved = back(nodes.brokers[2], "sub")
    nodes.settle()
    pub = nodes.brokers[0].connect("pub").publish("a", b"x", qos=1)
    before = list(pub.of(Puback))
    nodes.wires.cut.clear()
    nodes.advance(2)

    assert before == []
    assert payloads(moved) == [b"x"]
    assert len(pub.of(Puback)) == 1


def test_messages_wait_for_the_adoption_of_a_dead_nodes_sessions() -> None:
    """C4: they are delivered once the session has a new owner, and acknowledged then."""
    nodes = Nodes(3)
    back(nodes.brokers[1], "sub").subscribe("a", qos=1).drop()
    nodes.settle()
    n1, n2, _ = (each.me for each in nodes.backends)
    nodes.wires.cut.add((n1, n2))
    pub = nodes.brokers[0].connect("pub").publish("a", b"x", qos=1)
    nodes.kill(1, down=False)
    nodes.advance(5)
    before = list(pub.of(Puback))
    nodes.down(1)
    nodes.advance(3)
    sub = back(nodes.brokers[2], "sub")

    assert before == []
    assert len(pub.of(Puback)) == 1
    assert payloads(sub) == [b"x"]


@pytest.mark.parametrize("state", [MemberState.DOWN, MemberState.REMOVED])
def test_what_is_published_before_a_session_is_adopted_is_not_lost(state: MemberState) -> None:
    """C4, C13: a node that has died or stopped leaves sessions, and their messages wait for new owners."""
    nodes = Nodes(2)
    sub = back(nodes.brokers[1], "sub").subscribe("a", qos=1)
    nodes.settle()
    pub = nodes.brokers[0].connect("pub", V5)
    nodes.kill(1, down=False)
    nodes.backends[0].listener.member_changed(Member(nodes.backends[1].me, state))
    # Before anything is adopted: the commands of one turn.
    pub.publish("a", b"x", qos=1)
    nodes.advance(5)

    assert sub.messages == []
    assert [each.reason for each in pub.of(Puback)] == [ReasonCode.SUCCESS]
    assert payloads(back(nodes.brokers[0], "sub")) == [b"x"]


def test_a_repeated_message_is_for_shared_subscriptions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """C9: the member that was elected first could not commit it, so its publisher sends it again."""
    nodes = Nodes(2)
    member = back(nodes.brokers[1], "member").subscribe("$share/g/a", qos=2)
    nodes.settle()
    pub = back(nodes.brokers[0], "pub", silent=True)

    def fail(writes: object) -> None:
        raise ServiceUnavailable("no disk")

    monkeypatch.setattr(nodes.brokers[1].assembly.stores.queue, "apply", fail)
    pub.publish("a", b"x", qos=2, packet_id=7)
    before = (pub.closed, payloads(member))
    monkeypatch.undo()
    back(nodes.brokers[0], "pub").publish("a", b"x", qos=2, packet_id=7, dup=True)
    nodes.advance(1)

    assert before == (True, [])
    assert payloads(back(nodes.brokers[1], "member")) + payloads(member) == [b"x"]


def test_a_batch_that_cannot_be_written_leaves_no_publisher_without_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its publishers are sent away, and their messages sent again reach the other node."""
    nodes = Nodes(2)
    sub = nodes.brokers[1].connect("sub").subscribe("a", qos=1)
    nodes.settle()
    pub = back(nodes.brokers[0], "pub", silent=True)

    def fail() -> float:
        raise ValueError("a defect")

    [link] = nodes.brokers[0].broker.forwarder.links()
    monkeypatch.setattr(link.assured, "_now", fail)
    pub.publish("a", b"x", qos=1, packet_id=7)
    nodes.settle()
    monkeypatch.undo()
    back(nodes.brokers[0], "pub").publish("a", b"x", qos=1, packet_id=7, dup=True)

    assert pub.closed
    assert sub.messages == [("a", b"x", 1)]
    assert nodes.brokers[0].broker.forwarder.unanswered == 0


def test_a_node_that_is_taken_for_dead_claims_no_session() -> None:
    """C4: it is alive and reaches the store; what it claimed, nobody would adopt."""
    nodes = Nodes(2)
    back(nodes.brokers[0], "sub").subscribe("a", qos=1).drop()
    nodes.settle()
    taken_for_dead = nodes.backends[1].me
    nodes.backends[0].listener.member_changed(Member(taken_for_dead, MemberState.DOWN))
    nodes.advance(1)
    refused = nodes.brokers[1].connect("sub", V5, expiry_s=60, clean_start=False)
    nodes.advance(1)
    pub = nodes.brokers[0].connect("pub", V5).publish("a", b"x", qos=1)
    nodes.advance(1)

    assert [each.reason for each in refused.of(Connack)] == [ReasonCode.SERVER_UNAVAILABLE]
    assert [each.reason for each in pub.of(Puback)] == [ReasonCode.SUCCESS]
    assert payloads(back(nodes.brokers[0], "sub")) == [b"x"]
