"""A member's events and effects: joining, gossip, witnesses, downing and leaving, one coordinator at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from attrs import evolve

from akka_harness.states import FOUNDER, cluster, info, record
from kinmqtt_akka_like_cluster.pure import joining
from kinmqtt_akka_like_cluster.pure.coordinator import Coordinator, CoordinatorSettings
from kinmqtt_akka_like_cluster.pure.detector import DetectorSettings
from kinmqtt_akka_like_cluster.pure.downing import Decision, Strategy
from kinmqtt_akka_like_cluster.pure.effects import (
    AskArbiter,
    AskToForm,
    Downed,
    Downing,
    Effect,
    Joined,
    JoinRefused,
    LeaveCompleted,
    MemberChanged,
    Send,
    SendTo,
    WaitingForSeeds,
)
from kinmqtt_akka_like_cluster.pure.gossip import (
    MOST_MEMBERS,
    MOST_TERMS_AHEAD,
    ClusterState,
    Gossip,
    NodeAddress,
    NodeInfo,
    Record,
)
from kinmqtt_akka_like_cluster.pure.messages import (
    FullGossip,
    Heartbeat,
    HeartbeatAck,
    Join,
    Left,
    MalformedControl,
    Message,
    NotYet,
    Refused,
    Status,
    Welcome,
    Witness,
    Witnessed,
)
from kinmqtt_spi.services.cluster import MAX_OTHER_NODES, Member, MemberState
from kinmqtt_spi.services.cluster_arbiter import MAX_TERM

JOINING, UP, LEAVING = MemberState.JOINING, MemberState.UP, MemberState.LEAVING
EXITING, DOWN, REMOVED = MemberState.EXITING, MemberState.DOWN, MemberState.REMOVED
TICK_S = 0.25
T = TypeVar("T")
SEEDS = (info(1).address, info(2).address, info(3).address)


def first(options: Sequence[int]) -> int:
    """Choose the first one."""
    return options[0]


class Alone:
    """One coordinator, and a clock."""

    def __init__(
        self,
        own: int = 1,
        strategy: Strategy = Strategy.KEEP_MAJORITY,
        detector: DetectorSettings = DetectorSettings(),  # noqa: B008
        **more: Any,
    ) -> None:
        settings = CoordinatorSettings(seeds=SEEDS, digest=b"settings", strategy=strategy, detector=detector, **more)
        self.coordinator = Coordinator(info(own), settings, first)
        self.now = 100.0

    def ticks(self, seconds: float, answering: Sequence[int] = (), dazed: Sequence[int] = ()) -> list[Effect]:
        """Let time pass; those ``answering`` answer all heartbeats, and have seen each state at once.

        Those who are ``dazed`` answer gossip only.
        """
        effects = []
        tick_s = self.coordinator.settings.detector.tick_s
        for _ in range(round(seconds / tick_s)):
            self.now += tick_s
            due = self.coordinator.tick(self.now)
            for sent in of(due, Send):
                if sent.uid in answering or (sent.uid in dazed and isinstance(sent.message, Status)):
                    due = [*due, *self._answer(sent)]
            effects += due
        return effects

    def _answer(self, sent: Send) -> list[Effect]:
        if isinstance(sent.message, Heartbeat):
            return self.receives(sent.uid, HeartbeatAck(sent.message.number))
        if isinstance(sent.message, Status):
            return self.receives(sent.uid, Status(sent.message.digest, frozenset({sent.uid})))
        return []

    def receives(self, sender: int, message: Message) -> list[Effect]:
        """Let a message arrive."""
        return self.coordinator.received(sender, message, self.now)

    @property
    def states(self) -> dict[int, MemberState]:
        """The state of each member."""
        return {view.info.uid: view.state for view in self.coordinator.members}


def a_member(
    *records: Record, own: int = 1, seen: Sequence[int] = (), strategy: Strategy = Strategy.KEEP_MAJORITY
) -> Alone:
    """Return a member of a cluster of these; all of them have seen its state if ``seen`` says so."""
    alone = Alone(own, strategy)
    alone.coordinator.tick(alone.now)
    alone.receives(2, Welcome(Gossip(cluster(*records), frozenset(seen))))
    return alone


def three(**others: Sequence[int]) -> Alone:
    """Return a member of three that are UP."""
    return a_member(record(1), record(2), record(3), **others)  # type: ignore[arg-type]


def of(effects: Sequence[Effect], kind: type[T]) -> list[T]:
    """Return the effects of a type."""
    return [effect for effect in effects if isinstance(effect, kind)]


def told(effects: Sequence[Effect], uid: int) -> list[Message]:
    """Return the messages for a process."""
    return [effect.message for effect in effects if isinstance(effect, Send) and effect.uid == uid]


def answers(effects: Sequence[Effect], uid: int) -> list[Message]:
    """Return the answers to a process: all messages but heartbeats and gossip."""
    return [message for message in told(effects, uid) if not isinstance(message, Heartbeat | Status)]


def changed(effects: Sequence[Effect]) -> list[tuple[int, MemberState, bool]]:
    """Return the changes of members."""
    return [(each.member.node.uid, each.member.state, each.member.reachable) for each in of(effects, MemberChanged)]


def join(uid: int, settings: bytes = b"settings", node: NodeInfo | None = None, **versions: int) -> Join:
    """Return a request to join."""
    return Join(node or info(uid), settings, **versions)


# Joining


def test_the_seeds_are_asked_each_second() -> None:
    """A process that is no member asks all seeds but itself, each second."""
    alone = Alone(own=2)

    asked = of(alone.ticks(3.0), SendTo)

    assert asked == [SendTo(seed, join(2)) for _ in range(3) for seed in (SEEDS[0], SEEDS[2])]


def test_the_first_seed_forms_a_cluster_after_five_seconds() -> None:
    """Without a refusal or a welcome the first seed is a member after 5 s, and UP as soon as it is ready."""
    alone = Alone()

    assert of(alone.ticks(5.0), Joined) == []
    effects = alone.ticks(TICK_S)
    assert effects[:2] == [Joined(), MemberChanged(Member(info(1).node, JOINING))]
    assert alone.ticks(5.0) == []
    alone.coordinator.set_ready()

    assert changed(alone.ticks(TICK_S)) == [(1, UP, True)]


def test_the_only_seed_does_not_wait() -> None:
    """Where there is nobody to wait for, the cluster is formed at once, and a node that was ready before is UP."""
    alone = Alone()
    alone.coordinator.replace_seeds(SEEDS[:1])
    alone.coordinator.set_ready()

    effects = alone.ticks(2 * TICK_S)

    assert changed(effects) == [(1, JOINING, True), (1, UP, True)]


def test_a_new_cluster_goes_on_with_the_arbiters_terms() -> None:
    """A cluster that is formed has the last term that the arbiter has decided, and gives it to newcomers."""
    alone = Alone()
    alone.coordinator.replace_seeds(SEEDS[:1])
    alone.coordinator.set_founding_term(7)
    alone.ticks(2 * TICK_S)

    [welcome] = told(alone.receives(2, join(2)), 2)

    assert isinstance(welcome, Welcome)
    assert welcome.gossip.state.term == 7


def test_with_an_arbiter_the_first_seed_asks_it() -> None:
    """It asks again and again until it hears that it may; after a refusal the seeds get 5 s again."""
    alone = Alone(asks_to_form=True)

    assert of(alone.ticks(5.0), AskToForm) == []
    assert len(of(alone.ticks(2.5), AskToForm)) == 3
    alone.coordinator.may_form(None)
    assert of(alone.ticks(5.0), AskToForm) == []
    assert len(of(alone.ticks(1.0), AskToForm)) == 1

    assert of(alone.coordinator.may_form(3), Joined) == [Joined()]
    assert alone.coordinator.may_form(None) == alone.coordinator.may_form(3) == []


def test_a_late_answer_of_the_arbiter_forms_no_second_cluster() -> None:
    """Who was welcomed meanwhile stays in the cluster that it has entered."""
    alone = Alone(asks_to_form=True)
    alone.ticks(6.0)
    alone.receives(2, Welcome(Gossip(cluster(record(1, JOINING), record(2)), frozenset())))

    assert alone.coordinator.may_form(3) == []

    assert set(alone.states) == {1, 2}


@pytest.mark.parametrize("own", [2, 3, 4])
def test_others_wait_for_ever_and_say_so(own: int) -> None:
    """Any other process reports after each 30 s that it waits, how long and how many seeds wait too."""
    alone = Alone(own)

    alone.receives(1, NotYet())
    effects = alone.ticks(61.0)

    seeds = tuple(seed for seed in SEEDS if seed != info(own).address)
    assert of(effects, WaitingForSeeds) == [WaitingForSeeds(seeds, 30.0, 1), WaitingForSeeds(seeds, 60.0, 0)]
    assert of(effects, Joined) == []


def test_a_new_seed_has_time_to_answer() -> None:
    """When seeds are looked up again and there is a new one, the first seed waits for it as long."""
    alone = Alone()
    alone.coordinator.replace_seeds(SEEDS[:2])
    alone.ticks(4.0)

    alone.coordinator.replace_seeds(SEEDS)

    assert of(alone.ticks(5.0), Joined) == []
    assert of(alone.ticks(TICK_S), Joined) == [Joined()]


def test_a_new_seed_is_asked_at_once() -> None:
    """Seeds that were looked up are asked at the next tick, also when others were asked a moment ago."""
    alone = Alone(own=2)
    alone.coordinator.replace_seeds(SEEDS[:1])
    alone.ticks(TICK_S)

    alone.coordinator.replace_seeds(SEEDS)

    assert of(alone.ticks(TICK_S), SendTo) == [SendTo(seed, join(2)) for seed in (SEEDS[0], SEEDS[2])]
    assert of(alone.ticks(1.0 - TICK_S), SendTo) == []


def test_a_stall_does_not_count_as_waiting() -> None:
    """A first seed that stood still for 20 s still waits for answers, which may not have been read yet."""
    alone = Alone()
    alone.ticks(2.0)

    alone.now += 20.0

    assert of(alone.ticks(3.0), Joined) == []
    assert of(alone.ticks(0.5), Joined) == [Joined()]


def test_a_welcome_makes_a_member() -> None:
    """The members are reported with JOINED in front; the welcome's state is gossiped from then on."""
    alone = Alone(own=3)
    alone.ticks(1.0)

    effects = alone.receives(1, Welcome(Gossip(cluster(record(1), Record(info(3))), frozenset({1}))))

    assert effects[0] == Joined()
    assert changed(effects) == [(1, UP, True), (3, JOINING, True)]
    assert alone.coordinator.info(1) == info(1)
    assert any(isinstance(message, Status) for message in told(alone.ticks(TICK_S), 1))


