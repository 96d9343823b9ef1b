"""Calls one implementation of a hook: times, counts and limits the call, and checks the answer."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from types import CoroutineType
from typing import Any, Final, NamedTuple, cast

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.hooks.answers import ANYTHING, EXPECTED, NOTHING, Expected, WrongAnswer, shown
from kinmqtt.hooks.awaitables import TimeLimitExceeded, as_deferred, is_pending, limited
from kinmqtt.hooks.manager import Implementation
from kinmqtt.hooks.timed import TimedCoroutine
from kinmqtt_spi.errors import AssemblyError, CallAbandoned, CallStopped
from kinmqtt_spi.markers import HookTraits, Kind
from kinmqtt_spi.pace import Pace
from kinmqtt_spi.services.metric import Counter, Metrics
from kinmqtt_spi.services.plugin import CallGuard, Clock
from kinmqtt_spi.topics import matches

log = Logger("kinmqtt.hooks")

CACHED_TOPICS: Final = 4096
CACHED_TOPIC_LENGTH: Final = 1024
"""Results for longer topics are not cached: the cache could grow to hundreds of megabytes."""
BLOCKED_S: Final = 0.1
"""How long an implementation may block the event loop before it is logged."""
SAID_AGAIN_AFTER_S: Final = 60.0
"""Interval between log lines of one kind about one hook of a plugin."""
BEFORE_OR_AFTER_CLIENTS: Final = frozenset({"start", "drain", "stop"})
"""Hooks during which there are no clients to serve: blocking there is counted but not logged."""
FAILURES: Final = (Exception, CancelledError)
"""What an implementation may raise. asyncio's cancellation is not an ``Exception``; it ends only the call."""


@frozen(slots=True)
class Call:
    """One implementation, timed and counted under its plugin's name."""

    hook: str
    implementation: Implementation
    traits: HookTraits
    clock: Clock
    expected: Expected
    """The valid answers."""
    timer: Callable[[], float]
    """Measures the run time of code in seconds; ``clock`` can't, because tests set it."""
    calls: Counter
    failures: Counter
    busy: Counter
    """Microseconds for which the implementation blocked the event loop."""
    blocked: Counter
    """How often it blocked the event loop for longer than :data:`BLOCKED_S`."""
    pace: Pace
    """Limits the rate of log lines about blocking."""

    @property
    def plugin(self) -> str:
        """The plugin's name."""
        return self.implementation.plugin

    def __call__(self, *arguments: Any) -> Any:
        """Return the answer, or a Deferred of it with the hook's time limit. May raise anything.

        An invalid answer raises :class:`~kinmqtt.hooks.answers.WrongAnswer`.
        """
        timer = self.timer
        began = timer()
        try:
            answer = self.implementation.call(*arguments)
        finally:
            seconds = timer() - began
            self.calls.value += 1
            self.busy.value += int(seconds * 1e6)
            if seconds > BLOCKED_S:
                self.blocks(seconds)
        expected = self.expected
        if answer is None and not expected.needed:
            return None
        if isinstance(answer, expected.types):
            if expected.problem is None:
                return answer
            for argument in arguments:
                if answer is argument:
                    return answer
            return expected.checked(self.hook, answer)
        if not is_pending(answer):
            return expected.checked(self.hook, answer)
        return self._pending(answer)

    def _pending(self, answer: Any) -> Deferred[Any]:
        """Return a Deferred of an awaitable answer, with its time limit and a check of its type."""
        if self.traits.synchronous:
            if hasattr(answer, "close"):
                answer.close()
            raise WrongAnswer(f"{self.hook} must be synchronous, but returned an awaitable: {shown(answer)}")
        if isinstance(answer, CoroutineType):
            answer = TimedCoroutine(answer, self.timer, self._took)
        deferred = as_deferred(cast(Awaitable[Any], answer), on_asyncio=self.implementation.asyncio)
        deferred = limited(deferred, self.clock, self.traits.time_limit_s)
        return deferred.addCallback(partial(self.expected.checked, self.hook))

    def _took(self, seconds: float) -> None:
        """Record that a step of a coroutine took this long."""
        self.busy.value += int(seconds * 1e6)
        if seconds > BLOCKED_S:
            self.blocks(seconds)

    def blocks(self, seconds: float) -> None:
        """Count that the implementation blocked the event loop for too long, and log it at a limited rate."""
        self.blocked.value += 1
        more = None if self.hook in BEFORE_OR_AFTER_CLIENTS else self.pace.due()
        if more is not None:
            log.warn(
                "plugin {plugin}: {hook} blocked the event loop for {ms} ms, in which no client was served"
                "{others}; use context.in_thread for long work",
                plugin=self.plugin,
                hook=self.hook,
                ms=round(seconds * 1000),
                others=f" ({more} more times since the last such line)" if more else "",
            )

    def failed(self, error: BaseException) -> None:
        """Count and log a failure; no failure of a plugin is silent."""
        if isinstance(error, CallAbandoned):
            log.debug("plugin {plugin}: {hook}: {error}", plugin=self.plugin, hook=self.hook, error=error)
            return
        self.failures.value += 1
        if isinstance(error, CallStopped):
            log.debug("{error}", error=error)
            return
        if isinstance(error, WrongAnswer):
            log.error("plugin {plugin}: {error}", plugin=self.plugin, hook=self.hook, error=error)
            return
        if isinstance(error, TimeLimitExceeded):
            log.error("plugin {plugin}: {hook} failed: {error}", plugin=self.plugin, hook=self.hook, error=error)
            return
        log.failure("plugin {plugin} failed in {hook}", Failure(error), plugin=self.plugin, hook=self.hook)


