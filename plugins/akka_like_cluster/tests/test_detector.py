"""The failure detector: heartbeats on a ring, suspects, witnesses, and stalls of the node itself."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest
from attrs import Factory, define
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.pure.detector import Ask, Beat, Detector, DetectorSettings, Marked

OWN = 1
TICK_S = DetectorSettings().tick_s
UIDS = st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=30)


@define
class Run:
    """A detector in a cluster where every peer but the ``silent`` answers each heartbeat at once."""

    detector: Detector
    now: float = 0.0
    silent: set[int] = Factory(set)
    effects: list[tuple[float, Beat | Ask | Marked]] = Factory(list)

    def until(self, time_s: float) -> Run:
        """Tick up to a time, in seconds."""
        while self.now + TICK_S <= time_s:
            self.now += TICK_S
            self.tick()
        return self

    def tick(self) -> list[Beat | Ask | Marked]:
        """Tick once, now."""
        effects = self.detector.tick(self.now)
        for effect in effects:
            self.effects.append((self.now, effect))
            if isinstance(effect, Beat) and effect.to not in self.silent:
                self.detector.heard(effect.to, self.now)
        return effects

    def until_asked(self, questions: int = 1) -> Run:
        """Tick until so many questions were asked, for a minute at most."""
        for _ in range(int(60 / TICK_S)):
            if len(self.of(Ask)) >= questions:
                return self
            self.until(self.now + TICK_S)
        raise AssertionError(f"only {len(self.of(Ask))} questions in a minute")

    def stall(self, time_s: float) -> Run:
        """Let time pass without a tick."""
        self.now += time_s
        return self

    def of(self, kind: type[Any]) -> list[tuple[float, Any]]:
        """Return the effects of a kind, each with its time."""
        return [(time_s, effect) for time_s, effect in self.effects if isinstance(effect, kind)]

    @property
    def verdicts(self) -> list[tuple[float, Any]]:
        """The questions and marks, each with its time."""
        return self.of(Ask) + self.of(Marked)


def cluster_of(size: int, **settings: Any) -> Run:
    """Return a run of node 1 in a cluster of nodes 1 to ``size``."""
    detector = Detector(OWN, DetectorSettings(**settings))
    detector.watch(range(1, size + 1), 0.0)
    return Run(detector)


def monitored_by(uids: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Return whom each node monitors."""
    monitored = {}
    for uid in uids:
        detector = Detector(uid, DetectorSettings())
        detector.watch(uids, 0.0)
        monitored[uid] = detector.monitored
    return monitored


@given(UIDS)
def test_everybody_is_monitored_by_nine_others(uids: set[int]) -> None:
    """Each member is monitored by nine others, or by all others of a small cluster, and never by itself."""
    monitored = monitored_by(uids)

    for uid in uids:
        monitors = [peer for peer, whom in monitored.items() if uid in whom]
        assert len(monitors) == min(9, len(uids) - 1)
        assert uid not in monitors


@given(UIDS, st.randoms())
def test_all_nodes_see_the_same_ring(uids: set[int], random: Any) -> None:
    """The order in which members are given, and whether this node is among them, changes nothing."""
    own = min(uids)
    others = sorted(uids - {own})
    random.shuffle(others)
    one, other = Detector(own, DetectorSettings()), Detector(own, DetectorSettings())

    one.watch(sorted(uids), 0.0)
    other.watch(others, 0.0)

    assert one.monitored == other.monitored


def test_the_ring_is_the_same_in_all_versions() -> None:
    """Nodes of several versions, on any machine, agree on who monitors whom."""
    detector = Detector(OWN, DetectorSettings(ring=5))

    detector.watch([*range(1, 12), 2**64 - 1], 0.0)

    assert detector.monitored == (6, 2, 4, 5, 9)


@pytest.mark.parametrize("tick_s", [0.05, 0.25, 0.33, 1.0, 1.01])
def test_a_peer_gets_one_heartbeat_in_an_interval(tick_s: float) -> None:
    """Heartbeats keep their rate for any rate of ticks, also where a heartbeat is due just after a tick."""
    run = cluster_of(3)

    for _ in range(int(100 / tick_s)):
        run.now += tick_s
        run.tick()

    times_s = [time_s for time_s, beat in run.of(Beat) if beat.to == 2]
    assert len(times_s) == pytest.approx(100, abs=2)
    assert max(later - earlier for earlier, later in pairwise(times_s)) < 1.4


