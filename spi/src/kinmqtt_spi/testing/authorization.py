"""The contract of an authorizer: what a client may do with a topic."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from math import isfinite
from typing import Any, Final

import pytest
from attrs import asdict, evolve, frozen

from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.authorization import Action, Authorization, AuthorizationRequest, Cache
from kinmqtt_spi.testing.authentication import near_names
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import Driver, NoAnswer
from kinmqtt_spi.testing.hooks import Hooks
from kinmqtt_spi.values import Client, Decision, Verdict

STRANGER: Final = "nobody-of-this-name"
UNUSUAL_NAMES: Final = ("+", "#", "a/#", "+/+", "/", "a/b", "")
UNUSUAL_TOPICS: Final = ("/", "a//b", "$", "$SYS", "\U0001f600/ä", "a b", "%u/%c", "/" * 65_535, "x" * 65_535)


@frozen(slots=True)
class AuthorizationCase:
    """An authorizer, and the answers that are expected of it."""

    plugin: Any
    """Configured, and started where it must be."""
    allowed: Sequence[AuthorizationRequest] = ()
    """Questions that it answers ALLOW; those of RECEIVE are put to ``authorize_receive``."""
    denied: Sequence[AuthorizationRequest] = ()
    """Questions that it answers DENY."""
    foreign: Sequence[AuthorizationRequest] = ()
    """Questions of which it has nothing to say."""
    context: BareContext | None = None
    """What it was configured with, where it was."""


class AuthorizerContract(Contract):
    """Override the fixture ``authorization``, which returns an :class:`AuthorizationCase`.

    Behaviours without an example in the case are skipped.
    """

    guards_subscriptions = True
    """Whether it keeps clients from reading denied topics by subscribing to a wider filter."""
    exact_names = True
    """False where another spelling is the same client: names without case, or rules with patterns for names."""
    receives = False
    """Whether it implements ``authorize_receive``: give the case questions of RECEIVE."""
    changes_rules = False
    """Whether its rules may change while it runs: override :meth:`change_rules`."""
    can_fail = False
    """Whether the suite may make what is behind the plugin fail: override :meth:`failing`."""

    unusual_names: Sequence[str] = UNUSUAL_NAMES
    """What clients call themselves to gain something: leave out what the plugin's documentation lets them gain."""

    @pytest.fixture
    def authorization(self) -> AuthorizationCase:
        """The plugin under test, and its requests."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture authorization")

    def change_rules(self, case: AuthorizationCase) -> AuthorizationRequest:
        """Change the rules, and return one of the case's allowed or foreign requests that is now denied."""
        raise NotImplementedError(f"{type(self).__name__} sets changes_rules, and does not override change_rules")

    def failing(self, case: AuthorizationCase) -> None:
        """Make the plugin's backend fail from now on."""
        raise NotImplementedError(f"{type(self).__name__} sets can_fail, and does not override failing")

    # Verdicts

    @behaviour("AUTHORIZATION-01")
    def test_authorization_01_the_allowed_may(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """An allowed request gets ALLOW."""
        for request in _some(authorization.allowed, "allowed"):
            assert _verdict(_ask(authorization, request, drive)) is Verdict.ALLOW

    @behaviour("AUTHORIZATION-02")
    def test_authorization_02_the_denied_may_not(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """A denied request gets DENY, with the reason code of a failure."""
        for request in _some(authorization.denied, "denied"):
            answer = _ask(authorization, request, drive)
            assert _verdict(answer) is Verdict.DENY
            assert answer.reason >= 0x80

    @behaviour("AUTHORIZATION-03")
    def test_authorization_03_it_abstains_from_others(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """For other requests the plugin abstains, so that another plugin can decide."""
        for request in _some(authorization.foreign, "foreign"):
            assert _verdict(_ask(authorization, request, drive)) is Verdict.ABSTAIN

    @behaviour("AUTHORIZATION-04")
    def test_authorization_04_answers_are_decisions(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """An answer is a ``Decision``, or ``None`` to abstain; an ``Authorization`` has a valid lifetime."""
        for request in _some(_all(authorization), "questions"):
            answer = _ask(authorization, request, drive)
            assert answer is None or isinstance(answer, Decision)
            if isinstance(answer, Authorization):
                assert isinstance(answer.cache, Cache)
                assert answer.expires_at is None or isfinite(answer.expires_at)

    @behaviour("AUTHORIZATION-05")
    def test_authorization_05_the_answer_stays(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """A repeated request gets the same answer, whatever was asked in between."""
        declared = _declared(authorization)
        _some(declared, "questions")
        for order in (declared, declared[::-1], declared, declared[::2] + declared[1::2]):
            for request, verdict in order:
                assert _verdict(_ask(authorization, request, drive)) is verdict, request

    @behaviour("AUTHORIZATION-06")
    def test_authorization_06_each_gets_its_own_answer(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """Of many concurrent requests each gets its own answer, in any order."""
        asked = [each for each in _declared(authorization) if each[0].action is not Action.RECEIVE for _ in range(5)]
        hooks = Hooks(authorization.plugin)
        for order in (_some(asked, "questions"), asked[::-1]):
            answers = [hooks.call("authorize", request=request) for request, _ in order]
            found = [_verdict(answer) for answer in drive.together(answers)]
            assert found == [verdict for _, verdict in order]
        answers = [hooks.call("authorize", request=request) for request, _ in asked]
        for answer, (_, verdict) in zip(reversed(answers), reversed(asked), strict=True):
            assert _verdict(drive(answer)) is verdict

    # Ways around

    @behaviour("AUTHORIZATION-07", needs="guards_subscriptions")
    def test_authorization_07_no_filter_leads_around(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """A filter that is wider than a denied one is denied, too: ``#`` does not bypass a rule."""
        denied = [each for each in authorization.denied if each.action is Action.SUBSCRIBE]
        for request in _some(denied, "denied SUBSCRIBE"):
            for filter in _wider(request.topic):
                answer = _ask(authorization, evolve(request, topic=filter), drive)
                assert _verdict(answer) is Verdict.DENY, filter

    @behaviour("AUTHORIZATION-08")
    def test_authorization_08_a_name_gains_nothing(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """A client whose name contains ``+``, ``#`` or ``/`` has no more rights than an unknown client.

        Neither for denied topics, nor for topics that contain the names of others.
        """
        tried = 0
        for request in [*authorization.denied, *authorization.allowed]:
            names = {request.client.client_id, request.client.username} - {None, ""}
            for odd in self.unusual_names:
                topics = {request.topic}
                for name in names & set(request.topic.split("/")):
                    topics.add("/".join(odd if level == name else level for level in request.topic.split("/")))
                if request.action is not Action.SUBSCRIBE:
                    topics = {topic for topic in topics if "+" not in topic and "#" not in topic}
                for topic in filter(_sound, topics):
                    tried += 1
                    stranger = _ask(authorization, _named(request, STRANGER, topic), drive)
                    if _verdict(stranger) is not Verdict.ALLOW:
                        answer = _ask(authorization, _named(request, odd, topic), drive)
                        assert _verdict(answer) is not Verdict.ALLOW, (odd, topic)
        _some(range(tried), "questions")

    @behaviour("AUTHORIZATION-09")
    def test_authorization_09_odd_topics_are_answered(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """Long and deep topics, and special characters, are answered without an error."""
        for request in _some(_all(authorization), "questions"):
            for topic in UNUSUAL_TOPICS:
                _ask(authorization, evolve(request, topic=topic), drive)

    # Deliveries

    @behaviour("AUTHORIZATION-10", needs="receives")
    def test_authorization_10_deliveries_are_answered_at_once(self, authorization: AuthorizationCase) -> None:
        """``authorize_receive`` answers correctly, and without waiting."""
        hooks = Hooks(authorization.plugin)
        for verdict, questions in (
            (Verdict.ALLOW, authorization.allowed),
            (Verdict.DENY, authorization.denied),
            (Verdict.ABSTAIN, authorization.foreign),
        ):
            for request in _received(questions):
                answer = hooks.call("authorize_receive", request=request)
                assert not isinstance(answer, Awaitable)
                assert _verdict(answer) is verdict
        _some(_received(_all(authorization)), "questions of RECEIVE")

    @behaviour("AUTHORIZATION-11", needs="receives")
    def test_authorization_11_each_delivery_is_answered(self, authorization: AuthorizationCase) -> None:
        """``authorize_receive`` answers many deliveries correctly."""
        hooks = Hooks(authorization.plugin)
        declared = [each for each in _declared(authorization) if each[0].action is Action.RECEIVE]
        for request, verdict in _some(declared, "questions of RECEIVE"):
            for _ in range(1000):
                assert _verdict(hooks.call("authorize_receive", request=request)) is verdict

    # Over time

    @behaviour("AUTHORIZATION-12", needs="changes_rules")
    def test_authorization_12_a_change_is_told(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """After a change of rules the new ones apply, and the broker is notified of stale answers."""
        context = authorization.context
        assert context is not None, "the case needs the plugin's context to see its notifications"
        passing = [*authorization.allowed, *authorization.foreign]
        answers = [_ask(authorization, request, drive) for request in passing]
        request = self.change_rules(authorization)
        context.clock.advance()  # What was put off to a later turn may be told.

        before = answers[passing.index(request)]
        assert _verdict(before) is not Verdict.DENY
        assert _verdict(_ask(authorization, request, drive)) is Verdict.DENY
        if not (isinstance(before, Authorization) and before.cache is Cache.NEVER):
            assert any(scope.covers(request.client) for scope in context.authorization_changes)

    @behaviour("AUTHORIZATION-13", needs="can_fail")
    def test_authorization_13_a_broken_guard_allows_nothing(
        self, authorization: AuthorizationCase, drive: Driver
    ) -> None:
        """While the plugin's backend fails nothing is allowed: the plugin raises, or denies."""
        self.failing(authorization)

        for request in [*authorization.allowed, *authorization.denied]:
            try:
                answer = _ask(authorization, request, drive)
            except NoAnswer:
                raise
            except Exception:
                continue  # Counts as DENY.
            assert _verdict(answer) is Verdict.DENY

    @behaviour("AUTHORIZATION-14", needs="receives")
    def test_authorization_14_what_holds_for_a_topic_is_about_it_alone(
        self, authorization: AuthorizationCase, drive: Driver
    ) -> None:
        """An answer to RECEIVE with ``Cache.TOPIC`` is the same for every QoS and RETAIN."""
        everything = [*authorization.allowed, *authorization.denied, *authorization.foreign]
        for request in everything:
            if request.action is not Action.RECEIVE:
                continue
            for qos in (0, 1, 2):
                for retain in (False, True):
                    answer = _ask(authorization, evolve(request, qos=qos, retain=retain), drive)
                    if isinstance(answer, Authorization) and answer.cache is Cache.TOPIC:
                        other = _ask(authorization, evolve(request, qos=2 - qos, retain=not retain), drive)
                        assert _verdict(other) is _verdict(answer)

    # What a question is

    @behaviour("AUTHORIZATION-15")
    def test_authorization_15_actions_are_told_apart(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """Requests that differ only in the action are told apart, whichever comes first."""
        _told_apart(authorization, "action", drive)

    @behaviour("AUTHORIZATION-16")
    def test_authorization_16_clients_are_told_apart(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """Requests that differ only in the client are told apart, whichever comes first."""
        _told_apart(authorization, "client", drive)

    @behaviour("AUTHORIZATION-17")
    def test_authorization_17_topics_are_told_apart(self, authorization: AuthorizationCase, drive: Driver) -> None:
        """Requests that differ only in the topic are told apart, whichever comes first."""
        _told_apart(authorization, "topic", drive)

    @behaviour("AUTHORIZATION-18", needs="exact_names")
    def test_authorization_18_a_near_name_gains_nothing(
        self, authorization: AuthorizationCase, drive: Driver
    ) -> None:
        """After a client was allowed something, a client with a similar name has no more rights than an unknown one.

        Names in another case, with blanks around, with one character more or less, or with similar characters.
        """
        for request in _some(authorization.allowed, "allowed"):
            for name in ("client_id", "username"):
                own = getattr(request.client, name)
                if own:
                    near = (evolve(request.client, **{name: other}) for other in near_names(own))
                    stranger = evolve(request.client, **{name: STRANGER})
                    _gain_nothing(
                        authorization, request, stranger, ((client, request.topic) for client in near), drive
                    )

    @behaviour("AUTHORIZATION-19", needs="exact_names")
    def test_authorization_19_names_and_topics_are_apart(
        self, authorization: AuthorizationCase, drive: Driver
    ) -> None:
        """The names and the topic of an allowed request, split at other places, give no more rights.

        Client id, user name and topic are three values, however they are combined to cache an answer.
        """
        for request in _some(authorization.allowed, "allowed"):
            client = request.client
            for name in ("client_id", "username"):
                own = getattr(client, name)
                if own:
                    parted = (
                        (evolve(client, **{name: other}), topic)
                        for other, topic in _parted(own, request.topic)
                        if _sound(topic) and (request.action is Action.SUBSCRIBE or not set(topic) & set("+#"))
                    )
                    _gain_nothing(authorization, request, evolve(client, **{name: STRANGER}), parted, drive)
            if client.client_id and client.username:
                clients = [
                    *((one, other) for one, other in _parted(client.client_id, client.username)),
                    *((one, other) for other, one in _parted(client.username, client.client_id)),
                ]
                named = (
                    (evolve(client, client_id=one, username=other), request.topic)
                    for one, other in clients
                    if one != client.client_id and other != client.username
                )
                stranger = evolve(client, client_id=STRANGER, username=STRANGER)
                _gain_nothing(authorization, request, stranger, named, drive)


def _some(examples: Sequence[Any], what: str) -> Sequence[Any]:
    if not examples:
        pytest.skip(f"the case has no example of {what}")
    return examples


def _all(case: AuthorizationCase) -> list[AuthorizationRequest]:
    return [*case.allowed, *case.denied, *case.foreign]


def _declared(case: AuthorizationCase) -> list[tuple[AuthorizationRequest, Verdict]]:
    """All requests, with the verdict that the case declares."""
    return [
        *((request, Verdict.ALLOW) for request in case.allowed),
        *((request, Verdict.DENY) for request in case.denied),
        *((request, Verdict.ABSTAIN) for request in case.foreign),
    ]


def _told_apart(case: AuthorizationCase, field: str, drive: Driver) -> None:
    """Make each pair of requests that differ in one field and in the verdict, in both orders."""
    declared = _declared(case)
    pairs = [
        (one, other)
        for one in declared
        for other in declared
        if one[1] is not other[1] and _differ(one[0], other[0]) == {field}
    ]
    for pair in _some(pairs, f"questions that differ in the {field} alone, and in the answer"):
        for request, verdict in pair * 2:
            assert _verdict(_ask(case, request, drive)) is verdict, request


def _differ(one: AuthorizationRequest, other: AuthorizationRequest) -> set[str]:
    ours, theirs = (asdict(request, recurse=False) for request in (one, other))
    return {name for name, value in ours.items() if value != theirs[name]}


def _gain_nothing(
    case: AuthorizationCase,
    request: AuthorizationRequest,
    stranger: Client,
    others: Iterator[tuple[Client, str]],
    drive: Driver,
) -> None:
    """Check that no other client is allowed what an unknown one is not; ``request`` is allowed before each."""
    hooks = Hooks(case.plugin)
    known = [(each.client, each.topic) for each in case.allowed]
    for client, topic in others:
        if (client, topic) in known:
            continue
        strange = _put(hooks, evolve(request, client=stranger, topic=topic), drive)
        assert _verdict(_put(hooks, request, drive)) is Verdict.ALLOW
        if _verdict(strange) is not Verdict.ALLOW:
            answer = _put(hooks, evolve(request, client=client, topic=topic), drive)
            assert _verdict(answer) is not Verdict.ALLOW, (client, topic)


def _parted(first: str, second: str) -> Iterator[tuple[str, str]]:
    """The concatenation of two texts, with or without a ``/`` between, split at other places."""
    together = first + second
    for place in range(1, len(together)):
        if place != len(first):
            yield together[:place], together[place:]
    together = f"{first}/{second}"
    for place, sign in enumerate(together):
        if sign == "/" and place != len(first):
            yield together[:place], together[place + 1 :]


def _received(questions: Sequence[AuthorizationRequest]) -> list[AuthorizationRequest]:
    return [request for request in questions if request.action is Action.RECEIVE]


def _ask(case: AuthorizationCase, request: AuthorizationRequest, drive: Driver) -> Any:
    return _put(Hooks(case.plugin), request, drive)


def _put(hooks: Hooks, request: AuthorizationRequest, drive: Driver) -> Any:
    hook = "authorize_receive" if request.action is Action.RECEIVE else "authorize"
    return drive(hooks.call(hook, request=request))


def _verdict(answer: Any) -> Verdict:
    if answer is None:
        return Verdict.ABSTAIN
    verdict: Verdict = answer.verdict
    return verdict


def _named(request: AuthorizationRequest, name: str, topic: str) -> AuthorizationRequest:
    """The request of a client with that name, and that user name if the original client has one."""
    username = None if request.client.username is None else name
    return evolve(request, client=evolve(request.client, client_id=name, username=username), topic=topic)


def _sound(topic: str) -> bool:
    """Tell whether a client can subscribe to it."""
    levels = topic.split("/")
    return (
        bool(topic)
        and "#" not in levels[:-1]
        and all(level in ("+", "#") or not {"+", "#"} & set(level) for level in levels)
    )


def _wider(filter: str) -> list[str]:
    """Filters that match all that ``filter`` does, and more."""
    levels = filter.split("/")
    found = {"/".join([*levels[:depth], "#"]) for depth in range(len(levels) + (levels[-1] != "#"))}
    for place, level in enumerate(levels):
        if level not in ("+", "#"):
            found.add("/".join([*levels[:place], "+", *levels[place + 1 :]]))
    if filter.startswith("$"):
        found = {each for each in found if each[0] not in "+#"}
    return sorted(found - {filter})
