"""``kinmqtt explain``: what each plugin answers about a client and what it wants, in order, and how long it took.

The plugins are configured and started as a broker's are, and asked one by one; no listener opens, and no store is
touched. What intercepts a message is named and not called: it may act on what it is handed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, Final

from attrs import evolve, field, frozen
from twisted.internet.defer import Deferred

from kinmqtt.broker.assembly import Assembly
from kinmqtt.broker.broker import Broker
from kinmqtt.broker.connection.listener import ListenerPlan
from kinmqtt.broker.limiting import failed_closed
from kinmqtt.builtins import ANONYMOUS
from kinmqtt.hooks.answers import EXPECTED
from kinmqtt.hooks.awaitables import as_deferred, limited
from kinmqtt.hooks.manager import Implementation
from kinmqtt.hooks.registry import NOBODY_ANSWERED
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.topics import check_topic_name, split_shared
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Authenticated, ConnectRequest, Identity, Redirect
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import ALLOW, Client, Decision, Disconnect, Drop, Reject, Verdict, deny

ASKED: Final = (
    "connection_opened",
    "connect_received",
    "authenticate",
    "choose_server",
    "authorize",
    "authorize_receive",
    "acquire",
)
"""The hooks that are asked; their plugins are started."""

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
    """What somebody wants to know."""

    request: ConnectRequest
    connects: bool
    """Whether to ask if it may connect: a password was given, or there is no other question."""
    action: Action | None = None
    topic: str = ""
    qos: int = 0
    retain: bool = False


@frozen(slots=True)
class Vote:
    """What one plugin answered."""

    hook: str
    plugin: str
    answer: str
    took_ms: float
    decides: bool = False


@frozen(slots=True)
class Part:
    """One part of the explanation: what was asked, who answered what, and what comes of it."""

    question: str
    votes: tuple[Vote, ...]
    decision: Decision
    by: str
    notes: tuple[str, ...] = field(default=())
    """What else there is to know."""

    def lines(self) -> list[str]:
        """The part as text."""
        lines = [self.question]
        widths = [max((len(getattr(vote, name)) for vote in self.votes), default=0) for name in ("hook", "plugin")]
        answers = max((len(vote.answer) for vote in self.votes), default=0)
        lines += [
            f"  {vote.hook:<{widths[0]}}  {vote.plugin:<{widths[1]}}  {vote.answer:<{answers}}  "
            f"{vote.took_ms:7.2f} ms{'  decides' if vote.decides else ''}"
            for vote in self.votes
        ]
        if not self.votes:
            lines.append("  no plugin is asked")
        lines += [f"  ({note})" for note in self.notes]
        lines.append(f"  => {_described(self.decision)} ({self.by or 'no plugin decides'})")
        return lines


async def explain(broker: Broker, question: Question) -> list[Part]:
    """Ask, and answer the parts of the explanation; raises AssemblyError where a plugin can't start."""
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
    """One run of it."""

    def __init__(self, broker: Broker, question: Question) -> None:
        self._broker = broker
        self._assembly: Assembly = broker.assembly
        self._question = question
        self._started: list[str] = []

    async def start(self) -> None:
        """Start the plugins that will be asked, but those that provide a service: a broker may be using its state."""
        manager = self._assembly.manager
        asked = {each.plugin for hook in ASKED for each in manager.implementations(hook)}
        asked -= set(self._assembly.providers.values())
        for implementation in manager.implementations("start"):
            plugin = implementation.plugin
            if plugin not in asked:
                continue
            self._started.append(plugin)
            try:
                await self._answer("start", implementation, (self._assembly.contexts[plugin],))
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
                    await self._answer("stop", implementation, ())
                except Exception:
                    pass  # It is over in any case, and the explanation is there.

    async def parts(self) -> list[Part]:
        """Everything that is asked, up to what is denied."""
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
            part = await self._acts(client, question.action)
            parts.append(evolve(part, notes=(note, *part.notes)) if note else part)
        return parts

    def _supposed(self, request: ConnectRequest) -> tuple[Client, str]:
        """The client without its authenticators being asked, and what there is to say of its user name."""
        client = _client_of(request)
        name, asked = client.username, self._asked_at(request.listener)
        if name is None or ANONYMOUS not in asked:
            return client, ""
        if asked == {ANONYMOUS}:
            note = f"no authenticator here verifies the user name {name!r}: it is dropped"
            return evolve(client, username=None), note
        return client, f"the user name {name!r} is taken for verified: --password-stdin asks authenticators"

    async def _connects(self, request: ConnectRequest) -> tuple[Part, Client]:
        """Ask as a CONNECT is, in its order; what comes behind a refusal is asked all the same, to be seen."""
        host = request.address.host
        votes: list[Vote] = []
        verdicts: list[tuple[Decision, str] | None] = [
            await self._decide("connection_opened", (request.address, request.listener), votes, ALLOW)
        ]
        connection = Resource(ResourceKind.CONNECTION, request.listener, host)
        connect = Resource(ResourceKind.CONNECT, request.listener, host, request.client_id, request.username)
        verdicts += [await self._limited(connection, votes), await self._limited(connect, votes)]
        request, refusal = await self._folded("connect_received", (request,), votes)
        verdicts.append(refusal)
        authenticators = self._authenticators(request.listener)
        decided = await self._decide("authenticate", (request,), votes, NOBODY_ANSWERED, authenticators)
        verdicts.append(decided)
        client = _known_as(request, decided[0])
        _, refusal = await self._folded("choose_server", (client, None), votes)
        verdicts.append(refusal)
        decision, by = next((v for v in verdicts if v is not None and not v[0].allowed), decided)
        notes = self._connect_notes(request, authenticators)
        if decision.allowed and client.username is None and request.username is not None:
            notes += (f"the user name {request.username!r} is dropped: nobody has verified it",)
        return Part("May it connect?", _one_decides(votes, by), decision, by, notes), client

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

    async def _folded(
        self, hook: str, arguments: tuple[Any, ...], votes: list[Vote]
    ) -> tuple[Any, tuple[Decision, str] | None]:
        """Ask what intercepts a CONNECT: the first argument as they leave it, and who refuses."""
        values = list(arguments)
        place = self._assembly.manager.parameters(hook).index(self._assembly.manager.traits(hook).folds)
        refusal: tuple[Decision, str] | None = None
        for implementation in self._assembly.manager.implementations(hook):
            began = perf_counter()
            try:
                answer = await self._answer(hook, implementation, tuple(values))
            except Exception as error:
                answer = Reject(ReasonCode.SERVER_UNAVAILABLE, f"it fails: {type(error).__name__}: {error}")
            took_ms = (perf_counter() - began) * 1000
            text = "leaves it as it is" if answer is None or answer == values[place] else "changes it"
            decision = _stopping(answer)
            if decision is not None:
                text = _described(decision)
                refusal = refusal or (decision, implementation.plugin)
            elif answer is not None:
                values[place] = answer
            votes.append(Vote(hook, implementation.plugin, text, took_ms))
        return values[0], refusal

    async def _acts(self, client: Client, action: Action) -> Part:
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
        decision, by = await self._decide(hook, (asked,), votes, ALLOW)
        if decision.allowed and refusal is not None:
            decision, by = refusal
        return Part(text, _one_decides(votes, by), decision, by, self._notes(action, topic))

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
        return await self._limited(resource, votes)

    async def _limited(self, resource: Resource, votes: list[Vote]) -> tuple[Decision, str] | None:
        """Ask those limiters that want to be asked; the first that refuses, if one does."""
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
                text = "abstains" if answer is None else _limit_described(answer)
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

    async def _decide(
        self,
        hook: str,
        arguments: tuple[Any, ...],
        votes: list[Vote],
        default: Decision,
        among: Sequence[str] | None = None,
    ) -> tuple[Decision, str]:
        """Ask every plugin, those behind the first answer too: the first that does not abstain decides."""
        found: tuple[Decision, str] | None = None
        implementations = self._assembly.manager.implementations(hook)
        if among is not None:
            by_name = {each.plugin: each for each in implementations}
            implementations = tuple(by_name[plugin] for plugin in among if plugin in by_name)
        for implementation in implementations:
            began = perf_counter()
            try:
                answer = await self._answer(hook, implementation, arguments)
            except Exception as error:
                answer = _failure(hook, error)
            took_ms = (perf_counter() - began) * 1000
            votes.append(Vote(hook, implementation.plugin, _described(answer), took_ms))
            abstains = answer is None or answer.verdict is Verdict.ABSTAIN
            if found is None and not abstains:
                found = answer, implementation.plugin
        return found or (default, "")

    async def _answer(self, hook: str, implementation: Implementation, arguments: tuple[Any, ...]) -> Any:
        answer = implementation.call(*arguments)
        if isinstance(answer, Awaitable):
            limit_s = self._assembly.manager.traits(hook).time_limit_s
            deferred: Deferred[Any] = as_deferred(answer, on_asyncio=implementation.asyncio)
            answer = await limited(deferred, self._assembly.clock, limit_s)
        return EXPECTED[hook].checked(hook, answer)

    def _authenticators(self, listener: str) -> Sequence[str] | None:
        plan = next(plan for plan in self._assembly.listeners if plan.name == listener)
        return plan.settings.authenticators or self._assembly.default_authenticators

    def _asked_at(self, listener: str) -> set[str]:
        """Who authenticates at a listener, by either way."""
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
            notes.append("what it may receive by that is asked topic by topic: --receive TOPIC")
        return tuple(notes)


