"""Combines the answers of hooks: one dispatcher for each kind of hook, bound once at assembly.

A dispatcher holds plain callables. If no plugin implements a hook, ``active`` is false and callers on the message
path skip the call. An implementation that raises, returns an invalid answer or exceeds its time limit fails as its
kind of hook documents; the failure is logged under the plugin's name and no client sees anything else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, ParamSpec, TypeVar, cast

from twisted.internet.defer import Deferred

from kinmqtt.hooks.answers import STOPS
from kinmqtt.hooks.awaitables import run
from kinmqtt.hooks.calls import CACHED_TOPIC_LENGTH, CACHED_TOPICS, FAILURES, Call, concerns
from kinmqtt_spi.markers import HookTraits, OnFailure
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.values import Decision, Disconnect, Drop, Maybe, Reject, Verdict, deny

P = ParamSpec("P")
T = TypeVar("T")


CLOSED: Final = Reject(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "a plugin failed")
"""The answer for a failure of an intercept that would pass the value unchanged but is marked ``fails_closed``."""


class FailedClosed(Exception):
    """A plugin failed in a hook that is marked ``fails_closed``, so the request must be refused."""


class HookVerdict(NamedTuple):
    """A decision and the plugin that made it; ``by`` is empty if all plugins abstained."""

    decision: Decision
    by: str
    failed: bool = False
    """Whether the plugin failed instead of deciding; such an answer must not be cached."""


class Decide(Generic[P]):
    """Returns the first answer that does not abstain, in order; a failure is a DENY with ``on_failure``."""

    __slots__ = ("_calls", "_default", "_on_failure", "active", "asks_one")

    def __init__(self, calls: Sequence[Call], default: Decision, on_failure: ReasonCode) -> None:
        """``default`` is the answer if all plugins abstain."""
        self._calls = tuple(calls)
        self._default = HookVerdict(default, "")
        self._on_failure = on_failure
        self.active = bool(calls)
        self.asks_one = len(calls) == 1
        """Whether only one plugin answers, so that no plugin before it could have decided otherwise."""

    def __call__(self, *arguments: P.args, **_: P.kwargs) -> Maybe[HookVerdict]:
        """Ask the plugins. The answer is awaitable only if an implementation's answer was."""
        for position, call in enumerate(self._calls):
            try:
                answer = call(*arguments)
                if isinstance(answer, Deferred):
                    return run(self._later(position, answer, arguments))
            except FAILURES as error:
                return self._failed(call, error)
            if answer is not None and not _abstains(answer):
                return HookVerdict(answer, call.plugin)
        return self._default

    def among(self, plugins: Sequence[str]) -> Decide[P]:
        """Return a dispatcher that asks only these plugins, in this order."""
        calls = [call for plugin in plugins for call in self._calls if call.plugin == plugin]
        return Decide(calls, self._default.decision, self._on_failure)

    def at_once(self, *arguments: P.args, **keywords: P.kwargs) -> HookVerdict:
        """Ask a hook that is declared synchronous."""
        return cast(HookVerdict, self(*arguments, **keywords))

    async def _later(self, position: int, answer: Any, arguments: tuple[Any, ...]) -> HookVerdict:
        for call in self._calls[position:]:
            try:
                answer = call(*arguments) if answer is None else answer
                if isinstance(answer, Deferred):
                    answer = await answer
            except FAILURES as error:
                return self._failed(call, error)
            if answer is not None and not _abstains(answer):
                return HookVerdict(answer, call.plugin)
            answer = None
        return self._default

    def _failed(self, call: Call, error: BaseException) -> HookVerdict:
        call.failed(error)
        return HookVerdict(deny(self._on_failure, f"plugin {call.plugin} failed"), call.plugin, True)


class Poll(Generic[P, T]):
    """For synchronous questions whose answer is no :class:`Decision`: the first answer for which ``counts`` holds."""

    __slots__ = ("_calls", "_counts", "active")

    def __init__(self, calls: Sequence[Call], counts: Callable[..., bool] = lambda answer, *arguments: True) -> None:
        """``counts`` gets an answer and the arguments of the call."""
        self._calls = tuple(calls)
        self._counts = counts
        self.active = bool(calls)

    def __call__(self, *arguments: P.args, **_: P.kwargs) -> T | None:
        """Return the first answer that counts; an implementation that raises abstains."""
        for call in self._calls:
            try:
                answer = call(*arguments)
                if answer is not None and self._counts(answer, *arguments):
                    return cast(T, answer)
            except FAILURES as error:
                call.failed(error)
        return None


