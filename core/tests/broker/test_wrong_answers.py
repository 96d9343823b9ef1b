"""Plugins that answer what nobody expects, through a whole broker: each is named, and fails as where it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from core_harness.faulty import (
    connect_reason,
    exchanged,
    health,
    logged,
    opened,
    overflow,
    plugin,
    publish_reason,
    received,
    reloaded,
    retained,
    shared,
    subscribe_reason,
    unsubscribe_reason,
    will_received,
)
from core_harness.house import House
from kinmqtt.hooks.answers import EXPECTED, Expected
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi import (
    ALLOW,
    Decision,
    Disconnect,
    Message,
    Properties,
    ReasonCode,
    Reject,
    Subscription,
    Verdict,
    deny,
)
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.hookspecs import HOOKSPEC_MODULES
from kinmqtt_spi.markers import Kind, traits_of
from kinmqtt_spi.services.authentication import Authenticated, Continue, Identity, Redirect
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, LimitVerdict
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.plugin import Health, HealthState


def broken_items(*items: Any) -> Any:
    """A generator that fails behind these."""
    yield from items
    raise ValueError("half-way")


A = Subscription("a", 1)

WRONG_SUBSCRIPTIONS = [
    ("a/b", "returned a str; expected a sequence of Subscription"),
    (["a/b"], "returned a str as number 1; expected a sequence of Subscription"),
    ([A, None], "returned None as number 2; expected a sequence of Subscription"),
    (A, "returned a Subscription; expected a sequence of Subscription"),
    (True, "returned the bool True; expected a sequence of Subscription"),
    ({"a": 1}, "returned a dict; expected a sequence of Subscription"),
    ([Subscription(None, 1)], "returned an invalid Subscription as number 1: its filter is None, not str"),  # type: ignore[arg-type]
    (lambda: broken_items(A), None),
    (lambda: succeed("a/b"), "returned a str; expected a sequence of Subscription"),
]


@pytest.mark.parametrize(("answer", "complaint"), WRONG_SUBSCRIPTIONS)
def test_wrong_initial_subscriptions_are_left_out(answer: Any, complaint: str | None) -> None:
    """The plugin is named, what others answer is there, and the client is connected."""
    wrong = plugin(initial_subscriptions=lambda client: answer() if callable(answer) else answer)
    right = plugin(initial_subscriptions=lambda client: (each for each in [Subscription("b", 1)]))
    house = House(plugins={"wrong": wrong, "right": right})

    with logged() as lines:
        peer = house.connect("c")

    assert (peer.connack.reason, peer.closed) == (ReasonCode.SUCCESS, False)
    assert list(house.broker.sessions.by_id["c"].subscriptions) == ["b"]
    said = "plugin wrong failed in initial_subscriptions"
    assert lines == [f"plugin wrong: initial_subscriptions {complaint}" if complaint else said]


WRONG_DECISIONS = [
    (True, "the bool True"),
    ("yes", "a str"),
    (Verdict.ALLOW, "a Verdict"),
    (deny(ReasonCode.SUCCESS), "an invalid Decision: it refuses with the reason 0x00, which means success"),
    (Decision("allow"), "an invalid Decision: its verdict is a str, not a Verdict"),  # type: ignore[arg-type]
    (
        Authenticated(Verdict.ALLOW, identity="ann"),  # type: ignore[arg-type]
        "an invalid Authenticated: its identity is a str, not an Identity",
    ),
    (
        Authenticated(Verdict.ALLOW, identity=Identity(client_id=7)),  # type: ignore[arg-type]
        "an invalid Authenticated: its client_id is an int, not str | None",
    ),
]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(("answer", "shown"), WRONG_DECISIONS)
def test_a_wrong_answer_of_an_authenticator_lets_nobody_in(answer: Any, shown: str, later: bool) -> None:
    """It is refused as where the plugin raises; plugin and hook are named, and what came."""
    house = House(plugins={"wrong": plugin(authenticate=lambda request: succeed(answer) if later else answer)})

    with logged() as lines:
        peer = house.connect("c", V5)

    assert peer.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert peer.closed
    [line] = lines
    assert line.startswith(f"plugin wrong: authenticate returned {shown}")
    assert house.assembly.metrics.sum("plugin.failures") == 1


UNFIT = Message("a/#", b"x")

CONSEQUENCES: list[tuple[str, Any, Callable[[House], Any], Any]] = [
    ("connection_opened", True, opened, True),
    ("exchange", True, exchanged, 0x88),
    ("exchange", Continue("data"), exchanged, 0x88),  # type: ignore[arg-type]
    ("choose_server", "mqtt.example.org", connect_reason, 0x88),
    ("choose_server", Redirect(None), connect_reason, 0x88),  # type: ignore[arg-type]
    ("connect_received", ALLOW, connect_reason, 0x88),
    ("connect_received", Reject(ReasonCode.SUCCESS), connect_reason, 0x88),
    ("connect_received", Disconnect(ReasonCode.SUCCESS), connect_reason, 0x80),
    ("connack_sending", {"server_keep_alive": 5}, connect_reason, 0),
    ("connack_sending", Properties(server_keep_alive="5"), connect_reason, 0),  # type: ignore[arg-type]
    ("authorize", True, publish_reason, 0x87),
    ("authorize", "yes", subscribe_reason, 0x87),
    ("authorize_receive", True, received, []),
    ("publish_received", b"changed", publish_reason, 0x83),
    ("publish_received", UNFIT, publish_reason, 0x83),
    ("delivering", b"changed", received, [b"x"]),
    ("delivering", UNFIT, received, [b"x"]),
    ("delivering", Message("t", "text"), received, [b"x"]),  # type: ignore[arg-type]
    ("will_publishing", True, will_received, []),
    ("will_publishing", UNFIT, will_received, []),
    ("retaining", True, retained, []),
    ("retaining", UNFIT, retained, []),
    ("subscribing", "t", subscribe_reason, 0x83),
    ("subscribing", Subscription("a/#/b"), subscribe_reason, 0x83),
    ("subscribing", Subscription("t", 3), subscribe_reason, 0x83),
    ("unsubscribing", True, unsubscribe_reason, 0x83),
    ("choose_member", "s", shared, [b"x"]),
    ("queue_full", "drop_oldest", overflow, 1),
    ("acquire", True, publish_reason, 0),
    ("acquire", LimitDecision("reject"), publish_reason, 0),  # type: ignore[arg-type]
    ("acquire", LimitDecision(LimitVerdict.DELAY, "r", delay_s="5"), publish_reason, 0),  # type: ignore[arg-type]
    ("acquire", LimitDecision(LimitVerdict.DELAY, "r", delay_s=float("nan")), publish_reason, 0),
    ("health", "well", health, HealthState.FAILED),
    ("health", None, health, HealthState.FAILED),
    ("health", Health("healthy"), health, HealthState.FAILED),  # type: ignore[arg-type]
    (
        "reload",
        "not now",
        reloaded,
        "wrong: its current settings are unknown: reload returned a str; expected a sequence of str",
    ),
]


@pytest.mark.parametrize(
    ("hook", "answer", "ask", "expected"), CONSEQUENCES, ids=[f"{c[0]}-{n}" for n, c in enumerate(CONSEQUENCES)]
)
def test_a_wrong_answer_has_the_consequence_of_a_failure(
    hook: str, answer: Any, ask: Callable[[House], Any], expected: Any
) -> None:
    """That which the hook's page says; plugin and hook are named, and it is counted."""
    hooks: dict[str, Any] = {hook: lambda *_: answer}
    house = House(plugins={"wrong": plugin(**hooks)}, max_inflight=1, max_queued_messages=1)

    with logged() as lines:
        found = ask(house)

    assert found == expected
    if not isinstance(answer, Disconnect):
        assert any(line.startswith(f"plugin wrong: {hook} returned ") for line in lines)
        assert house.assembly.metrics.sum("plugin.failures") > 0


