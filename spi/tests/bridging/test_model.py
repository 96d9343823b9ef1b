"""A sink's runner beside a model: random answers, failures, hangs and restarts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from attrs import evolve
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.memory.outbox import StoredEntry
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.memory.polling import Pending
from kinmqtt_spi.services.bridge import Answer, Item, Poison, Retry, Sink
from kinmqtt_spi.values import Maybe, Message
from spi_harness.bridge_bench import Bench
from spi_harness.examples import examples

KEYS = st.sampled_from("abcdef")
RESTART_AFTER_S = 200.0
"""Longer than every pause and time limit of the runs below."""


class RandomSink(Sink):
    """Answers what the machine has put into ``plan``; then it takes everything.

    A sink takes the messages of a key in their order: after a ``Retry`` it wants all later ones again. It may
    take a batch and fail all the same.
    """

    def __init__(self) -> None:
        self.plan: list[tuple[str, int]] = []
        self.open_plan: list[str] = []
        self.taken: list[Message] = []
        self.poisoned: list[Message] = []
        self.under_way: dict[int, set[bytes]] = {}
        self.held: list[tuple[int, Pending[Any], Sequence[Item], str]] = []
        self.is_open = False
        self.calls = 0
        self.parallel = 0

    def open(self) -> Maybe[None]:
        assert not self.is_open, "open without close"
        self.is_open = True
        if self.open_plan:
            _raise(self.open_plan.pop(0))
        return None

    def close(self) -> Maybe[None]:
        self.is_open = False
        return None

    def send(self, items: Sequence[Item]) -> Maybe[Sequence[Answer] | None]:
        assert self.is_open, "send without open"
        keys = {item.key for item in items}
        assert all(keys.isdisjoint(each) for each in self.under_way.values()), "two batches of one key at a time"
        kind, place = self.plan.pop(0) if self.plan else ("take", 0)
        self.calls += 1
        if kind.startswith("hang"):
            pending: Pending[Any] = Pending()
            self.held.append((self.calls, pending, items, kind.removeprefix("hang ")))
            self.under_way[self.calls] = keys
            return pending
        return self._answer(items, kind, place % len(items))

    def _answer(self, items: Sequence[Item], kind: str, place: int) -> Sequence[Answer] | None:
        if kind in ("unavailable", "refused", "error"):
            _raise(kind)
        if kind == "take and fail":
            self.taken += [item.message for item in items]
            _raise("unavailable")
        if kind == "wrong":
            return [None] * (len(items) + 1)
        answers: list[Answer] = [None] * len(items)
        if kind == "poison":
            answers[place] = Poison("never")
            self.poisoned.append(items[place].message)
        if kind == "retry":
            for number in range(place, len(items)):
                if items[number].key == items[place].key:
                    answers[number] = Retry("later", 1.5 if place % 2 else None)
        self.taken += [item.message for item, answer in zip(items, answers, strict=True) if answer is None]
        return None if kind == "take" else answers

    def go_on(self) -> None:
        held, self.held = self.held, []
        for number, pending, items, kind in held:
            self.under_way.pop(number, None)
            if pending.done():  # cancelled: nothing was taken
                continue
            try:
                pending.complete(self._answer(items, kind, 0))
            except Exception as error:
                pending.fail(error)

    def forget(self) -> None:
        """Drop what was cancelled."""
        for number, pending, _, _ in self.held:
            if pending.done():
                self.under_way.pop(number, None)
        self.held = [each for each in self.held if not each[1].done()]


class Process(Sink):
    """The sink as one life of the runner has it: a killed process sends nothing more."""

    def __init__(self, sink: RandomSink) -> None:
        self.sink = sink
        self.is_alive = True

    def open(self) -> Maybe[None]:
        self._check()
        return self.sink.open()

    def close(self) -> Maybe[None]:
        self._check()
        return self.sink.close()

    def send(self, items: Sequence[Item]) -> Maybe[Sequence[Answer] | None]:
        self._check()
        return self.sink.send(items)

    def _check(self) -> None:
        if not self.is_alive:
            raise ServiceUnavailable("killed")


def _raise(kind: str) -> None:
    if kind == "refused":
        raise SinkRefused("password")
    if kind == "unavailable":
        raise ServiceUnavailable("away")
    if kind == "error":
        raise KeyError("field")


class Runs(RuleBasedStateMachine):
    """Puts messages in, decides answers, lets time pass, stops and kills the runner."""

    @initialize(
        poison=st.sampled_from(["park", "drop"]),
        attempts=st.sampled_from([0, 0, 1, 3]),
        parallel=st.integers(1, 4),
        batch=st.integers(1, 5),
        window=st.sampled_from([3, 20, 4096]),
    )
    def begin(self, **options: Any) -> None:
        self.options = options
        self.clock = TurnableClock()
        self.stored: dict[int, StoredEntry] = {}
        self.parked: dict[int, StoredEntry] = {}
        self.sink = RandomSink()
        self.put: dict[bytes, list[int]] = defaultdict(list)
        self.messages: dict[int, Message] = {}
        self.given_up: set[int] = set()
        """The messages that the runner has reported as poison."""
        self.set_aside: set[int] = set()
        """The messages that were poison once. They come again, too late, if the runner did not learn of it in time,
        or was killed before they were parked."""
        self.number = 0
        self.restart()

    def restart(self) -> None:
        window = self.options["window"]
        sending = {key: value for key, value in self.options.items() if key != "window"}
        self.sink.is_open = False
        self.process = Process(self.sink)
        self.bench = Bench(
            self.process,
            stored=self.stored,
            parked=self.parked,
            clock=self.clock,
            window=window,
            time_limit_s=10,
            **sending,
        )
        self.bench.runner.start()

    @rule(clients=st.lists(KEYS, min_size=1, max_size=8))
    def publish(self, clients: list[str]) -> None:
        for client in clients:
            self.number += 1
            self.bench._numbers = self.number - 1
            self.bench.put(client)
            self.put[client.encode()].append(self.number)
        self.bench.turn()  # their commit: only what is committed must survive

    @rule(
        answers=st.lists(
            st.tuples(
                st.sampled_from(
                    [
                        "take", "unavailable", "refused", "error", "take and fail", "wrong", "poison", "retry",
                        "hang take", "hang unavailable", "hang poison", "hang retry",
                    ]
                ),
                st.integers(0, 9),
            ),
            max_size=4,
        )
    )  # fmt: skip
    def decide(self, answers: list[tuple[str, int]]) -> None:
        self.sink.plan += answers

    @rule(kinds=st.lists(st.sampled_from(["unavailable", "refused", "error", "ok"]), max_size=2))
    def decide_opening(self, kinds: list[str]) -> None:
        self.sink.open_plan += kinds

    @rule(seconds=st.sampled_from([0.0, 0.005, 0.1, 1.0, 11.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.bench.turn(seconds)
        self.sink.forget()

    @rule()
    def answer(self) -> None:
        self.sink.go_on()
        self.bench.turn()

    @rule(fails=st.booleans())
    def parking_fails(self, fails: bool) -> None:
        self.bench.parked.fails = fails

    @rule(parallel=st.integers(1, 4), batch=st.integers(1, 5))
    def reload(self, parallel: int, batch: int) -> None:
        self.options |= {"parallel": parallel, "batch": batch}
        plan = evolve(
            self.bench.runner.plan, sending=evolve(self.bench.runner.plan.sending, parallel=parallel, batch=batch)
        )
        self.bench.runner.reload(plan, self.bench.parking)

    @rule(deadline_s=st.sampled_from([0.0, 1.0, 20.0]))
    def stop_and_start(self, deadline_s: float) -> None:
        stopped: list[bool] = []
        self.bench.runner.stop(deadline_s, lambda: stopped.append(True))
        self.bench.turn(deadline_s)
        assert stopped
        self.sink.forget()
        self.bench.runner.start()

    @rule()
    def kill(self) -> None:
        self._note()
        self.process.is_alive = False
        self.bench.outbox.is_gone = self.bench.parked.is_gone = True
        self.bench.polling.close()
        self.bench.runner.stop(0)
        self.bench.turn()
        self._note()
        self.sink.held.clear()
        self.sink.under_way.clear()
        self.restart()

    def _note(self) -> None:
        self.given_up |= {each.id.counter for each, _ in self.bench.poisoned}
        self.set_aside |= self.given_up | {each.id.counter for each in self.bench.parking.given}
        self.set_aside |= {each.id.counter for each in self.sink.poisoned}

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "bench"):
            return
        self._note()
        left = {each.message.id.counter for each in self.stored.values()}
        taken = {each.id.counter for each in self.sink.taken}
        parked = {each.message.id.counter for each in self.parked.values()}
        assert set(range(1, self.number + 1)) - left <= taken | (
            parked if self.options["poison"] == "park" else self.given_up
        )

    @invariant()
    def the_order_holds(self) -> None:
        if not hasattr(self, "bench"):
            return
        by_key: dict[str, list[int]] = defaultdict(list)
        for each in self.sink.taken:
            if each.id.counter not in self.set_aside and each.id.counter not in by_key[each.publisher.client_id]:
                by_key[each.publisher.client_id].append(each.id.counter)
        for numbers in by_key.values():
            assert numbers == sorted(numbers)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.sink.plan.clear()
        self.sink.open_plan.clear()
        self.bench.parked.fails = False
        for _ in range(8):
            self.sink.go_on()
            self.bench.turn(RESTART_AFTER_S)
        self.nothing_is_lost()
        self.the_order_holds()
        assert not self.stored, "something was never sent"


Runs.TestCase.settings = settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
TestRuns = Runs.TestCase
