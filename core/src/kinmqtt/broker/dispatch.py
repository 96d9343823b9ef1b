"""Calling hooks: one dispatcher for each kind, bound once at assembly.

A dispatcher holds plain callables. Where no plugin implements a hook, ``active`` is false and callers on the
message path skip the call altogether. What an implementation raises, or is too late to answer, becomes the
failure its kind documents, under the plugin's name, and never reaches a client as anything else.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, ParamSpec, TypeVar, cast

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.awaiting import TimeLimitExceeded, as_deferred, is_pending, limited, run
from kinmqtt.mqtt.topics import matches
from kinmqtt.plugins.manager import Implementation
from kinmqtt_spi.errors import AssemblyError, CallStopped
from kinmqtt_spi.markers import HookTraits, Kind, OnFailure
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.metric import Counter, Metrics
from kinmqtt_spi.services.plugin import CallGuard, Clock
from kinmqtt_spi.values import Decision, Disconnect, Drop, Maybe, Reject, Verdict, deny

P = ParamSpec("P")
T = TypeVar("T")

log = Logger("kinmqtt.hooks")

MAILBOX_LIMIT: Final = 10_000
"""Notices of one hook that may wait for one plugin."""
CACHED_TOPICS: Final = 4096
CACHED_TOPIC_LENGTH: Final = 1024
"""What concerns longer topics is found anew each time: a cache of them could hold hundreds of megabytes."""
FAILURES: Final = (Exception, CancelledError)
"""What an implementation may raise; asyncio's cancellation is no ``Exception``, and ends nothing but the call."""


@frozen(slots=True)
class Call:
    """One implementation, timed and counted under its plugin's name."""

    hook: str
    implementation: Implementation
    traits: HookTraits
    clock: Clock
    calls: Counter
    failures: Counter
    busy: Counter
    """Microseconds spent in synchronous code of the implementation."""

    @property
    def plugin(self) -> str:
        """The plugin's name."""
        return self.implementation.plugin

    def __call__(self, *arguments: Any) -> Any:
        """The implementation's answer, or a Deferred that is within the hook's time limit; may raise anything."""
        began = perf_counter()
        try:
            answer = self.implementation.call(*arguments)
        finally:
            self.calls.value += 1
            self.busy.value += int((perf_counter() - began) * 1e6)
        if not is_pending(answer):
            return answer
        if self.traits.synchronous:
            if hasattr(answer, "close"):
                answer.close()
            raise TypeError(f"{self.hook} must answer at once, and answered something to wait for")
        deferred = as_deferred(cast(Awaitable[Any], answer), on_asyncio=self.implementation.asyncio)
        return limited(deferred, self.clock, self.traits.time_limit_s)

    def failed(self, error: BaseException) -> None:
        """Count and log a failure; a plugin's mistake never passes in silence."""
        self.failures.value += 1
        if isinstance(error, CallStopped):
            log.debug("{error}", error=error)
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
    sorts: tuple[type[Any], ...]
    """What the implementation may answer besides ``None``: anything else is a failure for the guards, too."""

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
        if is_pending(answer):
            return answer.addBoth(self._arrived, let_in, began)
        self._left(let_in, self.clock.monotonic() - began, _wrong_sort(self, answer, self.sorts))
        return answer

    def _arrived(self, result: Any, let_in: list[Guard], began: float) -> Any:
        error = result.value if isinstance(result, Failure) else _wrong_sort(self, result, self.sorts)
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
    ) -> None:
        """``guards`` are the implementations of ``guard_calls``."""
        self._clock = clock
        self._metrics = metrics
        self._guards = tuple(self._bind("guard_calls", _GUARDING, guard) for guard in guards)

    def bind(
        self,
        hook: str,
        traits: HookTraits,
        implementations: Sequence[Implementation],
        sorts: tuple[type[Any], ...] = (object,),
    ) -> tuple[Call, ...]:
        """One call for each implementation, in order; ``sorts`` are what they may answer besides ``None``."""
        guardable = traits.kind in (Kind.DECIDE, Kind.INTERCEPT) and not traits.synchronous
        return tuple(
            self._guarded(hook, traits, implementation, sorts)
            if guardable and self._guards
            else self._bind(hook, traits, implementation)
            for implementation in implementations
        )

    def _bind(self, hook: str, traits: HookTraits, implementation: Implementation) -> Call:
        return Call(hook, implementation, traits, self._clock, *self._counters(hook, implementation.plugin))

    def _guarded(
        self, hook: str, traits: HookTraits, implementation: Implementation, sorts: tuple[type[Any], ...]
    ) -> Call:
        plugin = implementation.plugin
        found = [
            Guard(call, guard)
            for call in self._guards
            if call.plugin != plugin and (guard := _guard_of(call, plugin, hook)) is not None
        ]
        if not found:
            return self._bind(hook, traits, implementation)
        counters = self._counters(hook, plugin)
        return GuardedCall(hook, implementation, traits, self._clock, *counters, guards=tuple(found), sorts=sorts)

    def _counters(self, hook: str, plugin: str) -> tuple[Counter, Counter, Counter]:
        labels = {"plugin": plugin, "hook": hook}
        return (
            self._metrics.counter("plugin.calls", "calls", labels),
            self._metrics.counter("plugin.failures", "calls", labels),
            self._metrics.counter("plugin.busy", "microseconds", labels),
        )


