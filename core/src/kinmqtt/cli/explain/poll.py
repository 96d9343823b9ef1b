"""Asking the plugins of one hook, one after the other, with all answers noted."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from time import perf_counter
from typing import Any

from attrs import evolve
from twisted.internet.defer import Deferred

from kinmqtt.broker.assembly import Assembly
from kinmqtt.broker.limiting import failed_closed
from kinmqtt.cli.explain.report import Vote, described, limit_described
from kinmqtt.hooks.answers import EXPECTED
from kinmqtt.hooks.awaitables import as_deferred, limited
from kinmqtt.hooks.manager import Implementation
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Redirect
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource
from kinmqtt_spi.values import Decision, Disconnect, Drop, Reject, Verdict, deny


class PluginPoll:
    """Asks the plugins of an assembly; plugins after the deciding one are asked too, so that their answers show."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly

    async def decide(
        self,
        hook: str,
        arguments: tuple[Any, ...],
        votes: list[Vote],
        default: Decision,
        among: Sequence[str] | None = None,
    ) -> tuple[Decision, str]:
        """Returns the first decision that is no abstention, with its plugin; ``among`` names the plugins to ask."""
        found: tuple[Decision, str] | None = None
        implementations = self._assembly.manager.implementations(hook)
        if among is not None:
            by_name = {each.plugin: each for each in implementations}
            implementations = tuple(by_name[plugin] for plugin in among if plugin in by_name)
        for implementation in implementations:
            began = perf_counter()
            try:
                answer = await self.answer(hook, implementation, arguments)
            except Exception as error:
                answer = _failure(hook, error)
            took_ms = (perf_counter() - began) * 1000
            votes.append(Vote(hook, implementation.plugin, described(answer), took_ms))
            abstains = answer is None or answer.verdict is Verdict.ABSTAIN
            if found is None and not abstains:
                found = answer, implementation.plugin
        return found or (default, "")

    async def intercept(
        self, hook: str, arguments: tuple[Any, ...], votes: list[Vote]
    ) -> tuple[Any, tuple[Decision, str] | None]:
        """Returns the first argument as the intercepting plugins leave it, and the first refusal with its plugin."""
        values = list(arguments)
        place = self._assembly.manager.parameters(hook).index(self._assembly.manager.traits(hook).folds)
        refusal: tuple[Decision, str] | None = None
        for implementation in self._assembly.manager.implementations(hook):
            began = perf_counter()
            try:
                answer = await self.answer(hook, implementation, tuple(values))
            except Exception as error:
                answer = Reject(ReasonCode.SERVER_UNAVAILABLE, f"it fails: {type(error).__name__}: {error}")
            took_ms = (perf_counter() - began) * 1000
            text = "leaves it as it is" if answer is None or answer == values[place] else "changes it"
            decision = _stopping(answer)
            if decision is not None:
                text = described(decision)
                refusal = refusal or (decision, implementation.plugin)
            elif answer is not None:
                values[place] = answer
            votes.append(Vote(hook, implementation.plugin, text, took_ms))
        return values[0], refusal

    async def limit(self, resource: Resource, votes: list[Vote]) -> tuple[Decision, str] | None:
        """Returns the first refusal of the limiters that want to be asked, with its plugin."""
        needs = self._assembly.limiter_needs
        topics = any(each.topics for each in needs.values())
        refusal: tuple[Decision, str] | None = None
        for implementation in self._assembly.manager.implementations("acquire"):
            if resource.kind not in needs[implementation.plugin].kinds:
                continue
            seen = resource if topics else evolve(resource, topic=None)
            began = perf_counter()
            try:
                answer: LimitDecision | None = EXPECTED["acquire"].checked("acquire", implementation.call(seen, 1))
                text = "abstains" if answer is None else limit_described(answer)
                refuses = answer is not None and answer.verdict not in (LimitVerdict.ALLOW, LimitVerdict.DELAY)
            except Exception as error:
                closed = implementation.closed
                answer = failed_closed(implementation.plugin, resource.kind) if closed else None
                does = "refuses" if closed else "allows"
                refuses, text = closed, f"fails, which {does}: {type(error).__name__}: {error}"
            took_ms = (perf_counter() - began) * 1000
            votes.append(Vote(f"acquire {resource.kind.value}", implementation.plugin, text, took_ms))
            if refuses and answer is not None and refusal is None:
                refusal = deny(answer.reason, f"limited by {answer.rule}"), implementation.plugin
        return refusal

    async def answer(self, hook: str, implementation: Implementation, arguments: tuple[Any, ...]) -> Any:
        """Returns one plugin's answer, checked, within the hook's time limit."""
        answer = implementation.call(*arguments)
        if isinstance(answer, Awaitable):
            limit_s = self._assembly.manager.traits(hook).time_limit_s
            deferred: Deferred[Any] = as_deferred(answer, on_asyncio=implementation.asyncio)
            answer = await limited(deferred, self._assembly.clock, limit_s)
        return EXPECTED[hook].checked(hook, answer)


def _failure(hook: str, error: Exception) -> Decision:
    reason = ReasonCode.NOT_AUTHORIZED if hook.startswith("authorize") else ReasonCode.SERVER_UNAVAILABLE
    return deny(reason, f"it fails: {type(error).__name__}: {error}")


def _stopping(answer: object) -> Decision | None:
    """Returns the refusal in an intercepting plugin's answer, if it is one."""
    if isinstance(answer, Redirect):
        return deny(answer.reason, f"sent to {answer.server_reference}")
    if isinstance(answer, Drop):
        return deny(ReasonCode.NOT_AUTHORIZED, answer.text)
    if isinstance(answer, Reject | Disconnect):
        return deny(answer.reason, answer.text)
    return None
