"""`kinmqtt explain`: who answers what, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import House
from processes import run_command
from surroundings import Surroundings
from twisted.internet.defer import Deferred

from kinmqtt.broker.settings import ListenerSettings
from kinmqtt.explain import Part, Question, Vote, explain, plan_named
from kinmqtt_spi import ABSTAIN, ALLOW, Decision, deny, hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest, Identity, allow_as
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource
from kinmqtt_spi.values import Address, Client


class Opinion:
    """Answers every question as it is told to, and writes down what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[Any] = []
        self.life: list[str] = []

    def _say(self, hook: str, question: Any) -> Any:
        self.asked.append(question)
        answer = self.answers.get(hook)
        return answer() if callable(answer) else answer

    @hookimpl
    def start(self) -> Any:
        self.life.append("start")
        return self._say("start", None)

    @hookimpl
    def stop(self) -> None:
        self.life.append("stop")

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Any:
        return self._say("authenticate", request)

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Any:
        return self._say("authorize", request)

    @hookimpl
    def acquire(self, resource: Resource) -> Any:
        return self._say("acquire", resource)

    @hookimpl
    def publish_received(self, client: Client) -> None:
        raise AssertionError("an intercept is not called")


def asked(
    plugins: dict[str, Any], action: Action | None = Action.PUBLISH, topic: str = "t", connects: bool = False
) -> list[Part]:
    """The explanation that these plugins give, in this order."""
    house = House(plugins=plugins, order=tuple(plugins), start=False)
    listener = plan_named(house.assembly, None).name
    request = ConnectRequest("c", "u", b"p", Address("192.0.2.1", 0), listener, 5)
    parts: list[Part] = house.result(explain(house.broker, Question(request, connects, action, topic, 1)))
    return parts


def votes(part: Part, hook: str) -> list[tuple[str, str, bool]]:
    """Who answered what to a hook, and whether that decided."""
    return [(vote.plugin, vote.answer, vote.decides) for vote in part.votes if vote.hook == hook]


def test_everybody_is_asked_in_order_and_the_first_decides() -> None:
    """Those behind the first answer are asked too: whoever reads it wants to know what they think."""
    no = deny(ReasonCode.NOT_AUTHORIZED, "line 3")
    plugins = {"c": Opinion(authorize=ABSTAIN), "a": Opinion(authorize=no), "b": Opinion(authorize=ALLOW)}

    [part] = asked(plugins)

    assert votes(part, "authorize")[:3] == [
        ("c", "abstains", False),
        ("a", "DENY 0x87 NOT_AUTHORIZED: line 3", True),
        ("b", "ALLOW", False),
    ]
    assert (part.decision, part.by) == (no, "a")
    assert part.looked_at_by == ("c (publish_received)", "a (publish_received)", "b (publish_received)")


def test_nobody_decides() -> None:
    """Then the rule of the hook holds: what nobody forbids may be published, whom nobody knows stays outside."""
    [connect] = asked({"a": Opinion()}, None, connects=True)
    [publish] = asked({"a": Opinion()})

    assert (publish.decision.allowed, publish.by) == (True, "")
    assert connect.decision.reason is ReasonCode.NOT_AUTHORIZED
    assert connect.lines()[-1].endswith("no authenticator spoke for the client (nobody decides, which is the rule)")


def test_who_is_let_in_under_another_name_is_asked_about_under_that() -> None:
    """What an authenticator knows of the client holds for what is asked next."""
    opinion = Opinion(authenticate=allow_as(Identity("ada", "c-1", {"role": "x"})))

    connect, publish = asked({"a": opinion}, connects=True)

    assert connect.decision.allowed
    assert publish.decision.allowed
    [request] = [each for each in opinion.asked if isinstance(each, AuthorizationRequest)]
    client = request.client
    assert (client.username, client.client_id, client.attributes) == ("ada", "c-1", {"role": "x"})


def test_who_may_not_connect_is_asked_no_further() -> None:
    """There is nothing to say of what a client may do that is not let in."""
    opinion = Opinion(authenticate=deny(ReasonCode.BANNED))

    [part] = asked({"a": opinion}, connects=True)

    assert part.decision.reason is ReasonCode.BANNED
    assert not any(isinstance(each, AuthorizationRequest) for each in opinion.asked)


def test_a_failure_is_shown_as_what_it_counts_for() -> None:
    """A plugin that raises denies, with the reason code that its hook has for that."""

    def fail() -> Any:
        raise ValueError("broken")

    connect = asked({"a": Opinion(authenticate=fail)}, None, connects=True)[0]
    publish = asked({"a": Opinion(authorize=fail)})[0]

    assert votes(connect, "authenticate")[0][1] == "DENY 0x88 SERVER_UNAVAILABLE: it fails: ValueError: broken"
    assert votes(publish, "authorize")[0][1] == "DENY 0x87 NOT_AUTHORIZED: it fails: ValueError: broken"


def test_an_answer_may_come_later() -> None:
    """What is awaited in a broker is awaited here."""

    async def later() -> Decision:
        return ALLOW

    [part] = asked({"a": Opinion(authorize=later)})

    assert votes(part, "authorize")[0] == ("a", "ALLOW", True)