def test_gossip_makes_a_member_if_the_welcome_was_lost() -> None:
    """Any state that has this process as a member is as good as a welcome; another one is not."""
    alone = Alone(own=3)

    stranger = alone.receives(1, FullGossip(Gossip(cluster(record(1)), frozenset())))
    effects = alone.receives(1, FullGossip(Gossip(cluster(record(1), Record(info(3))), frozenset())))

    assert stranger == []
    assert of(effects, Joined) == [Joined()]


@pytest.mark.parametrize("state", [cluster(record(1), record(3, DOWN)), cluster(record(1)).without([3])])
def test_a_process_that_was_given_up_before_it_joined_ends(state: ClusterState) -> None:
    """If its welcome got lost and it was downed meanwhile, a process ends, and can start again with a new uid."""
    alone = Alone(own=3)

    [effect] = alone.receives(1, FullGossip(Gossip(state, frozenset())))

    assert isinstance(effect, Downed)
    assert alone.ticks(5.0) == []


def test_a_refused_process_asks_again_later_and_forms_no_cluster() -> None:
    """After a refusal the first seed asks nobody for 10 s, and the same reason is reported once a minute."""
    alone = Alone()
    alone.ticks(1.0)

    assert alone.receives(2, Refused("no")) == [JoinRefused("no")]
    assert alone.receives(3, Refused("no")) == []
    assert alone.ticks(9.5) == []
    asked = of(alone.ticks(1.0), SendTo)
    assert len(asked) == 2
    assert alone.receives(2, Refused("no")) == []
    alone.now += 60.0
    alone.ticks(1.0)
    assert alone.receives(2, Refused("no")) == [JoinRefused("no")]


