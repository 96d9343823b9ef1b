"""Checks the answers of hooks; an invalid answer is a failure whose text names plugin, hook and answer.

:data:`EXPECTED` has an entry for each hook. :class:`kinmqtt.hooks.calls.Call` checks every answer, immediate or
awaited, so the dispatchers never see an answer of a wrong type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from inspect import isasyncgen, isgenerator
from math import isfinite
from typing import Any, Final

import attrs
from attrs import frozen

from kinmqtt.hooks.messages import check_message
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.packets import V5, Connack
from kinmqtt.mqtt.topics import split_shared
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Authenticated, ConnectRequest, Continue, Identity, Redirect
from kinmqtt_spi.services.bridge import SendSettings, Sink, SinkPlan, Source
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, LimitVerdict, ResourceKind
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.services.plugin import CallGuard, Health, HealthState
from kinmqtt_spi.services.queue import OverflowPolicy
from kinmqtt_spi.services.subscription import Subscriber
from kinmqtt_spi.settings import problem_with
from kinmqtt_spi.values import Decision, Disconnect, Drop, Message, NodeIdentity, Reject, Subscription, Verdict

STOPS: Final = (Drop, Reject, Disconnect)
"""The answers with which an intercept stops a value."""

Problem = Callable[[Any], str | None]
"""Checks an answer of the right type: returns what is wrong with it, or ``None``."""


class WrongAnswer(TypeError):
    """An implementation returned an invalid answer; the text names the hook, the answer and the expected types."""


@frozen(slots=True)
class Expected:
    """The valid answers of one hook besides ``None``."""

    types: tuple[type[Any], ...] = ()
    """The types of an answer; none of them is awaitable."""
    problem: Problem | None = None
    items: type[Any] | None = None
    """Instead of ``types``: the type of a sequence's items. The dispatchers get a tuple."""
    nothing: bool = False
    """Whether the hook has no answer, so that any value is ignored."""
    needed: bool = False
    """Whether ``None`` is invalid."""

    def checked(self, hook: str, answer: Any) -> Any:
        """Return the answer for the dispatchers; raises :class:`WrongAnswer` or what the plugin's iterator raises."""
        if answer is None and not self.needed:
            return None
        if self.items is not None:
            return self._items(hook, answer, self.items)
        if not self.types:
            if self.nothing and (isgenerator(answer) or isasyncgen(answer)):
                raise WrongAnswer(
                    f"{hook} returned a generator, whose body never runs; expected {self}: write `async def` and "
                    "`await` instead of `yield`"
                )
            return None if self.nothing else answer
        if not isinstance(answer, self.types):
            raise WrongAnswer(f"{hook} returned {shown(answer)}; expected {self}")
        problem = None if self.problem is None else self.problem(answer)
        if problem is not None:
            raise WrongAnswer(f"{hook} returned an invalid {type(answer).__name__}: {problem}")
        return answer

    def _items(self, hook: str, answer: Any, type_: type[Any]) -> tuple[Any, ...]:
        if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
            raise WrongAnswer(f"{hook} returned {shown(answer)}; expected {self}")
        items = tuple(answer)
        for number, item in enumerate(items, 1):
            if not isinstance(item, type_):
                raise WrongAnswer(f"{hook} returned {shown(item)} as number {number}; expected {self}")
            problem = None if self.problem is None else self.problem(item)
            if problem is not None:
                raise WrongAnswer(f"{hook} returned an invalid {type(item).__name__} as number {number}: {problem}")
        return items

    def __str__(self) -> str:
        if self.nothing:
            return "nothing"
        if self.items is not None:
            return f"a sequence of {self.items.__name__}"
        names = " or ".join(each.__name__ for each in self.types)
        if self.needed:
            return names
        return f"None or {names}" if names else "anything"


