"""Sessions that move between nodes which have stores of their own."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred

from core_harness.nodes import Nodes
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.ownership.handoff import MAX_AT_ONCE, STEP_LIMIT_S
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt.mqtt.packets import Connack, DisconnectPacket, Puback, Pubcomp, Publish, Pubrec
from kinmqtt_spi import ALLOW, Decision, hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.services.cluster import HandOff, Located
from kinmqtt_spi.values import Message, NodeIdentity, Will


class Names:
    """Vouches for every user name."""

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        return ALLOW


class Silent(HandOff):
    """Never answers."""

    def chunk(self, data: bytes) -> Deferred[None]:
        return Deferred()

    def commit(self) -> Deferred[None]:
        return Deferred()

    def abort(self) -> None:
        pass


def payloads(client: Any) -> list[bytes]:
    return [payload for _, payload, _ in client.messages]


def stored(nodes: Nodes, number: int) -> list[str]:
    """The client ids of the sessions that a node's store has."""
    page: Any = nodes.brokers[number].broker.assembly.stores.session.iterate()
    return [session.client_id for _, session in page.sessions]


def completed(nodes: Nodes, number: int) -> list[Any]:
    """The ids of the QoS 2 messages that a node knows a client to have got."""
    ids: Any = nodes.brokers[number].broker.assembly.stores.queue.completed("c")
    return list(ids)


def test_a_client_that_comes_to_another_node_finds_its_session_there() -> None:
    """C13: subscriptions and queued messages come along, and nothing stays behind."""
    nodes = Nodes(2, shared=False)
    nodes.brokers[0].connect("c", 5, expiry_s=60).subscribe("a", qos=1).disconnect()
    publisher = nodes.brokers[0].connect("p", 5)
    for number in range(500):
        publisher.publish("a", b"%d" % number, qos=1)
    nodes.settle()

    moved = nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.settle()

    assert moved.of(Connack)[0].session_present
    assert payloads(moved) == [b"%d" % number for number in range(500)]
    assert (stored(nodes, 0), stored(nodes, 1)) == ([], ["c"])


def test_a_client_that_is_connected_elsewhere_is_taken_over() -> None:
    """MQTT-3.1.4-3: the earlier connection gets 0x8E, on whichever node it is."""
    nodes = Nodes(2, shared=False)
    first = nodes.brokers[0].connect("c", 5, expiry_s=60)
    second = nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.settle()

    assert [each.reason for each in first.of(DisconnectPacket)] == [ReasonCode.SESSION_TAKEN_OVER]
    assert second.of(Connack)[0].session_present


def test_a_session_that_ends_with_its_connection_is_not_moved() -> None:
    """MQTT-3.1.2-6: it is gone with the connection that is taken over."""
    nodes = Nodes(2, shared=False)
    first = nodes.brokers[0].connect("c", 5)
    second = nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.settle()

    assert [each.reason for each in first.of(DisconnectPacket)] == [ReasonCode.SESSION_TAKEN_OVER]
    assert not second.of(Connack)[0].session_present


def test_the_new_node_knows_which_messages_the_client_got() -> None:
    """MQTT-4.3.3-12: what another node sends again does not come twice, however many messages came lately."""
    nodes = Nodes(2, shared=False)
    nodes.brokers[0].connect("c", 5, expiry_s=60).subscribe("a", qos=2)
    publisher = nodes.brokers[0].connect("p", 5)
    for number in range(2500):
        publisher.publish("a", b"%d" % number, qos=2)
    nodes.settle()
    known = completed(nodes, 0)

    nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.settle()

    assert len(known) == 2500
    assert completed(nodes, 1) == known


def test_what_is_in_flight_goes_on_at_the_new_node() -> None:
    """MQTT-4.4.0-1: packet identifiers and stages of QoS 2 move with the session."""
    nodes = Nodes(2, shared=False)
    first = nodes.brokers[0].connect("c", 5, expiry_s=60, silent=True).subscribe("a", qos=2)
    publisher = nodes.brokers[0].connect("p", 5)
    for number in range(3):
        publisher.publish("a", b"%d" % number, qos=2)
    nodes.settle()
    sent = first.of(Publish)
    first.send(Pubrec(sent[0].packet_id))
    first.publish("b", b"accepted", qos=2)
    nodes.settle()
    inbound = first.of(Pubrec)[-1].packet_id
    first.drop()

    moved = nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False, silent=True)
    nodes.settle()
    watcher = nodes.brokers[1].connect("w", 5).subscribe("b", qos=2)
    moved.publish("b", b"accepted", qos=2, packet_id=inbound, dup=True)
    nodes.settle()

    assert [(each.packet_id, each.payload, each.dup) for each in moved.of(Publish)] == [
        (sent[1].packet_id, b"1", True),
        (sent[2].packet_id, b"2", True),
    ]
    assert payloads(watcher) == []
    assert moved.of(Pubcomp) == []


