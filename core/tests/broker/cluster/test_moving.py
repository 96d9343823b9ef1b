"""Messages for sessions that move between nodes."""

from __future__ import annotations

from core_harness.batches import batch_of
from core_harness.nodes import Nodes
from kinmqtt.mqtt.packets import Puback
from kinmqtt_spi.values import Message, MessageId


def test_a_batch_sent_before_a_session_arrived_spares_what_it_has() -> None:
    """C5: the session got the message where it was; sessions that were here before get it."""
    nodes = Nodes(3)
    here = nodes.brokers[1].connect("here", 5).subscribe("a", qos=2)
    nodes.brokers[0].connect("moving", 5, expiry_s=60).subscribe("a", qos=2)
    nodes.settle()
    message = Message("a", b"1", 2, id=MessageId(3, 7))
    for number in (0, 1):
        if number:
            moved = nodes.brokers[1].connect("moving", 5, expiry_s=60, clean_start=False)
            nodes.settle()
        nodes.backends[number].listener.received(nodes.backends[2].me, batch_of(message), True)
        nodes.settle()

    assert moved.messages == []
    assert [payload for _, payload, _ in here.messages] == [b"1"]


def test_a_shared_subscription_whose_members_have_moved_keeps_its_messages() -> None:
    """C9: the publisher's node does not know the route of the new owner yet."""
    nodes = Nodes(3)
    publisher = nodes.brokers[2].connect("p", 5)
    nodes.brokers[0].connect("g", 5, expiry_s=60).subscribe("$share/g/a", qos=1)
    nodes.settle()
    late = (nodes.backends[1].me, nodes.backends[2].me)
    nodes.wires.cut.add(late)
    member = nodes.brokers[1].connect("g", 5, expiry_s=60, clean_start=False)
    nodes.settle()
    publisher.publish("a", b"1", qos=1)
    nodes.settle()
    nodes.wires.cut.discard(late)
    nodes.advance(2)

    assert len(publisher.of(Puback)) == 1
    assert [payload for _, payload, _ in member.messages] == [b"1"]


def test_a_shared_subscription_of_a_node_that_is_gone_waits_for_its_adoption() -> None:
    """C9: its member comes back to another node, and has lost nothing that was acknowledged."""
    nodes = Nodes(3)
    publisher = nodes.brokers[0].connect("p", 5)
    nodes.brokers[2].connect("g", 5, expiry_s=60).subscribe("$share/g/a", qos=1)
    nodes.settle()
    nodes.kill(2, down=False)
    publisher.publish("a", b"1", qos=1)
    nodes.settle()
    nodes.down(2)
    publisher.publish("a", b"2", qos=1)
    nodes.advance(2)
    member = nodes.brokers[1].connect("g", 5, expiry_s=60, clean_start=False)
    nodes.settle()

    assert len(publisher.of(Puback)) == 2
    assert sorted(payload for _, payload, _ in member.messages) == [b"1", b"2"]


def test_an_answer_that_cannot_be_read_leaves_no_publisher_without_answer() -> None:
    """Its publishers are sent away: they send their messages again."""
    nodes = Nodes(2)
    nodes.brokers[1].connect("sub", 5).subscribe("a", qos=1)
    nodes.settle()
    nodes.backends[1].listener.received = lambda origin, batch, assured: b"\xff"  # type: ignore[method-assign]
    publisher = nodes.brokers[0].connect("p", 5)
    publisher.publish("a", b"1", qos=1)
    nodes.settle()

    assert publisher.closed
    assert publisher.of(Puback) == []
    assert nodes.brokers[0].broker.forwarder.unanswered == 0
