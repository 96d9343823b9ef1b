"""Messages for sessions that move between nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs, formatEvent

from core_harness.batches import batch_of
from core_harness.nodes import Nodes
from kinmqtt.broker.turn.batch import RetryWrites
from kinmqtt.mqtt.packets import Connack, ConnectWill, DisconnectPacket, Puback, Publish, Pubrec
from kinmqtt.testing.harness import HarnessClient
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import InboundClose
from kinmqtt_spi.values import Maybe, Message, MessageId, NodeIdentity


def hold_routes(listener: Any, origin: NodeIdentity) -> Callable[[], None]:
    """Hold what a listener would learn of a node's routes; returns what lets it learn that."""
    held: list[tuple[Any, ...]] = []
    apply = listener.routes_changed

    def hold(node: NodeIdentity, *changes: Any) -> None:
        if node == origin:
            held.append((node, *changes))
        else:
            apply(node, *changes)

    def release() -> None:
        listener.routes_changed = apply
        for each in held:
            apply(*each)

    listener.routes_changed = hold
    return release


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


def test_messages_for_sessions_that_find_no_owner_are_refused_and_not_lost() -> None:
    """C4: while a dead node's sessions can't be adopted, publishers are sent away unacknowledged, again and again."""
    nodes = Nodes(3)
    nodes.brokers[2].connect("g", 5, expiry_s=600).subscribe("a", qos=1)
    nodes.settle()
    silent = (nodes.backends[1].me, nodes.backends[0].me)
    nodes.wires.cut.add(silent)
    nodes.kill(2)
    for payload in (b"1", b"2"):
        publisher = nodes.brokers[0].connect("p", 5)
        publisher.publish("a", payload, qos=1)
        nodes.advance(31)
        assert publisher.of(Puback) == []
        assert [each.reason for each in publisher.of(DisconnectPacket)] == [ReasonCode.SERVER_BUSY]
    nodes.wires.cut.discard(silent)
    nodes.advance(2)
    publisher = nodes.brokers[0].connect("p", 5)
    publisher.publish("a", b"3", qos=1)
    nodes.advance(1)
    member = nodes.brokers[1].connect("g", 5, expiry_s=600, clean_start=False)
    nodes.settle()

    assert len(publisher.of(Puback)) == 1
    assert b"3" in [payload for _, payload, _ in member.messages]


def test_a_publisher_to_a_dead_node_is_not_read_from_while_its_message_waits() -> None:
    """What waits is bounded in bytes: by what each publisher has sent in one read."""
    nodes = Nodes(3)
    nodes.brokers[2].connect("g", 5, expiry_s=600).subscribe("a", qos=1)
    nodes.settle()
    nodes.wires.cut.add((nodes.backends[1].me, nodes.backends[0].me))
    nodes.kill(2)
    publisher = nodes.brokers[0].connect("p", 5)

    publisher.publish("a", b"1", qos=1)
    nodes.settle()

    assert not publisher.link.reading


def test_a_session_that_moves_twice_is_followed_by_its_newest_filters() -> None:
    """It came back, subscribed to something else, and moved again while messages were still sent after it."""
    nodes = Nodes(3)
    nodes.brokers[0].connect("m", 5, expiry_s=60).subscribe("a", qos=1)
    nodes.settle()
    nodes.brokers[1].connect("m", 5, expiry_s=60, clean_start=False)
    nodes.settle()
    nodes.brokers[0].connect("m", 5, expiry_s=60, clean_start=False).subscribe("b", qos=1)
    nodes.settle()
    late = hold_routes(nodes.backends[2].listener, nodes.backends[1].me)
    member = nodes.brokers[1].connect("m", 5, expiry_s=60, clean_start=False)
    nodes.settle()
    publisher = nodes.brokers[2].connect("p", 5)
    publisher.publish("b", b"1", qos=1)
    nodes.settle()

    assert len(publisher.of(Puback)) == 1
    assert [payload for _, payload, _ in member.messages] == [b"1"]
    late()
    nodes.advance(31)
    assert len(nodes.brokers[0].broker.router.announcer) == 0
    assert nodes.brokers[0].broker.forwarder.links_for("b")[0].clients == ()


