"""The plugin itself: settings, one timer, and what it tells of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from kinmqtt_sentinel_limiter._degrade import Guard, Guards
from kinmqtt_sentinel_limiter._limits import Limits
from kinmqtt_sentinel_limiter._needs import needs_of
from kinmqtt_sentinel_limiter._rules_file import Found, RulesFile
from kinmqtt_sentinel_limiter._settings import Rules, SentinelSettings, joined
from kinmqtt_sentinel_limiter._system import Gauges, MachineGauges, Measures
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError, NotConfigured
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, Resource
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements, Timer

AGE_S: Final = 10.0
"""How often hot values get lighter."""

Reading: TypeAlias = Callable[[], float]

_UNITS: Final = {
    "lag": "seconds",
    "cpu": "share",
    "process_cpu": "processors",
    "memory": "share",
    "process_memory": "bytes",
}

IDLE_TICK_S: Final = 1.0
"""How often the timer goes where nothing is measured, and no file is looked at more often."""

_SHORTEST_TICK_S: Final = 0.1


class SentinelLimiter:
    """Limits by rules after Sentinel's model."""

    def __init__(self, gauges: Gauges | None = None) -> None:
        self._gauges = gauges
        self._timer: Timer | None = None
        self._file: RulesFile | None = None
        self._problems: tuple[str, ...] = ()
        """What is wrong with the rules file."""
        self._waiting: list[str] = []
        """Why some rules are not in force."""

    @hookimpl
    def requirements(self) -> Requirements:
        """Written for version 1 of the SPI (a number of ours: SPI_VERSION is whichever is installed)."""
        return Requirements(spi_version=1)

    @hookimpl
    def settings_class(self) -> type[SentinelSettings]:
        """The section is parsed into this."""
        return SentinelSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the rules, those of the file too; abstain where there are none and none can come."""
        settings: SentinelSettings = context.settings
        if not settings.all() and settings.rules is None:
            raise NotConfigured("plugins.sentinel_limiter has no rules and no rules file")
        self._context = context
        clock = context.clock
        self._guards = Guards(context.metrics, context.log, clock.monotonic)
        self._measures = Measures(MachineGauges() if self._gauges is None else self._gauges)
        file, rules = _file_and_rules(settings)
        self._asked = needs_of(joined(settings, rules), settings)
        self._limits = Limits(context.metrics, clock.monotonic, settings.max_keys, self._asked)
        if sentences := self._adopt(settings, file, rules):
            raise AssemblyError(f"plugins.sentinel_limiter: {'; '.join(sentences)}")

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        """What the rules look at; with a rules file, what those that may come are likely to."""
        return self._asked

    @hookimpl
    def acquire(self, resource: Resource, amount: int) -> LimitDecision | None:
        """Take so much by every rule that concerns the resource, or by none where one refuses."""
        return self._limits.acquire(resource, amount)

    @hookimpl
    def release(self, resource: Resource, amount: int) -> None:
        """Give back what is limited by how much of it there is at once."""
        self._limits.release(resource, amount)

    @hookimpl
    def guard_calls(self, plugin: str, hook: str) -> Guard:
        """A guard for every call: rules may come by a reload."""
        return self._guards.guard(plugin, hook)

    @hookimpl
    def start(self, context: Context) -> None:
        """Set the one timer; say which breakers guard nothing."""
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
        """Take new rules, and read the file anew; raises, and keeps the old ones, where the file is not sound."""
        file, rules = await self._context.in_thread(lambda: _file_and_rules(settings))
        sentences = []
        for key in ("watch_topics", "watch_concurrency"):
            if getattr(settings, key) != getattr(self._settings_now, key):
                sentences.append(f"{key} needs a restart")
        self._limits.resize(settings.max_keys)
        return [*sentences, *self._adopt(settings, file, rules), *self._guards.idle()]

    @hookimpl
    def sys_topics(self) -> Sequence[SysTopic]:
        """What was refused and delayed, how many breakers are open, and how loaded the broker is."""
        readings = {
            "rules": lambda: len(self._rules_now.all()),
            "passed": lambda: self._limits.passed,
            "blocked": lambda: self._limits.blocked,
            "shadow_blocked": lambda: self._limits.shadow_blocked,
            "delayed": lambda: self._limits.delayed,
            "calls_refused": lambda: self._guards.refused(),
            "breakers_open": lambda: len(self._guards.open()),
            "system_rules_shut": lambda: sum(rule.shut for rule in self._limits.system_rules()),
            "lag_ms": lambda: round(self._measures.lag_s * 1000.0, 1),
        }
        return [
            SysTopic(f"$SYS/sentinel_limiter/{name}", lambda read=read: str(read()))  # type: ignore[misc]
            for name, read in readings.items()
        ]

    @hookimpl
    def health(self) -> Health:
        """Degraded while the rules file is not sound, or rules wait for a restart."""
        if self._problems:
            return Health(HealthState.DEGRADED, f"old rules are in force: {'; '.join(self._problems)}")
        if self._waiting:
            return Health(HealthState.DEGRADED, "; ".join(self._waiting))
        text = f"{len(self._rules_now.all())} rules, {self._limits.blocked} requests refused"
        if breakers := self._guards.open():
            text += f"; not closed: {', '.join(breaker.title for breaker in breakers)}"
        return Health(HealthState.HEALTHY, text)

    # Rules

    def _adopt(self, settings: SentinelSettings, file: RulesFile | None, rules: Rules) -> list[str]:
        """Go by these settings and the file's rules; answers what must wait for a restart."""
        self._settings_now = settings
        self._file = file
        self._problems = ()
        return self._go_by(joined(settings, rules))

    def _go_by(self, rules: Rules) -> list[str]:
        self._rules_now = rules
        self._waiting = self._limits.take(rules)
        self._guards.take(rules.degrade)
        measured = (rule.settings.metric for rule in self._limits.system_rules() if rule.measured)
        self._wanted = frozenset(measured)
        for name, unit in _UNITS.items():
            if name in self._wanted:
                self._context.metrics.gauge(f"limiter.{name}", unit, self._reader(name))
        return self._waiting

    def _reader(self, name: str) -> Reading:
        return lambda: self._measures.values.get(name, 0.0)

    def _changed(self, found: Found) -> None:
        """The file says something else, or nothing that can be used."""
        log = self._context.log
        assert self._file is not None
        if found.rules is None:
            self._problems = found.problems
            log.error("the old rules stay in force: {problems}", problems="; ".join(found.problems))
            return
        self._problems = ()
        waiting = self._go_by(joined(self._settings_now, found.rules))
        log.info("took {count} rules from {path}", count=len(found.rules.all()), path=str(self._file.path))
        for sentence in waiting:
            log.warn("{sentence}; it needs a restart", sentence=sentence)
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
            self._limits.sweep(now)
            if now - self._aged_at >= AGE_S:
                self._aged_at = now
                self._limits.age(now)
        finally:
            self._arm(now)

    def _measure(self, now: float) -> None:
        """Shut and open system rules by what is measured now."""
        self._measures.take(self._wanted)
        changed = False
        for rule in self._limits.system_rules():
            if not rule.measured:
                continue
            changed |= rule.look(self._measures.values[rule.settings.metric])
            if rule.has_news(now):
                self._tell(rule.name, rule.settings.metric, rule.value, rule.settings.threshold, rule.shut)
        if changed:
            self._limits.shut_gates()

    def _tell(self, name: str, metric: str, value: float, threshold: float, shut: bool) -> None:
        log = self._context.log
        (log.warn if shut else log.info)(
            "system rule {rule} {what}: {metric} is {value:.4g}, the threshold {threshold:.4g}",
            rule=name,
            what="is in force" if shut else "is over",
            metric=metric,
            value=value,
            threshold=threshold,
        )

    def _watch(self, now: float) -> None:
        """Pick up what the last look at the file has found, and look again when it is time."""
        file, watch_s = self._file, self._settings_now.watch_s
        if file is None or not watch_s:
            return
        if not file.looking and now - self._looked_at >= watch_s:
            self._looked_at = now
            file.looking = True
            self._context.in_thread(file.look)
        found = file.take_found()
        if found is not None:
            self._changed(found)


def _file_and_rules(settings: SentinelSettings) -> tuple[RulesFile | None, Rules]:
    """The rules file that the settings name, and what it says."""
    if settings.rules is None:
        return None, Rules()
    file = RulesFile(settings.rules, (rule.name for rule in settings.all()))
    return file, file.read()
