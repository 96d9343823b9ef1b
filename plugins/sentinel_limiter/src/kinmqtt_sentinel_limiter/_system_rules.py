"""System rules: measure the load of machine and broker, and refuse requests under overload."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final, Protocol

import psutil

from kinmqtt_sentinel_limiter._cells import REFUSED, Cell
from kinmqtt_sentinel_limiter._concurrency import ConcurrencyCell
from kinmqtt_sentinel_limiter._leap_array import LeapArray
from kinmqtt_sentinel_limiter._rules import Rule, reject_cell
from kinmqtt_sentinel_limiter._settings import COUNTED, SystemSettings
from kinmqtt_spi.services.limiter import Resource, ResourceKind
from kinmqtt_spi.services.metric import Metrics

LAG_WINDOW_S: Final = 1.0
"""The lag is the worst of the last second, because a single late turn is over before it can be seen."""

LOG_INTERVAL_S: Final = 10.0
"""The shortest interval between log lines about one rule."""


class Gauges(Protocol):
    """The source of measurements: the machine, or a test."""

    def cpu(self) -> float:
        """The share of all processors in use since the last call, 0 to 1."""

    def process_cpu(self) -> float:
        """How many processors this process used since the last call."""

    def memory(self) -> float:
        """The share of the machine's memory in use, 0 to 1."""

    def process_memory(self) -> float:
        """The resident bytes of this process."""