def test_every_hook_says_what_may_be_answered() -> None:
    """All but notices, which answer nothing, and those that provide a service, which the assembly looks at."""
    asked = {
        name
        for module in HOOKSPEC_MODULES
        for name, function in vars(module).items()
        if hasattr(function, "kinmqtt_traits") and traits_of(function).kind not in (Kind.NOTIFY, Kind.PROVIDE)
    }

    assert asked == set(EXPECTED)


def test_what_is_answered_in_a_generator_never_runs_and_is_named() -> None:
    """A plugin that writes `yield` where it means `await` would start nothing, and nobody would know."""

    def start(context: Any) -> Any:
        yield Deferred()

    with pytest.raises(AssemblyError, match=r"'wrong' can't start: .*returned a generator, whose body never runs"):
        House(plugins={"wrong": plugin(start=start)})


@pytest.mark.parametrize("answer", [True, self := object(), [1]])
def test_where_nothing_is_expected_an_answer_is_ignored(answer: Any) -> None:
    """It does no harm."""
    house = House(plugins={"careless": plugin(start=lambda context: answer, published=lambda message: answer)})

    house.connect("a").publish("t")
    house.advance(1)

    assert house.assembly.metrics.sum("plugin.failures") == 0


@pytest.mark.parametrize(
    ("hook", "answer", "complaint"),
    [
        ("limiter_needs", None, "limiter_needs returned None; expected LimiterNeeds"),
        ("limiter_needs", LimiterNeeds("publish"), "its kinds are a str, not a set of ResourceKind"),  # type: ignore[arg-type]
        ("settings_class", {"a": int}, "settings_class returned a dict; expected None or type"),
        ("settings_class", int, "int is not an attrs class"),
    ],
)
def test_a_wrong_answer_at_assembly_stops_it(hook: str, answer: Any, complaint: str) -> None:
    """With one sentence that names the plugin."""
    hooks: dict[str, Any] = {hook: lambda: answer, "acquire": lambda resource, amount: None}

    with pytest.raises(AssemblyError, match=f"plugin 'wrong': .*{complaint}"):
        House(plugins={"wrong": plugin(**hooks)})


@pytest.mark.parametrize("answer", ["$SYS/a", [("$SYS/a", str)], [SysTopic("$SYS/a", "1")]])  # type: ignore[arg-type]
def test_wrong_sys_topics_are_left_out(answer: Any) -> None:
    """The broker starts, and publishes those of others."""
    wrong, right = plugin(sys_topics=lambda: answer), plugin(sys_topics=lambda: [SysTopic("$SYS/right", lambda: "1")])

    with logged() as lines:
        house = House(plugins={"wrong": wrong, "right": right}, sys_interval_s=1)
    sub = house.connect("s").subscribe("$SYS/right")
    house.advance(2)

    assert [payload for _, payload, _ in sub.messages][:1] == [b"1"]
    assert [line.split(" returned")[0] for line in lines] == ["plugin wrong: sys_topics"]


def test_an_answer_is_shown_without_what_may_be_a_secret() -> None:
    """Its type is named, and not its value."""
    with pytest.raises(TypeError) as raised:
        Expected((Decision,)).checked("authenticate", "the password")

    assert "the password" not in str(raised.value)