def test_peers_that_answer_are_left_alone() -> None:
    """Nobody is asked about or marked while all answer."""
    run = cluster_of(20).until(120)

    assert run.verdicts == []


def test_of_two_nodes_a_silent_one_is_marked_without_questions() -> None:
    """Where nobody can be asked, a peer is marked as soon as phi reaches the threshold, once."""
    run = cluster_of(2).until(60)
    run.silent = {2}

    run.until(90)

    last_s = run.of(Beat)[-1][0]
    assert last_s == pytest.approx(90, abs=1)
    assert run.of(Ask) == []
    [(time_s, mark)] = run.of(Marked)
    assert mark == Marked(2, reachable=False)
    assert 63.2 < time_s < 64.1


def test_a_peer_that_never_answers_is_marked() -> None:
    """Monitoring begins with an estimate, so a peer that was dead from the start is marked too."""
    run = cluster_of(2)
    run.silent = {2}

    run.until(10)

    [(time_s, mark)] = run.of(Marked)
    assert mark == Marked(2, reachable=False)
    assert 4.4 < time_s < 4.9


def test_three_other_monitors_are_asked_about_a_suspect() -> None:
    """Witnesses are other nodes that monitor the suspect themselves."""
    run = cluster_of(30).until(20)
    suspect = run.detector.monitored[0]
    run.silent = {suspect}
    monitors = {uid for uid, whom in monitored_by(range(1, 31)).items() if suspect in whom}

    run.until_asked()

    asked = {ask.witness for _, ask in run.of(Ask)}
    assert {ask.about for _, ask in run.of(Ask)} == {suspect}
    assert len(asked) == 3
    assert asked < monitors - {OWN}
    assert run.of(Marked) == []


def suspecting(size: int = 12, **settings: Any) -> tuple[Run, int, list[int]]:
    """Return a run that has just asked about a suspect, the suspect, and the witnesses."""
    run = cluster_of(size, **settings).until(20)
    suspect = run.detector.monitored[0]
    run.silent = {suspect}
    run.until_asked()
    return run, suspect, [ask.witness for _, ask in run.of(Ask)]


def test_a_suspect_is_marked_when_no_witness_answers() -> None:
    """Witnesses have the time of the pause; after it the suspect is marked."""
    run, suspect, _ = suspecting()
    asked_s = run.now

    run.until(asked_s + 10)

    assert run.of(Marked) == [(asked_s + 2, Marked(suspect, False))]
    assert len(run.of(Ask)) == 3


def test_a_suspect_is_marked_at_once_when_all_witnesses_deny() -> None:
    """When every witness has answered that it hears nothing either, nothing is left to wait for."""
    run, suspect, witnesses = suspecting()

    for witness in witnesses[:2]:
        run.detector.witnessed(suspect, witness, False, run.now)
    run.until(run.now + TICK_S)
    early = run.of(Marked)
    run.detector.witnessed(suspect, witnesses[2], False, run.now)
    run.until(run.now + TICK_S)

    assert early == []
    assert run.of(Marked) == [(run.now, Marked(suspect, False))]


def test_a_witness_that_says_alive_holds_the_mark_and_is_asked_again() -> None:
    """One witness is enough; after a heartbeat interval others are asked, and these may deny."""
    run, suspect, witnesses = suspecting()
    asked_s = run.now

    run.detector.witnessed(suspect, witnesses[0], False, run.now)
    run.detector.witnessed(suspect, witnesses[1], True, run.now)
    run.detector.witnessed(suspect, witnesses[2], False, run.now)
    run.until(asked_s + 1)

    again = [ask.witness for time_s, ask in run.of(Ask) if time_s == asked_s + 1]
    assert run.of(Marked) == []
    assert len(again) == 3
    assert not set(again) & set(witnesses)
    assert len(run.of(Ask)) == 6

    run.until(asked_s + 20)

    assert run.of(Marked) == [(asked_s + 3, Marked(suspect, False))]