def plan_named(assembly: Assembly, name: str | None) -> ListenerPlan:
    """The listener of that name, or the first; raises AssemblyError that names those there are."""
    for plan in assembly.listeners:
        if name in (None, plan.name):
            return plan
    names = ", ".join(plan.name for plan in assembly.listeners)
    raise AssemblyError(f"--listener: there is no listener {name!r}; those there are: {names}")


def run_once(reactor: Any, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run the reactor until some work is done; answers its result or raises its error."""
    outcome: list[Any] = []

    def begin() -> None:
        Deferred.fromCoroutine(work()).addBoth(outcome.append).addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(begin)
    reactor.run()
    if hasattr(outcome[0], "raiseException"):
        outcome[0].raiseException()
    return outcome[0]


def _client_of(request: ConnectRequest) -> Client:
    """The client as CONNECT names it."""
    return Client(
        request.client_id,
        request.username,
        request.address,
        request.listener,
        request.protocol_version,
        request.certificate_subject,
    )


def _stopping(answer: object) -> Decision | None:
    """What an intercept's answer refuses; ``None`` where it does not."""
    if isinstance(answer, Redirect):
        return deny(answer.reason, f"sent to {answer.server_reference}")
    if isinstance(answer, Drop):
        return deny(ReasonCode.NOT_AUTHORIZED, answer.text)
    if isinstance(answer, Reject | Disconnect):
        return deny(answer.reason, answer.text)
    return None


def _known_as(request: ConnectRequest, decision: Decision) -> Client:
    """The client as an authenticator names it."""
    identity = decision.identity if isinstance(decision, Authenticated) else Identity()
    client = _client_of(request)
    return evolve(
        client,
        client_id=client.client_id if identity.client_id is None else identity.client_id,
        username=identity.username_of(request),
        attributes=identity.attributes,
    )


def _shared(action: Action, topic: str, question: Question) -> tuple[str, int, bool, str | None]:
    """Topic, QoS, RETAIN and share group of a question."""
    group = None
    if action is Action.SUBSCRIBE:
        group, topic = split_shared(topic)
    return topic, question.qos, question.retain, group


def _problem(topic: str, action: Action, assembly: Assembly) -> Decision | None:
    """Why the broker takes no such topic, before it asks anybody; ``None`` where it does."""
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


def _failure(hook: str, error: Exception) -> Decision:
    reason = ReasonCode.NOT_AUTHORIZED if hook.startswith("authorize") else ReasonCode.SERVER_UNAVAILABLE
    return deny(reason, f"it fails: {type(error).__name__}: {error}")


def _described(answer: Decision | None) -> str:
    if answer is None or answer.verdict is Verdict.ABSTAIN:
        return "abstains"
    if answer.allowed:
        return "ALLOW"
    return f"DENY 0x{answer.reason:02X} {answer.reason.name}{f': {answer.text}' if answer.text else ''}"


def _limit_described(answer: LimitDecision) -> str:
    text = answer.verdict.name
    if answer.verdict is LimitVerdict.DELAY:
        text += f" {answer.delay_s:g} s"
    elif answer.verdict is not LimitVerdict.ALLOW:
        text += f" 0x{answer.reason:02X} {answer.reason.name}"
    return f"{text}{f': rule {answer.rule}' if answer.rule else ''}"


def _one_decides(votes: Sequence[Vote], by: str) -> tuple[Vote, ...]:
    """The votes, with the one marked that is the decision; of a plugin's several one that refuses."""
    ours = [vote for vote in votes if vote.plugin == by and vote.answer != "abstains"]
    refusing = [vote for vote in ours if not vote.answer.startswith("ALLOW")]
    chosen = (refusing or ours)[:1]
    return tuple(evolve(vote, decides=True) if vote in chosen else vote for vote in votes)
