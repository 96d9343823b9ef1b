"""Backends over links: what the contract of all backends does not say."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock
from kinmqtt_spi.mesh.backend import MeshBackend
from kinmqtt_spi.mesh.calls import ASK, BACKEND, CHUNK, CLAIM, HAND, ROUTES, STATE, pack_step
from kinmqtt_spi.mesh.frames import HELLO, PUSH, Hello, encode
from kinmqtt_spi.mesh.handoff import MAX_OPEN
from kinmqtt_spi.mesh.link import LinkLimits
from kinmqtt_spi.mesh.network import NetworkNode
from kinmqtt_spi.mesh.peer import CHUNK_LIMIT_S
from kinmqtt_spi.mesh.pipes import Pipe
from kinmqtt_spi.mesh.results import PendingResult, polling
from kinmqtt_spi.mesh.routes import FIRST, SNAPSHOT, pack_change
from kinmqtt_spi.services.cluster import Member, MemberState, RouteChange
from kinmqtt_spi.testing.cluster import HandOffState, Late, News
from kinmqtt_spi.values import NodeIdentity
from spi_harness.mesh_nodes import Answered, Nodes

A, B, C = NodeIdentity("a", 1), NodeIdentity("b", 2), NodeIdentity("c", 3)


def outcome(answer: Any) -> Any:
    """The result of an answer or its error; ``None`` while there is none."""
    if not isinstance(answer, PendingResult):
        assert not isinstance(answer, Awaitable)
        return answer
    if not answer.done():
        return None
    try:
        answer.__await__().send(None)
    except StopIteration as end:
        return end.value
    except Exception as error:
        return error
    raise AssertionError


class Gated(Awaitable[bytes]):
    """An answer that is available when a test sets its result."""

    def __init__(self) -> None:
        self.result = PendingResult()

    def __await__(self) -> Any:
        return self.result.__await__()


class TestMembers:
    """Members, as their owner tells them."""

    def test_who_is_down_answers_nothing(self) -> None:
        """When a node is DOWN, all that waits for it ends: calls fail with NodeGone, its claims complete."""
        nodes = Nodes("a", "b", "c")
        here, there, _ = nodes.backends
        nodes.network.stall(B.uid)
        deliveries = [here.deliver(B, b"batch", 1), here.deliver(C, b"batch", 1)]
        question = here.ask(B, "method", b"", 30.0)
        claim = here.claim("client", 2, B)
        hand_off = here.hand_off("client", 2, B)
        here.routes_update(1, [RouteChange("a")], [])
        barrier = here.route_barrier(1, 30.0)
        nodes.clock.advance(1.0)
        before = [outcome(each) for each in (*deliveries, question, claim, barrier)]

        here.member(Member(B, MemberState.DOWN))

        assert before == [None, b"", None, None, None]
        for failed in (deliveries[0], question, hand_off):
            assert isinstance(outcome(failed), NodeGone)
            assert "b (0000000000000002) is down" in str(outcome(failed))
        assert isinstance(claim, PendingResult)
        assert claim.done()
        assert outcome(claim) is None
        assert outcome(barrier) == ()
        assert nodes.news[0].members[-1] == Member(B, MemberState.DOWN, reachable=False)
        assert there.members()

    def test_who_is_down_never_comes_back(self) -> None:
        """Its uid stays DOWN or REMOVED whatever is told later; it is listed until it is REMOVED."""
        nodes = Nodes("a", "b")
        here, _ = nodes.backends
        states = []
        for state in (MemberState.DOWN, MemberState.UP, MemberState.REMOVED, MemberState.UP):
            here.member(Member(B, state))
            states.append([each.state for each in here.members() if each.node == B])
        with pytest.raises(NodeGone):
            here.connected(B, Pipe(nodes.clock).left)
        nodes.clock.advance(10.0)

        assert states == [[MemberState.DOWN], [MemberState.DOWN], [], []]
        assert nodes.news[0].states_of(B)[-2:] == [MemberState.DOWN, MemberState.REMOVED]
        with pytest.raises(NodeGone, match="no other member"):
            here.push(B, b"batch")

    def test_who_was_dead_before_is_reported(self) -> None:
        """A node that is told as DOWN at first is listed, and no link is made."""
        nodes = Nodes("a")
        nodes.backends[0].member(Member(B, MemberState.DOWN))

        assert nodes.backends[0].members()[1:] == (Member(B, MemberState.DOWN, reachable=False),)

    def test_a_new_process_replaces_the_old(self) -> None:
        """A new uid under a name ends the link to the old process, whose answers never come, and begins afresh."""
        nodes = Nodes("a", "b")
        here = nodes.backends[0]
        nodes.network.stall(B.uid)
        answer = here.deliver(B, b"old", 1)
        nodes.network.crash(B.uid)
        nodes.add("b", 7)
        again = here.deliver(NodeIdentity("b", 7), b"new", 1)
        nodes.clock.advance(1.0)

        assert isinstance(outcome(answer), NodeGone)
        assert outcome(again) == b""
        assert nodes.news[0].states_of(B)[-1] is MemberState.REMOVED
        assert [member.node.uid for member in here.members()] == [1, 7]

    def test_a_node_that_the_core_does_not_take_is_no_member(self) -> None:
        """A core has a bound on other nodes; the owner learns of it, and may try again."""
        nodes = Nodes("a")
        here, news = nodes.backends[0], nodes.news[0]
        took = news.member_changed

        def refuse(member: Member) -> None:
            raise ServiceUnavailable("this node can have 64 other nodes, and has as many")

        news.member_changed = refuse  # type: ignore[method-assign]
        with pytest.raises(ServiceUnavailable, match="64 other nodes"):
            here.member(Member(B, MemberState.UP))
        refused = [each.node for each in here.members()]
        news.member_changed = took  # type: ignore[method-assign]
        here.member(Member(B, MemberState.UP))

        assert refused == [A]
        assert [each.node for each in here.members()] == [A, B]

    def test_routes_that_the_core_could_not_apply_are_not_confirmed(self) -> None:
        """The barrier does not count on them, and with the next change all routes are sent again."""
        nodes = Nodes("a", "b")
        here, news = nodes.backends[0], nodes.news[1]
        took = news.routes_changed

        def fail(*changes: Any) -> None:
            raise RuntimeError("a defect")

        news.routes_changed = fail  # type: ignore[assignment, method-assign]
        here.routes_update(1, [RouteChange("a")], [])
        behind = here.route_barrier(1, 1.0)
        nodes.clock.advance(2.0)
        news.routes_changed = took  # type: ignore[method-assign]
        here.routes_update(2, [RouteChange("b")], [])
        nodes.clock.advance(1.0)

        assert outcome(behind) == [B]
        assert {each.filter for _, _, added, _ in news.routes for each in added} == {"a", "b"}

    def test_a_node_is_up_when_its_routes_are_known(self) -> None:
        """Whoever tells that a node is UP, it is JOINING here until its routes have arrived."""
        nodes = Nodes("a", "b")
        nodes.backends[0].routes_update(1, [RouteChange("a")], [])
        late = MeshBackend(nodes.clock, RecordingLog(), polling(nodes.clock))
        news = News()
        late.member(Member(A, MemberState.UP))
        started = late.start(C, news)
        nodes.backends[0].member(Member(C, MemberState.JOINING))
        before = late.members()[1]
        pipe = Pipe(nodes.clock)
        for backend, node, end in ((late, A, pipe.left), (nodes.backends[0], C, pipe.right)):
            connection = backend.connected(node, end)
            end.attach(connection.feed, connection.lost)
        waiting = isinstance(started, PendingResult) and not started.done()
        nodes.clock.advance(1.0)

        assert before == Member(A, MemberState.JOINING)
        assert waiting
        assert isinstance(started, PendingResult)
        assert started.done()
        assert late.members()[1] == Member(A, MemberState.UP)
        assert news.routes_at_up[A] == {RouteChange("a")}

    def test_an_unreachable_node_is_not_waited_for(self) -> None:
        """Barriers and a start do not wait for it; it is reachable again when it knows this node's routes."""
        nodes = Nodes("a", "b")
        here = nodes.backends[0]
        go_on = nodes.network.stall(B.uid)
        here.routes_update(1, [RouteChange("a")], [])
        barrier = here.route_barrier(1, 30.0)
        here.member(Member(B, MemberState.UP, reachable=False))
        during = (outcome(barrier), outcome(here.route_barrier(1, 30.0)))
        here.member(Member(B, MemberState.UP))
        still = here.members()[1]
        go_on()
        nodes.clock.advance(1.0)

        assert during == ((), ())
        assert still == Member(B, MemberState.UP, reachable=False)
        assert here.members()[1] == Member(B, MemberState.UP)
        assert nodes.news[1].routes_of(A) == {RouteChange("a")}

    def test_this_node_may_be_told_of_itself(self) -> None:
        """A node that learns that it is DOWN reports it."""
        nodes = Nodes("a", "b")
        nodes.backends[0].member(Member(A, MemberState.DOWN))
        nodes.backends[0].member(Member(A, MemberState.UP))
        nodes.clock.advance(0.5)

        assert nodes.news[0].members[-1] == Member(A, MemberState.DOWN)
        assert nodes.news[1].states_of(A)[-1] is MemberState.DOWN

    def test_a_node_that_stops_is_removed(self) -> None:
        """The others learn from the node itself that it has stopped; what it waited for fails."""
        nodes = Nodes("a", "b")
        here, there = nodes.backends
        gated = Gated()
        nodes.news[1].commit = lambda batch: gated
        answer = here.deliver(B, b"batch", 1)
        nodes.clock.advance(0.1)
        here.stop()
        nodes.clock.advance(0.1)
        gated.result.set(b"late")
        nodes.clock.advance(0.1)

        assert isinstance(outcome(answer), ServiceUnavailable)
        assert not isinstance(outcome(answer), NodeGone)
        assert nodes.news[1].states_of(A)[-1] is MemberState.REMOVED
        assert [member.node for member in there.members()] == [B]

    def test_leaving_waits_for_answers(self) -> None:
        """A node that leaves waits until both directions are answered, or until its deadline."""
        nodes = Nodes("a", "b")
        here, there = nodes.backends
        gated = Gated()
        nodes.news[0].commit = lambda batch: gated
        there.deliver(A, b"batch", 1)
        nodes.clock.advance(0.1)
        left = here.leave(5.0)
        assert isinstance(left, PendingResult)
        nodes.clock.advance(2.0)
        waiting = not left.done()
        gated.result.set(b"answer")
        nodes.clock.advance(0.2)
        ready = left.done()
        gated = Gated()
        there.deliver(A, b"batch", 1)
        nodes.clock.advance(0.1)
        expired = here.leave(1.0)
        nodes.clock.advance(1.1)

        assert (waiting, ready) == (True, True)
        assert isinstance(expired, PendingResult)
        assert expired.done()
        assert nodes.news[1].states_of(A)[-1] is MemberState.LEAVING

    def test_calls_need_a_start(self) -> None:
        """A backend that was not started, or has stopped, has no members, and announces no routes."""
        backend = MeshBackend(TurnableClock(), RecordingLog(), polling(TurnableClock()))

        assert backend.members() == ()
        assert backend.leave(1.0) is None
        backend.stop()
        for call in (lambda: backend.routes_update(1, [], []), backend.up):
            with pytest.raises(ServiceUnavailable):
                call()