def test_a_suspect_that_witnesses_hear_is_never_marked() -> None:
    """As long as somebody answers alive, a path that is bad from here alone marks nobody."""
    run, suspect, _ = suspecting()

    for _ in range(400):
        run.until(run.now + TICK_S)
        run.detector.witnessed(suspect, run.of(Ask)[-1][1].witness, True, run.now)

    assert run.of(Marked) == []
    assert len(run.of(Ask)) == pytest.approx(3 * 100, abs=9)


def test_a_stranger_is_no_witness() -> None:
    """The answer of a node that was not asked, or about a node that is no suspect, changes nothing."""
    run, suspect, witnesses = suspecting()
    stranger = next(uid for uid in range(2, 13) if uid not in {*witnesses, suspect})
    asked_s = run.now

    run.detector.witnessed(suspect, stranger, True, run.now)
    run.detector.witnessed(stranger, witnesses[0], True, run.now)
    run.detector.witnessed(99, witnesses[0], True, run.now)
    run.until(asked_s + 3)

    assert run.of(Marked) == [(asked_s + 2, Marked(suspect, False))]


def test_a_suspect_that_answers_itself_is_suspect_no_more() -> None:
    """An answer ends the question."""
    run, suspect, witnesses = suspecting()

    run.silent.clear()
    run.until(run.now + 1)
    for witness in witnesses:
        run.detector.witnessed(suspect, witness, False, run.now)
    run.until(run.now + 20)

    assert run.of(Marked) == []
    assert len(run.of(Ask)) == 3


def test_a_suspect_that_falls_silent_again_is_asked_about_again() -> None:
    """Answers of witnesses count for the suspicion that they were asked about, not for the next one."""
    run, suspect, witnesses = suspecting()
    for witness in witnesses:
        run.detector.witnessed(suspect, witness, False, run.now)
    run.detector.heard(suspect, run.now)

    run.until_asked(4)
    run.until(run.now + 1)

    assert run.of(Marked) == []
    assert len(run.of(Ask)) == 6


def test_without_witnesses_a_suspect_is_marked_at_once() -> None:
    """The setting 0 asks nobody."""
    run = cluster_of(12, witnesses=0).until(20)
    run.silent = {run.detector.monitored[0]}

    run.until(30)

    assert run.of(Ask) == []
    assert len(run.of(Marked)) == 1


def test_silent_members_are_asked_last() -> None:
    """In a split the nodes of this side are asked, as the others can't answer."""
    run = cluster_of(8).until(20)
    run.silent = {2, 3, 4, 5}

    run.until(24)

    assert {ask.about for _, ask in run.of(Ask)} == {2, 3, 4, 5}
    assert {ask.witness for _, ask in run.of(Ask)} == {6, 7, 8}


def test_a_marked_peer_that_answers_is_marked_reachable() -> None:
    """Heartbeats to a marked peer go on, and its first answer ends the mark, once."""
    run = cluster_of(2).until(20)
    run.silent = {2}
    run.until(40)

    run.silent.clear()
    run.until(60)

    assert [mark for _, mark in run.of(Marked)] == [Marked(2, False), Marked(2, True)]
    assert 40 < run.of(Marked)[1][0] < 41.5


def test_a_failure_does_not_delay_the_next_detection() -> None:
    """The long silence of a failure does not enter the statistics."""
    run = cluster_of(2).until(60)
    delays_s = []
    for _ in range(2):
        begin_s = run.now
        run.silent = {2}
        run.until(begin_s + 30)
        delays_s.append(next(time_s - begin_s for time_s, mark in run.of(Marked) if time_s > begin_s))
        run.silent.clear()
        run.until(begin_s + 60)

    assert delays_s[1] == pytest.approx(delays_s[0], abs=TICK_S)


@pytest.mark.parametrize("stall_s", [1.3, 5.0, 3600.0])
def test_a_node_that_has_stalled_marks_nobody(stall_s: float) -> None:
    """After a stall nothing is decided for two heartbeat intervals, in which the healthy peers answer."""
    run = cluster_of(20).until(20).stall(stall_s)

    run.tick()
    run.until(run.now + 60)

    assert run.verdicts == []


def test_a_late_first_tick_is_a_stall_too() -> None:
    """A node that begins to tick long after it was given its members marks none of them unasked."""
    run = cluster_of(20).stall(10)

    run.tick()
    run.until(60)

    assert run.verdicts == []


