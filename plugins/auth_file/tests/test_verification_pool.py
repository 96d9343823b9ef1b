"""The line for the threads: how many at once, in whose turn, and who is turned away; without threads or time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred

from kinmqtt_auth_file.backoff import FREE_FAILURES
from kinmqtt_auth_file.hashes import Kind, PasswordHash
from kinmqtt_auth_file.verification_pool import MAX_WAIT_S, TooBusy, VerificationPool
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock

RIGHT, WRONG = b"right", b"wrong"


@frozen(slots=True)
class Plain(PasswordHash):
    """A hash that is the password itself."""

    password: bytes = RIGHT

    kind = Kind.SHA512

    def verify(self, password: bytes) -> bool:
        return password == self.password

    def dummy(self) -> Plain:
        return evolve(self, password=b"")

    @property
    def cost(self) -> tuple[object, ...]:
        return ()


class Threads(BareContext):
    """A context whose threads do nothing until they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def in_thread(self, call: Callable[[], Any]) -> Awaitable[Any]:
        """Remember the call."""
        answer: Deferred[Any] = Deferred()
        self.calls.append((call, answer))
        return answer

    def finish(self, error: Exception | None = None) -> None:
        """Let the oldest call come to its end."""
        call, answer = self.calls.pop(0)
        if error is None:
            answer.callback(call())
        else:
            answer.errback(error)


class Bench:
    """A line, and how those who stood in it fared, in the order of their ends."""

    def __init__(self, at_once: int = 1, waiting: int = 100, pause_s: float = 2.0) -> None:
        self.context = Threads()
        self.clock: TurnableClock = self.context.clock
        self.line = VerificationPool(self.context, at_once, waiting, pause_s)
        self.ends: list[tuple[str, object]] = []

    def ask(self, address: str, password: bytes = RIGHT) -> Deferred[Any]:
        """Ask from an address; how that ends is written down."""
        try:
            asked: Deferred[Any] = self.line.verify(Plain(), password, address)
        except TooBusy:
            asked = Deferred()
            asked.callback("busy")
        asked.addErrback(lambda failure: "busy" if failure.check(TooBusy) else failure.type)
        return asked.addCallback(lambda end: self.ends.append((address, end)))

    def finish(self, jobs: int = 1) -> None:
        """Let so many threads come to their ends, one after the other."""
        for _ in range(jobs):
            self.context.finish()

    def fail(self, address: str, times: int) -> None:
        """So many wrong passwords come from an address, each when it may."""
        for _ in range(times):
            self.ask(address, WRONG)
            self.clock.advance(2.0)
            self.finish()
        self.clock.advance(2.0)
        self.ends.clear()

    def count(self, name: str) -> int:
        """A counter."""
        return self.context.metrics.counter(name, "clients").value


# How many, and in whose turn


def test_so_many_at_once_and_the_others_wait() -> None:
    """In the order in which they came, where all come from one address."""
    bench = Bench(at_once=2)
    for _ in range(4):
        bench.ask("a")

    assert (len(bench.context.calls), len(bench.line)) == (2, 2)
    bench.finish(4)

    assert bench.ends == [("a", True)] * 4
    assert len(bench.line) == 0


def test_addresses_have_their_turns_one_after_the_other() -> None:
    """Who comes last from an address of their own is next, and not behind a flood."""
    bench = Bench()
    for _ in range(10):
        bench.ask("flood")
    bench.ask("bystander")

    bench.finish(3)

    assert [address for address, _ in bench.ends] == ["flood", "flood", "bystander"] or bench.ends[1][
        0
    ] == "bystander"