class TestThree:
    """Three nodes."""

    def test_routes_reach_all(self) -> None:
        """Each node has the routes of both others, and a barrier waits for both."""
        nodes = Nodes("a", "b", "c")
        for number, backend in enumerate(nodes.backends):
            backend.routes_update(1, [RouteChange(f"{number}")], [])
        go_on = nodes.network.stall(C.uid)
        barrier = nodes.backends[0].route_barrier(1, 1.0)
        nodes.clock.advance(1.0)
        late = outcome(barrier)
        go_on()
        nodes.clock.advance(1.0)

        assert late == [C]
        assert nodes.news[2].routes_of(A) == {RouteChange("0")}
        assert nodes.news[2].routes_of(B) == {RouteChange("1")}
        assert nodes.news[0].routes_of(C) == {RouteChange("2")}

    def test_a_stalled_node_delays_no_other(self) -> None:
        """Batches and questions for one node do not wait for another."""
        nodes = Nodes("a", "b", "c")
        here = nodes.backends[0]
        nodes.network.stall(B.uid)
        slow = here.deliver(B, b"batch", 1)
        fast = here.deliver(C, b"batch", 1)
        nodes.clock.advance(0.1)

        assert outcome(slow) is None
        assert outcome(fast) == b""

    def test_only_the_former_owner_hears_of_a_claim(self) -> None:
        """A claim goes to the former owner; if that one can't release it, the claim fails."""
        nodes = Nodes("a", "b", "c")

        def refuse() -> None:
            raise ServiceUnavailable("the disk is full")

        claim = nodes.backends[0].claim("client", 1, C)
        nodes.news[2].release = refuse
        failed = nodes.backends[0].claim("client", 2, C)
        nodes.clock.advance(1.0)

        assert isinstance(claim, PendingResult)
        assert claim.done()
        assert str(outcome(failed)) == "the disk is full"
        assert nodes.news[2].claims == [("client", 1, A), ("client", 2, A)]
        assert nodes.news[1].claims == []

    def test_a_split_heals(self) -> None:
        """Two nodes that could not connect for a while get all that is assured, and each other's routes."""
        nodes = Nodes("a", "b", "c")
        here = nodes.backends[0]
        nodes.network.block(A.uid, B.uid)
        nodes.clock.advance(1.0)
        answer = here.deliver(B, b"batch", 1)
        pushed = here.push(B, b"lost")
        here.routes_update(1, [RouteChange("a")], [])
        nodes.clock.advance(10.0)
        apart = (outcome(answer), here.established(B), here.established(C))
        nodes.network.unblock(A.uid, B.uid)
        nodes.clock.advance(1.0)

        assert apart == (None, False, True)
        assert pushed is False
        assert outcome(answer) == b""
        assert nodes.news[1].payloads == [b"batch"]
        assert nodes.news[1].routes_of(A) == {RouteChange("a")}