def test_a_process_that_is_no_member_says_so() -> None:
    """It answers JOIN with NOT_YET and heartbeats with their number, and ignores the rest."""
    alone = Alone(own=2)

    assert alone.receives(1, join(1)) == [Send(1, NotYet(), reply=True)]
    assert alone.receives(1, Heartbeat(7)) == [Send(1, HeartbeatAck(7), reply=True)]
    for message in (HeartbeatAck(1), Status(bytes(16), frozenset()), Witness(1), Witnessed(1, True), Left()):
        assert alone.receives(1, message) == []


# Letting others join


def test_a_newcomer_is_welcome() -> None:
    """A member adds the newcomer as JOINING, and answers with the state; also if it is asked again."""
    alone = three()

    effects = alone.receives(4, join(4))
    [welcome] = told(effects, 4)

    assert changed(effects) == [(4, JOINING, True)]
    assert isinstance(welcome, Welcome)
    assert welcome.gossip.state.records[4] == Record(info(4))
    assert told(alone.receives(4, join(4)), 4) == [welcome]


@pytest.mark.parametrize(
    ("request_", "sender", "reason"),
    [
        (join(4, b"other"), 4, "differs from this cluster in what all members must share: downing, quorum"),
        (join(4, lowest=2, highest=3), 4, "speaks the versions 2 to 3 of the protocol, this cluster 1 to 1"),
        (join(4), 5, "connection is that of the uid 0000000000000005"),
        (join(4, node=info(4, "n1")), 4, r"name or the address of n1 \(0000000000000001\) .* which is alive"),
    ],
)
def test_a_newcomer_that_does_not_fit_is_refused(request_: Join, sender: int, reason: str) -> None:
    """Other settings, other versions, another uid than the connection's, or this member's own name: refused."""
    alone = three()

    [refused] = told(alone.receives(sender, request_), sender)

    assert isinstance(refused, Refused)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(refused.reason)
    assert 4 not in alone.states