@pytest.mark.parametrize("attackers", [5, 40])
def test_a_bystander_logs_in_whatever_attackers_do(attackers: int) -> None:
    """Each of theirs fills its share at once, and asks again as soon as it is answered: two turns at the most."""
    bench = Bench(at_once=2, waiting=200)
    flood = [f"198.51.100.{number}" for number in range(attackers)]
    for address in flood * 60:
        bench.ask(address, WRONG)
    for _ in range(attackers * FREE_FAILURES):
        if bench.context.calls:
            bench.finish()
        bench.clock.advance(0.01)
        for address in flood:
            bench.ask(address, WRONG)
    bench.ends.clear()

    asked = bench.ask("192.0.2.1")
    turns = 0
    while not asked.called:
        bench.finish()
        turns += 1
        for address in flood * 3:
            bench.ask(address, WRONG)

    assert ("192.0.2.1", True) in bench.ends
    assert turns <= 2 + 2  # Those that run, and as many that may have theirs before.


def test_one_addresss_wrong_passwords_are_verified_one_by_one() -> None:
    """However many threads there are: the pause after one would mean nothing to those beside it."""
    bench = Bench(at_once=4)
    bench.fail("bad", 1)

    for _ in range(4):
        bench.ask("bad", WRONG)
        bench.ask("good")

    assert len(bench.context.calls) == 4
    bench.finish(3)
    assert [address for address, _ in bench.ends].count("bad") <= 1


# Pauses


def test_wrong_passwords_make_an_address_wait() -> None:
    """Longer after each, while the threads are free; a right one heals."""
    bench = Bench(at_once=2)
    bench.fail("bad", FREE_FAILURES + 1)

    bench.ask("bad", WRONG)
    bench.finish()
    bench.ask("bad")
    seen = [len(bench.context.calls)]
    for _ in range(2):
        bench.clock.advance(0.25)
        seen.append(len(bench.context.calls))
    bench.finish()
    bench.ask("bad", WRONG)
    seen.append(len(bench.context.calls))

    assert seen == [0, 0, 1, 1]
    assert bench.ends == [("bad", False), ("bad", True)]


def test_a_known_right_password_heals_too() -> None:
    """It was not verified again, and shows as well that somebody else is there."""
    bench = Bench()
    bench.fail("bad", 20)
    bench.ask("bad", WRONG)
    bench.finish()
    bench.ask("bad", WRONG)
    before = len(bench.context.calls)

    bench.line.succeeded("bad")

    assert (before, len(bench.context.calls)) == (0, 1)


def test_a_wrong_password_counts_though_its_client_has_gone() -> None:
    """Or whoever goes as soon as a thread is at work would never have failed."""
    bench = Bench()
    for _ in range(FREE_FAILURES + 1):
        asked = bench.ask("bad", WRONG)
        asked.cancel()
        bench.finish()

    bench.ask("bad", WRONG)

    assert (len(bench.context.calls), len(bench.line)) == (0, 1)


def test_a_thread_that_fails_says_nothing_of_the_password() -> None:
    """The error is the answer, the next has its turn, and the address has not failed."""
    bench = Bench()
    bench.ask("a")
    bench.ask("b")

    bench.context.finish(MemoryError())
    bench.finish()

    assert bench.ends == [("a", MemoryError), ("b", True)]
    assert len(bench.line._backoff) == 0


def test_the_addresses_of_one_site_fail_together() -> None:
    """Of IPv6 the first half counts: there are more second halves than passwords."""
    bench = Bench()
    for number in range(FREE_FAILURES + 1):
        bench.ask(f"2001:db8::{number:x}", WRONG)
        bench.finish()

    bench.ask("2001:db8::ffff", WRONG)

    assert len(bench.context.calls) == 0


def test_no_pause_where_that_is_asked_for() -> None:
    """With 0; a reload changes it for those who wait."""
    bench = Bench(pause_s=0.0)
    bench.fail("bad", 20)
    bench.ask("bad", WRONG)
    without = len(bench.context.calls)
    bench.finish()
    bench.line.resize(1, 100, 2.0)
    bench.ask("bad", WRONG)
    pausing = len(bench.context.calls)

    bench.line.resize(1, 100, 0.0)

    assert (without, pausing, len(bench.context.calls)) == (1, 0, 1)