def test_a_message_that_a_sessions_owner_cannot_commit_is_not_taken_for_nobodys() -> None:
    """C2: the new owner's store fails for longer than all looks at the nodes take; then the message arrives."""
    nodes = Nodes(3)
    nodes.brokers[0].connect("m", 5, expiry_s=60).subscribe("a", qos=1)
    nodes.settle()
    hold_routes(nodes.backends[2].listener, nodes.backends[1].me)
    member = nodes.brokers[1].connect("m", 5, expiry_s=60, clean_start=False)
    nodes.settle()
    publisher = nodes.brokers[2].connect("p", 5)
    listener = nodes.backends[1].listener
    received = listener.received

    def fails(origin: NodeIdentity, batch: bytes, assured: bool) -> Maybe[bytes]:
        raise ServiceUnavailable("its store is away")

    listener.received = fails  # type: ignore[method-assign]
    publisher.publish("a", b"1", qos=1)
    nodes.advance(5)
    assert publisher.of(Puback) == []
    listener.received = received  # type: ignore[method-assign]
    nodes.advance(5)

    assert len(publisher.of(Puback)) == 1
    assert [payload for _, payload, _ in member.messages] == [b"1"]


def test_a_qos_2_message_that_meets_a_moving_session_comes_once_to_everybody() -> None:
    """C2, C5: it follows the session before it is acknowledged; a repeat from elsewhere has the same message id."""
    nodes = Nodes(2)
    here = nodes.brokers[0]
    stays = here.connect("stays", 5, expiry_s=60).subscribe("a", qos=2)
    here.connect("moves", 5, expiry_s=60).subscribe("a", qos=2)
    publisher = here.connect("p", 5, expiry_s=60)
    nodes.settle()
    # The stores know of the claim, and the former owner does not yet.
    nodes.stores.sessions._calls.clear()
    late = (nodes.backends[1].me, nodes.backends[0].me)
    nodes.wires.cut.add(late)
    moved = nodes.brokers[1].connect("moves", 5, clean_start=False, expiry_s=60)
    nodes.stores.queues.apply([InboundClose("moves", 2, 1)])
    nodes.settle()

    publisher.publish("a", b"1", qos=2)
    nodes.settle()
    early = publisher.of(Pubrec)
    again = nodes.brokers[1].connect("p", 5, clean_start=False, expiry_s=60)
    nodes.wires.cut.discard(late)
    nodes.settle()
    again.send(Publish.build("a", b"1", qos=2, packet_id=1, dup=True))
    nodes.settle()
    nodes.advance(2)

    assert early == []
    assert [payload for _, payload, _ in stays.messages] == [b"1"]
    assert [payload for _, payload, _ in moved.messages] == [b"1"]
    assert [each.packet_id for each in again.of(Pubrec)] == [1]


def test_a_qos_2_message_whose_publisher_has_moved_reaches_nobody_here() -> None:
    """C5: the identifier is not stored, so its client sends it again where it is: here it would be a double."""
    nodes = Nodes(2)
    here = nodes.brokers[0]
    stays = here.connect("stays", 5, expiry_s=60).subscribe("a", qos=2)
    publisher = here.connect("p", 5, expiry_s=60)
    nodes.settle()
    nodes.stores.sessions._calls.clear()
    late = (nodes.backends[1].me, nodes.backends[0].me)
    nodes.wires.cut.add(late)
    again = nodes.brokers[1].connect("p", 5, clean_start=False, expiry_s=60)
    nodes.stores.queues.apply([InboundClose("p", 2, 1)])
    nodes.settle()

    publisher.publish("a", b"1", qos=2)
    nodes.settle()
    before = list(stays.messages)
    nodes.wires.cut.discard(late)
    nodes.settle()
    again.send(Publish.build("a", b"1", qos=2, packet_id=1, dup=True))
    nodes.settle()
    nodes.advance(2)

    assert before == []
    assert [payload for _, payload, _ in stays.messages] == [b"1"]
    assert [each.packet_id for each in again.of(Pubrec)] == [1]


def claimed_elsewhere(nodes: Nodes, client_id: str) -> HarnessClient:
    """Let a client come back to the second node, and the first one not know; the stores refuse its writes."""
    nodes.stores.sessions._calls.clear()
    nodes.wires.cut.add((nodes.backends[1].me, nodes.backends[0].me))
    moved = nodes.brokers[1].connect(client_id, 5, clean_start=False, expiry_s=60)
    nodes.stores.queues.apply([InboundClose(client_id, 2, 1)])
    nodes.settle()
    return moved