class TestHandOffs:
    """Sessions that move."""

    def test_an_unfinished_hand_off_is_aborted(self) -> None:
        """When the former owner is gone, the new owner aborts what it has of the session."""
        nodes = Nodes("a", "b")
        begun = nodes.backends[0].hand_off("client", 1, B)
        nodes.clock.advance(0.1)
        outcome(begun).chunk(b"state")
        nodes.clock.advance(0.1)
        nodes.backends[1].member(Member(A, MemberState.DOWN))

        [received] = nodes.news[1].hand_offs
        assert received.chunks == [b"state"]
        assert received.state is HandOffState.ABORTED

    def test_a_node_hands_off_a_bounded_number_of_sessions_at_once(self) -> None:
        """Each takes memory where it arrives; another one can begin when one is over."""
        nodes = Nodes("a", "b")
        here = nodes.backends[0]
        begun = [here.hand_off(f"client{number}", 1, B) for number in range(MAX_OPEN)]
        refused = here.hand_off("one more", 1, B)
        nodes.clock.advance(1.0)
        outcome(begun[0]).abort()
        nodes.clock.advance(1.0)
        later = here.hand_off("later", 1, B)
        nodes.clock.advance(1.0)

        assert f"hands off {MAX_OPEN} sessions at once already" in str(outcome(refused))
        assert hasattr(outcome(later), "chunk")

    def test_a_hand_off_that_is_over_fails(self) -> None:
        """Steps of a hand-off that was committed or aborted fail, and do nothing."""
        nodes = Nodes("a", "b")
        begun = nodes.backends[0].hand_off("client", 1, B)
        nodes.clock.advance(0.1)
        hand_off = outcome(begun)
        hand_off.commit()
        late = [hand_off.chunk(b"late"), hand_off.abort(), hand_off.commit()]
        nodes.clock.advance(0.1)

        assert {str(outcome(each)) for each in late} == {"there is no such hand-off"}
        assert nodes.news[1].hand_offs[0].state is HandOffState.COMMITTED

    def test_a_stop_aborts_what_arrives(self) -> None:
        """A node that stops aborts the hand-offs that it is receiving."""
        nodes = Nodes("a", "b")
        nodes.backends[0].hand_off("client", 1, B)
        nodes.clock.advance(0.1)
        nodes.backends[1].stop()

        assert nodes.news[1].hand_offs[0].state is HandOffState.ABORTED