def shown(answer: object) -> str:
    """Describe an answer by its type; only ``None`` and booleans by value, because others may be secret."""
    if answer is None:
        return "None"
    if isinstance(answer, bool):
        return f"the bool {answer}"
    name = type(answer).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# Checks of answers of the right type. Plugins need not be typed, so a field may hold any type.


def _refusal(reason: Any) -> str | None:
    """Check the reason of a refusal: clients would take a success code for success."""
    if not isinstance(reason, ReasonCode):
        return f"its reason is {shown(reason)}, not a ReasonCode"
    return None if reason >= 0x80 else f"it refuses with the reason 0x{reason:02X}, which means success"


def _decision(decision: Any) -> str | None:
    verdict = decision.verdict
    if verdict is Verdict.ALLOW:
        return _identity(decision) if isinstance(decision, Authenticated) else None
    if verdict is Verdict.DENY:
        return _refusal(decision.reason)
    return None if verdict is Verdict.ABSTAIN else f"its verdict is {shown(verdict)}, not a Verdict"


def _identity(decision: Any) -> str | None:
    identity = decision.identity
    if not isinstance(identity, Identity):
        return f"its identity is {shown(identity)}, not an Identity"
    return _fields(
        identity, username=str | None, client_id=str | None, attributes=Mapping, expires_at=int | float | None
    ) or _fields(decision, data=bytes | None)


def _exchanged(answer: Decision | Continue) -> str | None:
    return _fields(answer, data=bytes | None) if isinstance(answer, Continue) else _decision(answer)


def _stop_or(value: Problem | None) -> Problem:
    """Check an intercept's answer: a stop, or a value."""

    def problem(answer: Any) -> str | None:
        if isinstance(answer, Reject):
            return _refusal(answer.reason)
        if isinstance(answer, STOPS) or value is None:
            return None
        return value(answer)

    return problem


def _message(message: Message) -> str | None:
    try:
        check_message(message)
    except Exception as error:  # A field of a wrong type fails at its first use.
        return str(error)
    return None


def _connect_request(request: ConnectRequest) -> str | None:
    return _fields(
        request,
        client_id=str,
        username=str | None,
        password=bytes | None,
        keep_alive_s=int,
        properties=Properties,
    )


def _subscription_fields(subscription: Subscription) -> str | None:
    return _fields(subscription, filter=str, qos=int, share_group=str | None, identifier=int | None)


def _subscription(subscription: Subscription) -> str | None:
    problem = _subscription_fields(subscription)
    if problem is None and (subscription.qos not in (0, 1, 2) or subscription.retain_handling not in (0, 1, 2)):
        problem = f"QoS {subscription.qos!r}, retain handling {subscription.retain_handling!r}"
    if problem is None:
        try:
            split_shared(subscription.full_filter)
        except RemoteError as error:
            problem = error.text
    return problem


def _connack_properties(properties: Properties) -> str | None:
    try:
        encode(Connack(False, ReasonCode.SUCCESS, properties), V5)
    except Exception as error:
        return str(error)
    return None


def _redirect(redirect: Redirect) -> str | None:
    return _fields(redirect, server_reference=str)


def _limit(decision: Any) -> str | None:
    verdict = decision.verdict
    if verdict is LimitVerdict.ALLOW:
        return None
    if not isinstance(verdict, LimitVerdict):
        return f"its verdict is {shown(verdict)}, not a LimitVerdict"
    if verdict is LimitVerdict.DELAY:
        delay_s = decision.delay_s
        fits = isinstance(delay_s, int | float) and isfinite(delay_s) and delay_s >= 0
        return None if fits else "its delay_s is not a finite number of seconds >= 0"
    return _refusal(decision.reason)


def _limiter_needs(needs: Any) -> str | None:
    for name in ("kinds", "releases"):
        kinds = getattr(needs, name)
        if not isinstance(kinds, Set) or not all(isinstance(kind, ResourceKind) for kind in kinds):
            return f"its {name} are {shown(kinds)}, not a set of ResourceKind"
    return None


