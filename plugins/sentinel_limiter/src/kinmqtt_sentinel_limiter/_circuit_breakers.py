"""Circuit breakers for calls of other plugins: closed, then open for a while, then half open for one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from kinmqtt_sentinel_limiter._leap_array import LeapArray
from kinmqtt_sentinel_limiter._settings import DegradeSettings, names_of
from kinmqtt_spi.errors import CallStopped
from kinmqtt_spi.services.metric import Metrics
from kinmqtt_spi.services.plugin import CallGuard, Log
from kinmqtt_spi.settings import did_you_mean

_ROUNDING_S: Final = 1e-6
"""The tolerance for rounding errors: a call's start is computed from its duration."""


class BreakerState(Enum):
    """The state of a breaker; the numbers are the values of its gauge."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """One degrade rule for one plugin's hook.

    Closed, it counts calls in a window of one bucket, like Sentinel's. Open, it refuses all calls for ``open_s``.
    Then it accepts one call as a probe, which closes the breaker or opens it again. A probe that never ends is given
    up after another ``open_s``.
    """

    def __init__(self, settings: DegradeSettings, plugin: str, hook: str, metrics: Metrics, log: Log) -> None:
        self.settings = settings
        self.plugin = plugin
        self.hook = hook
        self.state = BreakerState.CLOSED
        self._window = LeapArray(1, settings.stat_interval_s, fields=2)
        self._until = 0.0
        """When an open breaker accepts a probe, and when a probe is given up."""
        self._probed_at = 0.0
        self._last_probes = False
        """Whether the last call of :meth:`enter` is the probe."""
        self._withdrawn = False
        """Whether the last probe was withdrawn; repeated withdrawals are not logged."""
        self._log = log
        labels = {"rule": settings.name}
        self._blocked = metrics.counter("limiter.blocked", "requests", labels)
        self._shadow_blocked = metrics.counter("limiter.shadow_blocked", "requests", labels)
        metrics.gauge(
            "limiter.breaker_state",
            "state",
            lambda: float(self.state.value),
            {"rule": settings.name, "plugin_called": plugin, "hook": hook},
        )

    @property
    def title(self) -> str:
        """The rule's name, plugin and hook."""
        return f"{self.settings.name} for {self.plugin}.{self.hook}"

    def enter(self, now: float) -> bool:
        """Whether a call may be made; after ``open_s`` the call is the probe."""
        if self.state is BreakerState.CLOSED:
            return True
        self._last_probes = now >= self._until
        if self._last_probes:
            self._change(BreakerState.HALF_OPEN, "a call is tried", logged=not self._withdrawn)
            self._probed_at = now
            self._until = now + self.settings.open_s
            return True
        if self.settings.shadow:
            self._shadow_blocked.value += 1
            return True
        self._blocked.value += 1
        return False

    def withdraw(self, now: float) -> None:
        """Withdraw the last accepted call, because something else stops it. If it was the probe, the next call is."""
        if self.state is BreakerState.HALF_OPEN and self._last_probes:
            self._change(BreakerState.OPEN, "something else stopped the call", logged=not self._withdrawn)
            self._until = now
            self._withdrawn = True

    def leave(self, now: float, duration_s: float, failed: bool) -> None:
        """Record the end of a call."""
        settings = self.settings
        slow_ms = settings.slow_call_ms
        bad = failed if slow_ms is None else duration_s * 1000.0 > slow_ms
        if self.state is BreakerState.HALF_OPEN:
            if now - duration_s >= self._probed_at - _ROUNDING_S:
                self._decide(now, bad)
        elif self.state is BreakerState.CLOSED:
            self._window.add(now, 1, bad)
            if bad:
                self._trip(now)

    def _decide(self, now: float, bad: bool) -> None:
        self._withdrawn = False
        if bad:
            self._open(now, "the probe was slow" if self.settings.strategy == "slow_ratio" else "the probe failed")
        else:
            self._window.clear()
            self._change(BreakerState.CLOSED, "the probe succeeded")

    def _trip(self, now: float) -> None:
        """Open the breaker if too many calls in the window were bad."""
        settings = self.settings
        calls, bad = self._window.total(now), self._window.total(now, 1)
        if calls < settings.min_request_amount:
            return
        if settings.count is not None:
            if bad > settings.count:
                self._open(now, f"{bad:.0f} calls failed")
            return
        share = bad / calls
        assert settings.ratio is not None
        # A share can't exceed 1, so a ratio of 1 means every call.
        if share > settings.ratio or share == settings.ratio == 1.0:
            what = "slow" if settings.strategy == "slow_ratio" else "failed"
            self._open(now, f"{bad:.0f} of {calls:.0f} calls {'were slow' if what == 'slow' else what}")

    def _open(self, now: float, why: str) -> None:
        self._until = now + self.settings.open_s
        self._change(BreakerState.OPEN, why)

    def _change(self, state: BreakerState, why: str, *, logged: bool = True) -> None:
        if state is self.state:
            return
        before, self.state = self.state, state
        if not logged:
            return
        tell = self._log.warn if state is BreakerState.OPEN else self._log.info
        tell(
            "breaker {title}: {before} to {after}: {why}{shadow}",
            title=self.title,
            before=before.name.lower().replace("_", " "),
            after=state.name.lower().replace("_", " "),
            why=why,
            shadow=" (shadow: calls continue)" if self.settings.shadow else "",
        )