def test_heartbeats_that_a_stall_left_out_are_not_made_up_for() -> None:
    """After a stall a peer gets one heartbeat at once, and then one in an interval."""
    run = cluster_of(2).until(20).stall(30)
    resumed_s = run.now

    run.tick()
    run.until(resumed_s + 4)

    times_s = [time_s for time_s, _ in run.of(Beat) if time_s >= resumed_s]
    assert times_s[0] == resumed_s
    assert len(times_s) == 5


def test_after_a_stall_a_dead_peer_is_marked_two_intervals_later() -> None:
    """The wait after a stall is no longer than two heartbeat intervals."""
    run = cluster_of(2).until(20).stall(10)
    run.silent = {2}

    run.tick()
    resumed_s = run.now
    run.until(resumed_s + 5)

    assert run.of(Marked) == [(resumed_s + 2, Marked(2, False))]


@pytest.mark.parametrize("is_heard_first", [True, False])
def test_the_interval_across_a_stall_is_not_counted(is_heard_first: bool) -> None:
    """Statistics after a stall are those from before, whether its first event is a tick or an answer."""
    run = cluster_of(2).until(20.25)
    run.detector.heard(2, run.now)
    before = run.detector.phi(2, run.now + 3.2)
    run.stall(2.5)

    if is_heard_first:
        run.detector.heard(2, run.now)
    run.detector.tick(run.now)
    run.detector.heard(2, run.now)

    assert run.detector.phi(2, run.now + 3.2) == pytest.approx(before, rel=1e-9)


def test_a_stall_ends_open_questions() -> None:
    """What witnesses answered before a stall, or during it, says nothing about the present."""
    run, suspect, witnesses = suspecting()
    run.stall(6)

    for witness in witnesses:
        run.detector.witnessed(suspect, witness, False, run.now)
    run.tick()
    resumed_s = run.now
    run.until(resumed_s + 2)

    assert run.of(Marked) == []
    assert [time_s for time_s, _ in run.of(Ask)][3:] == [resumed_s + 2] * 3


def test_slow_ticks_are_no_stall() -> None:
    """A loop that ticks once in a heartbeat interval still detects."""
    run = cluster_of(2)
    for second in range(1, 40):
        run.now = float(second)
        run.silent = {2} if second > 20 else set()
        run.tick()

    assert [mark for _, mark in run.of(Marked)] == [Marked(2, False)]


def test_a_witness_calls_alive_whom_it_has_heard_recently() -> None:
    """A witness trusts an answer for a heartbeat interval and half the pause."""
    run = cluster_of(2).until(20)
    run.detector.heard(2, run.now)

    answers = []
    for _ in range(10):
        run.now += TICK_S
        run.detector.tick(run.now)
        answers.append(run.detector.is_alive(2, run.now))

    assert answers == [True] * 8 + [False] * 2


def test_a_witness_that_can_not_know_says_so() -> None:
    """A witness knows nothing of a stranger, of a peer that has not answered yet, or after a stall of its own."""
    run = cluster_of(30)
    peer = run.detector.monitored[0]
    stranger = next(uid for uid in range(2, 31) if uid not in run.detector.monitored)

    before = run.detector.is_alive(peer, 0.0)
    run.until(20)
    known = run.detector.is_alive(peer, run.now)
    run.stall(1.3)
    stalled = run.detector.is_alive(peer, run.now)
    run.tick()
    resumed = run.detector.is_alive(peer, run.now)
    run.until(run.now + 2)

    assert (before, known, stalled, resumed) == (None, True, None, None)
    assert run.detector.is_alive(peer, run.now) is True
    assert run.detector.is_alive(stranger, run.now) is None
    assert run.detector.phi(stranger, run.now) == 0


def test_monitoring_goes_on_behind_marked_successors() -> None:
    """When all nine successors are marked, the next ones are monitored: a split has no blind spot."""
    run = cluster_of(40).until(10)
    first = run.detector.monitored
    run.silent = set(range(2, 41))

    run.until(200)

    assert len(first) == 9
    assert run.detector.monitored[:9] == first
    assert set(run.detector.monitored) == set(range(2, 41))
    assert {mark.uid for _, mark in run.of(Marked)} == set(range(2, 41))


