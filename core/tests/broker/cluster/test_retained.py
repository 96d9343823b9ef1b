"""Retained messages where each node has a retain store of its own: C10."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_harness.nodes import Nodes
from kinmqtt.broker.retained_sync.sync import EVERY_S, RetainedSync
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import Puback, Publish
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.cluster import Member, MemberState
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.values import Message, MessageId

SECOND = 1.25
"""C10: reachable nodes have the same messages 1 s after a heal; clocks of tests move by 0.25 s."""


def sync_of(nodes: Nodes, number: int) -> RetainedSync:
    return nodes.backends[number].listener.retained_sync  # type: ignore[attr-defined, no-any-return]


def found(nodes: Nodes, number: int, filter: str = "#") -> dict[str, bytes]:
    """What a client finds that subscribes on a node: all of it must be marked as retained."""
    client = nodes.brokers[number].connect(f"probe{number}", 5).subscribe(filter)
    nodes.settle()
    packets = client.of(Publish)
    client.disconnect()
    nodes.settle()
    assert all(packet.retain for packet in packets)
    return {packet.topic: packet.payload for packet in packets}


def stored(nodes: Nodes, number: int) -> dict[str, bytes]:
    """What the store of a node has: a client can't subscribe while the others don't learn of it."""
    store: Any = nodes.brokers[number].broker.assembly.stores.retain
    return {message.topic: message.payload for message in store.match("#").messages}


def cut(nodes: Nodes, one: int, other: int) -> None:
    """Separate two nodes, which see that soon."""
    pair = (nodes.backends[one], nodes.backends[other])
    for here, there in (pair, pair[::-1]):
        nodes.wires.cut.add((here.me, there.me))
        here.listener.member_changed(Member(there.me, MemberState.UP, False))


def heal(nodes: Nodes, one: int, other: int, *, lose: bool = True) -> None:
    """Join two nodes again; questions that were under way have failed meanwhile."""
    pair = (nodes.backends[one], nodes.backends[other])
    for here, there in (pair, pair[::-1]):
        nodes.wires.cut.discard((here.me, there.me))
        if lose:
            nodes.wires.queues.pop((here.me, there.me), None)
        for asked in here.waiting.pop(there.me, []):
            if not asked.called:
                asked.errback(ServiceUnavailable("no answer"))
    for here, there in (pair, pair[::-1]):
        here.listener.member_changed(Member(there.me, MemberState.UP, True))
    nodes.settle()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_one_node_takes_is_found_on_the_other(qos: int) -> None:
    """At once, as nothing is lost; with the RETAIN flag set (MQTT-3.3.1-8)."""
    nodes = Nodes(2, shared=False)

    nodes.brokers[0].connect("p", 5).publish("a/b", b"1", qos=qos, retain=True)
    nodes.settle()

    assert found(nodes, 1) == {"a/b": b"1"}


def test_a_message_is_cleared_on_any_node() -> None:
    """MQTT-3.3.1-6: an empty payload, wherever it is published."""
    nodes = Nodes(3, shared=False)
    nodes.brokers[0].connect("p", 5).publish("a", b"1", retain=True)
    nodes.settle()

    nodes.brokers[1].connect("q", 5).publish("a", b"", qos=1, retain=True)
    nodes.settle()

    assert [found(nodes, number) for number in range(3)] == [{}] * 3


def test_the_later_write_wins_though_its_nodes_clock_is_behind() -> None:
    """Who has seen a version gives a later one."""
    nodes = Nodes(2, shared=False)
    ahead = sync_of(nodes, 0)._retained
    ahead.versions.observe(nodes.clock.now() + 3600)
    nodes.brokers[0].connect("p", 5).publish("a", b"1", retain=True)
    nodes.settle()

    nodes.brokers[1].connect("q", 5).publish("a", b"2", retain=True)
    nodes.settle()

    assert [found(nodes, number) for number in range(2)] == [{"a": b"2"}] * 2


def test_a_node_that_joins_has_everything_before_its_listeners_open() -> None:
    """Its start completes with the exchange: many pages, and what was there before the second node came."""
    nodes = Nodes(1, shared=False)
    publisher = nodes.brokers[0].connect("p", 5)
    for number in range(300):
        publisher.publish(f"t/{number}", b"x" * 3000, qos=1, retain=True)
    nodes.add()
    publisher.publish("t/0", b"", qos=1, retain=True)
    nodes.settle()

    nodes.add()

    assert found(nodes, 2) == {f"t/{number}": b"x" * 3000 for number in range(1, 300)}


class Restored:
    """A retain store that a node has from its life before."""

    def __init__(self, *messages: tuple[str, bytes], at: float) -> None:
        self.store = MemoryRetainStore()
        for number, (topic, payload) in enumerate(messages, start=1):
            message = Message(topic, payload, 0, True).received(MessageId(99, number), at, None)
            self.store.put([RetainWrite(message, RetainVersion(at, 99, number))])

    @hookimpl
    def retain_store(self) -> MemoryRetainStore:
        return self.store


def test_a_node_that_comes_back_with_old_messages_gets_the_newest() -> None:
    """What was written and cleared while it was away wins; what only it has goes to the others."""
    nodes = Nodes(2, shared=False)
    publisher = nodes.brokers[0].connect("p", 5)
    publisher.publish("changed", b"new", retain=True).publish("cleared", b"new", retain=True)
    publisher.publish("cleared", b"", retain=True)
    nodes.settle()
    before = nodes.clock.now() - 60

    old = Restored(("changed", b"old"), ("cleared", b"old"), ("alone", b"old"), at=before)
    nodes.add(services={"retain": "restored"}, plugins={"restored": old})
    assert stored(nodes, 0) == stored(nodes, 2)  # By one exchange, which goes both ways.
    nodes.advance(SECOND)

    assert [found(nodes, number) for number in range(3)] == [{"changed": b"new", "alone": b"old"}] * 3


def test_both_sides_of_a_partition_converge_within_a_second() -> None:
    """C10: the newest write of each topic wins, also a deletion, and nothing is asked of clients."""
    nodes = Nodes(2, shared=False)
    one, other = (broker.connect(f"p{number}", 5) for number, broker in enumerate(nodes.brokers))
    one.publish("a", b"0", retain=True).publish("b", b"0", retain=True).publish("c", b"0", retain=True)
    nodes.settle()
    cut(nodes, 0, 1)
    one.publish("a", b"1", retain=True).publish("b", b"1", retain=True)
    nodes.advance(1)
    other.publish("b", b"2", retain=True).publish("c", b"", retain=True).publish("d", b"2", retain=True)
    nodes.advance(1)
    assert (stored(nodes, 0)["b"], stored(nodes, 1)["b"]) == (b"1", b"2")

    heal(nodes, 0, 1)
    nodes.advance(SECOND)

    assert [found(nodes, number) for number in range(2)] == [{"a": b"1", "b": b"2", "d": b"2"}] * 2


@pytest.mark.parametrize("seconds", [20, 30, 40, 50])
def test_a_node_that_comes_back_is_not_kept_waiting_by_earlier_failures(seconds: int) -> None:
    """Retries come at longer and longer intervals; once a node is reachable again they count no more."""
    nodes = Nodes(2, shared=False)
    asks = [(backend, backend.ask) for backend in nodes.backends]

    def fail(*arguments: Any) -> Any:
        raise ServiceUnavailable("no answer")

    for backend, _ in asks:
        backend.ask = fail  # type: ignore[assignment, method-assign]
    nodes.brokers[0].connect("p", 5).publish("a", b"1", retain=True)
    nodes.advance(seconds)
    for backend, ask in asks:
        backend.ask = ask  # type: ignore[method-assign]
    cut(nodes, 0, 1)
    assert stored(nodes, 1) == {}

    heal(nodes, 0, 1)
    nodes.advance(SECOND)

    assert found(nodes, 1) == {"a": b"1"}


def test_what_was_lost_without_a_word_is_found_now_and_then() -> None:
    """Nobody saw the other as unreachable."""
    nodes = Nodes(2, shared=False)
    here, there = nodes.backends[0].me, nodes.backends[1].me
    nodes.wires.cut.add((here, there))
    nodes.brokers[0].connect("p", 5).publish("a", b"1", retain=True)
    nodes.wires.queues.pop((here, there), None)
    nodes.wires.cut.discard((here, there))
    nodes.settle()
    assert found(nodes, 1) == {}

    nodes.advance(2 * EVERY_S)

    assert found(nodes, 1) == {"a": b"1"}


def test_a_message_expires_on_all_nodes() -> None:
    """MQTT-3.3.2-6: and clients get the time that is left."""
    nodes = Nodes(2, shared=False)
    expiry = Properties(message_expiry_interval=10)
    nodes.brokers[0].connect("p", 5).publish("a", b"1", retain=True, properties=expiry)
    nodes.advance(4)
    client = nodes.brokers[1].connect("s", 5).subscribe("a")
    nodes.settle()
    [packet] = client.of(Publish)
    assert packet.properties.message_expiry_interval == 6

    nodes.advance(8)

    assert [stored(nodes, number) for number in range(2)] == [{}, {}]
    assert sync_of(nodes, 0).index.root() == sync_of(nodes, 1).index.root()


def test_limits_hold_for_what_comes_from_other_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """A node that has less room refuses the rest, counts it, and goes on; what it has is kept up to date."""
    nodes = Nodes(1, shared=False)
    publisher = nodes.brokers[0].connect("p", 5)
    for number in range(20):
        publisher.publish(f"t/{number:02}", b"x", retain=True)
    nodes.add(max_retained_messages=5)
    nodes.settle()
    small: Any = nodes.brokers[1].broker
    assert small.assembly.stores.retain.count() == 5
    assert small.assembly.statistics.retained_refused.value > 0

    [kept, *_] = sorted(found(nodes, 1))
    publisher.publish(kept, b"y", retain=True)
    publisher.publish("t/new", b"z", retain=True)
    nodes.advance(60)

    assert small.assembly.stores.retain.count() == 5
    assert found(nodes, 1)[kept] == b"y"
    assert len(found(nodes, 0)) == 21


def test_a_node_whose_store_fails_gets_the_messages_later() -> None:
    """It does not take them as received, and the publisher does not wait for it."""
    nodes = Nodes(2, shared=False)
    store: Any = nodes.brokers[1].broker.assembly.stores.retain
    put = store.put

    def fail(writes: Any) -> None:
        raise ServiceUnavailable("no space")

    store.put = fail
    publisher = nodes.brokers[0].connect("p", 5).publish("a", b"1", qos=1, retain=True)
    nodes.settle()
    assert [each.reason for each in publisher.of(Puback)] == [ReasonCode.NO_MATCHING_SUBSCRIBERS]
    assert found(nodes, 1) == {}
    store.put = put

    nodes.advance(5)

    assert found(nodes, 1) == {"a": b"1"}


def test_values_of_plugins_and_of_the_broker_stay_on_their_node() -> None:
    """They tell of one node: another one must not act by them."""
    nodes = Nodes(2, shared=False, sys_interval_s=1)
    nodes.brokers[0].broker.persist_value("guard", "key", b"1")
    nodes.advance(2 * EVERY_S)
    nodes.add()

    for number in (1, 2):
        values = nodes.brokers[number].broker.persisted_values("guard").result
        assert values == {}
        assert len(sync_of(nodes, number).index) == 0


def test_nodes_that_share_a_store_send_each_other_nothing() -> None:
    """Where one store has all, nothing is indexed or asked."""
    nodes = Nodes(2)
    nodes.brokers[0].connect("p", 5).publish("a", b"1", qos=1, retain=True)
    nodes.advance(2 * EVERY_S)

    assert found(nodes, 1) == {"a": b"1"}
    assert len(sync_of(nodes, 0).index) == len(sync_of(nodes, 1).index) == 0


def test_a_broker_without_other_nodes_indexes_nothing() -> None:
    """A single broker pays nothing."""
    nodes = Nodes(1, shared=False)
    nodes.brokers[0].connect("p", 5).publish("a", b"1", qos=1, retain=True)
    nodes.advance(EVERY_S)

    assert len(sync_of(nodes, 0).index) == 0


def test_a_topic_that_is_written_often_is_sent_once_in_its_newest_version() -> None:
    """Messages that wait for a node do not pile up."""
    nodes = Nodes(2, shared=False)
    here, there = nodes.backends[0].me, nodes.backends[1].me
    nodes.wires.cut.add((here, there))
    publisher = nodes.brokers[0].connect("p", 5)
    for number in range(50):
        publisher.publish("a", b"%d" % number, retain=True)
    waiting = len(nodes.wires.queues[here, there])
    nodes.wires.cut.discard((here, there))
    nodes.settle()

    assert waiting == 1
    assert found(nodes, 1) == {"a": b"49"}


def test_more_than_a_page_that_waits_for_a_node_is_sent_page_by_page() -> None:
    """What does not go into one page is not forgotten, and needs no exchange."""
    nodes = Nodes(2, shared=False)
    here, there = nodes.backends[0].me, nodes.backends[1].me
    nodes.wires.cut.add((here, there))
    publisher = nodes.brokers[0].connect("p", 5)
    for number in range(12):
        publisher.publish(f"t/{number:02}", b"x" * 100_000, retain=True)
    nodes.wires.cut.discard((here, there))
    nodes.settle()

    assert len(stored(nodes, 1)) == 12
    assert max(len(data) for _, _, data in nodes.backends[0].asked) < 600_000


def test_what_is_written_in_the_turn_in_which_another_node_comes_is_not_missed() -> None:
    """It was not observed yet, and the store does not have it when the node is noticed."""
    nodes = Nodes(1, shared=False)
    publisher = nodes.brokers[0].connect("p", 5)
    publisher.connection.receive(encode(Publish.build("a", b"1", retain=True), 5))
    nodes.add()

    assert stored(nodes, 1) == {"a": b"1"}


steps = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3), st.sampled_from("abcd"), st.sampled_from([b"", b"1", b"2"])),
    st.tuples(st.just("cut"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("heal"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("lose"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.sampled_from([0.25, 1.0, 5.0])),
)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.lists(steps, max_size=25))
def test_whole_brokers_converge_after_any_faults(count: int, script: list[tuple]) -> None:  # type: ignore[type-arg]
    """C10: the last write of each topic is what all nodes have, and their digests agree."""
    nodes = Nodes(count, shared=False)
    clients = [broker.connect(f"p{number}", 5) for number, broker in enumerate(nodes.brokers)]
    written: dict[str, tuple[RetainVersion, bytes]] = {}
    for sync in (sync_of(nodes, number) for number in range(count)):
        retained, wrote = sync._retained, sync._wrote

        def note(write: RetainWrite, wrote: Any = wrote) -> None:
            wrote(write)
            topic = write.message.topic
            if topic not in written or write.version > written[topic][0]:
                written[topic] = (write.version, write.message.payload)

        retained.observe(note, sync._expired)
    for what, *more in script:
        if what == "write":
            number, topic, payload = more
            clients[number % count].publish(topic, payload, retain=True)
        elif what == "wait":
            nodes.advance(more[0])
        elif (more[0] - more[1]) % count:
            one, other = more[0] % count, more[1] % count
            if what == "cut":
                cut(nodes, one, other)
            elif what == "heal":
                heal(nodes, one, other)
            else:
                nodes.wires.queues.pop((nodes.backends[one].me, nodes.backends[other].me), None)
    for one in range(count):
        for other in range(one):
            heal(nodes, one, other)
    nodes.advance(8)

    expected = {topic: payload for topic, (_, payload) in written.items() if payload}
    assert [found(nodes, number) for number in range(count)] == [expected] * count
    assert len({sync_of(nodes, number).index.root() for number in range(count)}) == 1