class TestBadInput:
    """What other nodes, and the core of this one, do wrong."""

    def test_a_malformed_batch_closes_the_link(self) -> None:
        """It is counted and logged, and not sent again: it would close the link each time. Later ones arrive."""
        nodes = Nodes("a", "b")

        def commit(batch: bytes) -> bytes:
            if batch == b"malformed":
                raise MalformedBatch("no batch")
            return b"read"

        there = nodes.backends[1]
        nodes.news[1].commit = commit
        answers = [nodes.backends[0].deliver(B, batch, 1) for batch in (b"malformed", b"later")]
        nodes.clock.advance(1.0)

        assert isinstance(outcome(answers[0]), ServiceUnavailable)
        assert outcome(answers[1]) == b"read"
        assert there.malformed == 1

    @pytest.mark.parametrize("looks", [0, 5])
    def test_a_malformed_batch_may_be_found_later(self, looks: int) -> None:
        """If the listener's awaitable finds it at once, the batch is sent again; if later, it fails."""
        nodes = Nodes("a", "b")
        there = nodes.backends[1]

        def decide() -> bytes:
            if not there.malformed:
                raise MalformedBatch("no batch")
            return b"read"

        nodes.news[1].commit = lambda batch: Late(decide, looks)
        answer = nodes.backends[0].deliver(B, b"batch", 1)
        nodes.backends[0].push(B, b"pushed")
        nodes.clock.advance(1.0)
        again = nodes.backends[0].deliver(B, b"again", 1)
        nodes.clock.advance(1.0)

        assert there.malformed == 1
        assert outcome(again) == b"read"
        if looks:
            assert "can't read the batch" in str(outcome(answer))
            assert isinstance(outcome(answer), ServiceUnavailable)
        else:
            assert outcome(answer) == b"read"

    @pytest.mark.parametrize("answer", [None, "text", ValueError("a defect")])
    def test_a_defect_of_the_core_is_logged(self, answer: Any) -> None:
        """The other node's call fails with ServiceUnavailable, the error is logged here, and the link goes on."""
        nodes = Nodes("a", "b")

        def wrong(*arguments: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        nodes.news[1].commit = wrong
        nodes.news[1].answer = wrong
        failed = [nodes.backends[0].deliver(B, b"batch", 1), nodes.backends[0].ask(B, "method", b"", 5.0)]
        nodes.backends[0].push(B, b"batch")
        nodes.clock.advance(0.5)

        assert all(isinstance(outcome(each), ServiceUnavailable) for each in failed)
        assert len(nodes.backends[1]._log.texts("error")) == 3  # type: ignore[attr-defined]
        assert nodes.backends[0].established(B)

    def test_a_full_queue_takes_no_more(self) -> None:
        """Above the hard bound deliver and ask raise at once, and leave nothing behind."""
        nodes = Nodes("a", "b", limits=LinkLimits(credit_bytes=1000, queue_bytes=2000))
        here = nodes.backends[0]
        nodes.network.stall(B.uid)
        here.deliver(B, bytes(1500), 1)
        here.ask(B, "method", bytes(1500), 1.0)
        timers = nodes.clock.pending()

        with pytest.raises(ServiceUnavailable):
            here.deliver(B, bytes(1500), 1)
        with pytest.raises(ServiceUnavailable):
            here.ask(B, "method", bytes(1500), 1.0)

        assert here.link(B).credit_bytes == 0
        assert nodes.clock.pending() == timers

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\0",
            bytes((BACKEND + 1,)),
            bytes((STATE, 99)) + bytes(8),
            bytes((STATE, 0)),
            bytes((ROUTES,)) + b"short",
            bytes((CLAIM,)) + bytes(8) + b"\xff",
            bytes((CLAIM,)) + b"\xff" * 8 + b"c",
            bytes((ASK, 0, 9)) + b"cut off",
            bytes((HAND,)) + bytes(4),
            bytes((HAND,)) + b"\xff" * 16 + b"c",
            bytes((CHUNK,)) + bytes(4),
        ],
    )
    def test_a_malformed_call_closes_the_link(self, body: bytes) -> None:
        """A call of an unknown kind, or one that can't be read, closes the connection and is counted."""
        nodes = Nodes("a", "b")
        here, there = nodes.backends
        peer = here.find(B.uid)
        assert peer is not None
        peer.link.call(body, Answered())
        nodes.clock.advance(0.01)

        assert there.malformed == 1
        assert not there.established(A)

    def test_a_part_of_a_nodes_routes_is_not_kept_for_ever(self) -> None:
        """If the rest does not come in time, the part is forgotten and logged; later routes are taken as ever."""
        nodes = Nodes("a", "b")
        here, there = nodes.backends
        versions = bytes(8) + (9).to_bytes(8, "big")
        chunk = bytes((ROUTES, FIRST | SNAPSHOT)) + versions + pack_change(RouteChange("a/b"))
        here._peers[B.uid].link.call(chunk, Answered())
        nodes.clock.advance(CHUNK_LIMIT_S - 1.0)
        is_kept = there._peers[A.uid].routes.awaits_chunk
        nodes.clock.advance(2.0)
        here.routes_update(1, [RouteChange("c")], [])
        nodes.clock.advance(1.0)

        assert is_kept
        assert not there._peers[A.uid].routes.awaits_chunk
        assert any("a part of its routes" in line for line in nodes.backends[1]._log.texts("warn"))  # type: ignore[attr-defined]
        assert list(there.known_routes())[1] == (A, (RouteChange("c"),))

    def test_noise_is_closed(self) -> None:
        """Noise on an accepted connection closes it, is counted, and disturbs nobody."""
        nodes = Nodes("a", "b")
        here = nodes.backends[0]
        for noise in (b"GET / HTTP/1.1\r\n\r\n", encode(PUSH, 1, b"batch"), encode(HELLO, 0, b"short")):
            pipe = Pipe(nodes.clock)
            connection = here.accepted(pipe.left)
            for at in range(len(noise)):
                if pipe.left.is_open:
                    connection.feed(noise[at : at + 1])
            assert not pipe.is_open or not pipe.left.is_open
            connection.lost()
            assert connection.node is None

        assert here.malformed == 3
        assert here.established(B)

    @pytest.mark.parametrize("knows_node", [False, True])
    def test_an_unexpected_process_is_refused(self, knows_node: bool) -> None:
        """A process that is no member, or another one than was connected to, is logged and closed, not counted."""
        nodes = Nodes("a", "b")
        here = nodes.backends[0]
        pipe = Pipe(nodes.clock)
        connection = here.connected(B, pipe.left) if knows_node else here.accepted(pipe.left)
        connection.feed(encode(HELLO, 0, Hello(1, 1, 0xBAD, A.uid, 0).pack()))

        assert not pipe.left.is_open
        assert here.malformed == 0
        assert "0000000000000bad" in here._log.texts("warn")[-1]  # type: ignore[attr-defined]

    def test_an_accepted_connection_says_who_it_is(self) -> None:
        """An accepted connection replaces the one before; what the old one still brings is not read."""
        nodes = Nodes("a", "b")
        here = nodes.backends[0]
        pipe = Pipe(nodes.clock)
        first = here.accepted(pipe.left)
        peer = here.find(B.uid)
        assert peer is not None
        for byte in encode(HELLO, 0, Hello(1, 1, B.uid, A.uid, peer.link._sequence).pack()):
            first.feed(bytes((byte,)))

        assert first.node == B
        assert here.established(B)
        second = Pipe(nodes.clock)
        here.connected(B, second.left)
        assert not pipe.left.is_open
        first.feed(encode(PUSH, 1, b"old"))
        first.lost()
        assert nodes.news[0].batches == []
        assert peer.transport is second.left