def _guard_of(call: Call, plugin: str, hook: str) -> CallGuard | None:
    """What a plugin puts before another's calls of a hook; raises :class:`AssemblyError` where it fails."""
    try:
        guard = call(plugin, hook)
        if guard is not None and not isinstance(guard, CallGuard):
            raise TypeError(f"it answered a {type(guard).__name__}, which is no CallGuard")
    except FAILURES as error:
        raise AssemblyError(
            f"plugin {call.plugin!r} failed in guard_calls: {type(error).__name__}: {error}"
        ) from error
    return guard


class Ruling(NamedTuple):
    """A decision and who made it; ``by`` is empty where everybody abstained."""

    decision: Decision
    by: str
    failed: bool = False
    """Whether the plugin failed rather than decided: such an answer is not to be reused."""


def _check_sort(call: Call, answer: object, sorts: tuple[type[Any], ...]) -> None:
    """Raise ``TypeError`` for an answer that nobody could make sense of further on."""
    error = _wrong_sort(call, answer, sorts)
    if error is not None:
        raise error


def _wrong_sort(call: Call, answer: object, sorts: tuple[type[Any], ...]) -> TypeError | None:
    if answer is None or isinstance(answer, sorts):
        return None
    wanted = ", ".join(sort.__name__ for sort in sorts)
    return TypeError(f"{call.hook} answered a {type(answer).__name__}; expected None or one of {wanted}")


class Decide(Generic[P]):
    """The first answer that does not abstain, in order; a failure is a DENY with ``on_failure``."""

    __slots__ = ("_calls", "_default", "_on_failure", "_sorts", "active", "asks_one")

    def __init__(
        self,
        calls: Sequence[Call],
        default: Decision,
        on_failure: ReasonCode,
        sorts: tuple[type[Any], ...] = (Decision,),
    ) -> None:
        """``sorts`` are what an implementation may answer besides ``None``; anything else is a failure."""
        self._calls = tuple(calls)
        self._sorts = sorts
        self._default = Ruling(default, "")
        self._on_failure = on_failure
        self.active = bool(calls)
        self.asks_one = len(calls) == 1
        """Whether one plugin alone answers: what it says for good nobody else would have decided before it."""

    def __call__(self, *arguments: P.args, **_: P.kwargs) -> Maybe[Ruling]:
        """Ask; the answer is awaitable only where an implementation's was."""
        for position, call in enumerate(self._calls):
            try:
                answer = call(*arguments)
                if is_pending(answer):
                    return run(self._later(position, answer, arguments))
                _check_sort(call, answer, self._sorts)
            except FAILURES as error:
                return self._failed(call, error)
            if answer is not None and not _abstains(answer):
                return Ruling(answer, call.plugin)
        return self._default

    def among(self, plugins: Sequence[str]) -> Decide[P]:
        """The same question to some of the plugins only, in this order."""
        calls = [call for plugin in plugins for call in self._calls if call.plugin == plugin]
        return Decide(calls, self._default.decision, self._on_failure, self._sorts)

    def at_once(self, *arguments: P.args, **keywords: P.kwargs) -> Ruling:
        """Ask a hook that is declared synchronous."""
        return cast(Ruling, self(*arguments, **keywords))

    async def _later(self, position: int, answer: Any, arguments: tuple[Any, ...]) -> Ruling:
        for call in self._calls[position:]:
            try:
                answer = call(*arguments) if answer is None else answer
                if is_pending(answer):
                    answer = await answer
                _check_sort(call, answer, self._sorts)
            except FAILURES as error:
                return self._failed(call, error)
            if answer is not None and not _abstains(answer):
                return Ruling(answer, call.plugin)
            answer = None
        return self._default

    def _failed(self, call: Call, error: BaseException) -> Ruling:
        call.failed(error)
        return Ruling(deny(self._on_failure, f"plugin {call.plugin} failed"), call.plugin, True)