class Intercept(Generic[P, T]):
    """Folds a value through the implementations: each may replace the value or stop it."""

    __slots__ = ("_bound", "_calls", "_fold", "_on_failure", "active")

    def __init__(self, calls: Sequence[Call], fold: int, on_failure: Reject | None) -> None:
        """``fold`` is the position of the folded argument; on failure ``on_failure=None`` passes it unchanged."""
        self._calls = tuple(calls)
        self._fold = fold
        self._on_failure = on_failure
        self._bound: dict[str, Intercept[P, T] | None] = {}
        self.active = bool(calls)

    def for_topic(self, topic: str) -> Intercept[P, T] | None:
        """Return an intercept with only the implementations for a topic; ``None`` if there are none."""
        if not self.active:
            return None
        try:
            return self._bound[topic]
        except KeyError:
            pass
        concerned = [call for call in self._calls if concerns(call.implementation, topic)]
        bound: Intercept[P, T] | None = None
        if concerned:
            same = len(concerned) == len(self._calls)
            bound = self if same else Intercept(concerned, self._fold, self._on_failure)
        if len(topic) <= CACHED_TOPIC_LENGTH:
            if len(self._bound) >= CACHED_TOPICS:
                self._bound.clear()
            self._bound[topic] = bound
        return bound

    def __call__(self, *arguments: P.args, **_: P.kwargs) -> Maybe[T | Drop | Reject | Disconnect]:
        """Return the folded value, or the answer that stopped it; awaitable only if an implementation's answer is."""
        values: list[Any] = list(arguments)
        for position, call in enumerate(self._calls):
            try:
                answer = call(*values)
                if isinstance(answer, Deferred):
                    return run(self._later(position, answer, values))
            except FAILURES as error:
                call.failed(error)
                answer = self._outcome_of_failure(call)
            if isinstance(answer, STOPS):
                return answer
            if answer is not None:
                values[self._fold] = answer
        return cast(T, values[self._fold])

    def at_once(self, *arguments: P.args, **keywords: P.kwargs) -> T | Drop | Reject | Disconnect:
        """Fold through a hook that is declared synchronous."""
        return cast("T | Drop | Reject | Disconnect", self(*arguments, **keywords))

    def _outcome_of_failure(self, call: Call) -> Reject | None:
        return CLOSED if call.implementation.closed else self._on_failure

    async def _later(self, position: int, answer: Any, values: list[Any]) -> T | Drop | Reject | Disconnect:
        for call in self._calls[position:]:
            try:
                answer = call(*values) if answer is None else answer
                if isinstance(answer, Deferred):
                    answer = await answer
            except FAILURES as error:
                call.failed(error)
                answer = self._outcome_of_failure(call)
            if isinstance(answer, STOPS):
                return answer
            if answer is not None:
                values[self._fold] = answer
            answer = None
        return cast(T, values[self._fold])


class Collect(Generic[P, T]):
    """Collects each implementation's answer, by plugin; a failure is counted and its answer left out."""

    __slots__ = ("_calls", "active")

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = tuple(calls)
        self.active = bool(calls)

    def at_once(self, *arguments: P.args, **_: P.kwargs) -> list[tuple[str, T]]:
        """Return the answers of a hook that is declared synchronous."""
        answers: list[tuple[str, T]] = []
        for call in self._calls:
            try:
                answers.append((call.plugin, call(*arguments)))
            except FAILURES as error:
                call.failed(error)
        return answers

    async def __call__(self, *arguments: P.args, **_: P.kwargs) -> list[tuple[str, T]]:
        """Call one plugin after the other. Raises :class:`FailedClosed` if one that is ``fails_closed`` fails."""
        answers: list[tuple[str, T]] = []
        for call in self._calls:
            try:
                answer = call(*arguments)
                answers.append((call.plugin, await answer if isinstance(answer, Deferred) else answer))
            except FAILURES as error:
                call.failed(error)
                if call.implementation.closed:
                    raise FailedClosed(f"plugin {call.plugin} failed") from error
        return answers

    def each(self) -> tuple[Call, ...]:
        """The single calls, for callers that must know which one failed."""
        return self._calls


def failure_outcome(traits: HookTraits, reason: ReasonCode) -> Reject | None:
    """Return what a failing intercept does to its value, by the policy of its hook."""
    return None if traits.on_failure is OnFailure.PASS else Reject(reason, "a plugin failed")


def _abstains(answer: object) -> bool:
    return isinstance(answer, Decision) and answer.verdict is Verdict.ABSTAIN