def test_a_question_that_expired_is_answered_to_nobody() -> None:
    """An answer after the limit has no effect."""
    nodes = Nodes("a", "b")
    gated = Gated()
    nodes.news[1].answer = lambda method, data: gated
    answer = nodes.backends[0].ask(B, "method", b"", 1.0)
    nodes.clock.advance(2.0)
    expired = outcome(answer)
    gated.result.set(b"late")
    nodes.clock.advance(1.0)

    assert "did not answer 'method' within 1 s" in str(expired)
    assert outcome(answer) is expired


def test_a_question_that_expired_is_not_asked_later() -> None:
    """Where there is no connection within its limit, the other node never gets it."""
    nodes = Nodes("a", "b")
    asked: list[bytes] = []

    def note(method: str, data: bytes) -> bytes:
        asked.append(data)
        return b""

    nodes.news[1].answer = note
    nodes.network.block(A.uid, B.uid)
    expired = nodes.backends[0].ask(B, "method", b"expired", 1.0)
    nodes.clock.advance(2.0)
    waiting = nodes.backends[0].ask(B, "method", b"waiting", 9.0)
    nodes.network.unblock(A.uid, B.uid)
    nodes.clock.advance(5.0)

    assert isinstance(outcome(expired), ServiceUnavailable)
    assert outcome(waiting) == b""
    assert asked == [b"waiting"]