def test_a_newcomer_of_the_release_before_is_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that speaks one version more lets in who speaks only the older one."""
    monkeypatch.setattr(joining, "HIGHEST_VERSION", 2)
    alone = three()

    [welcome] = told(alone.receives(4, join(4, lowest=1, highest=1)), 4)

    assert isinstance(welcome, Welcome)


def test_a_full_cluster_refuses_newcomers() -> None:
    """No more members are let in than the core can have."""
    alone = a_member(*(record(uid) for uid in range(1, MAX_OTHER_NODES + 2)))

    [refused] = told(alone.receives(100, join(100)), 100)

    assert isinstance(refused, Refused)
    assert "has 65 members" in refused.reason


def test_a_name_whose_process_answers_is_taken() -> None:
    """A newcomer with the name of another member is refused when that one has answered, and both are named."""
    alone = three()
    newcomer = info(9, "n2")

    asked = told(alone.receives(9, join(9, node=newcomer)), 2)
    heartbeat = asked[0]
    assert isinstance(heartbeat, Heartbeat)
    [refused] = told(alone.receives(2, HeartbeatAck(heartbeat.number)), 9)

    assert isinstance(refused, Refused)
    assert str(newcomer) in refused.reason and str(info(2)) in refused.reason
    assert alone.states == {1: UP, 2: UP, 3: UP}


def test_a_name_whose_process_is_silent_is_free() -> None:
    """After the pause without an answer the old process is DOWN and the newcomer is welcome; one answer is enough."""
    alone = three()
    alone.receives(9, join(9, node=info(9, "n2")))
    alone.receives(9, join(9, node=info(9, "n2")))

    before = alone.ticks(1.75, answering=[3])
    effects = alone.ticks(0.5, answering=[3])

    assert answers(before, 9) == []
    assert len([message for message in told(before, 2) if isinstance(message, Heartbeat)]) >= 4
    assert changed(effects) == [(2, DOWN, False), (9, JOINING, True)]
    assert [type(message) for message in answers(effects, 9)] == [Welcome]


def test_the_answer_to_an_earlier_heartbeat_does_not_save_a_name() -> None:
    """An answer that was on its way before the newcomer came says nothing about the present."""
    alone = three()
    [heartbeat] = [message for message in told(alone.ticks(TICK_S), 2) if isinstance(message, Heartbeat)]
    alone.receives(9, join(9, node=info(9, "n2")))

    assert told(alone.receives(2, HeartbeatAck(heartbeat.number)), 9) == []
    assert [type(message) for message in answers(alone.ticks(2.5, answering=[3]), 9)] == [Welcome]


def test_a_stall_does_not_free_a_name() -> None:
    """A member that stood still while it waited for the old process gives it its time again."""
    alone = three()
    alone.receives(9, join(9, node=info(9, "n2")))

    alone.now += 10.0

    assert told(alone.ticks(1.0, answering=[3]), 9) == []


def test_the_question_is_repeated_on_a_new_connection() -> None:
    """When the connection with the old process breaks, it is asked again at once, and not half a second later."""
    alone, other = three(), three()
    for each in (alone, other):
        each.ticks(TICK_S)
        each.receives(9, join(9, node=info(9, "n2")))

    alone.coordinator.connection_lost(2)

    assert any(isinstance(message, Heartbeat) for message in told(alone.ticks(TICK_S), 2))
    assert not any(isinstance(message, Heartbeat) for message in told(other.ticks(TICK_S), 2))


def test_a_process_whose_old_one_is_unreachable_replaces_it_at_once() -> None:
    """The old process is known to be unreachable: it is DOWN, and nobody is asked."""
    alone = three()
    alone.receives(3, FullGossip(Gossip(cluster(record(1), record(2), record(3), unreachable={3: {2}}), frozenset())))

    effects = alone.receives(9, join(9, node=info(9, "n2")))

    assert changed(effects) == [(2, DOWN, False), (9, JOINING, True)]
    assert [type(message) for message in answers(effects, 9)] == [Welcome]


def test_nobody_is_replaced_in_a_split() -> None:
    """While others are unreachable too, a newcomer waits: the old process may have voted on the other side."""
    alone = a_member(*(record(uid) for uid in range(1, 5)))
    state = cluster(*(record(uid) for uid in range(1, 5)), unreachable={3: {2, 4}})
    alone.receives(3, FullGossip(Gossip(state, frozenset())))

    [refused] = told(alone.receives(9, join(9, node=info(9, "n2"))), 9)

    assert isinstance(refused, Refused)
    assert "not decided yet" in refused.reason
    assert alone.states[2] is UP


def test_nobody_is_replaced_when_a_split_begins_meanwhile() -> None:
    """A split that begins while the old process is asked protects it too."""
    alone = a_member(*(record(uid) for uid in range(1, 5)))
    alone.receives(9, join(9, node=info(9, "n2")))
    state = cluster(*(record(uid) for uid in range(1, 5)), unreachable={3: {4}})

    alone.receives(3, FullGossip(Gossip(state, frozenset())))
    [refused] = answers(alone.ticks(2.5, answering=[3]), 9)

    assert isinstance(refused, Refused)
    assert alone.states[2] is UP


def test_a_member_that_exits_lets_nobody_in() -> None:
    """A member that has left sends newcomers to others."""
    alone = a_member(record(1, EXITING), record(2), record(3))

    assert alone.receives(4, join(4)) == [Send(4, NotYet(), reply=True)]


# Gossip


def rounds(effects: Sequence[Effect]) -> int:
    """Return how many rounds of gossip have begun."""
    return len([each for each in of(effects, Send) if isinstance(each.message, Status) and not each.reply])


def test_the_digest_is_sent_each_second_and_faster_after_a_change() -> None:
    """A member gossips once a second, and three times while fewer than half are known to have seen the state."""
    alone = three(seen=(1, 2, 3))

    calm = alone.ticks(6.0, answering=[2, 3])
    alone.receives(4, join(4))
    busy = alone.ticks(6.0)

    assert 5 <= rounds(calm) <= 7
    assert 17 <= rounds(busy) <= 19


def test_gossip_goes_to_those_who_need_it() -> None:
    """Members that are not known to have seen the state come first; nobody who does not answer is chosen."""
    alone = three(seen=(1, 2))

    sent = of(alone.ticks(3.0, answering=[2]), Send)

    assert {each.uid for each in sent if isinstance(each.message, Status)} == {3}


def test_equal_digests_exchange_who_has_seen_them() -> None:
    """A status with the same digest is answered only if this member knows of more."""
    alone = three()
    digest = alone.coordinator.digest
    assert digest is not None

    news = alone.receives(2, Status(digest, frozenset({2})))
    nothing = alone.receives(3, Status(digest, frozenset({1, 2, 3})))

    assert news == [Send(2, Status(digest, frozenset({1, 2})), reply=True)]
    assert nothing == []
    assert alone.coordinator.is_converged


def test_another_digest_is_answered_with_the_state_until_both_agree() -> None:
    """Two members with different states exchange them in at most three messages, and both know that both have it."""
    one, other = three(), three()
    one.receives(4, join(4))
    other.receives(5, join(5))
    digest = one.coordinator.digest
    assert digest is not None

    [second] = told(other.receives(1, Status(digest, frozenset({1}))), 1)
    [third] = told(one.receives(2, second), 2)
    [fourth] = told(other.receives(1, third), 1)

    assert isinstance(second, FullGossip) and isinstance(third, FullGossip) and isinstance(fourth, Status)
    assert one.states == other.states
    assert set(one.states) == {1, 2, 3, 4, 5}
    assert one.receives(2, fourth) == []


def test_the_state_of_another_cluster_is_not_merged() -> None:
    """A foreign state is ignored, and its sender learns that this process is no member there if it counts on it."""
    alone = three()
    foreign = ClusterState(0xABC, {7: record(7)})
    mistaken = foreign.with_record(Record(info(1)))

    assert alone.receives(7, FullGossip(Gossip(foreign, frozenset()))) == []
    assert alone.receives(7, FullGossip(Gossip(mistaken, frozenset()))) == [Send(7, Left(), reply=True)]
    assert alone.states == {1: UP, 2: UP, 3: UP}


def test_gossip_of_too_many_members_is_malformed() -> None:
    """A peer can't fill this process's memory: it raises, so that the connection is closed."""
    alone = three()
    crowd = ClusterState(FOUNDER, {uid: record(uid % 250) for uid in range(1_000, 1_000 + MOST_MEMBERS)})

    with pytest.raises(MalformedControl, match="GOSSIP of 0000000000000002 would make 1003 members"):
        alone.receives(2, FullGossip(Gossip(crowd, frozenset())))

    assert alone.states == {1: UP, 2: UP, 3: UP}


def test_a_term_that_is_far_ahead_is_malformed() -> None:
    """A member with a wrong term can't take all later terms from the others: they keep theirs."""
    alone = three()
    state = cluster(record(1), record(2), record(3))

    with pytest.raises(MalformedControl, match=f"has the term {MAX_TERM}, more than 1048576 ahead of 0"):
        alone.receives(2, FullGossip(Gossip(evolve(state, term=MAX_TERM), frozenset())))
    [answer] = told(alone.receives(3, FullGossip(Gossip(evolve(state, term=MOST_TERMS_AHEAD), frozenset()))), 3)

    assert isinstance(answer, Status)