def _health(health: Health) -> str | None:
    return _fields(health, state=HealthState, text=str)


def _sys_topic(topic: Any) -> str | None:
    return _fields(topic, topic=str) or (None if callable(topic.read) else "its read is not callable")


def _sinks(plans: Mapping[Any, Any]) -> str | None:
    for name, plan in plans.items():
        if not isinstance(plan, SinkPlan):
            return f"its sink {name!r} is {shown(plan)}, not a SinkPlan"
        problem = _fields(plan, sink=Sink, filters=tuple, outbox=OutboxSettings, sending=SendSettings)
        if problem is not None:
            return f"its sink {name!r}: {problem}"
        key: Any = plan.key
        if not callable(key):
            return f"its sink {name!r}: its key is not callable"
        for field in ("outbox", "sending"):
            problem = problem_with(getattr(plan, field))
            if problem is not None:
                return f"its sink {name!r}: its {field}: {problem}"
    return None


def _sources(sources: Mapping[Any, Any]) -> str | None:
    for name, source in sources.items():
        if not isinstance(source, Source):
            return f"its source {name!r} is {shown(source)}, not a Source"
    return None


def _settings_class(found: type[Any]) -> str | None:
    return None if attrs.has(found) else f"{found.__name__} is not an attrs class"


def _fields(value: object, **wanted: Any) -> str | None:
    """Describe the first field of a value that has a wrong type; a type may be a union."""
    for name, type_ in wanted.items():
        found = getattr(value, name)
        if not isinstance(found, type_):
            return f"its {name} is {shown(found)}, not {getattr(type_, '__name__', type_)}"
    return None


ANYTHING: Final = Expected()
NOTHING: Final = Expected(nothing=True)

_DECISION: Final = Expected((Decision,), _decision)
_MESSAGE: Final = Expected((Message, *STOPS), _stop_or(_message))

EXPECTED: Final[Mapping[str, Expected]] = {
    "requirements": ANYTHING,  # The plugin manager checks it, before dispatchers exist.
    "settings_class": Expected((type,), _settings_class),
    "configure": NOTHING,
    "start": NOTHING,
    "ready": NOTHING,
    "reload": Expected(items=str),
    "values_adopted": NOTHING,
    "drain": NOTHING,
    "stop": NOTHING,
    "health": Expected((Health,), _health, needed=True),
    "guard_calls": Expected((CallGuard,)),
    "connection_opened": _DECISION,
    "authenticate": _DECISION,
    "exchange": Expected((Decision, Continue), _exchanged),
    "choose_server": Expected((Redirect, *STOPS), _stop_or(_redirect)),
    "authorize": _DECISION,
    "authorize_receive": _DECISION,
    "subscribing": Expected((Subscription, *STOPS), _stop_or(_subscription)),
    "unsubscribing": Expected((str, *STOPS), _stop_or(None)),
    "initial_subscriptions": Expected(items=Subscription, problem=_subscription_fields),
    "choose_member": Expected((Subscriber,)),
    "choose_node": Expected((NodeIdentity,)),
    "connect_received": Expected((ConnectRequest, *STOPS), _stop_or(_connect_request)),
    "connack_sending": Expected((Properties, *STOPS), _stop_or(_connack_properties)),
    "publish_received": _MESSAGE,
    "delivering": _MESSAGE,
    "will_publishing": _MESSAGE,
    "retaining": _MESSAGE,
    "queue_full": Expected((OverflowPolicy,)),
    "sys_topics": Expected(items=SysTopic, problem=_sys_topic),
    "limiter_needs": Expected((LimiterNeeds,), _limiter_needs, needed=True),
    "sinks": Expected((Mapping,), _sinks),
    "sources": Expected((Mapping,), _sources),
    "acquire": Expected((LimitDecision,), _limit),
    "release": NOTHING,
}
"""By hook. Notices, which have no answer, and the hooks that provide services are not included."""
