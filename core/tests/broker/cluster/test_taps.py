"""Taps on several nodes: a message is shown where its publisher is, and what is made of it goes everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_harness.nodes import Nodes
from kinmqtt.mqtt.packets import V5, ConnectWill, Puback, Pubcomp, Pubrec
from kinmqtt_spi import hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.outbox import Accepted, Outbox, OutboxEntry, OutboxSettings
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.queue import InboundClose, OverflowPolicy
from kinmqtt_spi.values import Message


class Tapper:
    """The same plugin on each node; it publishes to `derived` what it sees."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.made: list[Message] = []
        self.makes: Callable[[Message], Message] = lambda message: Message("derived", message.payload, 1)
        self.act: Callable[[Message], object] = lambda message: self.context.publish(self.makes(message))
        self.context: Context

    @property
    def seen(self) -> list[bytes]:
        """The payloads of what it saw."""
        return [message.payload for message in self.messages]

    @hookimpl
    def start(self, context: Context) -> None:
        self.context = context
        context.tap(["a/#"], self._see)
        context.tap(["derived"], self.made.append)

    def _see(self, message: Message) -> None:
        self.messages.append(message)
        self.act(message)


def two_nodes(**limits: Any) -> tuple[Nodes, list[Tapper]]:
    """Return two nodes, each with a tap."""
    nodes = Nodes(0)
    tappers = [Tapper(), Tapper()]
    for tapper in tappers:
        nodes.add(plugins={"tapper": tapper}, **limits)
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


class Putter:
    """The same plugin on each node; its tap, or whoever calls :meth:`put`, puts messages into its outbox.

    Another node then claims the outbox before the turn is committed.
    """

    def __init__(self) -> None:
        self.entries: list[OutboxEntry] = []
        self.answers: list[Accepted] = []
        self.claim: Callable[[], None] | None = None
        self.makes: Callable[[Message], Message] = lambda message: message
        self.outbox: Outbox

    @hookimpl
    def start(self, context: Context) -> None:
        self.outbox = context.outbox("out", OutboxSettings())
        self.outbox.consume(self.entries.extend)
        context.tap(["a/#"], self.put)

    def put(self, message: Message) -> None:
        """Put in what is made of a message."""
        self.answers.append(self.outbox.put(self.makes(message)))
        claim, self.claim = self.claim, None
        if claim is not None:
            claim()


def two_putters() -> tuple[Nodes, list[Putter]]:
    """Return two nodes, each with a putter; the first one's outbox is claimed when it has put something in."""
    nodes = Nodes(0)
    putters = [Putter(), Putter()]
    for putter in putters:
        nodes.add(plugins={"putter": putter})
    nodes.settle()

    def claim() -> None:
        client_id = "$outbox/n1/putter/out"
        epoch = nodes.stores.sessions.claim(client_id, nodes.backends[1].me).epoch
        nodes.stores.queues.apply([InboundClose(client_id, epoch, 1)])

    putters[0].claim = claim
    return nodes, putters


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_made", [False, True])
def test_a_message_is_not_acknowledged_whose_outbox_is_claimed_in_that_turn(qos: int, is_made: bool) -> None:
    """It is in no outbox: the publisher is disconnected, and sends it again."""
    nodes, (here, there) = two_putters()
    if is_made:
        here.makes = lambda message: Message("made", message.payload, 1)
    publisher = nodes.brokers[0].connect("p", V5, expiry_s=60)
    publisher.publish("a/b", b"1", qos=qos)
    nodes.settle()
    assert here.answers == [Accepted.ACCEPTED]
    assert publisher.of(Puback) + publisher.of(Pubrec) == []
    assert publisher.closed
    nodes.advance(10)
    publisher = nodes.brokers[0].connect("p", V5, expiry_s=60, clean_start=False)
    publisher.publish("a/b", b"1", qos=qos, dup=True)
    nodes.settle()

    assert len(publisher.of(Puback if qos == 1 else Pubrec)) == 1
    assert [entry.message.payload for entry in here.entries + there.entries] == [b"1"]


def test_what_nobody_sends_again_is_put_in_again_after_another_node_has_claimed_the_outbox() -> None:
    """A plugin's own message, and what a tap makes of a message of QoS 0."""
    for is_tapped in (False, True):
        nodes, (here, there) = two_putters()
        here.makes = lambda message: Message("made", message.payload, 1)
        if is_tapped:
            nodes.brokers[0].connect("p", V5).publish("a/b", b"1")
        else:
            here.put(Message("own", b"1", 1))
        nodes.settle()
        assert here.entries == []
        nodes.advance(10)
        nodes.settle()

        assert here.answers == [Accepted.ACCEPTED]
        assert [entry.message.payload for entry in here.entries + there.entries] == [b"1"]


@pytest.mark.parametrize("where", [0, 1])
def test_what_a_tap_makes_with_replace_is_no_repetition_of_what_it_saw(where: int) -> None:
    """A client that is away gets both, and so does one that moves to another node meanwhile."""
    nodes, (here, _) = two_nodes()
    here.makes = lambda message: message.replace(topic="derived", qos=1)
    client = nodes.brokers[where].connect("s", V5, expiry_s=600)
    client.subscribe("a/#", qos=1).subscribe("derived", qos=1).drop()
    nodes.settle()
    publisher = nodes.brokers[0].connect("p", V5, expiry_s=600)
    for qos in (1, 2):
        publisher.publish("a/b", b"%d" % qos, qos=qos)
        nodes.settle()
    back = nodes.brokers[1 - where].connect("s", V5, expiry_s=600, clean_start=False)
    nodes.settle()

    assert sorted(back.messages) == [
        ("a/b", b"1", 1), ("a/b", b"2", 1), ("derived", b"1", 1), ("derived", b"2", 1)
    ]  # fmt: skip
    assert len({message.id for message in here.made}) == len(here.made) == 2
    assert not {message.id for message in here.made} & {message.id for message in here.messages}


@pytest.mark.parametrize("where", [0, 1])
def test_a_queue_that_refuses_what_a_tap_publishes_refuses_its_publisher_on_any_node(where: int) -> None:
    """The client is told the same, wherever the queue is."""
    nodes, _ = two_nodes(max_queued_messages=1, queue_full=OverflowPolicy.REFUSE)
    nodes.brokers[where].connect("away", V5, expiry_s=600).subscribe("derived", qos=1).drop()
    nodes.settle()
    publisher = nodes.brokers[0].connect("p", V5)
    for number in range(2):
        publisher.publish("a/b", b"%d" % number, qos=1)
        nodes.settle()

    assert [packet.reason for packet in publisher.of(Puback)] == [ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED]


def test_a_publisher_waits_for_what_a_tap_delivers_to_a_session_on_another_node() -> None:
    """Its PUBACK means that it is committed there."""
    nodes, (here, _) = two_nodes()
    here.act = lambda message: here.context.deliver("away", Message("for/you", message.payload, 1))
    nodes.brokers[1].connect("away", V5, expiry_s=60).drop()
    nodes.settle()
    publisher = nodes.brokers[0].connect("p", V5)
    way = (nodes.backends[0].me, nodes.backends[1].me)
    nodes.wires.cut.add(way)
    publisher.publish("a/b", b"1", qos=1)
    nodes.settle()
    assert publisher.of(Puback) == []
    nodes.wires.cut.discard(way)
    nodes.settle()

    assert len(publisher.of(Puback)) == 1
    back = nodes.brokers[1].connect("away", V5, expiry_s=60, clean_start=False)
    assert [(topic, payload) for topic, payload, _ in back.messages] == [("for/you", b"1")]