def test_a_welcome_with_a_term_far_ahead_of_the_arbiter_is_malformed() -> None:
    """A newcomer measures it by what the arbiter has said: that is no new cluster's 0."""
    state = cluster(record(1, JOINING), record(2))
    alone = Alone()
    alone.coordinator.set_founding_term(7)

    with pytest.raises(MalformedControl, match="WELCOME has the term"):
        alone.receives(2, Welcome(Gossip(evolve(state, term=8 + MOST_TERMS_AHEAD), frozenset())))
    effects = alone.receives(2, Welcome(Gossip(evolve(state, term=7 + MOST_TERMS_AHEAD), frozenset())))

    assert of(effects, Joined) == [Joined()]


# Failure detection


def test_heartbeats_are_answered() -> None:
    """A heartbeat is answered with its number, on the connection of the one who asks."""
    assert three().receives(2, Heartbeat(99)) == [Send(2, HeartbeatAck(99), reply=True)]


def test_only_answers_to_what_was_sent_count() -> None:
    """An answer with a number that was never sent, or that was answered before, is no sign of life."""
    alone = three()
    sent = [message.number for message in told(alone.ticks(8.0), 2) if isinstance(message, Heartbeat)]
    before = alone.coordinator.phi(alone.now)[2]

    alone.receives(2, HeartbeatAck(10**9))
    invented = alone.coordinator.phi(alone.now)[2]
    alone.receives(2, HeartbeatAck(sent[-1]))
    answered = alone.coordinator.phi(alone.now)[2]
    alone.now += 8.0
    alone.receives(2, HeartbeatAck(sent[-1]))

    assert invented == before > 8 > answered
    assert alone.coordinator.phi(alone.now)[2] > 8
    assert set(alone.coordinator.phi(alone.now)) == {2, 3}


def test_a_silent_member_is_reported_after_its_witnesses() -> None:
    """A silent member's witness is asked; when it has not seen it either, the member is unreachable."""
    alone = three()
    alone.ticks(10.0, answering=[2, 3])

    asked = alone.ticks(4.0, answering=[2])
    assert told(asked, 2).count(Witness(3)) == 1
    assert changed(asked) == []
    alone.receives(2, Witnessed(3, False))

    assert changed(alone.ticks(TICK_S, answering=[2])) == [(3, UP, False)]
    [view] = [view for view in alone.coordinator.members if view.info.uid == 3]
    assert (view.reachable, view.unreachable_by, view.has_seen) == (False, (1,), False)