def test_messages_that_are_sent_while_a_session_moves_reach_it() -> None:
    """C2: the publisher is acknowledged when the new node has them."""
    nodes = Nodes(2, shared=False)
    nodes.brokers[0].connect("c", 5, expiry_s=60).subscribe("a", qos=1).disconnect()
    publisher = nodes.brokers[0].connect("p", 5)
    nodes.settle()
    begin = nodes.backends[0].hand_off

    def begin_slowly(client_id: str, epoch: int, to: NodeIdentity) -> Any:
        nodes.wires.cut.add((nodes.backends[0].me, to))
        return begin(client_id, epoch, to)

    nodes.backends[0].hand_off = begin_slowly  # type: ignore[method-assign]
    moved = nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.settle()
    publisher.publish("a", b"late", qos=1)
    nodes.settle()
    before = len(publisher.of(Puback))
    nodes.wires.cut.clear()
    nodes.advance(2)

    assert before == 0
    assert payloads(moved) == [b"late"]
    assert len(publisher.of(Puback)) == 1


def test_a_session_that_can_t_be_moved_stays_where_it_is() -> None:
    """C3: the client is refused, and its session loses nothing."""
    nodes = Nodes(2, shared=False)
    nodes.brokers[0].connect("c", 5, expiry_s=60).subscribe("a", qos=1).disconnect()
    publisher = nodes.brokers[0].connect("p", 5)
    publisher.publish("a", b"1", qos=1)
    nodes.settle()
    accept = nodes.backends[1].listener.handing

    def refuse(client_id: str, epoch: int, origin: Any) -> Any:
        raise ServiceUnavailable("no room")

    nodes.backends[1].listener.handing = refuse  # type: ignore[method-assign]
    refused = nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.settle()
    publisher.publish("a", b"2", qos=1)
    nodes.settle()
    nodes.backends[1].listener.handing = accept  # type: ignore[method-assign]
    moved = nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.settle()

    assert refused.of(Connack)[0].reason is ReasonCode.SERVER_UNAVAILABLE
    assert payloads(moved) == [b"1", b"2"]


def test_a_will_without_delay_is_published_where_the_client_was() -> None:
    """MQTT-3.1.2-8: the connection that is taken over ends, and its will is published once."""
    nodes = Nodes(2, shared=False)
    watcher = nodes.brokers[1].connect("w", 5).subscribe("will", qos=1)
    nodes.brokers[0].connect("c", 5, expiry_s=60, will=Will(Message("will", b"gone", 1)))
    nodes.settle()
    nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.advance(1)

    assert payloads(watcher) == [b"gone"]


def test_a_client_can_t_take_another_user_s_session_from_another_node() -> None:
    """A client id that is in use by another user is refused before anything is moved."""
    nodes = Nodes(2, shared=False, plugins={"names": Names()})
    first = nodes.brokers[0].connect("c", 5, expiry_s=60, username="one", password=b"")
    nodes.settle()
    thief = nodes.brokers[1].connect("c", 5, expiry_s=60, username="two", password=b"")
    nodes.settle()

    assert thief.of(Connack)[0].reason is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert first.of(DisconnectPacket) == []
    assert stored(nodes, 0) == ["c"]


def test_an_outdated_copy_gives_its_messages_to_the_later_session() -> None:
    """C3: what a node has kept on its disk while it was away is delivered when it is back, once."""
    nodes = Nodes(2, shared=False)
    nodes.brokers[0].connect("c", 5, expiry_s=60).subscribe("a", qos=1).disconnect()
    publisher = nodes.brokers[0].connect("p", 5)
    publisher.publish("a", b"kept", qos=1)
    nodes.settle()
    nodes.wires.owners["c"] = Located(None, 5)
    newer = nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False).subscribe("a", qos=1)
    nodes.settle()

    result = nodes.backends[0].listener.session_claimed("c", 100, nodes.backends[1].me)
    nodes.settle()
    nodes.brokers[0].result(resolve(result))

    assert payloads(newer) == [b"kept"]
    assert stored(nodes, 0) == []


def test_two_clients_with_one_id_at_two_nodes_are_served_one_after_the_other() -> None:
    """C7: at any time one of them has the session."""
    nodes = Nodes(3, shared=False)
    pairs = [(one.me, other.me) for one in nodes.backends for other in nodes.backends if one is not other]
    nodes.wires.cut.update(pairs)
    clients = [nodes.brokers[number % 3].connect("c", 5, expiry_s=60, clean_start=False) for number in range(6)]
    nodes.wires.cut.clear()
    nodes.settle()

    assert [each.closed for each in clients].count(False) == 1
    assert sorted(stored(nodes, number) for number in range(3)) == [[], [], ["c"]]


