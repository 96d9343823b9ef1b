"""The contract of the arbiter that decides splits of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from time import monotonic
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.cluster_arbiter import MAX_TERM, ClusterArbiter
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.contract import Contract, many
from kinmqtt_spi.testing.driving import LIMIT_S, Driver

THIS: Final = 0xB0B
THAT: Final = 0xC0C
"""Two sides of a split."""
LAST_SIDE: Final = (1 << 64) - 1
A, B, C = "10.0.0.1:4883", "[fd00::1]:4883", "unix:/run/c"
"""Addresses of members."""
SHORT_S: Final = 0.01
LONG_S: Final = 600.0
"""How long notes last."""

AT_ONCE: Final = 7
"""How many sides ask at once."""


class ClusterArbiterContract(Contract):
    """Override the fixture ``cluster_arbiter``: an arbiter that has decided nothing, as one node uses it.

    Where each node has an object of its own, override :meth:`peer` too.
    """

    can_fail = False
    """Whether the suite may make the store fail for all nodes: override :meth:`failing`."""
    survives_restart = False
    """Whether the arbiter is in a store that outlives the processes of nodes: override :meth:`reopened`."""

    @pytest.fixture
    def cluster_arbiter(self) -> ClusterArbiter:
        """The arbiter under test."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture cluster_arbiter")

    def peer(self, cluster_arbiter: ClusterArbiter) -> ClusterArbiter:
        """The same arbiter as another node uses it. The default is for nodes that use one object."""
        return cluster_arbiter

    def failing(self, cluster_arbiter: ClusterArbiter) -> Callable[[], object]:
        """Make the store fail from now on; return a call that repairs it."""
        raise NotImplementedError(f"{type(self).__name__} sets can_fail, and does not override failing")

    def reopened(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> ClusterArbiter:
        """End the node's process, and open the arbiter again in another one."""
        raise NotImplementedError(f"{type(self).__name__} sets survives_restart, and does not override reopened")

    # One term

    @behaviour("ARBITER-01")
    def test_arbiter_01_it_begins_at_0(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """Before the first decision ``term`` returns 0."""
        assert drive(cluster_arbiter.term()) == 0

    @behaviour("ARBITER-02")
    def test_arbiter_02_the_first_has_it(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """The first side that asks for a term has it: ``decide`` returns ``True``, ``term`` the term."""
        answer = drive(cluster_arbiter.decide(1, THIS))

        assert answer is True
        assert drive(self.peer(cluster_arbiter).term()) == drive(cluster_arbiter.term()) == 1

    @behaviour("ARBITER-03")
    def test_arbiter_03_the_other_is_refused(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """Another side does not get a term that a side has, however often it asks, and the first one keeps it."""
        peer = self.peer(cluster_arbiter)
        drive(cluster_arbiter.decide(1, THIS))

        refused = [drive(peer.decide(1, THAT)) for _ in range(2)]
        kept = drive(cluster_arbiter.decide(1, THIS))

        assert (refused, kept) == ([False, False], True)
        assert drive(peer.decide(1, THAT)) is False

    @behaviour("ARBITER-04")
    def test_arbiter_04_a_side_asks_again(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """A side that has a term has it whenever it asks again, by any of its members, and no new term is decided."""
        drive(cluster_arbiter.decide(1, THIS))

        views = (self.peer(cluster_arbiter), cluster_arbiter, self.peer(cluster_arbiter))
        answers = [drive(view.decide(1, THIS)) for view in views]

        assert answers == [True, True, True]
        assert drive(cluster_arbiter.term()) == 1

    @behaviour("ARBITER-05")
    def test_arbiter_05_one_of_many_has_it(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """Of sides that ask for a term at the same moment one has it, and the same one later."""
        views = (cluster_arbiter, self.peer(cluster_arbiter))
        sides = range(1, AT_ONCE + 1)

        answers = drive.together(views[side % 2].decide(1, side) for side in sides)
        later = [drive(views[side % 2].decide(1, side)) for side in sides]

        assert sorted(answers) == [False] * (AT_ONCE - 1) + [True]
        assert later == answers

    # Later and earlier terms

    @behaviour("ARBITER-06")
    def test_arbiter_06_a_later_term_is_free(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """Any side may have a later term, who had the last one or not; terms may be left out."""
        peer = self.peer(cluster_arbiter)
        drive(cluster_arbiter.decide(1, THIS))

        answers = [drive(peer.decide(2, THAT)), drive(peer.decide(3, THAT)), drive(cluster_arbiter.decide(7, THIS))]

        assert answers == [True, True, True]
        assert drive(peer.decide(7, THAT)) is False
        assert drive(peer.term()) == 7

    @behaviour("ARBITER-07")
    def test_arbiter_07_an_earlier_term_is_over(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """Nobody gets an earlier term, even who had it, or where nobody had it; the last decision stays."""
        peer = self.peer(cluster_arbiter)
        drive(cluster_arbiter.decide(1, THIS))
        drive(peer.decide(9, THAT))

        answers = [drive(view.decide(term, side)) for term in (1, 8) for view, side in _both(cluster_arbiter, peer)]

        assert answers == [False] * 4
        assert drive(cluster_arbiter.term()) == 9
        assert drive(peer.decide(9, THAT)) is True

    # Numbers

    @behaviour("ARBITER-08")
    def test_arbiter_08_large_numbers_are_exact(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """Sides of 64 bits, and terms up to 2**53-1, are told apart from their neighbours."""
        first = drive(cluster_arbiter.decide(1, 0))
        beside_zero = drive(cluster_arbiter.decide(1, 1))
        high = [drive(cluster_arbiter.decide(MAX_TERM - 1, side)) for side in (LAST_SIDE, LAST_SIDE - 1)]
        before_last = drive(cluster_arbiter.term())
        highest = [drive(cluster_arbiter.decide(MAX_TERM, side)) for side in (LAST_SIDE - 1, LAST_SIDE)]

        assert (first, beside_zero, high, highest) == (True, False, [True, False], [True, False])
        assert (before_last, drive(cluster_arbiter.term())) == (MAX_TERM - 1, MAX_TERM)

    @behaviour("ARBITER-09")
    def test_arbiter_09_numbers_must_be_possible(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """A term below 1 or above 2**53-1, or a side outside 64 bits, raises ValueError, and decides nothing."""
        for term, side in ((0, THIS), (-1, THIS), (MAX_TERM + 1, THIS), (1, -1), (1, LAST_SIDE + 1)):
            with pytest.raises(ValueError):
                drive(cluster_arbiter.decide(term, side))

        assert drive(cluster_arbiter.term()) == 0

    # Where members are

    @behaviour("ARBITER-13")
    def test_arbiter_13_all_know_the_members(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """``members`` returns each address that is noted once, for all nodes; it begins empty."""
        views = (cluster_arbiter, self.peer(cluster_arbiter))
        before = [list(drive(view.members())) for view in views]

        noted = [drive(views[at].note_member(address, LONG_S)) for at, address in ((0, A), (1, B), (0, A), (1, A))]

        assert (before, noted) == ([[], []], [True] * 4)
        assert [sorted(drive(view.members())) for view in views] == [[A, B]] * 2

    @behaviour("ARBITER-14")
    def test_arbiter_14_a_member_is_forgotten(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """``forget_member`` removes the note about one address, whoever made it; without a note it does nothing."""
        peer = self.peer(cluster_arbiter)
        for address in (A, B):
            drive(cluster_arbiter.note_member(address, LONG_S))

        answers = [drive(peer.forget_member(A)) for _ in range(2)]

        assert answers == [None, None]
        assert list(drive(cluster_arbiter.members())) == list(drive(peer.members())) == [B]

    @behaviour("ARBITER-15")
    def test_arbiter_15_a_note_ends(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """A note ends after ``limit_s``, from when it was made last, and then stands in nobody's way."""
        drive(cluster_arbiter.note_member(A, LONG_S))
        drive(cluster_arbiter.note_member(A, SHORT_S))
        drive(cluster_arbiter.note_member(B, SHORT_S))
        drive(cluster_arbiter.note_member(B, LONG_S))

        until = monotonic() + LIMIT_S
        while A in drive(cluster_arbiter.members()):
            assert monotonic() < until, "the note does not end"

        assert list(drive(self.peer(cluster_arbiter).members())) == [B]
        drive(cluster_arbiter.forget_member(B))
        assert drive(cluster_arbiter.note_member(C, LONG_S, only_first=True)) is True

    @behaviour("ARBITER-16")
    def test_arbiter_16_one_is_the_first(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """With ``only_first`` an address is noted only if no other is; of several at once one is, and again."""
        views = (cluster_arbiter, self.peer(cluster_arbiter))
        addresses = [f"h{number}:1" for number in range(AT_ONCE)]

        def ask() -> list[bool]:
            asked = (views[at % 2].note_member(each, LONG_S, only_first=True) for at, each in enumerate(addresses))
            return drive.together(asked)

        answers = ask()
        first = addresses[answers.index(True)]

        assert sorted(answers) == [False] * (AT_ONCE - 1) + [True]
        assert list(drive(cluster_arbiter.members())) == [first]
        assert ask() == answers
        drive(views[1].note_member(A, LONG_S))
        assert drive(views[0].note_member(first, LONG_S, only_first=True)) is False

    @behaviour("ARBITER-17")
    def test_arbiter_17_notes_must_be_possible(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """An address of 0 or more than 512 characters, or a time outside 0.001 to 3600 s, raises ValueError."""
        for address, limit_s in (("", LONG_S), ("x" * 513, LONG_S), (A, 0.0), (A, -1.0), (A, 3601.0), (A, nan)):
            with pytest.raises(ValueError):
                drive(cluster_arbiter.note_member(address, limit_s))

        assert list(drive(cluster_arbiter.members())) == []
        assert drive(cluster_arbiter.note_member("ä" * 512, 3600.0)) is True
        assert list(drive(self.peer(cluster_arbiter).members())) == ["ä" * 512]

    # Failures and restarts

    @behaviour("ARBITER-10", needs="can_fail")
    def test_arbiter_10_a_failure_is_no_answer(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """While the store fails all calls raise ServiceUnavailable, for who has the term too.

        When it is back, its decision is as before.
        """
        peer = self.peer(cluster_arbiter)
        drive(cluster_arbiter.decide(1, THIS))
        mend = self.failing(cluster_arbiter)

        for view, side in _both(cluster_arbiter, peer):
            with pytest.raises(ServiceUnavailable):
                drive(view.decide(1, side))
        for call in (
            cluster_arbiter.term,
            cluster_arbiter.members,
            lambda: cluster_arbiter.note_member(A, LONG_S),
            lambda: cluster_arbiter.forget_member(A),
        ):
            with pytest.raises(ServiceUnavailable):
                drive(call())
        mend()

        assert drive(peer.decide(1, THAT)) is False
        assert drive(cluster_arbiter.decide(1, THIS)) is True
        assert drive(cluster_arbiter.term()) == 1

    @behaviour("ARBITER-11", needs="survives_restart")
    def test_arbiter_11_it_outlives_processes(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """When the process that asked has ended, its side has the term still, and others are refused."""
        drive(cluster_arbiter.decide(3, THIS))
        again = self.reopened(cluster_arbiter, drive)

        answers = [drive(again.decide(3, THAT)), drive(again.decide(2, THAT)), drive(again.decide(3, THIS))]

        assert answers == [False, False, True]
        assert drive(again.term()) == 3

    # At random

    @behaviour("ARBITER-12")
    def test_arbiter_12_one_side_for_each_term(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> None:
        """With random calls of several sides, each answer is that of one register whose term only rises."""
        views = (cluster_arbiter, self.peer(cluster_arbiter))

        @settings(
            max_examples=50, database=None, suppress_health_check=list(HealthCheck), print_blob=False, deadline=None
        )
        @given(many(st.tuples(st.integers(0, 1), st.integers(-1, 2), st.integers(1, 3))))
        def run(steps: list[tuple[int, int, int]]) -> None:
            term = drive(cluster_arbiter.term()) + 1
            decided = (term, 1)
            drive(cluster_arbiter.decide(*decided))
            for view, ahead, side in steps:
                asked = (max(decided[0] + ahead, 1), side)
                if asked[0] > decided[0]:
                    decided = asked
                assert drive(views[view].decide(*asked)) is (asked == decided)
                assert drive(views[1 - view].term()) == decided[0]

        run()


def _both(here: ClusterArbiter, there: ClusterArbiter) -> tuple[tuple[ClusterArbiter, int], ...]:
    """The arbiter as a member of each side uses it, with the side."""
    return ((here, THIS), (there, THAT))
