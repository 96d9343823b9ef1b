"""The questions of ``kinmqtt explain``: may a client connect, publish, subscribe, receive or leave a will."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from attrs import evolve, frozen
from twisted.internet.defer import Deferred

from kinmqtt.broker.assembly import Assembly
from kinmqtt.broker.broker import Broker
from kinmqtt.broker.connection.listener import ListenerPlan
from kinmqtt.builtins import ANONYMOUS
from kinmqtt.cli.explain.poll import PluginPoll
from kinmqtt.cli.explain.report import Part, Vote, deciding
from kinmqtt.hooks.registry import NOBODY_ANSWERED
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.topics import check_topic_name, split_shared
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Authenticated, ConnectRequest, Identity
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.limiter import Resource, ResourceKind
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import ALLOW, Client, Decision, deny

ASKED: Final = (
    "connection_opened",
    "connect_received",
    "authenticate",
    "choose_server",
    "authorize",
    "authorize_receive",
    "acquire",
)
"""The hooks that are called; their plugins are started."""

_WORDS: Final = {
    Action.PUBLISH: "publish to",
    Action.SUBSCRIBE: "subscribe to",
    Action.RECEIVE: "receive",
    Action.WILL: "leave a will on",
}

_INTERCEPTS: Final = {
    Action.PUBLISH: ("publish_received",),
    Action.SUBSCRIBE: ("subscribing",),
    Action.RECEIVE: ("delivering",),
    Action.WILL: ("will_publishing",),
}


@frozen(slots=True)
class Question:
    """A client, and what it would do."""

    request: ConnectRequest
    connects: bool
    """Whether to ask if it may connect: with a password, or without any other question."""
    action: Action | None = None
    topic: str = ""
    qos: int = 0
    retain: bool = False


async def explain(broker: Broker, question: Question) -> list[Part]:
    """Returns the parts of the explanation; raises AssemblyError where a plugin can't start."""
    explanation = _Explanation(broker, question)
    await explanation.start()
    try:
        parts = await explanation.parts()
    except Exception as error:
        failure: Exception | None = error
    else:
        failure = None
    await explanation.stop()
    if failure is not None:
        raise failure
    return parts