def test_a_qos_2_message_follows_a_member_of_a_shared_subscription_that_moves() -> None:
    """C2, C9: the only member here was claimed by another node before the message was committed for it."""
    nodes = Nodes(2)
    here = nodes.brokers[0]
    here.connect("moves", 5, expiry_s=60).subscribe("$share/g/a", qos=2)
    publisher = here.connect("p", 5, expiry_s=60)
    nodes.settle()
    moved = claimed_elsewhere(nodes, "moves")

    publisher.publish("a", b"1", qos=2)
    nodes.settle()
    early = publisher.of(Pubrec)
    nodes.wires.cut.clear()
    nodes.advance(3)

    assert early == []
    assert [payload for _, payload, _ in moved.messages] == [b"1"]
    assert [each.packet_id for each in publisher.of(Pubrec)] == [1]


def test_an_accepted_qos_2_message_that_is_repeated_elsewhere_is_not_routed_again() -> None:
    """C5, C9: its PUBREC was lost; a shared subscription would get it once more."""
    nodes = Nodes(2)
    here = nodes.brokers[0]
    member = here.connect("member", 5, expiry_s=60).subscribe("$share/g/a", qos=2)
    publisher = here.connect("p", 5, expiry_s=60, silent=True)
    nodes.settle()
    publisher.publish("a", b"1", qos=2)
    nodes.settle()

    again = nodes.brokers[1].connect("p", 5, clean_start=False, expiry_s=60)
    again.send(Publish.build("a", b"1", qos=2, packet_id=1, dup=True))
    nodes.advance(2)

    assert [payload for _, payload, _ in member.messages] == [b"1"]
    assert [each.packet_id for each in again.of(Pubrec)] == [1]


def test_a_qos_2_message_that_reaches_nobody_is_not_acknowledged() -> None:
    """C2: an old write of its publisher's session was refused with its identifier, so the client sends it again."""
    nodes = Nodes(2)
    here = nodes.brokers[0]
    stays = here.connect("stays", 5, expiry_s=60).subscribe("a", qos=2)
    publisher = here.connect("p", 5, expiry_s=60)
    nodes.settle()
    nodes.stores.queues.apply([InboundClose("p", 1, 9)])
    recovery = here.broker.runtime.turn.recovery
    recovery._awaiting["p"] = RetryWrites()
    recovery._awaiting["p"].queue.append(InboundClose("p", 0, 9))

    publisher.publish("a", b"1", qos=2)
    nodes.settle()
    again = here.connect("p", 5, clean_start=False, expiry_s=60)
    again.send(Publish.build("a", b"1", qos=2, packet_id=1, dup=True))
    nodes.settle()

    assert publisher.of(Pubrec) == []
    assert [payload for _, payload, _ in stays.messages] == [b"1"]
    assert [each.packet_id for each in again.of(Pubrec)] == [1]


def test_messages_for_a_stored_session_that_no_node_has_wait_for_its_next_owner() -> None:
    """C3: a node that the others do not know has claimed it. Only the store says that a session has ended."""
    nodes = Nodes(2)
    publisher = nodes.brokers[0].connect("p", 5)
    nodes.brokers[1].connect("s", 5, expiry_s=60).subscribe("a", qos=1)
    nodes.settle()
    nodes.stores.sessions.claim("s", NodeIdentity("outside", 99))
    publisher.publish("a", b"1", qos=1)
    nodes.advance(4)
    before = len(publisher.of(Puback))
    back = nodes.brokers[0].connect("s", 5, expiry_s=60, clean_start=False)
    nodes.advance(2)

    assert (before, len(publisher.of(Puback))) == (0, 1)
    assert [payload for _, payload, _ in back.messages] == [b"1"]


def test_a_message_for_many_sessions_that_moved_to_one_node_is_sent_after_them_once() -> None:
    """C3: another node sends it by the routes of their former owner, which names the new one."""
    nodes = Nodes(3)
    names = [f"m{number}" for number in range(20)]
    for name in names:
        nodes.brokers[0].connect(name, 5, expiry_s=60).subscribe("a", qos=1)
    nodes.settle()
    hold_routes(nodes.backends[2].listener, nodes.backends[1].me)
    members = [nodes.brokers[1].connect(name, 5, expiry_s=60, clean_start=False) for name in names]
    nodes.settle()
    received, sent = nodes.backends[1].listener.received, []

    def note(*arguments: Any) -> Any:
        sent.append(arguments)
        return received(*arguments)

    nodes.backends[1].listener.received = note  # type: ignore[assignment, method-assign]
    publisher = nodes.brokers[2].connect("p", 5)
    publisher.publish("a", b"1", qos=1)
    nodes.settle()

    assert len(publisher.of(Puback)) == 1
    assert [client.messages[0][1] for client in members] == [b"1"] * len(names)
    assert [len(client.messages) for client in members] == [1] * len(names)
    assert len(sent) == 1
    assert len(nodes.brokers[0].broker.forwarder.links_for("a")) == 2  # by its routes, and after those that moved