class MachineGauges:
    """Measures with psutil."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def cpu(self) -> float:
        return float(psutil.cpu_percent()) / 100.0

    def process_cpu(self) -> float:
        return float(self._process.cpu_percent()) / 100.0

    def memory(self) -> float:
        return float(psutil.virtual_memory().percent) / 100.0

    def process_memory(self) -> float:
        return float(self._process.memory_info().rss)


class Load:
    """Counts PUBLISH packets in progress, and estimates the broker's capacity like Sentinel's BBR check.

    ``capacity`` is the highest rate in any bucket of the window, times the shortest time that packets took: the
    number in progress when the broker was at its best. The times come from Little's law (mean number in progress,
    divided by the rate), so that no packet needs a timestamp.
    """

    def __init__(self, samples: int = 20, interval_s: float = 10.0) -> None:
        self._window = LeapArray(samples, interval_s, fields=2)
        self.in_hand = 0
        self._at = 0.0

    def begin(self, in_hand: int, now: float) -> None:
        """Start over with ``in_hand`` packets in progress, because nothing was counted until now."""
        self._window.clear()
        self.in_hand, self._at = in_hand, now

    def began(self, amount: int, now: float) -> None:
        """Count packets that begin."""
        self._window.add(now, 0, self._area(now))
        self.in_hand += amount

    def done(self, amount: int, now: float) -> None:
        """Count packets that are done."""
        self._window.add(now, amount, self._area(now))
        self.in_hand = max(self.in_hand - amount, 0)

    def capacity(self, now: float) -> float:
        """How many packets may be in progress; infinite without measurements."""
        most, shortest_s = 0.0, inf
        for done, area in self._window.buckets(now):
            if done:
                most = max(most, done)
                shortest_s = min(shortest_s, area / done)
        return inf if not most else most / self._window.bucket_s * shortest_s

    def has_room(self, amount: int, now: float) -> bool:
        """Whether the capacity allows more packets; a single read is always allowed."""
        return not self.in_hand or self.in_hand + amount <= self.capacity(now)

    def _area(self, now: float) -> float:
        area = self.in_hand * (now - self._at)
        self._at = now
        return area


class LoadCell(Cell):
    """Counts PUBLISH packets in progress. It follows all cells that may refuse, and belongs to no rule."""

    __slots__ = ("_load",)

    def __init__(self, load: Load) -> None:
        self.forgotten = False
        self._load = load

    def take(self, amount: int, now: float) -> float:
        self._load.began(amount, now)
        return 0.0

    def release(self, amount: int, now: float) -> None:
        self._load.done(amount, now)


class SystemRule(Rule):
    """A system rule: shut while its metric is above the threshold."""

    def __init__(self, settings: SystemSettings, metrics: Metrics, load: Load) -> None:
        super().__init__(settings, metrics)
        self.settings = settings
        self.load = load
        self.delay_s = settings.delay_s if settings.verdict == "delay" else 0.0
        self.shut = False
        self.value = 0.0
        self._logged = False
        self._logged_at = -inf
        self.counter: Cell | None = self._counter()
        """The cell for all PUBLISH packets; ``None`` if the rule does not count them."""
        self.gates: dict[ResourceKind, Cell] = {kind: Gate(self, kind) for kind in settings.kinds}
        """The gates that refuse requests while the rule is shut, by kind."""
        metrics.gauge("limiter.system_shut", "rules", lambda: float(self.shut), {"rule": settings.name})

    @property
    def measured(self) -> bool:
        """Whether the rule uses a gauge instead of counting packets."""
        return self.counter is None

    def look(self, value: float) -> bool:
        """Take a new measurement; returns whether it opened or shut the rule."""
        self.value = value
        before, self.shut = self.shut, value > self.settings.threshold
        return before is not self.shut

    def should_log(self, now: float) -> bool:
        """Whether to log that the rule was shut or opened; rate-limited, because loads fluctuate."""
        if self._logged is self.shut or now - self._logged_at < LOG_INTERVAL_S:
            return False
        self._logged, self._logged_at = self.shut, now
        return True

    def retire(self) -> None:
        self.shut = False  # for its gauge, which stays registered

    def cell(self, resource: Resource, now: float) -> Cell | None:
        if self.counter is None:
            return None
        if resource.kind is ResourceKind.PUBLISH:
            return self.counter
        return FullGate(self, self.counter) if resource.kind in self.gates else None

    def _counter(self) -> Cell | None:
        settings = self.settings
        if settings.metric not in COUNTED:
            return None
        if settings.metric == "publish_concurrency":
            return ConcurrencyCell(self, settings.threshold)
        return reject_cell(self, settings.threshold, None, bool(self.delay_s))


class Gate(Cell):
    """Refuses or delays requests of one kind while a system rule is shut."""

    __slots__ = ("_adaptive", "_rule")

    def __init__(self, rule: SystemRule, kind: ResourceKind) -> None:
        super().__init__(rule)
        self._rule = rule
        self._adaptive = rule.settings.adaptive and kind is ResourceKind.PUBLISH

    def take(self, amount: int, now: float) -> float:
        rule = self._rule
        if self._adaptive and rule.load.has_room(amount, now):
            return 0.0
        return REFUSED if rule.shadow or not rule.delay_s else rule.delay_s


class FullGate(Cell):
    """Refuses or delays requests of other kinds while no PUBLISH packet would pass."""

    __slots__ = ("_counter", "_rule")

    def __init__(self, rule: SystemRule, counter: Cell) -> None:
        super().__init__(rule)
        self._rule = rule
        self._counter = counter

    def take(self, amount: int, now: float) -> float:
        if not self._counter.is_full(now):
            return 0.0
        rule = self._rule
        return REFUSED if rule.shadow or not rule.delay_s else rule.delay_s


class Measures:
    """The last measurements of the metrics that rules use."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges
        self._lags: deque[tuple[float, float]] = deque()
        self.values: dict[str, float] = {}

    @property
    def lag_s(self) -> float:
        """The worst lag of the last second."""
        return max((lag_s for _, lag_s in self._lags), default=0.0)

    def late(self, now: float, lag_s: float) -> None:
        """Record that the timer was late."""
        self._lags.append((now, max(lag_s, 0.0)))
        while self._lags[0][0] < now - LAG_WINDOW_S:
            self._lags.popleft()

    def take(self, wanted: frozenset[str]) -> None:
        """Measure the wanted metrics."""
        gauges = self._gauges
        read = {
            "lag": lambda: self.lag_s,
            "cpu": gauges.cpu,
            "process_cpu": gauges.process_cpu,
            "memory": gauges.memory,
            "process_memory": gauges.process_memory,
        }
        self.values = {name: read[name]() for name in sorted(wanted)}