def test_claims_have_room_beside_questions() -> None:
    """Questions take half of the queue at most: one plugin that asks too much delays no connecting client."""
    nodes = Nodes("a", "b", limits=LinkLimits(credit_bytes=1000, queue_bytes=2000))
    here = nodes.backends[0]
    nodes.network.stall(B.uid)
    here.ask(B, "method", bytes(900), 9.0)
    with pytest.raises(ServiceUnavailable):
        here.ask(B, "method", bytes(200), 9.0)
    claimed = here.claim("client", 2, B)
    nodes.network.resume(B.uid)
    nodes.clock.advance(1.0)

    assert outcome(claimed) is None


def test_a_network_node_is_a_backend() -> None:
    """A node of the network in memory knows itself, and members by their uid."""
    nodes = Nodes("a", "b")
    node: NetworkNode = nodes.backends[0]

    assert node.identity == A
    assert node.identity_of(B.uid) == B
    assert node.knows(B.uid)
    assert not node.knows(99)
    assert pack_step(CHUNK, 1) == bytes((CHUNK,)) + (1).to_bytes(8, "big")


def test_backends_ask_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question of a backend reaches the other node's backend, not its core, and its answer comes back."""
    monkeypatch.setattr(NetworkNode, "backend_asked", lambda self, origin, data: origin.name.encode() + data)
    nodes = Nodes("a", "b")
    answer = nodes.backends[0].ask_backend(B, b"1", 9.0)
    nodes.clock.advance(1.0)

    assert outcome(answer) == b"a1"
    assert nodes.news[1].questions == []


def test_a_backend_that_answers_no_questions_says_so() -> None:
    """The other node's question fails at once."""
    nodes = Nodes("a", "b")
    answer = nodes.backends[0].ask_backend(B, b"1", 9.0)
    nodes.clock.advance(1.0)

    assert "answers no questions" in str(outcome(answer))
