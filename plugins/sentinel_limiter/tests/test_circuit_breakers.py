"""Circuit breakers: each strategy, and the states beside a model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kinmqtt_sentinel_limiter._circuit_breakers import BreakerState, Guard, Guards
from kinmqtt_sentinel_limiter._settings import DegradeSettings
from kinmqtt_spi.errors import CallStopped
from kinmqtt_spi.memory.plugin import BareContext
from spi_harness.examples import examples

BY_COUNT = DegradeSettings(name="b", strategy="error_count", count=2, min_request_amount=1)
ERROR = RuntimeError("no")


class Scene:
    """Guards in a context of their own, and one of them."""

    def __init__(self, *rules: DegradeSettings) -> None:
        self.context = BareContext("sentinel_limiter")
        self.clock = self.context.clock
        self.guards = Guards(self.context.metrics, self.context.log, self.clock.monotonic)
        self.guards.take(rules)
        self.guard: Guard = self.guards.guard("ldap", "authenticate")

    def call(self, error: BaseException | None = None, duration_s: float = 0.0) -> bool:
        """Make a call, if it is let in."""
        if not self.guard.enter():
            return False
        self.clock.advance(duration_s)
        self.guard.leave(duration_s, error)
        return True

    def state(self) -> BreakerState:
        """That of the first breaker."""
        return self.guard.breakers[0].state

    def gauge(self) -> float:
        """The gauge's value."""
        return self.context.registry.sum("limiter.breaker_state")


def test_without_a_rule_all_calls_go_on() -> None:
    """A guard is always given, and lets everything in."""
    scene = Scene()

    assert [scene.call(ERROR) for _ in range(50)] == [True] * 50


def test_failed_calls_open_it() -> None:
    """One failure more than the count, and the next call fails at once; metric, log and count say so."""
    scene = Scene(BY_COUNT)

    answers = [scene.call(ERROR) for _ in range(5)]

    assert answers == [True, True, True, False, False]
    assert scene.gauge() == 2
    assert scene.guards.refused() == 2
    assert scene.context.registry.sum("limiter.blocked") == 2
    assert scene.context.log.texts("warn") == ["breaker b for ldap.authenticate: closed to open: 3 calls failed"]


@pytest.mark.parametrize(
    ("plugin", "hook", "sentence"),
    [
        ("ldap", "authenticate", None),
        (None, None, None),
        ("ldpa", "authentikate", "rule b matches no call that clients wait for; did you mean ldap.authenticate?"),
        ("sql", None, "rule b matches no call that clients wait for; the known calls are: ldap.authenticate"),
    ],
)
def test_a_rule_that_guards_nothing_is_told(plugin: str | None, hook: str | None, sentence: str | None) -> None:
    """A breaker with a misspelt name would stand where nobody passes."""
    scene = Scene(DegradeSettings(name="b", strategy="error_count", count=2, plugin=plugin, hook=hook))

    assert scene.guards.idle() == ([] if sentence is None else [sentence])


def test_failures_long_ago_do_not_count() -> None:
    """Only the window's calls open a breaker."""
    scene = Scene(BY_COUNT)

    for _ in range(20):
        assert scene.call(ERROR)
        scene.clock.advance(0.9)

    assert scene.state() is BreakerState.CLOSED


@pytest.mark.parametrize(("failed", "opens"), [(5, False), (6, True)])
def test_a_share_of_failures_opens_it(failed: int, opens: bool) -> None:
    """With more than the ratio failed, and calls enough, it opens."""
    scene = Scene(DegradeSettings(name="b", strategy="error_ratio", ratio=0.5, min_request_amount=10))

    for number in range(10):
        scene.call(ERROR if number >= 10 - failed else None)

    assert (scene.state() is BreakerState.OPEN) == opens


def test_few_calls_do_not_open_it() -> None:
    """Below ``min_request_amount`` all may fail."""
    scene = Scene(DegradeSettings(name="b", strategy="error_ratio", ratio=0.1, min_request_amount=10))

    answers = [scene.call(ERROR) for _ in range(11)]

    assert answers == [True] * 10 + [False]