class _Explanation:
    """One run of ``kinmqtt explain``."""

    def __init__(self, broker: Broker, question: Question) -> None:
        self._assembly: Assembly = broker.assembly
        self._poll = PluginPoll(broker.assembly)
        self._question = question
        self._started: list[str] = []

    async def start(self) -> None:
        """Start the plugins to ask, except those that provide a service: a broker may be using its state."""
        manager = self._assembly.manager
        asked = {each.plugin for hook in ASKED for each in manager.implementations(hook)}
        asked -= set(self._assembly.providers.values())
        for implementation in manager.implementations("start"):
            plugin = implementation.plugin
            if plugin not in asked:
                continue
            self._started.append(plugin)
            try:
                await self._poll.answer("start", implementation, (self._assembly.contexts[plugin],))
            except Exception as error:
                await self.stop()
                raise AssemblyError(f"plugin {plugin!r} could not start: {error}") from error
        starting = {implementation.plugin for implementation in manager.implementations("start")}
        self._started += sorted(asked - starting)

    async def stop(self) -> None:
        """Stop what was started."""
        for implementation in self._assembly.manager.implementations("stop"):
            if implementation.plugin in self._started:
                try:
                    await self._poll.answer("stop", implementation, ())
                except Exception:
                    pass  # The explanation is complete; the process ends anyway.

    async def parts(self) -> list[Part]:
        """Returns one part for each question, up to the first that is denied."""
        question = self._question
        client, note = self._supposed(question.request)
        parts = []
        if question.connects:
            part, client = await self._connects(question.request)
            parts.append(part)
            if not part.decision.allowed:
                return parts
            note = ""
        if question.action is not None:
            part = await self._action_part(client, question.action)
            parts.append(evolve(part, notes=(note, *part.notes)) if note else part)
        return parts

    def _supposed(self, request: ConnectRequest) -> tuple[Client, str]:
        """Returns the client as CONNECT names it, without asking authenticators, and a note on its user name."""
        client = _client_of(request)
        name, asked = client.username, self._asked_at(request.listener)
        if name is None or ANONYMOUS not in asked:
            return client, ""
        if asked == {ANONYMOUS}:
            note = f"no authenticator here verifies the user name {name!r}: it is dropped"
            return evolve(client, username=None), note
        return client, f"the user name {name!r} is taken for verified: --password-stdin asks authenticators"

    async def _connects(self, request: ConnectRequest) -> tuple[Part, Client]:
        """Ask as for a CONNECT, in its order; plugins after a refusal are asked too, so that their answers show."""
        host = request.address.host
        votes: list[Vote] = []
        verdicts: list[tuple[Decision, str] | None] = [
            await self._poll.decide("connection_opened", (request.address, request.listener), votes, ALLOW)
        ]
        connection = Resource(ResourceKind.CONNECTION, request.listener, host)
        connect = Resource(ResourceKind.CONNECT, request.listener, host, request.client_id, request.username)
        verdicts += [await self._poll.limit(connection, votes), await self._poll.limit(connect, votes)]
        request, refusal = await self._poll.intercept("connect_received", (request,), votes)
        verdicts.append(refusal)
        authenticators = self._authenticators(request.listener)
        decided = await self._poll.decide("authenticate", (request,), votes, NOBODY_ANSWERED, authenticators)
        verdicts.append(decided)
        client = _known_as(request, decided[0])
        _, refusal = await self._poll.intercept("choose_server", (client, None), votes)
        verdicts.append(refusal)
        decision, by = next((v for v in verdicts if v is not None and not v[0].allowed), decided)
        notes = self._connect_notes(request, authenticators)
        if decision.allowed and client.username is None and request.username is not None:
            notes += (f"the user name {request.username!r} is dropped: nobody has verified it",)
        return Part("May it connect?", deciding(votes, by), decision, by, notes), client

    def _connect_notes(self, request: ConnectRequest, authenticators: Sequence[str] | None) -> tuple[str, ...]:
        notes = []
        if request.password is None and request.username is not None:
            notes.append("no password was given: --password-stdin reads one")
        exchanging = [each.plugin for each in self._assembly.manager.implementations("exchange")]
        names = [name for name in exchanging if authenticators is None or name in authenticators]
        if names:
            notes.append(
                f"{', '.join(names)}: answers clients that name an authentication method, and is not asked here"
            )
        return tuple(notes)

    async def _action_part(self, client: Client, action: Action) -> Part:
        question = self._question
        topic = question.topic
        votes: list[Vote] = []
        text = f"May it {_WORDS[action]} {topic!r}?"
        problem = _problem(topic, action, self._assembly)
        if problem is not None:
            return Part(text, (), problem, "the broker itself")
        refusal = await self._limits_of(client, action, topic, votes)
        asked = AuthorizationRequest(client, action, *_shared(action, topic, question))
        hook = "authorize_receive" if action is Action.RECEIVE else "authorize"
        decision, by = await self._poll.decide(hook, (asked,), votes, ALLOW)
        if decision.allowed and refusal is not None:
            decision, by = refusal
        return Part(text, deciding(votes, by), decision, by, self._notes(action, topic))

    async def _limits_of(
        self, client: Client, action: Action, topic: str, votes: list[Vote]
    ) -> tuple[Decision, str] | None:
        kinds = {Action.PUBLISH: ResourceKind.PUBLISH, Action.SUBSCRIBE: ResourceKind.SUBSCRIBE}
        if action not in kinds:
            return None
        resource = Resource(
            kinds[action],
            client.listener,
            client.address.host,
            client.client_id,
            client.username,
            topic if action is Action.PUBLISH else None,
        )
        return await self._poll.limit(resource, votes)

    def _authenticators(self, listener: str) -> Sequence[str] | None:
        plan = next(plan for plan in self._assembly.listeners if plan.name == listener)
        return plan.settings.authenticators or self._assembly.default_authenticators

    def _asked_at(self, listener: str) -> set[str]:
        """Returns the plugins that authenticate at a listener, by CONNECT or by AUTH."""
        manager, among = self._assembly.manager, self._authenticators(listener)
        able = {each.plugin for hook in ("authenticate", "exchange") for each in manager.implementations(hook)}
        return able if among is None else able.intersection(among)

    def _notes(self, action: Action, topic: str) -> tuple[str, ...]:
        manager = self._assembly.manager
        notes = []
        names = [
            f"{each.plugin} ({hook})"
            for hook in _INTERCEPTS[action]
            for each in manager.implementations(hook)
            if each.topics is None or any(matches(filter, topic) for filter in each.topics)
        ]
        if names:
            notes.append(f"may still be changed or refused by {', '.join(names)}")
        if action is Action.SUBSCRIBE and manager.implementations("authorize_receive"):
            notes.append("messages are authorized by topic: check with --receive TOPIC")
        return tuple(notes)


