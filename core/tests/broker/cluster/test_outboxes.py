"""Outboxes on several nodes: each message enters one, and those of a node that is gone are drained by another."""

from __future__ import annotations

from collections.abc import Sequence

from core_harness.nodes import Nodes
from kinmqtt.mqtt.packets import Puback, Pubrec
from kinmqtt_spi import hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.outbox import Outbox, OutboxEntry, OutboxSettings
from kinmqtt_spi.services.plugin import Context


class Shipper:
    """The same plugin on each node; it keeps what it gets, and acknowledges only on demand."""

    def __init__(self, filters: Sequence[str] = ("a/#",)) -> None:
        self.filters = filters
        self.entries: list[OutboxEntry] = []
        self.outbox: Outbox

    @hookimpl
    def start(self, context: Context) -> None:
        self.outbox = context.outbox("out", OutboxSettings(window=2), self.filters)
        self.outbox.consume(self.entries.extend)

    @property
    def payloads(self) -> list[bytes]:
        return [entry.message.payload for entry in self.entries]

    def acknowledge(self) -> list[bytes]:
        """Acknowledge all, and return what it was."""
        taken, self.entries[:] = self.entries[:], []
        self.outbox.acknowledge([entry.number for entry in taken])
        return [entry.message.payload for entry in taken]


def two_nodes() -> tuple[Nodes, list[Shipper]]:
    """Return two nodes, each with a shipper."""
    nodes = Nodes(0)
    shippers = [Shipper(), Shipper()]
    for shipper in shippers:
        nodes.add(plugins={"shipper": shipper})
    nodes.settle()
    return nodes, shippers


def test_only_the_node_that_took_a_message_has_it_in_its_outbox() -> None:
    """Also where another node has a subscriber, to whom the message is forwarded."""
    nodes, (here, there) = two_nodes()
    subscriber = nodes.brokers[1].connect("s", 5).subscribe("a/#", qos=1)
    nodes.settle()
    publisher = nodes.brokers[0].connect("p", 5)
    taken: list[bytes] = []
    for qos in (0, 1, 2):
        publisher.publish("a/b", b"%d" % qos, qos=qos)
        nodes.settle()
        taken += here.acknowledge()

    assert len(publisher.of(Puback)) == len(publisher.of(Pubrec)) == 1
    assert [payload for _, payload, _ in subscriber.messages] == [b"0", b"1", b"2"]
    assert taken == [b"0", b"1", b"2"]
    assert there.payloads == []


def test_an_outbox_draws_no_messages_from_other_nodes() -> None:
    """Its filters are no routes."""
    nodes, (here, _) = two_nodes()
    assert nodes.backends[0].routes == {}
    nodes.brokers[1].connect("p", 5).publish("a/b", b"1", qos=1)
    nodes.settle()

    assert here.payloads == []
    assert not nodes.backends[1].sent


def test_the_outbox_of_a_node_that_is_gone_is_drained_by_another_and_deleted() -> None:
    """What was handed out there comes here again; nothing that was acknowledged is lost."""
    nodes, (first, second) = two_nodes()
    publisher = nodes.brokers[0].connect("p", 5)
    for number in range(5):
        publisher.publish("a/b", b"%d" % number, qos=1)
        nodes.settle()
    assert len(publisher.of(Puback)) == 5
    assert first.payloads == [b"0", b"1"]
    nodes.kill(0)
    nodes.advance(2)
    assert [(entry.message.payload, entry.is_repeated) for entry in second.entries] == [(b"0", True), (b"1", True)]
    drained = []
    while second.entries:
        drained += second.acknowledge()
        nodes.settle()
    nodes.advance(1)

    assert drained == [b"0", b"1", b"2", b"3", b"4"]
    assert [each.client_id for each in nodes.brokers[1].broker.sessions.outboxes.all] == ["$outbox/n2/shipper/out"]
    assert not nodes.stores.sessions.is_stored("$outbox/n1/shipper/out")


def test_an_outbox_whose_node_is_gone_gets_no_new_messages_where_it_is_drained() -> None:
    """They are in the outbox of the node that drains it."""
    nodes, (_, second) = two_nodes()
    nodes.brokers[0].connect("p", 5).publish("a/b", b"1", qos=1)
    nodes.settle()
    nodes.kill(0)
    nodes.advance(2)
    nodes.brokers[1].connect("q", 5).publish("a/b", b"2", qos=1)
    nodes.settle()

    assert second.payloads == [b"1", b"2"]
    left, own = sorted(nodes.brokers[1].broker.sessions.outboxes.all, key=lambda each: each.client_id)
    assert (len(left.outgoing), len(own.outgoing)) == (1, 1)


def test_a_node_that_comes_back_takes_its_outbox_again() -> None:
    """The node that drained it meanwhile lets go of it; nothing is lost between them."""
    nodes, (_, second) = two_nodes()
    publisher = nodes.brokers[0].connect("p", 5)
    for number in range(5):
        publisher.publish("a/b", b"%d" % number, qos=1)
        nodes.settle()
    nodes.kill(0)
    nodes.advance(2)
    done = second.acknowledge()
    nodes.settle()
    third = Shipper()
    nodes.add(plugins={"shipper": third}, name="n1")
    nodes.advance(1)
    rest = []
    while third.entries:
        rest += third.acknowledge()
        nodes.settle()

    assert done == [b"0", b"1"]
    assert rest == [b"2", b"3", b"4"]
    assert [each.client_id for each in nodes.brokers[1].broker.sessions.outboxes.all] == ["$outbox/n2/shipper/out"]


def test_a_node_whose_outbox_was_claimed_by_mistake_refuses_until_it_has_it_again() -> None:
    """Nobody is acknowledged whose message would be in no outbox."""
    nodes, (first, _) = two_nodes()
    publisher = nodes.brokers[0].connect("p", 5)
    publisher.publish("a/b", b"1", qos=1)
    nodes.settle()
    client_id = "$outbox/n1/shipper/out"
    other = nodes.backends[1].me
    epoch = nodes.stores.sessions.claim(client_id, other).epoch
    nodes.backends[0].listener.session_claimed(client_id, epoch, other)
    publisher.publish("a/b", b"2", qos=1)
    nodes.settle()
    assert [packet.reason for packet in publisher.of(Puback)] == [ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED]
    assert nodes.brokers[0].assembly.metrics.sum("clients.total") == 1
    nodes.advance(2)
    first.acknowledge()
    nodes.settle()
    publisher.publish("a/b", b"3", qos=1)
    nodes.settle()

    assert publisher.of(Puback)[-1].reason is ReasonCode.SUCCESS
    assert b"3" in first.payloads