def test_a_witness_says_what_it_knows() -> None:
    """A member that monitors the suspect answers at once; about itself and about strangers it says nothing."""
    alone = three()
    alone.ticks(5.0, answering=[3])

    assert told(alone.receives(2, Witness(3)), 2) == [Witnessed(3, True)]
    assert alone.receives(2, Witness(1)) == []
    assert alone.receives(2, Witness(99)) == []


def test_a_witness_that_does_not_know_asks_itself() -> None:
    """Before the suspect has ever answered, a witness sends a heartbeat, and says what came of it."""
    alone = three()

    [heartbeat] = told(alone.receives(2, Witness(3)), 3)
    assert isinstance(heartbeat, Heartbeat)
    assert told(alone.receives(3, HeartbeatAck(heartbeat.number)), 2) == [Witnessed(3, True)]


def test_a_witness_that_gets_no_answer_says_so() -> None:
    """After the pause without an answer the suspect is not alive from here."""
    alone = three()
    alone.receives(2, Witness(3))

    assert Witnessed(3, False) not in told(alone.ticks(1.75), 2)
    assert Witnessed(3, False) in told(alone.ticks(0.5), 2)


def observed(alone: Alone, uid: int) -> tuple[int, ...]:
    """The members that can't reach a member."""
    return next(view.unreachable_by for view in alone.coordinator.members if view.info.uid == uid)


def test_a_member_with_three_malformed_messages_in_a_minute_is_unreachable() -> None:
    """It answers heartbeats, and is of no use all the same; the strategy decides, as with a silent one."""
    alone = three()
    alone.ticks(2.0, answering=[2, 3])

    effects: list[Effect] = []
    for _ in range(3):
        assert observed(alone, 3) == ()
        effects += alone.coordinator.malformed(3, alone.now)
        alone.now += TICK_S

    assert changed(effects) == [(3, UP, False)]
    assert observed(alone, 3) == (1,)
    [downing] = of(alone.ticks(16.0, answering=[2, 3]), Downing)
    assert (downing.decision, downing.uids) == (Decision.DOWN_UNREACHABLE, (3,))


def test_malformed_messages_that_are_far_apart_do_not_add_up() -> None:
    """Three in more than a minute are none too many; a process that is no member is not counted."""
    alone = three()
    for _ in range(4):
        alone.coordinator.malformed(3, alone.now)
        alone.coordinator.malformed(9, alone.now)
        alone.ticks(31.0, answering=[2, 3])

    assert observed(alone, 3) == ()
    assert alone.states == {1: UP, 2: UP, 3: UP}


def test_a_member_is_reachable_again_a_minute_after_its_last_malformed_message() -> None:
    """Its answers to heartbeats do not count before; after that it is not marked by an old count."""
    alone = a_member(record(1), record(2), record(3), strategy=Strategy.ARBITER)
    alone.ticks(2.0, answering=[2, 3])
    for _ in range(3):
        alone.coordinator.malformed(3, alone.now)

    alone.ticks(59.0, answering=[2, 3])
    before = observed(alone, 3)
    effects = alone.ticks(2.0, answering=[2, 3])
    alone.coordinator.malformed(3, alone.now)

    assert (before, observed(alone, 3)) == ((1,), ())
    assert changed(effects) == [(3, UP, True)]


def test_a_silent_member_stays_unreachable_when_its_malformed_messages_are_old() -> None:
    """There are two reasons, and one of them has gone."""
    alone = a_member(record(1), record(2), record(3), strategy=Strategy.ARBITER)
    alone.ticks(10.0, answering=[2, 3])
    for _ in range(3):
        alone.coordinator.malformed(3, alone.now)

    alone.ticks(70.0, answering=[2])

    assert observed(alone, 3) == (1,)


# Downing


def test_unreachable_members_are_downed_by_the_majority() -> None:
    """With two of three reachable the third one is DOWN when the view is stable, and the strategy is named."""
    alone = three()
    alone.ticks(10.0, answering=[2, 3])

    effects = alone.ticks(16.0, answering=[2])

    [downing] = of(effects, Downing)
    assert (downing.decision, downing.uids) == (Decision.DOWN_UNREACHABLE, (3,))
    assert "keep_majority" in downing.reason
    assert changed(effects) == [(3, UP, False), (3, DOWN, False), (3, REMOVED, False)]


def test_a_silent_member_is_downed_also_with_slow_heartbeats() -> None:
    """With the longest interval of heartbeats, too, a view counts as seen all the time, and becomes stable."""
    slow = DetectorSettings(heartbeat_s=60.0, pause_s=60.0)
    alone = Alone(detector=slow)
    alone.coordinator.tick(alone.now)
    alone.receives(2, Welcome(Gossip(cluster(record(1), record(2), record(3)), frozenset())))
    alone.ticks(300.0, answering=[2, 3])

    effects = alone.ticks(600.0, answering=[2])

    assert [each.uids for each in of(effects, Downing)] == [(3,)]