class Poll(Generic[P, T]):
    """For synchronous questions whose answers are no :class:`Decision`: the first answer that ``counts``."""

    __slots__ = ("_calls", "_counts", "active")

    def __init__(self, calls: Sequence[Call], counts: Callable[..., bool] = lambda answer, *arguments: True) -> None:
        """``counts`` is handed an answer and what was asked."""
        self._calls = tuple(calls)
        self._counts = counts
        self.active = bool(calls)

    def __call__(self, *arguments: P.args, **_: P.kwargs) -> T | None:
        """The first answer that counts; a raising implementation abstains."""
        for call in self._calls:
            try:
                answer = call(*arguments)
                if answer is not None and self._counts(answer, *arguments):
                    return cast(T, answer)
            except FAILURES as error:
                call.failed(error)
        return None


class Intercept(Generic[P, T]):
    """A fold: each implementation may replace the value or stop it."""

    __slots__ = ("_bound", "_calls", "_fold", "_on_failure", "_sorts", "active")

    def __init__(self, calls: Sequence[Call], fold: int, on_failure: Reject | None, sort: type[Any] = object) -> None:
        """``fold`` is the position of the folded argument, ``sort`` what it may be replaced with.

        ``on_failure`` is ``None`` to pass unchanged.
        """
        self._calls = tuple(calls)
        self._sorts = (sort, *STOPS)
        self._fold = fold
        self._on_failure = on_failure
        self._bound: dict[str, Intercept[P, T] | None] = {}
        self.active = bool(calls)

    def for_topic(self, topic: str) -> Intercept[P, T] | None:
        """The part of this hook that concerns a topic; ``None`` where no implementation does."""
        if not self.active:
            return None
        try:
            return self._bound[topic]
        except KeyError:
            pass
        concerned = [call for call in self._calls if _concerns(call.implementation, topic)]
        bound: Intercept[P, T] | None = None
        if concerned:
            same = len(concerned) == len(self._calls)
            bound = self if same else Intercept(concerned, self._fold, self._on_failure, self._sorts[0])
        if len(topic) <= CACHED_TOPIC_LENGTH:
            if len(self._bound) >= CACHED_TOPICS:
                self._bound.clear()
            self._bound[topic] = bound
        return bound

    def __call__(self, *arguments: P.args, **_: P.kwargs) -> Maybe[T | Drop | Reject | Disconnect]:
        """The folded value, or what stopped it; awaitable only where an implementation's answer was."""
        values: list[Any] = list(arguments)
        for position, call in enumerate(self._calls):
            try:
                answer = call(*values)
                if is_pending(answer):
                    return run(self._later(position, answer, values))
                _check_sort(call, answer, self._sorts)
            except FAILURES as error:
                call.failed(error)
                answer = self._on_failure
            if isinstance(answer, STOPS):
                return answer
            if answer is not None:
                values[self._fold] = answer
        return cast(T, values[self._fold])

    def at_once(self, *arguments: P.args, **keywords: P.kwargs) -> T | Drop | Reject | Disconnect:
        """Fold through a hook that is declared synchronous."""
        return cast("T | Drop | Reject | Disconnect", self(*arguments, **keywords))

    async def _later(self, position: int, answer: Any, values: list[Any]) -> T | Drop | Reject | Disconnect:
        for call in self._calls[position:]:
            try:
                answer = call(*values) if answer is None else answer
                if is_pending(answer):
                    answer = await answer
                _check_sort(call, answer, self._sorts)
            except FAILURES as error:
                call.failed(error)
                answer = self._on_failure
            if isinstance(answer, STOPS):
                return answer
            if answer is not None:
                values[self._fold] = answer
            answer = None
        return cast(T, values[self._fold])


class Collect(Generic[P, T]):
    """Every implementation's answer, by plugin; a failing part is left out and counted."""

    __slots__ = ("_calls", "active")

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = tuple(calls)
        self.active = bool(calls)

    def at_once(self, *arguments: P.args, **_: P.kwargs) -> list[tuple[str, T]]:
        """The answers of a hook that is declared synchronous."""
        answers: list[tuple[str, T]] = []
        for call in self._calls:
            try:
                answers.append((call.plugin, call(*arguments)))
            except FAILURES as error:
                call.failed(error)
        return answers

    async def __call__(self, *arguments: P.args, **_: P.kwargs) -> list[tuple[str, T]]:
        """The answers, one plugin after the other."""
        answers: list[tuple[str, T]] = []
        for call in self._calls:
            try:
                answer = call(*arguments)
                answers.append((call.plugin, await answer if is_pending(answer) else answer))
            except FAILURES as error:
                call.failed(error)
        return answers

    def each(self) -> tuple[Call, ...]:
        """The single calls, for whoever must know which one failed."""
        return self._calls


