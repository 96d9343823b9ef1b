"""`kinmqtt explain`: who answers what, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred

from core_harness.brokers import run_command
from core_harness.house import House
from core_harness.surroundings import Surroundings
from kinmqtt.cli.explain import Part, Question, Vote, explain, plan_named
from kinmqtt.settings import BrokerSettings, ListenerSettings
from kinmqtt_spi import ABSTAIN, ALLOW, Decision, Message, deny, hookimpl, on_topics
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest, Identity, Redirect, allow_as
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
    watchers = "c (publish_received), a (publish_received), b (publish_received)"
    assert part.notes == (f"may still be changed or refused by {watchers}",)


def test_nobody_decides() -> None:
    """Then the rule of the hook holds: what nobody forbids may be published, whom nobody knows stays outside."""
    [connect] = asked({"a": Opinion()}, None, connects=True)
    [publish] = asked({"a": Opinion()})

    assert (publish.decision.allowed, publish.by) == (True, "")
    assert connect.decision.reason is ReasonCode.NOT_AUTHORIZED
    assert connect.lines()[-1].endswith("no authenticator accepted the client (no plugin decides)")


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
    assert bad.life == ["start", "stop"]


def test_plugins_that_are_not_asked_are_left_alone() -> None:
    """Nobody is stopped who was not started, but who has no start of its own."""

    class Elsewhere:
        def __init__(self) -> None:
            self.life: list[str] = []

        @hookimpl
        def start(self) -> None:
            self.life.append("start")

        @hookimpl
        def stop(self) -> None:
            self.life.append("stop")

    class Unstarted(Elsewhere):
        start = None  # type: ignore[assignment]

        @hookimpl
        def authorize(self) -> None:
            """It is asked."""

    elsewhere, unstarted = Elsewhere(), Unstarted()

    asked({"elsewhere": elsewhere, "unstarted": unstarted})

    assert elsewhere.life == []
    assert unstarted.life == ["stop"]


def test_only_the_authenticators_of_the_listener_are_asked() -> None:
    """As the broker does where a listener names some."""
    plugins = {"a": Opinion(authenticate=ALLOW), "b": Opinion(authenticate=ALLOW)}
    listeners = {"door": ListenerSettings(endpoint="127.0.0.1:1883", authenticators=("b",))}
    house = House(plugins=plugins, listeners=listeners, start=False)
    request = ConnectRequest("c", address=Address("192.0.2.1", 0), listener="door")

    [part] = house.result(explain(house.broker, Question(request, True)))

    assert votes(part, "authenticate") == [("b", "ALLOW", True)]


def explained(house: House, question: Question) -> list[Part]:
    """The explanation of a harness."""
    parts: list[Part] = house.result(explain(house.broker, question))
    return parts


def test_who_is_banned_may_not_connect() -> None:
    """What refuses a CONNECT or a client is asked as well, the built-in plugins included."""
    config = 'plugins.bans.entries = [{client_id = "c", why = "nonsense"}]'
    house = House(config=config, start=False)
    request = ConnectRequest("c", address=Address("192.0.2.1", 0), listener=plan_named(house.assembly, None).name)

    [part] = explained(house, Question(request, True, Action.PUBLISH, "t"))

    assert part.lines()[-1] == "  => DENY 0x8A BANNED: nonsense (bans)"
    assert ("bans", "DENY 0x8A BANNED: nonsense", True) in votes(part, "connect_received")


class Changing:
    """Names clients anew, and sends some elsewhere."""

    @hookimpl
    def connect_received(self, request: ConnectRequest) -> ConnectRequest:
        return evolve(request, username="renamed")

    @hookimpl
    def choose_server(self, client: Client) -> Redirect | None:
        return Redirect("other:1883") if client.client_id == "elsewhere" else None


def test_what_changes_a_connect_is_taken_over() -> None:
    """Those behind it are asked about what became of it; a redirection is a refusal."""
    opinion = Opinion(authenticate=ALLOW)

    def about(client_id: str) -> Part:
        house = House(plugins={"changing": Changing(), "opinion": opinion}, start=False)
        listener = plan_named(house.assembly, None).name
        [part] = explained(
            house, Question(ConnectRequest(client_id, address=Address("192.0.2.1", 0), listener=listener), True)
        )
        return part

    assert about("c").decision.allowed
    assert [each.username for each in opinion.asked if isinstance(each, ConnectRequest)] == ["renamed"]
    assert about("elsewhere").decision.reason is ReasonCode.USE_ANOTHER_SERVER


def test_a_missing_password_is_told() -> None:
    """An existing user without one must not look like an unknown one."""
    house = House(plugins={"a": Opinion(authenticate=deny())}, start=False)
    listener = plan_named(house.assembly, None).name
    without = ConnectRequest("c", "u", None, Address("192.0.2.1", 0), listener)

    [part] = explained(house, Question(without, True))

    assert "  (no password was given: --password-stdin reads one)" in part.lines()


@pytest.mark.parametrize("connects", [False, True])
def test_a_user_name_that_nobody_verifies_is_dropped(connects: bool) -> None:
    """Rights are those of an anonymous client then, and a line says so."""

    class Rights:
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Decision:
            return ALLOW if request.client.username == "u" else deny()

    *_, part = asked({"rights": Rights()}, connects=connects)

    assert not part.decision.allowed
    parts = asked({"rights": Rights()}, connects=connects)
    assert any("the user name 'u'" in note and "dropped" in note for each in parts for note in each.notes)


def test_a_user_name_is_taken_for_verified_where_somebody_can() -> None:
    """Without a password the authenticators are not asked; where anonymous clients come in too, a line says so."""
    settings = BrokerSettings(allow_anonymous=True)
    house = House(plugins={"a": Opinion()}, settings=settings, start=False)
    request = ConnectRequest("c", "u", None, Address("192.0.2.1", 0), plan_named(house.assembly, None).name)

    [part] = explained(house, Question(request, False, Action.PUBLISH, "t"))

    assert part.notes[0] == "the user name 'u' is taken for verified: --password-stdin asks authenticators"


def test_enhanced_authentication_is_named() -> None:
    """Who lets clients in by a method of its own is not asked, and must not be forgotten."""

    class Exchanging:
        @hookimpl
        def exchange(self) -> None:
            """Knows no method."""

    house = House(plugins={"exchanging": Exchanging()}, start=False)
    request = ConnectRequest("c", address=Address("192.0.2.1", 0), listener=plan_named(house.assembly, None).name)

    [part] = explained(house, Question(request, True))

    assert any(note.startswith("exchanging: ") for note in part.notes)


@pytest.mark.parametrize(
    ("action", "topic", "reason"),
    [
        (Action.PUBLISH, "a/#", ReasonCode.TOPIC_NAME_INVALID),
        (Action.PUBLISH, "", ReasonCode.TOPIC_NAME_INVALID),
        (Action.PUBLISH, "$plugin/x/y", ReasonCode.TOPIC_NAME_INVALID),
        (Action.PUBLISH, "$SYS/x", ReasonCode.NOT_AUTHORIZED),
        (Action.WILL, "$CONTROL/x", ReasonCode.NOT_AUTHORIZED),
        (Action.SUBSCRIBE, "$share/g/$CONTROL/#", ReasonCode.NOT_AUTHORIZED),
        (Action.SUBSCRIBE, "a/#/b", ReasonCode.TOPIC_FILTER_INVALID),
        (Action.SUBSCRIBE, "$share/g", ReasonCode.TOPIC_FILTER_INVALID),
        (Action.RECEIVE, "a/+", ReasonCode.TOPIC_NAME_INVALID),
        (Action.PUBLISH, "/" * 1000, ReasonCode.TOPIC_NAME_INVALID),
        (Action.PUBLISH, "a\x07", ReasonCode.MALFORMED_PACKET),
        (Action.SUBSCRIBE, "$share/g\x07/a", ReasonCode.MALFORMED_PACKET),
    ],
)
def test_what_the_broker_itself_refuses_nobody_is_asked_about(action: Action, topic: str, reason: ReasonCode) -> None:
    """A topic that is none is why some clients are refused."""
    opinion = Opinion(authorize=ALLOW)

    [part] = asked({"a": opinion}, action, topic)

    assert (part.decision.reason, part.by) == (reason, "the broker itself")
    assert opinion.asked == [None]  # It was started.


def test_what_looks_at_other_topics_is_not_named() -> None:
    """Only who concerns the topic may still change it, the built-in plugins included."""

    class Narrow:
        @hookimpl
        @on_topics("a/#")
        def publish_received(self, message: Message) -> None:
            """Only those."""

    [a] = asked({"narrow": Narrow()}, Action.PUBLISH, "a/b")
    [b] = asked({"narrow": Narrow()}, Action.PUBLISH, "b")

    assert any("narrow (publish_received)" in note for note in a.notes)
    assert not any("narrow" in note for note in b.notes)


def test_who_receives_is_another_question() -> None:
    """A filter may be granted whose messages are not."""

    class Censor:
        @hookimpl
        def authorize_receive(self, request: AuthorizationRequest) -> Decision:
            return deny()

    [part] = asked({"censor": Censor()}, Action.SUBSCRIBE, "#")

    assert part.decision.allowed
    assert any("--receive TOPIC" in note for note in part.notes)


def test_an_unknown_listener_is_refused() -> None:
    """Those there are are named."""
    with pytest.raises(AssemblyError, match="no listener 'door'; there are tcp:1883"):
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