def test_nobody_is_downed_before_the_side_agrees() -> None:
    """A member whose companions have not seen the same state waits, however long the view is stable."""
    alone = three()
    alone.ticks(10.0, answering=[2, 3])

    for _ in range(100):
        alone.now += TICK_S
        for sent in of(alone.coordinator.tick(alone.now), Send):
            if sent.uid == 2 and isinstance(sent.message, Heartbeat):
                alone.receives(2, HeartbeatAck(sent.message.number))

    assert alone.states == {1: UP, 2: UP, 3: UP}
    assert of(alone.ticks(2.0, answering=[2]), Downing)


def test_nobody_is_downed_while_a_companion_is_silent() -> None:
    """A member waits if one that it counts on its side has not answered for a while, though it is not marked yet."""
    members = [record(uid) for uid in range(1, 6)]
    usual, unsure = a_member(*members), a_member(*members)
    for alone in (usual, unsure):
        alone.ticks(10.0, answering=[2, 3, 4, 5])
    needed_s = 0.0
    while not of(usual.ticks(TICK_S, answering=[2, 3, 4]), Downing):
        needed_s += TICK_S

    unsure.ticks(needed_s - 2.5, answering=[2, 3, 4])
    effects = unsure.ticks(3.0, answering=[2, 3], dazed=[4])

    assert of(effects, Downing) == []
    assert changed(effects) == []


def test_the_minority_ends() -> None:
    """A member that reaches nobody of three is DOWN, says so last, and does nothing more."""
    alone = three()
    alone.ticks(10.0, answering=[2, 3])

    effects = alone.ticks(20.0)

    assert isinstance(effects[-1], Downed)
    assert "keep_majority" in effects[-1].reason
    assert of(effects, Downing)[0].uids == (1,)
    assert alone.coordinator.has_ended
    assert alone.receives(2, Heartbeat(1)) == alone.ticks(1.0) == alone.coordinator.leave() == []


def test_a_side_ends_together() -> None:
    """The minority of five marks its whole side DOWN if all have seen the same state, and tells them."""
    alone = a_member(*(record(uid) for uid in range(1, 6)))
    alone.ticks(10.0, answering=range(1, 6))

    effects = alone.ticks(20.0, answering=[5])

    [downing] = of(effects, Downing)
    assert (downing.decision, downing.uids) == (Decision.DOWN_SELF, (1, 5))
    [last] = [message for message in told(effects, 5) if isinstance(message, FullGossip)]
    assert last.gossip.state.records[5].state is DOWN


def test_the_arbiter_decides() -> None:
    """The next term is asked for, until it is granted; then the others are DOWN."""
    alone = three(strategy=Strategy.ARBITER)  # type: ignore[arg-type]
    alone.ticks(10.0, answering=[2, 3])

    asked = of(alone.ticks(14.0, answering=[2]), AskArbiter)
    effects = alone.coordinator.arbiter_decided(True, alone.now, asked[-1])

    assert {each.term for each in asked} == {1}
    assert of(effects, Downing)[0].uids == (3,)


def test_without_the_arbiter_a_side_ends() -> None:
    """A refused term means that the other side has it."""
    alone = three(strategy=Strategy.ARBITER)  # type: ignore[arg-type]
    alone.ticks(10.0, answering=[2, 3])
    asked = of(alone.ticks(14.0, answering=[2]), AskArbiter)

    effects = alone.coordinator.arbiter_decided(False, alone.now, asked[-1])

    assert isinstance(effects[-1], Downed)


@pytest.mark.parametrize("marked", [(1, 2, 3), (1, 2)])
def test_who_is_down_says_nothing_of_others(marked: Sequence[int]) -> None:
    """A process that is marked DOWN reports no member DOWN: the core would give its sessions to others."""
    alone = three()
    states = (record(uid, DOWN if uid in marked else UP) for uid in (1, 2, 3))

    effects = alone.receives(3, FullGossip(Gossip(cluster(*states), frozenset())))

    assert changed(effects) == []
    assert isinstance(effects[-1], Downed)


def test_an_operator_downs_a_member() -> None:
    """The member is DOWN at once; a uid that is no member's raises and names the remedy."""
    alone = three()

    effects = alone.coordinator.down(3)

    assert changed(effects) == [(3, DOWN, False)]
    assert of(effects, Downing) == [Downing(None, (3,), "an operator wants it")]
    with pytest.raises(ValueError, match="0000000000000063 is no member"):
        alone.coordinator.down(99)


@pytest.mark.parametrize("granted", [True, False])
def test_an_operator_downs_a_member_if_the_arbiter_agrees(granted: bool) -> None:
    """A member that is cut off, and alive, loses the same term: it must not mark the others DOWN later."""
    alone = three(strategy=Strategy.ARBITER)  # type: ignore[arg-type]
    alone.ticks(2.0, answering=[2, 3])

    [question] = of(alone.coordinator.down(3), AskArbiter)
    effects = alone.coordinator.arbiter_decided(granted, alone.now, question)

    assert question.term == 1
    assert changed(effects) == ([(3, DOWN, False)] if granted else [])
    assert alone.coordinator.arbiter_decided(granted, alone.now, question) == []


