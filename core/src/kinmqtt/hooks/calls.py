"""One implementation of a hook, called: timed, counted and limited, and its answer looked at."""

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
"""What concerns longer topics is found anew each time: a cache of them could hold hundreds of megabytes."""
BLOCKED_S: Final = 0.1
"""For how long an implementation may have the event loop for itself before the log names it."""
SAID_AGAIN_AFTER_S: Final = 60.0
"""After a line about a plugin's hook, until the next of the kind."""
BEFORE_OR_AFTER_CLIENTS: Final = frozenset({"start", "drain", "stop"})
"""Hooks during which there are no clients to serve: what blocks there is counted, and gets no line."""
FAILURES: Final = (Exception, CancelledError)
"""What an implementation may raise; asyncio's cancellation is no ``Exception``, and ends nothing but the call."""


@frozen(slots=True)
class Call:
    """One implementation, timed and counted under its plugin's name."""

    hook: str
    implementation: Implementation
    traits: HookTraits
    clock: Clock
    expected: Expected
    """What may be answered."""
    timer: Callable[[], float]
    """Seconds, for what can't be measured by the clock that tests turn: how long code runs."""
    calls: Counter
    failures: Counter
    busy: Counter
    """Microseconds for which the implementation had the event loop for itself."""
    blocked: Counter
    """How often that was longer than :data:`BLOCKED_S`."""
    pace: Pace
    """Of the lines that say so."""

    @property
    def plugin(self) -> str:
        """The plugin's name."""
        return self.implementation.plugin

    def __call__(self, *arguments: Any) -> Any:
        """The implementation's answer, or a Deferred of it that is within the hook's time limit; may raise anything.

        An answer that the hook does not expect is raised as :class:`~kinmqtt.hooks.answers.WrongAnswer`.
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
                self._blocks(seconds)
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
        """An answer that is waited for, with its time limit and its type."""
        if self.traits.synchronous:
            if hasattr(answer, "close"):
                answer.close()
            raise WrongAnswer(f"{self.hook} must answer at once, and answered something to wait for: {shown(answer)}")
        if isinstance(answer, CoroutineType):
            answer = TimedCoroutine(answer, self.timer, self._took)
        deferred = as_deferred(cast(Awaitable[Any], answer), on_asyncio=self.implementation.asyncio)
        deferred = limited(deferred, self.clock, self.traits.time_limit_s)
        return deferred.addCallback(partial(self.expected.checked, self.hook))

    def _took(self, seconds: float) -> None:
        """A step of a coroutine took as long."""
        self.busy.value += int(seconds * 1e6)
        if seconds > BLOCKED_S:
            self._blocks(seconds)

    def _blocks(self, seconds: float) -> None:
        """Count, and now and then log, that the implementation had the event loop for itself for too long."""
        self.blocked.value += 1
        more = None if self.hook in BEFORE_OR_AFTER_CLIENTS else self.pace.due()
        if more is not None:
            log.warn(
                "plugin {plugin}: {hook} blocked the event loop for {ms} ms, in which no client was served"
                "{others}; what takes long belongs into context.in_thread",
                plugin=self.plugin,
                hook=self.hook,
                ms=round(seconds * 1000),
                others=f" ({more} more times since the last such line)" if more else "",
            )

    def failed(self, error: BaseException) -> None:
        """Count and log a failure; a plugin's mistake never passes in silence."""
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
            log.error("plugin {plugin}: {hook} gave {error}", plugin=self.plugin, hook=self.hook, error=error)
            return
        log.failure("plugin {plugin} failed in {hook}", Failure(error), plugin=self.plugin, hook=self.hook)


class Guard(NamedTuple):
    """What a plugin put before the calls of another, with its own name and counters."""

    call: Call
    """The plugin's ``guard_calls``: failures of the guard are its."""
    guard: CallGuard


@frozen(slots=True)
class GuardedCall(Call):
    """A call that other plugins' guards may stop, and are told the end of."""

    guards: tuple[Guard, ...]

    def __call__(self, *arguments: Any) -> Any:
        """As :class:`Call`; raises :class:`~kinmqtt_spi.errors.CallStopped` where a guard lets nobody in."""
        let_in: list[Guard] = []
        for guard in self.guards:
            if not _lets_in(guard):
                stopped = CallStopped(f"plugin {guard.call.plugin} lets no call of {self.plugin}'s {self.hook} in")
                self._left(let_in, 0.0, stopped)
                raise stopped
            let_in.append(guard)
        began = self.clock.monotonic()
        try:
            answer = Call.__call__(self, *arguments)
        except FAILURES as error:
            self._left(let_in, self.clock.monotonic() - began, error)
            raise
        if isinstance(answer, Deferred):
            return answer.addBoth(self._arrived, let_in, began)
        self._left(let_in, self.clock.monotonic() - began, None)
        return answer

    def _arrived(self, result: Any, let_in: list[Guard], began: float) -> Any:
        error = result.value if isinstance(result, Failure) else None
        self._left(let_in, self.clock.monotonic() - began, error)
        return result

    def _left(self, guards: Sequence[Guard], duration_s: float, error: BaseException | None) -> None:
        for call, guard in guards:
            try:
                guard.leave(duration_s, error)
            except FAILURES as failure:
                call.failed(failure)


def _lets_in(guard: Guard) -> bool:
    try:
        return bool(guard.guard.enter())
    except FAILURES as error:
        guard.call.failed(error)
        return True


_GUARDING: Final = HookTraits(Kind.COLLECT, synchronous=True)


class CallFactory:
    """Makes calls for a hook's implementations, with their counters, and with the guards that plugins put there."""

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        guards: Sequence[Implementation] = (),
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        """``guards`` are the implementations of ``guard_calls``; ``timer`` measures in seconds how long code runs."""
        self._clock = clock
        self._metrics = metrics
        self._timer = timer
        self._guards = tuple(self._bind("guard_calls", _GUARDING, guard) for guard in guards)

    def bind(self, hook: str, traits: HookTraits, implementations: Sequence[Implementation]) -> tuple[Call, ...]:
        """One call for each implementation, in order."""
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
    """What a plugin puts before another's calls of a hook; raises :class:`AssemblyError` where it fails."""
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
    """Whether an implementation wants to be asked about a topic."""
    filters = implementation.topics
    return filters is None or any(matches(filter, topic) for filter in filters)
