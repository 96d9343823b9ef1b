"""System rules: what is measured, what is shut by it, and what the broker is able to do."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_sentinel_limiter import SentinelLimiter, SentinelSettings
from kinmqtt_sentinel_limiter._settings import FlowSettings, SystemSettings
from kinmqtt_sentinel_limiter._system_rules import Load, MachineGauges
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.limiter import LimitVerdict, Resource, ResourceKind

PUBLISH = Resource(ResourceKind.PUBLISH, "main", "192.0.2.1", "c")
CONNECT = Resource(ResourceKind.CONNECT, "main", "192.0.2.1", "c")


class FakeGauges:
    """A machine whose load a test sets."""

    def __init__(self) -> None:
        self.values = {"cpu": 0.0, "process_cpu": 0.0, "memory": 0.0, "process_memory": 0.0}
        self.asked: list[str] = []

    def _read(self, name: str) -> float:
        self.asked.append(name)
        return self.values[name]

    def cpu(self) -> float:
        return self._read("cpu")

    def process_cpu(self) -> float:
        return self._read("process_cpu")

    def memory(self) -> float:
        return self._read("memory")

    def process_memory(self) -> float:
        return self._read("process_memory")


class Scene:
    """A limiter that was started, on a fake machine."""

    def __init__(self, *rules: SystemSettings, **more: Any) -> None:
        self.gauges = FakeGauges()
        self.context = BareContext("sentinel_limiter", SentinelSettings(system=rules, **more))
        self.clock = self.context.clock
        self.limiter = SentinelLimiter(self.gauges)
        self.limiter.configure(self.context)
        self.limiter.start(self.context)

    def verdict(self, resource: Resource, amount: int = 1) -> LimitVerdict:
        """What is answered."""
        decision = self.limiter.acquire(resource, amount)
        return LimitVerdict.ALLOW if decision is None else decision.verdict

    def hang(self, seconds: float) -> None:
        """Let the event loop do something else for so long: the timer comes late."""
        self.clock._elapsed += seconds
        self.clock.advance()


@pytest.mark.parametrize(
    ("metric", "threshold", "load"),
    [("cpu", 0.8, 0.9), ("process_cpu", 0.8, 1.5), ("memory", 0.9, 0.95), ("process_memory", 1e9, 2e9)],
)
def test_above_the_threshold_it_is_shut(metric: Any, threshold: float, load: float) -> None:
    """New CONNECTs and PUBLISHes are refused while the measure is above it, and let in again when it is not."""
    scene = Scene(SystemSettings(name="s", metric=metric, threshold=threshold))
    answers = []

    for value in (0.0, load, 0.0):
        scene.gauges.values[metric] = value
        scene.clock.advance(0.25)
        answers.append((scene.verdict(CONNECT), scene.verdict(PUBLISH)))

    let_in, refused = (LimitVerdict.ALLOW,) * 2, (LimitVerdict.REJECT,) * 2
    assert answers == [let_in, refused, let_in]
    scene.clock.advance(10)
    assert scene.context.log.texts("warn") == [
        f"system rule s takes effect: {metric} is {load:.4g}, the threshold is {threshold:.4g}"
    ]
    assert len(scene.context.log.texts("info")) == 1
    assert scene.context.registry.sum("limiter.blocked") == 2


def test_a_load_that_goes_up_and_down_does_not_fill_the_log() -> None:
    """One line in ten seconds, and the last says how it is."""
    scene = Scene(SystemSettings(name="s", metric="cpu", threshold=0.5))

    for number in range(80):
        scene.gauges.values["cpu"] = 1.0 * (number % 2)
        scene.clock.advance(0.25)
    scene.gauges.values["cpu"] = 0.0
    scene.clock.advance(20)

    lines = scene.context.log.texts()
    assert len(lines) <= 4
    assert lines[-1].startswith("system rule s ends")


def test_lag_is_how_late_the_timer_is() -> None:
    """An event loop that hung shuts the rule for a second, the worst of which counts."""
    scene = Scene(SystemSettings(name="s", metric="lag", threshold=0.1))
    scene.clock.advance(5)
    before = scene.verdict(PUBLISH)

    scene.hang(0.5)
    during = scene.verdict(PUBLISH)
    lag = scene.context.registry.sum("limiter.lag")
    scene.clock.advance(1.5)

    assert (before, during, scene.verdict(PUBLISH)) == (LimitVerdict.ALLOW, LimitVerdict.REJECT, LimitVerdict.ALLOW)
    assert lag == pytest.approx(0.25)


def test_a_rule_can_delay_and_name_kinds() -> None:
    """Only what it names is shut, and DELAY lasts as long as the rule says."""
    scene = Scene(
        SystemSettings(
            name="s", metric="cpu", threshold=0.5, kinds=(ResourceKind.PUBLISH,), verdict="delay", delay_s=2.0
        )
    )
    scene.gauges.values["cpu"] = 1.0
    scene.clock.advance(1)

    decision = scene.limiter.acquire(PUBLISH, 1)

    assert scene.verdict(CONNECT) is LimitVerdict.ALLOW
    assert decision is not None
    assert (decision.verdict, decision.delay_s) == (LimitVerdict.DELAY, 2.0)


def test_in_the_shadow_it_only_counts() -> None:
    """What would have been refused is counted."""
    scene = Scene(SystemSettings(name="s", metric="cpu", threshold=0.5, shadow=True))
    scene.gauges.values["cpu"] = 1.0
    scene.clock.advance(1)

    assert scene.verdict(PUBLISH, 3) is LimitVerdict.ALLOW
    assert scene.context.registry.sum("limiter.shadow_blocked") == 3


def test_only_what_rules_look_at_is_measured() -> None:
    """No rule about memory, no look at memory."""
    scene = Scene(SystemSettings(name="s", metric="cpu", threshold=0.5))

    scene.clock.advance(1)

    assert set(scene.gauges.asked) == {"cpu"}


def test_there_is_one_timer() -> None:
    """However many rules, and none is left when the plugin stops."""
    rules = [SystemSettings(name=f"s{number}", metric="cpu", threshold=0.5) for number in range(10)]
    scene = Scene(*rules, flow=(FlowSettings(name="f", count=1),))
    scene.clock.advance(3)

    assert scene.clock.pending() == 1
    scene.limiter.stop()
    assert scene.clock.pending() == 0


@pytest.mark.parametrize(("metric", "threshold"), [("publish_rate", 10.0), ("publish_concurrency", 10.0)])
def test_all_publishes_together(metric: Any, threshold: float) -> None:
    """The rate, or the number in hand, of all clients is limited; while it is used up no new client is let in."""
    scene = Scene(SystemSettings(name="s", metric=metric, threshold=threshold))
    other = Resource(ResourceKind.PUBLISH, "main", "192.0.2.2", "other")
    before = scene.verdict(CONNECT)

    answers = [scene.verdict(resource, 5) for resource in (PUBLISH, other, PUBLISH)]

    assert (before, scene.verdict(CONNECT)) == (LimitVerdict.ALLOW, LimitVerdict.REJECT)
    assert answers == [LimitVerdict.ALLOW, LimitVerdict.ALLOW, LimitVerdict.REJECT]
    scene.clock.advance(1)
    scene.limiter.release(PUBLISH, 5)
    assert scene.verdict(CONNECT) is LimitVerdict.ALLOW


def test_a_rate_of_all_can_delay() -> None:
    """With the verdict ``delay`` publishers wait, and new clients for as long as the rule says."""
    scene = Scene(SystemSettings(name="s", metric="publish_rate", threshold=10.0, verdict="delay"))

    assert [scene.verdict(PUBLISH, 5), scene.verdict(CONNECT)] == [LimitVerdict.DELAY, LimitVerdict.DELAY]


def test_the_capacity_is_what_was_in_hand_when_the_broker_did_best() -> None:
    """Two at a time that take 0.1 s each are twenty a second, and so a capacity of two."""
    load, now = Load(), 0.0
    assert load.capacity(0.0) == float("inf")

    while now < 2.0:
        load.began(2, now)
        now += 0.1
        load.done(2, now)

    assert load.capacity(now) == pytest.approx(2.0, rel=0.25)
    assert load.has_room(2, now)
    load.began(2, now)
    assert not load.has_room(2, now)


def test_an_adaptive_rule_lets_in_what_the_broker_is_able_to_do() -> None:
    """Above the threshold, publishes within the capacity pass, and CONNECTs do not."""
    scene = Scene(SystemSettings(name="s", metric="cpu", threshold=0.5, adaptive=True))
    for _ in range(20):
        scene.limiter.acquire(PUBLISH, 2)
        scene.clock.advance(0.1)
        scene.limiter.release(PUBLISH, 2)
    scene.gauges.values["cpu"] = 0.9
    scene.clock.advance(0.3)

    answers = [scene.verdict(PUBLISH, 1) for _ in range(4)]

    assert answers == [LimitVerdict.ALLOW] * 2 + [LimitVerdict.REJECT] * 2
    assert scene.verdict(CONNECT) is LimitVerdict.REJECT


def test_the_machine_can_be_measured() -> None:
    """psutil has all that rules look at."""
    gauges = MachineGauges()

    assert gauges.cpu() >= 0.0
    assert gauges.process_cpu() >= 0.0
    assert 0.0 < gauges.memory() <= 1.0
    assert gauges.process_memory() > 1_000_000