def test_a_member_of_an_older_cluster_ends() -> None:
    """A later one was formed where nobody reached it; a note of who is gone, and a term alone, are no such sign."""
    alone = three(strategy=Strategy.ARBITER)  # type: ignore[arg-type]
    own = [view.info.address for view in alone.coordinator.members]
    foreign = [*own, NodeAddress("10.9.9.9", 4883)]

    early = [
        alone.coordinator.noted(*each, now) for now in (0.0, 15.0, 30.0, 45.0) for each in ((own, 7), (foreign, 0))
    ]
    alone.coordinator.noted(foreign, 7, 50.0)
    early.append(alone.coordinator.noted(foreign, 7, 60.0))
    effects = alone.coordinator.noted(foreign, 7, 70.0)

    assert not any(early)
    assert isinstance(effects[-1], Downed)
    assert "another cluster" in effects[-1].reason


@pytest.mark.parametrize(
    "state",
    [cluster(record(1, DOWN), record(2)), cluster(record(1), record(2)).without([1])],
    ids=["DOWN", "REMOVED"],
)
def test_a_member_that_finds_itself_given_up_ends(state: ClusterState) -> None:
    """Gossip that has this process DOWN or REMOVED is the end, and answered by nothing."""
    alone = three()

    effects = alone.receives(2, FullGossip(Gossip(state, frozenset())))

    assert isinstance(effects[-1], Downed)
    assert of(effects, Send) == []
    assert alone.ticks(5.0) == []


@pytest.mark.parametrize(
    "message", [Heartbeat(1), Status(bytes(16), frozenset()), Witness(2), join(3)], ids=lambda it: type(it).__name__
)
def test_who_is_gone_is_told(message: Message) -> None:
    """A process that is DOWN here and asks for something gets the state, in which it finds itself."""
    alone = three()
    alone.coordinator.down(3)

    [answer] = told(alone.receives(3, message), 3)

    assert isinstance(answer, FullGossip)
    assert answer.gossip.state.records[3].state is DOWN


def test_what_the_gone_say_is_ignored() -> None:
    """The state of a process that is DOWN here is not merged, and not answered: both might answer for ever."""
    alone = three()
    alone.coordinator.down(3)
    state = cluster(record(1, DOWN), record(2), record(3))

    assert alone.receives(3, FullGossip(Gossip(state, frozenset()))) == []
    assert alone.states[1] is UP


# Leaving


def test_a_member_leaves_in_steps() -> None:
    """LEAVING at once, EXITING when it is drained and all agree; it may end when all have seen that."""
    alone = three(seen=(1, 2, 3))

    assert changed(alone.coordinator.leave()) == [(1, LEAVING, True)]
    alone.ticks(2.0, answering=[2, 3])
    alone.coordinator.drained()
    effects = alone.ticks(3.0, answering=[2, 3])

    assert changed(effects) == [(1, EXITING, True)]
    assert effects[-1] == LeaveCompleted()
    assert alone.coordinator.has_ended


def test_a_member_that_learns_late_that_it_has_left_is_not_down() -> None:
    """A drained member that finds itself REMOVED has left."""
    alone = three()
    alone.coordinator.leave()
    alone.coordinator.drained()

    effects = alone.receives(2, FullGossip(Gossip(cluster(record(1), record(2)).without([1]), frozenset())))

    assert effects[-1] == LeaveCompleted()


def test_a_leaving_member_that_was_not_drained_was_downed() -> None:
    """A LEAVING member with clients that finds itself REMOVED has not left in good order."""
    alone = three()
    alone.coordinator.leave()

    effects = alone.receives(2, FullGossip(Gossip(cluster(record(1), record(2)).without([1]), frozenset())))

    assert isinstance(effects[-1], Downed)


def test_leaving_before_joining_takes_the_request_back() -> None:
    """A process that ends while it joins says so to the seeds, as one may have let it in already."""
    alone = Alone(own=4)
    alone.ticks(1.0)

    assert alone.coordinator.leave() == [*(SendTo(seed, Left()) for seed in SEEDS), LeaveCompleted()]


def test_a_process_that_stops_tells_the_others() -> None:
    """Stopping without leaving tells all members, and ends."""
    alone = three()

    assert alone.coordinator.stop() == [Send(2, Left()), Send(3, Left())]
    assert alone.coordinator.stop() == alone.ticks(1.0) == []


@pytest.mark.parametrize(("before", "after"), [(UP, DOWN), (LEAVING, DOWN), (EXITING, EXITING)])
def test_a_member_that_says_that_it_ends_is_down(before: MemberState, after: MemberState) -> None:
    """Nobody needs to detect the end of a process that says so; one that is EXITING has left properly."""
    alone = a_member(record(1), record(2), record(3, before))

    alone.receives(3, Left())

    assert alone.states[3] is after


def test_settings_that_no_part_can_use_are_refused() -> None:
    """Invalid values raise when the settings are made, and not when they are used."""
    for wrong in (
        {"form_after_s": 0.0},
        {"gossip_s": -1.0},
        {"strategy": Strategy.STATIC_QUORUM},
        {"stable_after_s": -1.0},
        {"digest": bytes(65)},
    ):
        with pytest.raises(ValueError):
            CoordinatorSettings(**{"seeds": SEEDS, "digest": b"", **wrong})  # type: ignore[arg-type]