def test_an_answer_that_never_comes_is_a_failure() -> None:
    """The hook's time limit holds."""
    house = House(plugins={"a": Opinion(authorize=Deferred)}, start=False)
    request = ConnectRequest("c", address=Address("192.0.2.1", 0), listener=plan_named(house.assembly, None).name)
    found: list[Any] = []
    question = Question(request, False, Action.PUBLISH, "t")
    Deferred.fromCoroutine(explain(house.broker, question)).addBoth(found.append)

    house.advance(11)

    assert "no answer within 10 s" in found[0][0].lines()[2]


def test_limiters_are_asked() -> None:
    """A refusal of theirs is the answer where authorizers allow; a DELAY is none; one that fails allows."""
    refusal = LimitDecision(LimitVerdict.REJECT, "much")
    delay = LimitDecision(LimitVerdict.DELAY, "slowly", 2.5)

    def fail() -> Any:
        raise ValueError("broken")

    [refused] = asked({"a": Opinion(acquire=delay), "b": Opinion(acquire=fail), "c": Opinion(acquire=refusal)})
    [denied] = asked({"a": Opinion(acquire=refusal, authorize=deny())})

    assert votes(refused, "acquire publish")[:3] == [
        ("a", "DELAY 2.5 s: rule slowly", False),
        ("b", "fails, which allows: ValueError: broken", False),
        ("c", "REJECT 0x97 QUOTA_EXCEEDED: rule much", True),
    ]
    assert refused.decision.reason is ReasonCode.QUOTA_EXCEEDED
    assert denied.decision.reason is ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("action", list(Action))
def test_each_action_is_asked_for_as_a_broker_does(action: Action) -> None:
    """A share group stands apart from its filter."""
    opinion = Opinion()

    asked({"a": opinion}, action, "$share/g/a/#" if action is Action.SUBSCRIBE else "a/b")

    found = [each for each in opinion.asked if isinstance(each, AuthorizationRequest)]
    if action is Action.RECEIVE:
        assert found == []  # It has no authorize_receive.
    elif action is Action.SUBSCRIBE:
        assert [(each.topic, each.share_group) for each in found] == [("a/#", "g")]
    else:
        assert [(each.topic, each.action, each.qos) for each in found] == [("a/b", action, 1)]


def test_plugins_are_started_and_stopped() -> None:
    """One that can't start is named, and what was started is stopped."""
    good, bad = Opinion(), Opinion(start=lambda: 1 / 0)

    asked({"good": good})
    assert good.life == ["start", "stop"]
    with pytest.raises(AssemblyError, match="'bad' could not start: division by zero"):
        asked({"good": good, "bad": bad})
    assert good.life == ["start", "stop"] * 2


def test_only_the_authenticators_of_the_listener_are_asked() -> None:
    """As the broker does where a listener names some."""
    plugins = {"a": Opinion(authenticate=ALLOW), "b": Opinion(authenticate=ALLOW)}
    listeners = {"door": ListenerSettings(endpoint="127.0.0.1:1883", authenticators=("b",))}
    house = House(plugins=plugins, listeners=listeners, start=False)
    request = ConnectRequest("c", address=Address("192.0.2.1", 0), listener="door")

    [part] = house.result(explain(house.broker, Question(request, True)))

    assert votes(part, "authenticate") == [("b", "ALLOW", True)]


def test_an_unknown_listener_is_refused() -> None:
    """Those there are are named."""
    with pytest.raises(AssemblyError, match="no listener 'door'; those there are: tcp:1883"):
        plan_named(House(start=False).assembly, "door")


def test_lines_stand_in_columns() -> None:
    """Who answered what, how long it took, and who decides."""
    part = Part(
        "May it?", (Vote("authorize", "long_name", "abstains", 0.5), Vote("x", "y", "ALLOW", 12, True)), ALLOW, "y"
    )

    assert part.lines() == [
        "May it?",
        "  authorize  long_name  abstains     0.50 ms",
        "  x          y          ALLOW       12.00 ms  decides",
        "  => ALLOW (y)",
    ]


GUARD = """
from kinmqtt_spi import hookimpl, deny, ALLOW

class Guard:
    @hookimpl
    def start(self, context):
        self.context = context

    @hookimpl
    async def authenticate(self, request):
        right = await self.context.in_thread(lambda: request.password == b"right")
        return ALLOW if right else deny(text="wrong password")

    @hookimpl
    def authorize(self, request):
        return deny(text="it is secret") if request.topic.startswith("secret") else None
"""


def test_the_command(tmp_path: Path) -> None:
    """A whole run, with a plugin that works in a thread; nothing listens."""
    surroundings = Surroundings(tmp_path)
    surroundings.install("guard", GUARD, {"guard": "guard:Guard"})
    options = ["--client", "c1", "--user", "ada", "--publish", "secret/x", "--data", str(tmp_path / "data")]

    plain = run_command("explain", *options, env=surroundings.environment)
    right = run_command("explain", *options, "--password-stdin", env=surroundings.environment, input="right\n")
    wrong = run_command("explain", *options, "--password-stdin", env=surroundings.environment, input="wrong\n")

    assert [done.returncode for done in (plain, right, wrong)] == [0, 0, 0]
    assert "  => DENY 0x87 NOT_AUTHORIZED: it is secret (guard)\n" in plain.stdout
    assert "May it connect?" not in plain.stdout
    assert "  => ALLOW (guard)\n" in right.stdout
    assert "it is secret" in right.stdout
    assert "wrong password (guard)" in wrong.stdout
    assert "May it publish" not in wrong.stdout
    assert surroundings.bound_ports == []
    assert not (tmp_path / "data").exists()
