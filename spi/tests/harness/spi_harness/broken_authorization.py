"""Authorizers that break one promise each."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

import pytest
from attrs import evolve

from kinmqtt_spi.markers import hookimpl
from kinmqtt_spi.memory.authorization import Rule, StaticRules
from kinmqtt_spi.memory.plugin import BareContext, Completed
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import EVERYBODY, Action, Authorization, AuthorizationRequest, Cache, Scope
from kinmqtt_spi.testing.authorization import AuthorizationCase, AuthorizerContract
from kinmqtt_spi.testing.build import authorization, client
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import ALLOW, Client, Decision, Verdict, deny

ALICE, BOB = client("alice", "alice"), client("bob", "bob")
RULES = (
    Rule(Verdict.DENY, "secret/#"),
    Rule(Verdict.ALLOW, "users/%u/#"),
    Rule(Verdict.DENY, "users/#"),
    Rule(Verdict.DENY, "notices/#", (Action.PUBLISH, Action.WILL)),
    Rule(Verdict.ALLOW, "notices/#"),
)


class Rules(StaticRules):
    """A sound authorizer whose rules may change, and whose list of rules may be out of reach."""

    def __init__(self) -> None:
        super().__init__(RULES)
        self.context = BareContext("rules")
        self.down = False

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Any:
        if self.down:
            raise ConnectionError("the rules are out of reach")
        return self._decide(request)

    @hookimpl
    def authorize_receive(self, request: AuthorizationRequest) -> Any:
        if self.down:
            raise ConnectionError("the rules are out of reach")
        return self._decide(request)

    def change(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self.context.authorization_changed(EVERYBODY)


class Remembering(Rules):
    """Remembers what it has answered, by a key that leaves something out."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[Hashable, Decision] = {}

    def _decide(self, request: AuthorizationRequest) -> Decision:
        key = self.key(request, request.client)
        if key not in self.answers:
            self.answers[key] = super()._decide(request)
        return self.answers[key]

    def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
        return request


class SoundRules(AuthorizerContract):
    """``double`` is the plugin, which breaks nothing here."""

    receives = True
    changes_rules = True
    can_fail = True
    double: type[Rules] = Rules

    @pytest.fixture
    def authorization(self) -> AuthorizationCase:
        plugin = self.double()
        return AuthorizationCase(
            plugin,
            allowed=[
                *(authorization(action, "users/alice/x", ALICE) for action in Action),
                authorization(Action.SUBSCRIBE, "notices/x", ALICE),
                authorization(Action.RECEIVE, "notices/x", ALICE),
            ],
            denied=[
                *(authorization(action, "secret/x", ALICE) for action in Action),
                authorization(Action.SUBSCRIBE, "users/bob/+", ALICE),
                authorization(Action.PUBLISH, "notices/x", ALICE),
                *(authorization(action, "users/alice/x", client("alice", "bob")) for action in Action),
                *(authorization(action, "users/alice/x", BOB) for action in Action),
            ],
            foreign=[authorization(action, "open/x", ALICE) for action in Action],
            context=plugin.context,
        )

    def change_rules(self, case: AuthorizationCase) -> AuthorizationRequest:
        case.plugin.change((Rule(Verdict.DENY, "users/#"), *RULES))
        request: AuthorizationRequest = case.allowed[0]
        return request

    def failing(self, case: AuthorizationCase) -> None:
        case.plugin.down = True


class TestAUTHORIZATION_01_AllowsNothing(SoundRules):
    class double(Rules):
        def _decide(self, request: AuthorizationRequest) -> Decision:
            return deny()


class TestAUTHORIZATION_02_DeniesWithSuccess(SoundRules):
    class double(Rules):
        def _decide(self, request: AuthorizationRequest) -> Decision:
            answer = super()._decide(request)
            return deny(ReasonCode.SUCCESS) if answer.verdict is Verdict.DENY else answer


class TestAUTHORIZATION_02_ForgetsWills(SoundRules):
    class double(Rules):
        def _decide(self, request: AuthorizationRequest) -> Decision:
            return ALLOW if request.action is Action.WILL else super()._decide(request)