def plan_named(assembly: Assembly, name: str | None) -> ListenerPlan:
    """Returns the listener of that name, or the first; raises AssemblyError that lists their names."""
    for plan in assembly.listeners:
        if name in (None, plan.name):
            return plan
    names = ", ".join(plan.name for plan in assembly.listeners)
    raise AssemblyError(f"--listener: there is no listener {name!r}; there are {names}")


def run_once(reactor: Any, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run the reactor until some work is done; returns its result or raises its error.

    Raises :class:`~kinmqtt_spi.errors.AssemblyError` if a signal stops the reactor before.
    """
    outcome: list[Any] = []

    def begin() -> None:
        Deferred.fromCoroutine(work()).addBoth(outcome.append).addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(begin)
    reactor.run()
    if not outcome:
        raise AssemblyError("interrupted")
    if hasattr(outcome[0], "raiseException"):
        outcome[0].raiseException()
    return outcome[0]


def _client_of(request: ConnectRequest) -> Client:
    """Returns the client as CONNECT names it."""
    return Client(
        request.client_id,
        request.username,
        request.address,
        request.listener,
        request.protocol_version,
        request.certificate_subject,
    )


def _known_as(request: ConnectRequest, decision: Decision) -> Client:
    """Returns the client as an authenticator names it."""
    identity = decision.identity if isinstance(decision, Authenticated) else Identity()
    client = _client_of(request)
    return evolve(
        client,
        client_id=client.client_id if identity.client_id is None else identity.client_id,
        username=identity.username_of(request),
        attributes=identity.attributes,
    )


def _shared(action: Action, topic: str, question: Question) -> tuple[str, int, bool, str | None]:
    """Returns topic, QoS, RETAIN and share group of a question."""
    group = None
    if action is Action.SUBSCRIBE:
        group, topic = split_shared(topic)
    return topic, question.qos, question.retain, group


def _problem(topic: str, action: Action, assembly: Assembly) -> Decision | None:
    """Returns the broker's own refusal of a topic, before it asks plugins; ``None`` for an accepted one."""
    characters = assembly.limits.problem_with_characters(topic)
    if characters is not None:
        return deny(ReasonCode.MALFORMED_PACKET, characters)
    try:
        if action is Action.SUBSCRIBE:
            _, name = split_shared(topic)
        else:
            name = topic
            check_topic_name(topic)
    except RemoteError as error:
        return deny(error.reason, error.text)
    beyond = assembly.limits.problem_with(name)
    if beyond is None:
        return assembly.spaces.refusal(action, name)
    is_filter = action is Action.SUBSCRIBE
    return deny(ReasonCode.TOPIC_FILTER_INVALID if is_filter else ReasonCode.TOPIC_NAME_INVALID, beyond)