def test_slow_calls_open_it() -> None:
    """Slow is what takes longer than ``slow_call_ms``, failed or not; a ratio of 1 means all."""
    rule = DegradeSettings(
        name="b", strategy="slow_ratio", slow_call_ms=100, ratio=1.0, min_request_amount=3, stat_interval_s=10
    )
    scene = Scene(rule)

    answers = [scene.call(ERROR, duration_s=0.1) for _ in range(3)]
    scene.clock.advance(10)
    answers += [scene.call(duration_s=0.2) for _ in range(4)]

    assert answers == [True] * 6 + [False]


@pytest.mark.parametrize(("error", "after"), [(None, BreakerState.CLOSED), (ERROR, BreakerState.OPEN)])
def test_one_probe_decides(error: BaseException | None, after: BreakerState) -> None:
    """When the time is over one call is let in, the others still are not; as it ends, so it goes on."""
    scene = Scene(BY_COUNT)
    for _ in range(3):
        scene.call(ERROR)
    scene.clock.advance(10)

    assert scene.guard.enter()
    assert scene.gauge() == 1
    assert not scene.guard.enter()
    scene.guard.leave(0.0, error)

    assert scene.state() is after
    assert scene.guard.enter() == (after is BreakerState.CLOSED)


def test_a_call_from_before_does_not_decide() -> None:
    """While a probe is out, the end of a call that began before it says nothing."""
    scene = Scene(BY_COUNT)
    scene.guard.enter()
    for _ in range(3):
        scene.call(ERROR)
    scene.clock.advance(10)
    scene.guard.enter()

    scene.guard.leave(10.0, None)

    assert scene.state() is BreakerState.HALF_OPEN


def test_a_probe_that_never_ends_is_given_up() -> None:
    """After another ``open_s`` the next call probes."""
    scene = Scene(BY_COUNT)
    for _ in range(3):
        scene.call(ERROR)
    scene.clock.advance(10)
    scene.guard.enter()

    scene.clock.advance(10)

    assert scene.call()
    assert scene.state() is BreakerState.CLOSED


def test_a_probe_that_another_breaker_stops_is_not_lost() -> None:
    """The first of two breakers would probe while the second is open: it probes at the next call."""
    other = DegradeSettings(name="other", strategy="error_count", count=2, min_request_amount=1, open_s=20)
    scene = Scene(BY_COUNT, other)
    for _ in range(3):
        scene.call(ERROR)
    scene.clock.advance(10)

    assert not scene.call()
    assert scene.state() is BreakerState.OPEN
    scene.clock.advance(10)
    assert scene.call()
    assert not scene.guards.open()


@pytest.mark.parametrize(
    "rule",
    [BY_COUNT, DegradeSettings(name="b", strategy="error_ratio", ratio=0.7, min_request_amount=1)],
)
def test_a_call_that_another_guard_stops_is_none(rule: DegradeSettings) -> None:
    """It neither fails nor is well: a closed breaker does not count it, whatever it counts."""
    scene = Scene(rule)

    for _ in range(9):
        scene.call(CallStopped())
    answers = [scene.call(ERROR) for _ in range(4)]

    assert answers == ([True] * 3 + [False] if rule is BY_COUNT else [True] + [False] * 3)


def test_a_probe_that_another_guard_stops_is_withdrawn() -> None:
    """The next call probes, however often it happens, and the log has it once."""
    scene = Scene(BY_COUNT)
    for _ in range(3):
        scene.call(ERROR)
    scene.clock.advance(10)

    for _ in range(5):
        assert scene.guard.enter()
        scene.clock.advance(1e-5)  # Clocks go on, also within a turn.
        scene.guard.leave(0.0, CallStopped())

    assert scene.state() is BreakerState.OPEN
    assert len(scene.context.log.texts()) == 3
    assert scene.call()
    assert scene.state() is BreakerState.CLOSED