# Who is turned away


def test_one_address_fills_a_quarter_of_the_places() -> None:
    """The next from there is refused, and the log says so; others have the rest."""
    bench = Bench(waiting=8)
    for _ in range(4):
        bench.ask("flood")
    for number in range(6):
        bench.ask(f"address {number}")

    assert bench.ends == [("flood", "busy")]
    assert bench.context.log.texts("warn") == [
        "logins are refused because the server is busy: 2 of at most 8 wait for a thread, 2 of them from flood"
    ]


def test_an_address_that_has_less_takes_the_place_of_one_that_has_more() -> None:
    """Where all places are taken; where each has one nobody gives way."""
    bench = Bench(waiting=4)
    bench.ask("runs")
    bench.line.resize(1, 4 * 3, 2.0)
    for _ in range(3):
        bench.ask("flood")
    bench.line.resize(1, 4, 2.0)
    bench.ask("a")

    bench.ask("b")
    bench.ask("c")
    bench.ask("d")

    assert bench.ends == [("flood", "busy"), ("flood", "busy"), ("d", "busy")]
    bench.finish(5)
    assert [address for address, end in bench.ends[3:] if end is True] == ["runs", "flood", "a", "b", "c"]


def test_who_pauses_gives_way_to_who_never_failed() -> None:
    """Its job is one that costs time, and the other's may be a login."""
    bench = Bench(waiting=4)
    for number in range(4):
        bench.fail(f"bad {number}", FREE_FAILURES + 5)
    for number in range(4):
        bench.ask(f"bad {number}", WRONG)
        bench.finish()
    for number in range(4):
        bench.ask(f"bad {number}", WRONG)
    bench.ends.clear()

    for number in range(6):
        bench.ask(f"good {number}")

    assert sorted(bench.ends) == [*((f"bad {number}", "busy") for number in range(4)), ("good 5", "busy")]


def test_nobody_waits_longer_than_the_broker_would() -> None:
    """The client is told that the server is busy before its plugin would count as hanging."""
    bench = Bench()
    bench.ask("runs")
    bench.ask("waits")

    bench.clock.advance(MAX_WAIT_S)

    assert bench.ends == [("waits", "busy")]
    bench.finish()
    assert bench.ends[1:] == [("runs", True)]
    assert bench.clock.pending() == 0


def test_who_would_wait_too_long_is_refused_at_once() -> None:
    """With a pause of two seconds an address has four of its own before it, and no more."""
    bench = Bench()
    bench.fail("bad", 20)
    bench.ask("bad", WRONG)
    bench.finish()
    bench.ends.clear()

    for _ in range(7):
        bench.ask("bad", WRONG)

    assert (len(bench.line), bench.ends) == (5, [("bad", "busy")] * 2)


def test_who_is_gone_costs_nothing() -> None:
    """One that runs keeps its place until its thread is done; one that waits leaves, and is counted."""
    bench = Bench()
    runs, waits, last = (bench.ask("a") for _ in range(3))

    waits.cancel()
    runs.cancel()

    assert bench.ends == [("a", CancelledError)] * 2
    assert (len(bench.context.calls), len(bench.line), bench.count("abandoned")) == (1, 1, 1)
    bench.finish(2)
    assert last.called and bench.ends[2:] == [("a", True)]
    assert bench.clock.pending() == 0


def test_new_bounds_hold_at_once() -> None:
    """More threads take more from the line."""
    bench = Bench()
    for _ in range(3):
        bench.ask("a")

    bench.line.resize(3, 10, 2.0)

    assert len(bench.context.calls) == 3