class Guard(NamedTuple):
    """A guard that a plugin put before another plugin's calls."""

    call: Call
    """The guarding plugin's ``guard_calls``; failures of the guard count as its failures."""
    guard: CallGuard


@frozen(slots=True)
class GuardedCall(Call):
    """A call that other plugins' guards can stop; the guards get its duration and error."""

    guards: tuple[Guard, ...]

    def __call__(self, *arguments: Any) -> Any:
        """Like :class:`Call`; raises :class:`~kinmqtt_spi.errors.CallStopped` if a guard refuses the call."""
        entered: list[Guard] = []
        for guard in self.guards:
            if not _allows(guard):
                stopped = CallStopped(f"plugin {guard.call.plugin} stopped the call of {self.plugin}'s {self.hook}")
                self._left(entered, 0.0, stopped)
                raise stopped
            entered.append(guard)
        began = self.clock.monotonic()
        try:
            answer = Call.__call__(self, *arguments)
        except FAILURES as error:
            self._left(entered, self.clock.monotonic() - began, error)
            raise
        if isinstance(answer, Deferred):
            return answer.addBoth(self._arrived, entered, began)
        self._left(entered, self.clock.monotonic() - began, None)
        return answer

    def _arrived(self, result: Any, entered: list[Guard], began: float) -> Any:
        error = result.value if isinstance(result, Failure) else None
        self._left(entered, self.clock.monotonic() - began, error)
        return result

    def _left(self, guards: Sequence[Guard], duration_s: float, error: BaseException | None) -> None:
        for call, guard in guards:
            try:
                guard.leave(duration_s, error)
            except FAILURES as failure:
                call.failed(failure)


def _allows(guard: Guard) -> bool:
    try:
        return bool(guard.guard.enter())
    except FAILURES as error:
        guard.call.failed(error)
        return True


_GUARDING: Final = HookTraits(Kind.COLLECT, synchronous=True)


class CallFactory:
    """Makes the calls for a hook's implementations, with their counters and guards."""

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        guards: Sequence[Implementation] = (),
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        """``guards`` are the implementations of ``guard_calls``; ``timer`` measures run times in seconds."""
        self._clock = clock
        self._metrics = metrics
        self._timer = timer
        self._guards = tuple(self._bind("guard_calls", _GUARDING, guard) for guard in guards)

    def bind(self, hook: str, traits: HookTraits, implementations: Sequence[Implementation]) -> tuple[Call, ...]:
        """Return one call for each implementation, in order."""
        guardable = traits.kind in (Kind.DECIDE, Kind.INTERCEPT) and not traits.synchronous
        return tuple(
            self._guarded(hook, traits, implementation)
            if guardable and self._guards
            else self._bind(hook, traits, implementation)
            for implementation in implementations
        )

    def _bind(self, hook: str, traits: HookTraits, implementation: Implementation) -> Call:
        return Call(**self._parts(hook, traits, implementation))

    def _guarded(self, hook: str, traits: HookTraits, implementation: Implementation) -> Call:
        plugin = implementation.plugin
        found = [
            Guard(call, guard)
            for call in self._guards
            if call.plugin != plugin and (guard := _guard_of(call, plugin, hook)) is not None
        ]
        if not found:
            return self._bind(hook, traits, implementation)
        return GuardedCall(**self._parts(hook, traits, implementation), guards=tuple(found))

    def _parts(self, hook: str, traits: HookTraits, implementation: Implementation) -> dict[str, Any]:
        labels = {"plugin": implementation.plugin, "hook": hook}
        counter = self._metrics.counter
        return {
            "hook": hook,
            "implementation": implementation,
            "traits": traits,
            "clock": self._clock,
            "expected": EXPECTED.get(hook, NOTHING if traits.kind is Kind.NOTIFY else ANYTHING),
            "timer": self._timer,
            "calls": counter("plugin.calls", "calls", labels),
            "failures": counter("plugin.failures", "calls", labels),
            "busy": counter("plugin.busy", "microseconds", labels),
            "blocked": counter("plugin.blocked", "calls", labels),
            "pace": Pace(self._clock, SAID_AGAIN_AFTER_S),
        }


def _guard_of(call: Call, plugin: str, hook: str) -> CallGuard | None:
    """Return a plugin's guard for another's calls of a hook. Raises :class:`AssemblyError` on failure."""
    try:
        guard: CallGuard | None = call(plugin, hook)
    except WrongAnswer as error:
        raise AssemblyError(f"plugin {call.plugin!r}: {error}") from error
    except FAILURES as error:
        raise AssemblyError(
            f"plugin {call.plugin!r} failed in guard_calls: {type(error).__name__}: {error}"
        ) from error
    return guard


def concerns(implementation: Implementation, topic: str) -> bool:
    """Tell whether an implementation's topic filters include a topic."""
    filters = implementation.topics
    return filters is None or any(matches(filter, topic) for filter in filters)
