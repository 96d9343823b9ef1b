"""Taps on several nodes: a message is shown where its publisher is, and what is made of it goes everywhere."""

from __future__ import annotations

from core_harness.nodes import Nodes
from kinmqtt.mqtt.packets import V5, ConnectWill, Puback, Pubcomp, Pubrec
from kinmqtt_spi import hookimpl
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.values import Message


class Tapper:
    """The same plugin on each node; it publishes to `derived` what it sees."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.context: Context

    @hookimpl
    def start(self, context: Context) -> None:
        self.context = context
        context.tap(["a/#"], self._see)

    def _see(self, message: Message) -> None:
        self.seen.append(message.payload)
        self.context.publish(Message("derived", message.payload, 1))


def two_nodes() -> tuple[Nodes, list[Tapper]]:
    """Return two nodes, each with a tap."""
    nodes = Nodes(0)
    tappers = [Tapper(), Tapper()]
    for tapper in tappers:
        nodes.add(plugins={"tapper": tapper})
    nodes.settle()
    return nodes, tappers


def test_only_the_node_that_took_a_message_shows_it() -> None:
    """Also where another node has subscribers, to whom message and what was made of it are forwarded."""
    nodes, (here, there) = two_nodes()
    subscriber = nodes.brokers[1].connect("s", V5).subscribe("a/#", qos=1).subscribe("derived", qos=1)
    nodes.settle()
    publisher = nodes.brokers[0].connect("p", V5, expiry_s=60)
    for qos in (0, 1, 2):
        publisher.publish("a/b", b"%d" % qos, qos=qos)
        nodes.settle()

    assert here.seen == [b"0", b"1", b"2"]
    assert there.seen == []
    assert len(publisher.of(Puback)) == len(publisher.of(Pubrec)) == len(publisher.of(Pubcomp)) == 1
    assert sorted(subscriber.messages) == [
        (topic, b"%d" % qos, min(qos, 1) if topic == "a/b" else 1)
        for topic in ("a/b", "derived")
        for qos in (0, 1, 2)
    ]


def test_a_tap_draws_no_messages_from_other_nodes() -> None:
    """Its filters are no routes."""
    nodes, (here, _) = two_nodes()
    nodes.brokers[1].connect("p", V5).publish("a/b", b"1", qos=1)
    nodes.settle()

    assert nodes.backends[0].routes == {}
    assert here.seen == []


def test_a_publisher_waits_for_what_taps_publish_on_other_nodes() -> None:
    """PUBACK and PUBREC mean that it is committed there, too."""
    nodes, _ = two_nodes()
    nodes.brokers[1].connect("away", V5, expiry_s=60).subscribe("derived", qos=1).drop()
    nodes.settle()
    publisher = nodes.brokers[0].connect("p", V5, expiry_s=60)
    way = (nodes.backends[0].me, nodes.backends[1].me)
    for qos, answer in ((1, Puback), (2, Pubrec)):
        nodes.wires.cut.add(way)
        publisher.publish("a/b", b"%d" % qos, qos=qos)
        nodes.settle()
        assert publisher.of(answer) == []
        nodes.wires.cut.discard(way)
        nodes.settle()
        assert len(publisher.of(answer)) == 1
    back = nodes.brokers[1].connect("away", V5, expiry_s=60, clean_start=False)
    nodes.settle()

    assert [payload for _, payload, _ in back.messages] == [b"1", b"2"]


def test_the_will_of_a_node_that_is_gone_is_shown_where_it_is_published() -> None:
    """Another node publishes it in its place."""
    nodes, (_, there) = two_nodes()
    nodes.brokers[0].connect("mortal", V5, expiry_s=60, will=ConnectWill("a/will", b"will", 1))
    nodes.settle()
    nodes.kill(0)
    nodes.advance(70)

    assert there.seen == [b"will"]