class Guard(CallGuard):
    """Guards one plugin's hook with a breaker for each matching rule; nearly free without breakers."""

    def __init__(self, plugin: str, hook: str, monotonic: Callable[[], float]) -> None:
        self.plugin = plugin
        self.hook = hook
        self.breakers: tuple[Breaker, ...] = ()
        self.refused = 0
        """The number of refused calls."""
        self._monotonic = monotonic

    def enter(self) -> bool:
        breakers = self.breakers
        if not breakers:
            return True
        now = self._monotonic()
        for breaker in breakers:
            if not breaker.enter(now):
                for other in breakers[: breakers.index(breaker)]:
                    other.withdraw(now)
                self.refused += 1
                return False
        return True

    def leave(self, duration_s: float, error: BaseException | None) -> None:
        if not self.breakers:
            return
        now = self._monotonic()
        if isinstance(error, CallStopped):
            # The call was not made. All guards are entered in one go, so it was the last accepted call.
            for breaker in self.breakers:
                breaker.withdraw(now)
            return
        for breaker in self.breakers:
            breaker.leave(now, duration_s, error is not None)


class Guards:
    """All guards, and the rules that they apply."""

    def __init__(self, metrics: Metrics, log: Log, monotonic: Callable[[], float]) -> None:
        self._metrics = metrics
        self._log = log
        self._monotonic = monotonic
        self._rules: tuple[DegradeSettings, ...] = ()
        self.guards: list[Guard] = []

    def guard(self, plugin: str, hook: str) -> Guard:
        """Make a guard, even without rules, because rules may be added later."""
        guard = Guard(plugin, hook, self._monotonic)
        self.guards.append(guard)
        guard.breakers = self._breakers(guard)
        return guard

    def take(self, rules: Sequence[DegradeSettings]) -> None:
        """Apply these rules; breakers of unchanged rules keep their state."""
        self._rules = tuple(rules)
        for guard in self.guards:
            guard.breakers = self._breakers(guard)

    def open(self) -> list[Breaker]:
        """The breakers that are not closed."""
        breakers = (breaker for guard in self.guards for breaker in guard.breakers)
        return [breaker for breaker in breakers if breaker.state is not BreakerState.CLOSED]

    def idle(self) -> list[str]:
        """A warning for each rule that matches no call, for example because of a typing error."""
        sentences = []
        for rule in self._rules:
            if any(_concerns(rule, guard) for guard in self.guards):
                continue
            calls = sorted(f"{guard.plugin}.{guard.hook}" for guard in self.guards)
            wanted = [f"{plugin}.{hook}" for plugin in names_of(rule.plugin) for hook in names_of(rule.hook)]
            near = did_you_mean(wanted[0] if wanted else "", calls, quote="")
            hint = near or f"; the known calls are: {', '.join(calls) or 'none'}"
            sentences.append(f"rule {rule.name} matches no call that clients wait for{hint}")
        return sentences

    def refused(self) -> int:
        """The number of refused calls."""
        return sum(guard.refused for guard in self.guards)

    def _breakers(self, guard: Guard) -> tuple[Breaker, ...]:
        known = {breaker.settings.name: breaker for breaker in guard.breakers}
        breakers = []
        for rule in self._rules:
            if not _concerns(rule, guard):
                continue
            breaker = known.get(rule.name)
            if breaker is None or breaker.settings != rule:
                breaker = Breaker(rule, guard.plugin, guard.hook, self._metrics, self._log)
            breakers.append(breaker)
        for gone in guard.breakers:
            if gone not in breakers:
                gone.state = BreakerState.CLOSED  # for its gauge, which stays registered
        return tuple(breakers)


def _concerns(rule: DegradeSettings, guard: Guard) -> bool:
    plugins, hooks = names_of(rule.plugin), names_of(rule.hook)
    return (not plugins or guard.plugin in plugins) and (not hooks or guard.hook in hooks)
