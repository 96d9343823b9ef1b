"""The plugin: hooks, settings, the timer, metrics and health."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from kinmqtt_sentinel_limiter._active_rules import ActiveRules
from kinmqtt_sentinel_limiter._circuit_breakers import Guard, Guards
from kinmqtt_sentinel_limiter._limiter_needs import needs_of
from kinmqtt_sentinel_limiter._rules_file import LoadResult, RulesFile
from kinmqtt_sentinel_limiter._settings import Rules, SentinelSettings, joined
from kinmqtt_sentinel_limiter._system_rules import Gauges, MachineGauges, Measures
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError, NotConfigured
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, Resource
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements, Timer

AGE_S: Final = 10.0
"""How often the weights of hot values are halved."""

Reading: TypeAlias = Callable[[], float]

_UNITS: Final = {
    "lag": "seconds",
    "cpu": "share",
    "process_cpu": "processors",
    "memory": "share",
    "process_memory": "bytes",
}

IDLE_TICK_S: Final = 1.0
"""The timer's interval if nothing is measured and no file is checked more often."""

_SHORTEST_TICK_S: Final = 0.1


class SentinelLimiter:
    """Limits by rules after Sentinel's model."""

    def __init__(self, gauges: Gauges | None = None) -> None:
        self._gauges = gauges
        self._timer: Timer | None = None
        self._file: RulesFile | None = None
        self._problems: tuple[str, ...] = ()
        """The errors in the rules file."""
        self._pending: list[str] = []
        """Why some rules are not in force until a restart."""

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI (a literal, because SPI_VERSION is the installed version)."""
        return Requirements(spi_version=2)

    @hookimpl
    def settings_class(self) -> type[SentinelSettings]:
        """The class that the settings section is parsed into."""
        return SentinelSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the rules, including those of the file; abstain if there are none and no file to watch."""
        settings: SentinelSettings = context.settings
        if not settings.all() and settings.rules is None:
            raise NotConfigured("plugins.sentinel_limiter has no rules and no rules file")
        self._context = context
        clock = context.clock
        self._guards = Guards(context.metrics, context.log, clock.monotonic)
        self._measures = Measures(MachineGauges() if self._gauges is None else self._gauges)
        file, rules = _file_and_rules(settings)
        self._needs = needs_of(joined(settings, rules), settings)
        self._rules_in_force = ActiveRules(context.metrics, clock.monotonic, settings.max_keys, self._needs)
        if sentences := self._take_settings(settings, file, rules):
            raise AssemblyError(f"plugins.sentinel_limiter: {'; '.join(sentences)}")

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        """What the rules need; with a rules file, also what later rules are likely to need."""
        return self._needs

    @hookimpl
    def acquire(self, resource: Resource, amount: int) -> LimitDecision | None:
        """Take an amount from every matching rule, or from none if one refuses."""
        return self._rules_in_force.acquire(resource, amount)

    @hookimpl
    def release(self, resource: Resource, amount: int) -> None:
        """Release an amount of a resource whose concurrency is limited."""
        self._rules_in_force.release(resource, amount)

    @hookimpl
    def guard_calls(self, plugin: str, hook: str) -> Guard:
        """A guard for every call, because a reload may add rules."""
        return self._guards.guard(plugin, hook)

    @hookimpl
    def start(self, context: Context) -> None:
        """Start the timer; log breakers that match no call."""
        for sentence in self._guards.idle():
            context.log.warn("{sentence}", sentence=sentence)
        now = context.clock.monotonic()
        self._aged_at = self._looked_at = now
        self._arm(now)

    @hookimpl
    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    @hookimpl
    async def reload(self, settings: SentinelSettings) -> Sequence[str]:
        """Take new rules and read the file again; if the file is invalid, raise and keep the old rules."""
        file, rules = await self._context.in_thread(lambda: _file_and_rules(settings))
        sentences = []
        for key in ("watch_topics", "watch_concurrency"):
            if getattr(settings, key) != getattr(self._settings_now, key):
                sentences.append(f"{key} needs a restart")
        self._rules_in_force.resize(settings.max_keys)
        return [*sentences, *self._take_settings(settings, file, rules), *self._guards.idle()]

    @hookimpl
    def sys_topics(self) -> Sequence[SysTopic]:
        """Counts of refused and delayed requests, open breakers, and the broker's load."""
        readings = {
            "rules": lambda: len(self._rules_now.all()),
            "passed": lambda: self._rules_in_force.passed,
            "blocked": lambda: self._rules_in_force.blocked,
            "shadow_blocked": lambda: self._rules_in_force.shadow_blocked,
            "delayed": lambda: self._rules_in_force.delayed,
            "calls_refused": lambda: self._guards.refused(),
            "breakers_open": lambda: len(self._guards.open()),
            "system_rules_shut": lambda: sum(rule.shut for rule in self._rules_in_force.system_rules()),
            "lag_ms": lambda: round(self._measures.lag_s * 1000.0, 1),
        }
        return [
            SysTopic(f"$SYS/sentinel_limiter/{name}", lambda read=read: str(read()))  # type: ignore[misc]
            for name, read in readings.items()
        ]

    @hookimpl
    def health(self) -> Health:
        """Degraded while the rules file is invalid or rules need a restart."""
        if self._problems:
            return Health(HealthState.DEGRADED, f"the old rules are in force: {'; '.join(self._problems)}")
        if self._pending:
            return Health(HealthState.DEGRADED, "; ".join(self._pending))
        text = f"{len(self._rules_now.all())} rules, {self._rules_in_force.blocked} requests refused"
        if breakers := self._guards.open():
            text += f"; not closed: {', '.join(breaker.title for breaker in breakers)}"
        return Health(HealthState.HEALTHY, text)

    # Rules

    def _take_settings(self, settings: SentinelSettings, file: RulesFile | None, rules: Rules) -> list[str]:
        """Apply these settings and the file's rules; returns what needs a restart."""
        self._settings_now = settings
        self._file = file
        self._problems = ()
        return self._apply(joined(settings, rules))

    def _apply(self, rules: Rules) -> list[str]:
        self._rules_now = rules
        self._pending = self._rules_in_force.take(rules)
        self._guards.take(rules.degrade)
        measured = (rule.settings.metric for rule in self._rules_in_force.system_rules() if rule.measured)
        self._wanted = frozenset(measured)
        for name, unit in _UNITS.items():
            if name in self._wanted:
                self._context.metrics.gauge(f"limiter.{name}", unit, self._reader(name))
        return self._pending

    def _reader(self, name: str) -> Reading:
        return lambda: self._measures.values.get(name, 0.0)

    def _changed(self, found: LoadResult) -> None:
        """Apply the rules of a changed file, or report its errors."""
        log = self._context.log
        assert self._file is not None
        if found.rules is None:
            self._problems = found.problems
            log.error(
                "the rules file is invalid, the old rules stay in force: {problems}",
                problems="; ".join(found.problems),
            )
            return
        self._problems = ()
        waiting = self._apply(joined(self._settings_now, found.rules))
        log.info("loaded {count} rules from {path}", count=len(found.rules.all()), path=str(self._file.path))
        for sentence in waiting:
            log.warn("{sentence}; this needs a restart", sentence=sentence)
        for sentence in self._guards.idle():
            log.warn("{sentence}", sentence=sentence)

    # The timer

    def _arm(self, now: float) -> None:
        settings = self._settings_now
        every_s = IDLE_TICK_S
        if self._file is not None and settings.watch_s:
            every_s = max(min(every_s, settings.watch_s), _SHORTEST_TICK_S)
        if self._wanted:
            every_s = settings.sample_s
        self._due = now + every_s
        self._timer = self._context.clock.later(every_s, self._tick)

    def _tick(self) -> None:
        now = self._context.clock.monotonic()
        self._measures.late(now, now - self._due)
        try:
            self._measure(now)
            self._watch(now)
            self._rules_in_force.sweep(now)
            if now - self._aged_at >= AGE_S:
                self._aged_at = now
                self._rules_in_force.age(now)
        finally:
            self._arm(now)

    def _measure(self, now: float) -> None:
        """Measure, then shut and open system rules."""
        self._measures.take(self._wanted)
        changed = False
        for rule in self._rules_in_force.system_rules():
            if not rule.measured:
                continue
            changed |= rule.look(self._measures.values[rule.settings.metric])
            if rule.should_log(now):
                self._log_change(rule.name, rule.settings.metric, rule.value, rule.settings.threshold, rule.shut)
        if changed:
            self._rules_in_force.shut_gates()

    def _log_change(self, name: str, metric: str, value: float, threshold: float, shut: bool) -> None:
        log = self._context.log
        (log.warn if shut else log.info)(
            "system rule {rule} {what}: {metric} is {value:.4g}, the threshold is {threshold:.4g}",
            rule=name,
            what="takes effect" if shut else "ends",
            metric=metric,
            value=value,
            threshold=threshold,
        )

    def _watch(self, now: float) -> None:
        """Apply the result of the last check of the file, and start the next check when it is due."""
        file, watch_s = self._file, self._settings_now.watch_s
        if file is None or not watch_s:
            return
        if not file.looking and now - self._looked_at >= watch_s:
            self._looked_at = now
            file.looking = True
            self._context.in_thread(file.look)
        found = file.take_result()
        if found is not None:
            self._changed(found)


def _file_and_rules(settings: SentinelSettings) -> tuple[RulesFile | None, Rules]:
    """The rules file that the settings name, and its rules."""
    if settings.rules is None:
        return None, Rules()
    file = RulesFile(settings.rules, (rule.name for rule in settings.all()))
    return file, file.read()