class TestAUTHORIZATION_03_AllowsTheRest(SoundRules):
    class double(Rules):
        def _decide(self, request: AuthorizationRequest) -> Decision:
            answer = super()._decide(request)
            return ALLOW if answer.verdict is Verdict.ABSTAIN else answer


class TestAUTHORIZATION_04_AnswersTheVerdict(SoundRules):
    class double(Rules):
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Any:
            return self._decide(request).verdict


class TestAUTHORIZATION_04_HoldsForEver(SoundRules):
    class double(Rules):
        def _decide(self, request: AuthorizationRequest) -> Decision:
            answer = super()._decide(request)
            return Authorization(answer.verdict, answer.reason, expires_at=float("inf"))


class TestAUTHORIZATION_05_AllowsTheThird(SoundRules):
    class double(Rules):
        asked = 0

        def _decide(self, request: AuthorizationRequest) -> Decision:
            self.asked += 1
            return ALLOW if self.asked % 17 == 0 else super()._decide(request)


class TestAUTHORIZATION_05_RemembersTheRefused(SoundRules):
    class double(Rules):
        def __init__(self) -> None:
            super().__init__()
            self.refused: set[Client] = set()

        def _decide(self, request: AuthorizationRequest) -> Decision:
            answer = deny() if request.client in self.refused else super()._decide(request)
            if answer.verdict is Verdict.DENY:
                self.refused.add(request.client)
            return answer


class TestAUTHORIZATION_06_SharesItsDesk(SoundRules):
    class double(Rules):
        asking: AuthorizationRequest

        @hookimpl
        async def authorize(self, request: AuthorizationRequest) -> Any:  # type: ignore[override]
            self.asking = request
            await asyncio.sleep(0)
            return self._decide(self.asking)


class TestAUTHORIZATION_06_SharesItsDeskOnAsyncio(TestAUTHORIZATION_06_SharesItsDesk):
    reactor = "asyncio"


class TestAUTHORIZATION_06_WaitsForAnothersAnswer(SoundRules):
    class double(Rules):
        """Asks once for many that come at one time, and takes them for the same by their topic."""

        def __init__(self) -> None:
            super().__init__()
            self.running: dict[str, Decision] = {}

        @hookimpl
        async def authorize(self, request: AuthorizationRequest) -> Any:  # type: ignore[override]
            first = request.topic not in self.running
            answer = self.running.setdefault(request.topic, self._decide(request))
            await asyncio.sleep(0)
            if first:
                del self.running[request.topic]
            return answer


class TestAUTHORIZATION_06_RemembersTheLastQuestion(SoundRules):
    class double(Rules):
        asking: AuthorizationRequest

        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Any:
            self.asking = request
            return self._later()

        async def _later(self) -> Decision:
            return self._decide(self.asking)


class TestAUTHORIZATION_07_TakesFiltersForTopics(SoundRules):
    class double(Rules):
        def _decide(self, request: AuthorizationRequest) -> Decision:
            for rule in self.rules:
                if rule.verdict is Verdict.DENY and matches(rule.filter, request.topic):
                    return super()._decide(request)
            return ALLOW if "alice" in request.topic else Decision(Verdict.ABSTAIN)


class TestAUTHORIZATION_08_FillsInAnyName(SoundRules):
    class double(Rules):
        def _decide(self, request: AuthorizationRequest) -> Decision:
            own = f"users/{request.client.username}/x"
            return ALLOW if matches(own, request.topic) else super()._decide(request)


class TestAUTHORIZATION_09_CountsLevels(SoundRules):
    class double(Rules):
        def _decide(self, request: AuthorizationRequest) -> Decision:
            if len(request.topic) > 1000:
                raise RecursionError("too deep")
            return super()._decide(request)


class TestAUTHORIZATION_10_AnswersDeliveriesLater(SoundRules):
    class double(Rules):
        @hookimpl
        def authorize_receive(self, request: AuthorizationRequest) -> Any:
            return Completed(lambda: self._decide(request))


class TestAUTHORIZATION_11_GivesUpAfterMany(SoundRules):
    class double(Rules):
        asked = 0

        @hookimpl
        def authorize_receive(self, request: AuthorizationRequest) -> Any:
            self.asked += 1
            return None if self.asked > 500 else super().authorize_receive(request)