def test_a_line_that_is_closed_turns_everybody_away() -> None:
    """And leaves no timer, whoever waits or pauses."""
    bench = Bench()
    bench.fail("bad", 20)
    bench.ask("bad", WRONG)
    bench.finish()
    for address in ("bad", "a", "b"):
        bench.ask(address)
    bench.ends.clear()

    bench.line.close()

    assert sorted(bench.ends) == [("b", "busy"), ("bad", "busy")]
    assert bench.clock.pending() == 0


def test_lines_of_the_log_are_few() -> None:
    """One a minute of each kind, with how many there were."""
    bench = Bench(waiting=4)
    for _ in range(50):
        bench.ask("flood")
    bench.clock.advance(60)
    bench.finish()
    bench.ask("runs")
    for _ in range(3):
        bench.ask("flood")

    lines = bench.context.log.texts("warn")
    assert len(lines) == 2
    assert "were refused since the last log line" in lines[1]


def test_the_log_names_who_tries_passwords() -> None:
    """When the pauses begin."""
    bench = Bench()
    bench.fail("203.0.113.9", FREE_FAILURES + 3)

    assert bench.context.log.texts("warn") == [
        "6 wrong passwords in a row from 203.0.113.9: logins from there are delayed by 0.25 s after each"
    ]


# Whatever happens

ADDRESSES = [f"a{number}" for number in range(6)]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(ADDRESSES), st.sampled_from([RIGHT, WRONG])),
        st.tuples(st.just("finish"), st.just(""), st.just(b"")),
        st.tuples(st.just("leave"), st.sampled_from(ADDRESSES), st.just(b"")),
        st.tuples(st.just("wait"), st.sampled_from(["0.1", "1", "9"]), st.just(b"")),
    ),
    max_size=120,
)


@given(STEPS, st.integers(1, 3))
def test_every_client_is_answered_and_the_bounds_hold(steps: list[tuple[str, str, bytes]], at_once: int) -> None:
    """Once each, with what is true of the password or as busy; and no more run or wait than may."""
    bench = Bench(at_once=at_once, waiting=8)
    asked: list[tuple[str, bytes, Deferred[Any]]] = []
    for step, what, password in steps:
        if step == "ask":
            asked.append((what, password, bench.ask(what, password)))
        elif step == "finish" and bench.context.calls:
            bench.finish()
        elif step == "leave":
            for address, _, each in asked:
                if address == what and not each.called:
                    each.cancel()
                    break
        elif step == "wait":
            bench.clock.advance(float(what))
        assert len(bench.context.calls) <= at_once
        assert len(bench.line) <= 8
        assert all(bench.line._queue.waiting(address) <= 2 for address in ADDRESSES)

    for _ in range(200):
        if bench.context.calls:
            bench.finish()
        bench.clock.advance(0.5)

    assert all(each.called for _, _, each in asked)
    assert len(bench.ends) == len(asked)
    assert (len(bench.line), len(bench.context.calls), bench.clock.pending()) == (0, 0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=60),
    st.integers(1, 3),
)
def test_a_bystanders_turn_comes_within_a_bounded_number(attacks: list[tuple[int, int]], at_once: int) -> None:
    """Attackers of any number and patience: each line ahead once, and one turn in four for those with failures."""
    bench = Bench(at_once=at_once, waiting=40)
    for attacker, jobs in attacks:
        for _ in range(jobs):
            bench.ask(f"attacker {attacker}", WRONG)
        if bench.context.calls and attacker % 2:
            bench.finish()
    sound = {f"attacker {n}" for n in range(10) if not bench.line._backoff.has_failed(f"attacker {n}")}
    ahead = sum(bool(bench.line._queue.waiting(address)) for address in sound)

    asked = bench.ask("bystander")
    finished = 0
    while not asked.called:
        bench.finish()
        finished += 1
        for attacker, jobs in attacks:
            for _ in range(jobs):
                bench.ask(f"attacker {attacker}", WRONG)

    assert ("bystander", True) in bench.ends
    assert finished <= 2 * at_once + (ahead + 1) * 4 // 3 + 2