def test_a_client_is_refused_whose_session_moves_on_while_it_connects() -> None:
    """C3: the route to this node is not known everywhere yet, and another node has claimed the session meanwhile."""
    nodes = Nodes(3)
    nodes.brokers[0].connect("moving", 5, expiry_s=60).subscribe("a", qos=1).drop()
    nodes.settle()
    here, there = nodes.backends[1].me, nodes.backends[2].me
    nodes.wires.cut = {(here, there)}
    coming = nodes.brokers[1].connect("moving", 5, expiry_s=60, clean_start=False)
    waits = not coming.packets
    nodes.stores.sessions.claim("moving", there)
    nodes.settle()
    nodes.wires.cut = set()
    nodes.advance(1)

    assert waits
    assert [each.reason for each in coming.of(Connack)] == [ReasonCode.SERVER_UNAVAILABLE]
    assert len(coming.packets) == 1
    assert coming.closed


def test_a_message_for_a_node_that_is_gone_waits_for_a_session_that_is_just_coming_from_it() -> None:
    """C3: in the store the session is this node's already, and its subscriptions are not known here yet."""
    nodes = Nodes(2)
    nodes.brokers[0].connect("moving", 5, expiry_s=60).subscribe("a", qos=1).drop()
    nodes.settle()
    publisher = nodes.brokers[1].connect("p")
    released: Deferred[None] = Deferred()
    nodes.backends[1].claim = lambda *_: released  # type: ignore[method-assign]
    moving = nodes.brokers[1].connect("moving", 5, expiry_s=60, clean_start=False)
    nodes.wires.cut = {(nodes.backends[1].me, nodes.backends[0].me)}
    publisher.publish("a", b"1", qos=1)
    nodes.kill(0)
    nodes.advance(1)
    early = publisher.of(Puback)
    released.callback(None)
    nodes.advance(1)

    assert early == []
    assert len(publisher.of(Puback)) == 1
    assert [payload for _, payload, _ in moving.messages] == [b"1"]


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_session_that_moves_is_no_warning(is_announced: bool) -> None:
    """Each client that comes to another node makes such a move. What only a store has noticed may be a split."""
    nodes = Nodes(2)
    broker = nodes.brokers[0].broker
    nodes.brokers[0].connect("c", 5, expiry_s=60)

    with capturedLogs() as events:
        if is_announced:
            nodes.backends[0].listener.session_claimed("c", 100, nodes.backends[1].me)
        else:
            broker.sessions.fenced("c", broker.sessions.by_id["c"].epoch)

    expected = (
        (LogLevel.info, "session 'c' moves to node ") if is_announced else (LogLevel.warn, "session 'c' has a ")
    )
    [(level, text)] = [
        (event["log_level"], formatEvent(event)) for event in events if event["log_namespace"] == "kinmqtt.sessions"
    ]
    assert (level, text[: len(expected[1])]) == expected
    assert broker.sessions.get("c") is None


def test_a_will_that_waits_for_a_dead_node_holds_up_no_adoption() -> None:
    """C3: the node has claimed the will's session before it died; it can't be adopted before it is adopted."""
    nodes = Nodes(2)
    here, there = nodes.brokers
    there.connect("s", 5, expiry_s=60).subscribe("wills", qos=1)
    mortal = here.connect("w", 5, expiry_s=60, will=ConnectWill("wills", b"gone", 1))
    nodes.settle()
    nodes.wires.cut.add((nodes.backends[0].me, nodes.backends[1].me))
    mortal.drop()
    nodes.settle()
    there.connect("w", 5, expiry_s=60, clean_start=False)
    nodes.settle()
    nodes.kill(1)
    nodes.advance(2)

    assert sorted(here.broker.sessions.by_id) == ["s", "w"]
    publisher = here.connect("p", 5)
    publisher.publish("wills", b"1", qos=1)
    nodes.settle()
    assert len(publisher.of(Puback)) == 1