class TestAUTHORIZATION_12_ChangesInSilence(SoundRules):
    class double(Rules):
        def change(self, rules: tuple[Rule, ...]) -> None:
            self.rules = rules


class TestAUTHORIZATION_12_TellsOfAnother(SoundRules):
    class double(Rules):
        def change(self, rules: tuple[Rule, ...]) -> None:
            self.rules = rules
            self.context.authorization_changed(Scope(username="bob"))


class TestAUTHORIZATION_13_AllowsWhenItFails(SoundRules):
    class double(Rules):
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Any:
            return ALLOW if self.down else self._decide(request)


class TestAUTHORIZATION_13_AbstainsWhenItFails(SoundRules):
    class double(Rules):
        @hookimpl
        def authorize_receive(self, request: AuthorizationRequest) -> Any:
            return None if self.down else self._decide(request)


class TestAUTHORIZATION_14_AnswersForGoodAndLooksAtQoS(SoundRules):
    class double(Rules):
        @hookimpl
        def authorize_receive(self, request: AuthorizationRequest) -> Any:
            answer: Any = self._decide(request)
            if answer is None or answer.verdict is Verdict.ABSTAIN:
                return answer
            verdict = Verdict.DENY if request.qos == 2 else answer.verdict
            return Authorization(verdict, ReasonCode.NOT_AUTHORIZED, cache=Cache.TOPIC)


class TestAUTHORIZATION_15_ForgetsTheAction(SoundRules):
    class double(Remembering):
        def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
            return client, request.topic


class TestAUTHORIZATION_15_ForgetsTheActionOfTheAllowed(SoundRules):
    class double(Rules):
        def __init__(self) -> None:
            super().__init__()
            self.allowed: set[Hashable] = set()

        def _decide(self, request: AuthorizationRequest) -> Decision:
            if (request.client, request.topic) in self.allowed:
                return ALLOW
            answer = super()._decide(request)
            if answer.verdict is Verdict.ALLOW:
                self.allowed.add((request.client, request.topic))
            return answer


class TestAUTHORIZATION_16_ForgetsTheClient(SoundRules):
    class double(Remembering):
        def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
            return request.action, request.topic


class TestAUTHORIZATION_16_ForgetsTheUser(SoundRules):
    class double(Remembering):
        def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
            return request.action, client.client_id, request.topic


class TestAUTHORIZATION_17_ForgetsTheTopic(SoundRules):
    class double(Remembering):
        def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
            return request.action, client


class TestAUTHORIZATION_17_CountsTheLevels(SoundRules):
    class double(Remembering):
        def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
            return request.action, client, request.topic.count("/") > 2


class TestAUTHORIZATION_18_NamesHaveNoCase(SoundRules):
    class double(Rules):
        def _decide(self, request: AuthorizationRequest) -> Decision:
            return super()._decide(
                evolve(request, client=evolve(request.client, username=(request.client.username or "").lower()))
            )


class TestAUTHORIZATION_18_RemembersNamesWithoutBlanks(SoundRules):
    class double(Remembering):
        def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
            return request.action, client.client_id, (client.username or "").strip(), request.topic


class TestAUTHORIZATION_18_LooksAtTheBeginning(SoundRules):
    class double(Rules):
        def _decide(self, request: AuthorizationRequest) -> Decision:
            level = request.topic.split("/")[1:2]
            if level and (request.client.username or "").startswith(level[0]):
                return ALLOW
            return super()._decide(request)


class TestAUTHORIZATION_19_JoinsNameAndTopic(SoundRules):
    class double(Remembering):
        def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
            return request.action, f"{client.username}{request.topic}"


class TestAUTHORIZATION_19_JoinsThemByASlash(SoundRules):
    class double(Remembering):
        def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
            return request.action, f"{client.username}/{request.topic}"


class TestAUTHORIZATION_19_JoinsTheNames(SoundRules):
    class double(Remembering):
        def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
            return request.action, f"{client.client_id}{client.username}", request.topic


class TestAUTHORIZATION_19_JoinsTheNamesTheOtherWay(SoundRules):
    class double(Remembering):
        def key(self, request: AuthorizationRequest, client: Client) -> Hashable:
            return request.action, f"{client.username}{client.client_id}", request.topic
