"""Batches of other nodes, as one broker takes them."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from core_harness.batches import batch_of
from core_harness.house import back, payloads
from core_harness.nodes import Nodes
from kinmqtt.broker.cluster.receiver import Answer
from kinmqtt.broker.forwarding.batch_format import AGAIN, ONE_TOPIC, PLAIN, RunHead, batch_head, write_run
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V311, Publish
from kinmqtt_spi.errors import MalformedBatch
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.values import Message, MessageId, NodeIdentity, Publisher

OTHER = NodeIdentity("other", 9)


def answer_to(nodes: Nodes, batch: bytes) -> list[bytes]:
    """Returns what the first broker answers to a batch, in a list."""
    answers: list[bytes] = []
    answer: Any = nodes.backends[0].listener.received(OTHER, batch, True)
    answer.addCallback(answers.append)
    nodes.settle()
    return answers


def of_v311(*packets: bytes, flags: int = PLAIN) -> bytes:
    """Returns a batch with one run of packets."""
    pieces = [batch_head(0)]
    write_run(RunHead(flags, Publisher("p"), 9, 1, 0), list(packets), pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("bad", [b"\x32\x05\0\1+\0\1", b"\x32\x03\0\1a", b"\x32\x04\0\0\0\1", b"\x36\x05\0\1a\0\1"])
@pytest.mark.parametrize("assured", [True, False])
def test_a_packet_that_cannot_be_read_makes_its_batch_malformed(bad: bytes, assured: bool) -> None:
    """MQTT-3.3.2-2: and nothing of an assured batch is delivered: it would come again."""
    nodes = Nodes(1)
    sub = nodes.brokers[0].connect("sub").subscribe("#", qos=1)
    good = encode(Publish.build("a", b"x", qos=1, packet_id=1), V311)

    with pytest.raises(MalformedBatch):
        nodes.backends[0].listener.received(OTHER, of_v311(good, bad), assured)
    nodes.settle()

    if assured:
        assert payloads(sub) == []
    assert not sub.closed


@pytest.mark.parametrize(
    "other",
    [b"\x32\x06\0\1a\0\7x", b"\x31\x04\0\1ax", b"\x30\x02\0\1", b"\x30\x04\0\5ax"],
)
def test_no_packet_is_passed_on_unread_for_its_run_says_so(other: bytes) -> None:
    """A run that is said to have one topic at QoS 0 is read as any other where it has something else."""
    nodes = Nodes(1)
    sub = nodes.brokers[0].connect("sub").subscribe("a", qos=1)
    good = encode(Publish.build("a", b"x"), V311)
    listener = nodes.backends[0].listener
    listener.received(OTHER, of_v311(good, flags=PLAIN | ONE_TOPIC), False)
    nodes.settle()
    try:
        listener.received(OTHER, of_v311(other, flags=PLAIN | ONE_TOPIC), False)
    except MalformedBatch:
        pass
    nodes.settle()

    assert not sub.closed
    assert {payload for _, payload, _ in sub.messages} == {b"x"}
    assert not any(retain for retain in [each.retain for each in sub.of(Publish)])


def test_a_message_that_was_sent_again_reaches_those_who_lack_it() -> None:
    """C5: a persistent session that has it gets it no second time, and one without a store is left out."""
    nodes = Nodes(1)
    [broker] = nodes.brokers
    kept = back(broker, "kept").subscribe("a", qos=2).drop()
    live = broker.connect("live").subscribe("a", qos=2)
    first, second = (Message("a", payload, 2, id=MessageId(9, number)) for number, payload in enumerate((b"1", b"2")))
    told = [answer_to(nodes, batch_of(first))]
    told.append(answer_to(nodes, batch_of(first, second, flags=PLAIN | AGAIN)))

    assert kept.closed
    assert payloads(back(broker, "kept")) == [b"1", b"2"]
    assert payloads(live) == [b"1"]
    assert told == [[b""], [b""]]


def test_a_run_of_one_topic_reaches_all_its_subscribers_in_one_piece() -> None:
    """Each gets all packets as they came, and who is offline counts each of them as dropped."""
    nodes = Nodes(1)
    [broker] = nodes.brokers
    subs = [broker.connect(name).subscribe("a") for name in ("one", "other")]
    broker.connect("offline", clean_start=False).subscribe("a").drop()
    packets = [encode(Publish.build("a", b"%d" % number), V311) for number in range(300)]
    statistics = broker.broker.services.runtime.statistics
    listener = nodes.backends[0].listener
    listener.received(OTHER, of_v311(packets[0], flags=PLAIN | ONE_TOPIC), False)
    nodes.settle()
    sent, dropped = statistics.messages_sent.value, statistics.dropped["offline"].value

    listener.received(OTHER, of_v311(*packets[1:], flags=PLAIN | ONE_TOPIC), False)
    nodes.settle()

    assert [payloads(sub) for sub in subs] == [[b"%d" % number for number in range(300)]] * 2
    assert statistics.messages_sent.value - sent == 2 * 299
    assert statistics.dropped["offline"].value - dropped == 299


def test_an_answered_batch_leaves_nothing_for_the_garbage_collector() -> None:
    """Else it runs after some thousand messages of other nodes, which is a tenth of what these cost."""
    nodes = Nodes(1)
    nodes.brokers[0].connect("sub").subscribe("a", qos=1)
    gc.collect()

    told = answer_to(nodes, batch_of(Message("a", b"x", 1, id=MessageId(9, 1))))

    assert told == [b""]
    assert not [each for each in gc.get_objects() if isinstance(each, Answer)]


def test_an_expiry_interval_counts_from_the_first_node() -> None:
    """MQTT-3.3.2-5: by the age that the batch tells, as clocks of two nodes are not compared."""
    nodes = Nodes(1)
    sub = nodes.brokers[0].connect("sub", 5).subscribe("a", qos=1)
    properties = Properties(message_expiry_interval=10)
    messages = [Message("a", b"%d" % n, 1, properties=properties, id=MessageId(9, n)) for n in (1, 2)]
    answer_to(nodes, batch_of(messages[0], age_ms=4_000))
    answer_to(nodes, batch_of(messages[1], age_ms=10_000))

    assert payloads(sub) == [b"1"]
    assert [each.properties.message_expiry_interval for each in sub.of(Publish)] == [6]


def test_a_question_that_nobody_knows_is_refused() -> None:
    """A node of a later version may ask it."""
    nodes = Nodes(2)
    outcome: list[Any] = []
    backend: Any = nodes.backends[0]
    backend.ask(nodes.backends[1].me, "riddle", b"", 1.0).addBoth(outcome.append)
    nodes.settle()

    assert "riddle" in str(outcome[0].value)


def test_sys_topics_stay_on_their_node() -> None:
    """A subscriber gets those of its own broker only, by a shared subscription as well."""
    nodes = Nodes(2, sys_interval_s=1)
    subs = [broker.connect(f"s{n}").subscribe("$SYS/broker/uptime") for n, broker in enumerate(nodes.brokers)]
    shared = [
        broker.connect(f"g{n}").subscribe("$share/g/$SYS/broker/uptime") for n, broker in enumerate(nodes.brokers)
    ]
    nodes.settle()
    for sub in (*subs, *shared):
        sub.packets.clear()
    nodes.advance(3)

    assert [len(sub.messages) for sub in (*subs, *shared)] == [3, 3, 3, 3]


def test_sys_topics_of_brokers_that_share_a_store_do_not_overwrite_each_other() -> None:
    """A new subscriber gets what its own broker has published last, and nothing is written to the shared store."""
    nodes = Nodes(2, sys_interval_s=1)
    nodes.brokers[0].connect("client")
    nodes.advance(2)
    found = [
        broker.connect(f"s{n}").subscribe("$SYS/broker/clients/connected").messages[0][1]
        for n, broker in enumerate(nodes.brokers)
    ]

    assert found == [b"1", b"0"]
    assert nodes.stores.retained.count() == 0