def test_monitoring_shrinks_when_successors_are_back() -> None:
    """Peers behind the ninth are left to others when the marked ones answer again."""
    run = cluster_of(40).until(10)
    first = run.detector.monitored
    run.silent = set(first[:3])
    run.until(30)
    during = run.detector.monitored

    run.silent.clear()
    run.until(40)

    assert during[:9] == first
    assert len(during) == 12
    assert run.detector.monitored == first


def test_a_marked_peer_stays_monitored_when_others_join() -> None:
    """Whoever marked a peer watches for its return, also when it is no successor any more."""
    run = cluster_of(11).until(10)
    last = run.detector.monitored[-1]
    run.silent = {last}
    run.until(30)

    run.detector.watch(range(1, 200), run.now)
    during = run.detector.monitored
    run.silent.clear()
    run.until(40)

    assert during[-1] == last
    assert len(during) == 10
    assert [mark for _, mark in run.of(Marked)] == [Marked(last, False), Marked(last, True)]
    assert last not in run.detector.monitored


def test_a_member_that_is_not_watched_any_more_is_forgotten() -> None:
    """A member that is gone gets no heartbeats, and one that comes again begins anew."""
    run = cluster_of(2).until(10)
    run.silent = {2}
    run.until(30)

    run.detector.watch([], run.now)
    forgotten = run.detector.monitored
    run.detector.heard(2, run.now)
    run.detector.watch([2], run.now)
    run.silent.clear()
    run.until(60)

    assert forgotten == ()
    assert run.detector.monitored == (2,)
    assert [mark for _, mark in run.of(Marked)] == [Marked(2, False)]


def test_watching_the_same_members_changes_nothing() -> None:
    """A view that comes again does not restart the statistics."""
    run = cluster_of(2).until(10)
    run.silent = {2}

    while run.now < 20:
        run.until(run.now + TICK_S)
        run.detector.watch([2, OWN], run.now)

    assert [mark for _, mark in run.of(Marked)] == [Marked(2, False)]


@pytest.mark.parametrize(
    ("name", "value"),
    [("heartbeat_s", 0), ("pause_s", -1), ("threshold", 0), ("threshold", 300), ("ring", 0), ("witnesses", -1)],
)
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    """The error names the setting."""
    with pytest.raises(ValueError, match=name):
        DetectorSettings(**{name: value})  # type: ignore[arg-type]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.sampled_from([0.1, 0.25, 1.0, 1.3, 4.0])),
        st.tuples(st.just("quiet"), st.integers(4, 40)),
        st.tuples(st.just("heard"), st.integers(1, 9)),
        st.tuples(st.just("watch"), st.sets(st.integers(1, 9))),
        st.tuples(st.just("witnessed"), st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans())),
    ),
    max_size=60,
)


@given(STEPS)
def test_marks_alternate_and_effects_concern_members(steps: list[tuple[str, Any]]) -> None:
    """Whatever happens: marks alternate, nothing is decided after a stall, and effects concern watched members."""
    settings = DetectorSettings(ring=3)
    detector = Detector(OWN, settings)
    now = ticked_s = quiet_until_s = 0.0
    watched: set[int] = set()
    marked: set[int] = set()
    detector.watch(watched, now)
    for step, argument in steps:
        gaps_s = {"tick": [argument], "quiet": [TICK_S] * argument if step == "quiet" else []}.get(step, [])
        for gap_s in gaps_s:
            now += gap_s
            if now - ticked_s > settings.stall_s:
                quiet_until_s = now + settings.quiet_s
            ticked_s = now
            for effect in detector.tick(now):
                match effect:
                    case Beat(to):
                        assert to in watched
                    case Ask(witness, about):
                        assert {witness, about} <= watched
                        assert witness != about
                        assert about not in marked
                        assert now >= quiet_until_s
                    case Marked(uid, reachable):
                        assert uid in watched
                        assert reachable == (uid in marked)
                        marked ^= {uid}
                        assert now >= quiet_until_s
        if step == "heard":
            detector.heard(argument, now)
        elif step == "watch":
            watched = argument - {OWN}
            marked &= watched
            detector.watch(argument, now)
        elif step == "witnessed":
            about, by, is_alive = argument
            detector.witnessed(about, by, is_alive, now)

    assert set(detector.monitored) <= watched
    assert set(detector.monitored) >= marked
    assert len(set(detector.monitored) - marked) == min(3, len(watched - marked))