def test_a_probe_under_way_is_not_withdrawn_for_another_call() -> None:
    """In the shadow others go on beside the probe: one of them that is stopped says nothing of it."""
    rule = DegradeSettings(name="b", strategy="error_count", count=2, min_request_amount=1, shadow=True)
    scene = Scene(rule)
    for _ in range(3):
        scene.call(ERROR)
    scene.clock.advance(10)
    scene.guard.enter()

    scene.call(CallStopped())

    assert scene.state() is BreakerState.HALF_OPEN


def test_in_the_shadow_all_calls_go_on() -> None:
    """What would have been stopped is counted."""
    scene = Scene(DegradeSettings(name="b", strategy="error_count", count=2, min_request_amount=1, shadow=True))

    answers = [scene.call(ERROR) for _ in range(5)]

    assert answers == [True] * 5
    assert scene.context.registry.sum("limiter.shadow_blocked") == 2
    assert scene.context.registry.sum("limiter.blocked") == 0


def test_rules_name_plugins_and_hooks() -> None:
    """A rule concerns the calls it names."""
    rules = (
        DegradeSettings(name="a", plugin="ldap", strategy="error_count", count=1),
        DegradeSettings(name="b", plugin=("x", "y"), strategy="error_count", count=1),
        DegradeSettings(name="c", plugin="*", hook="authenticate", strategy="error_count", count=1),
        DegradeSettings(name="d", hook="authorize", strategy="error_count", count=1),
    )

    scene = Scene(*rules)

    assert [breaker.settings.name for breaker in scene.guard.breakers] == ["a", "c"]


def test_new_rules_reach_guards_that_were_given() -> None:
    """Breakers of rules that did not change stay as they are; those of changed ones begin closed."""
    scene = Scene(BY_COUNT)
    for _ in range(3):
        scene.call(ERROR)

    scene.guards.take([BY_COUNT, DegradeSettings(name="more", strategy="error_count", count=9)])
    kept = scene.state()
    scene.guards.take([DegradeSettings(name="b", strategy="error_count", count=3)])

    assert kept is BreakerState.OPEN
    assert scene.state() is BreakerState.CLOSED
    assert scene.gauge() == 0


class BreakerMachine(RuleBasedStateMachine):
    """Calls that overlap, end well or badly, and time that goes on, beside what Sentinel's states promise."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(
            DegradeSettings(
                name="b", strategy="error_count", count=2, min_request_amount=1, stat_interval_s=1000, open_s=5
            )
        )
        self.model = "closed"
        self.failures = 0
        self.until = 0.0
        self.out: list[tuple[float, bool]] = []

    @rule()
    def enter(self) -> None:
        """A call wants to be made."""
        now = self.scene.clock.monotonic()
        probe = self.model != "closed" and now >= self.until
        expected = self.model == "closed" or probe
        if probe:
            self.model, self.until = "half open", now + 5

        assert self.scene.guard.enter() == expected

        if expected:
            self.out.append((now, probe))

    @rule(place=st.integers(0, 100), failed=st.booleans())
    def leave(self, place: int, failed: bool) -> None:
        """One of the calls ends."""
        if not self.out:
            return
        began, _ = self.out.pop(place % len(self.out))
        now = self.scene.clock.monotonic()
        if self.model == "closed":
            self.failures += failed
            if self.failures > 2 and failed:
                self._open(now)
        elif self.model == "half open" and began >= self.until - 5:
            if failed:
                self._open(now)
            else:
                self.model, self.failures = "closed", 0

        self.scene.guard.leave(now - began, ERROR if failed else None)

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        """Time goes on, and less than a window's in all."""
        if self.scene.clock.monotonic() < 900:
            self.scene.clock.advance(seconds)

    @invariant()
    def agree(self) -> None:
        """The state is the model's."""
        assert self.scene.state().name.lower().replace("_", " ") == self.model

    def _open(self, now: float) -> None:
        self.model, self.until = "open", now + 5


TestBreakerMachine: Any = BreakerMachine.TestCase
TestBreakerMachine.settings = hypothesis_settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