@pytest.mark.parametrize("data", [b"", b"nonsense\n", b'{"kinmqtt_store":1}\n{"kind":"end","lines":2}\n'])
def test_a_hand_off_that_can_t_be_read_is_refused(data: bytes) -> None:
    """The other node keeps the session."""
    nodes = Nodes(1, shared=False)
    with pytest.raises(ServiceUnavailable, match="can't be read"):
        hand_off = nodes.backends[0].listener.handing("c", 1, nodes.backends[0].me)
        hand_off.chunk(data)
        nodes.brokers[0].result(resolve(hand_off.commit()))


def test_many_sessions_that_move_at_once_all_arrive() -> None:
    """More than are handed off at once wait, and none is refused."""
    nodes = Nodes(2, shared=False)
    names = [f"c{number}" for number in range(3 * MAX_AT_ONCE)]
    for name in names:
        nodes.brokers[0].connect(name, 5, expiry_s=60).subscribe(name, qos=1).disconnect()
    nodes.settle()

    moved = [nodes.brokers[1].connect(name, 5, expiry_s=60, clean_start=False) for name in names]
    nodes.settle()

    assert [client.of(Connack)[0].session_present for client in moved] == [True] * len(names)
    assert stored(nodes, 0) == []


def test_what_arrives_of_sessions_is_bounded_and_is_given_back_when_they_are_over() -> None:
    """Other nodes can't take the memory of this one with sessions that they never commit."""
    nodes = Nodes(2, shared=False)
    runtime = nodes.brokers[1].broker.runtime
    most_bytes = 1000
    runtime.limits = evolve(runtime.limits, max_all_queued_bytes=most_bytes)
    listener = nodes.backends[1].listener
    origin = nodes.backends[0].me
    first, second = (listener.handing(name, 1, origin) for name in ("a", "b"))
    first.chunk(bytes(most_bytes - 1))

    with pytest.raises(ServiceUnavailable, match="max_all_queued_bytes"):
        second.chunk(b"xx")
    first.abort()
    second.chunk(bytes(most_bytes))
    second.abort()


def test_a_session_that_could_not_be_moved_is_taken_back_when_its_store_answers_again() -> None:
    """C3: the store fails when the hand-off does; the session gets its messages again without a restart."""
    nodes = Nodes(2, shared=False)
    nodes.brokers[0].connect("c", 5, expiry_s=60).subscribe("a", qos=1).disconnect()
    nodes.settle()
    sessions: Any = nodes.brokers[0].broker.assembly.stores.session
    claim, tried = sessions.claim, []

    def fail(*arguments: Any) -> Any:
        tried.append(arguments)
        raise ServiceUnavailable("the disk is away")

    sessions.claim = fail
    nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.advance(3)
    sessions.claim = claim
    nodes.advance(2)
    nodes.brokers[0].connect("p", 5).publish("a", b"1", qos=1)
    nodes.settle()
    moved = nodes.brokers[1].connect("c", 5, expiry_s=60, clean_start=False)
    nodes.settle()

    assert len(tried) > 2
    assert moved.of(Connack)[0].session_present
    assert payloads(moved) == [b"1"]


def test_a_node_that_does_not_answer_holds_up_only_the_sessions_that_go_to_it() -> None:
    """C3: those are taken back after a while; sessions that go to other nodes move meanwhile."""
    nodes = Nodes(3, shared=False)
    names = [f"c{number}" for number in range(MAX_AT_ONCE + 1)]
    for name in [*names, "other"]:
        nodes.brokers[0].connect(name, 5, expiry_s=60).subscribe(name, qos=1).disconnect()
    nodes.settle()
    nodes.backends[1].listener.handing = lambda *_: Silent()  # type: ignore[method-assign]
    for name in names:
        nodes.brokers[1].connect(name, 5, expiry_s=60, clean_start=False)
    nodes.settle()
    sessions = nodes.brokers[0].broker.sessions
    leaving = [name for name in names if sessions.get(name) is None]

    moved = nodes.brokers[2].connect("other", 5, expiry_s=60, clean_start=False)
    nodes.settle()
    nodes.advance(2 * STEP_LIMIT_S + 1)

    assert moved.of(Connack)[0].session_present
    assert len(leaving) > MAX_AT_ONCE
    assert [name for name in names if sessions.get(name) is None] == []


def test_a_message_of_a_group_without_members_does_not_hold_up_a_session_that_is_merged() -> None:
    """Nobody is looked for where no node knows the shared subscription."""
    nodes = Nodes(2, shared=False)
    moved: Any = nodes.backends[0].listener._moved  # type: ignore[attr-defined]
    done: list[None] = []

    run(moved._to_group(Publication.of(Message("t", b"x", 1)), "$share/g/t")).addCallback(done.append)
    nodes.settle()

    assert done == [None]