class Mailbox:
    """What one plugin has yet to be told: in order over all of its hooks, emptied in a later turn."""

    __slots__ = ("_busy", "_clock", "_drained", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._drained: list[Deferred[None]] = []
        self._waiting: deque[tuple[_Listener, tuple[Any, ...]]] = deque()
        self._busy = False

    def put(self, listener: _Listener, arguments: tuple[Any, ...]) -> None:
        """Have a listener told in a later turn, after everything that waits already."""
        self._waiting.append((listener, arguments))
        if not self._busy:
            self._busy = True
            self._clock.later(0, self._empty)

    def drained(self) -> Deferred[None]:
        """Fires when the plugin has been told everything, and has done what it does with it."""
        done: Deferred[None] = Deferred()
        if self._busy:
            self._drained.append(done)
        else:
            done.callback(None)
        return done

    def _empty(self) -> None:
        # Only what waits now: a notice that leads to another notice must not keep the reactor turn for itself.
        for _ in range(len(self._waiting)):
            listener, arguments = self._waiting.popleft()
            listener.waiting -= 1
            call = listener.call
            try:
                answer = call(*arguments)
            except FAILURES as error:
                call.failed(error)
                continue
            if is_pending(answer):
                answer.addErrback(lambda reason, call=call: call.failed(reason.value))
                answer.addCallback(lambda _: self._clock.later(0, self._empty))
                return
        if self._waiting:
            self._clock.later(0, self._empty)
        else:
            self._busy = False
            drained, self._drained = self._drained, []
            for done in drained:
                done.callback(None)


class _Listener:
    """One implementation of a notice. Its part of the plugin's mailbox is bounded, whatever the others do."""

    __slots__ = ("_box", "_dropped", "call", "waiting")

    def __init__(self, call: Call, box: Mailbox, dropped: Counter) -> None:
        self.call = call
        self.waiting = 0
        self._box = box
        self._dropped = dropped

    def offer(self, arguments: tuple[Any, ...]) -> None:
        if self.waiting >= MAILBOX_LIMIT:
            self._dropped.value += 1
            return
        self.waiting += 1
        self._box.put(self, arguments)


class Notify(Generic[P]):
    """Tells every implementation in a later turn, each at its own pace."""

    __slots__ = ("_listeners", "_wanted", "active")

    def __init__(self, calls: Sequence[Call], mailbox_of: Callable[[str], Mailbox], metrics: Metrics) -> None:
        """``mailbox_of`` answers a plugin's mailbox."""
        self._listeners = tuple(
            _Listener(call, mailbox_of(call.plugin), _dropped_counter(metrics, call)) for call in calls
        )
        self._wanted: dict[str, tuple[_Listener, ...]] = {}
        self.active = bool(calls)

    def __call__(self, *arguments: P.args, **_: P.kwargs) -> None:
        """Tell all."""
        for listener in self._listeners:
            listener.offer(arguments)

    def about(self, topic: str, *arguments: P.args, **_: P.kwargs) -> None:
        """Tell those whom the topic concerns."""
        concerned = self._wanted.get(topic)
        if concerned is None:
            concerned = tuple(one for one in self._listeners if _concerns(one.call.implementation, topic))
            if len(topic) <= CACHED_TOPIC_LENGTH:
                if len(self._wanted) >= CACHED_TOPICS:
                    self._wanted.clear()
                self._wanted[topic] = concerned
        for listener in concerned:
            listener.offer(arguments)


STOPS: Final = (Drop, Reject, Disconnect)
"""What an intercept may answer besides a value."""


def failure_outcome(traits: HookTraits, reason: ReasonCode) -> Reject | None:
    """What a failing intercept does to its value, by its declared policy."""
    return None if traits.on_failure is OnFailure.PASS else Reject(reason, "a plugin failed")


def _abstains(answer: object) -> bool:
    return isinstance(answer, Decision) and answer.verdict is Verdict.ABSTAIN


def _concerns(implementation: Implementation, topic: str) -> bool:
    filters = implementation.topics
    return filters is None or any(matches(filter, topic) for filter in filters)


def _dropped_counter(metrics: Metrics, call: Call) -> Counter:
    return metrics.counter("plugin.notices_dropped", "notices", {"plugin": call.plugin, "hook": call.hook})
