"""Delayed publish in a whole broker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from zope.interface import provider

from core_harness.house import House, Trusting
from core_harness.stores import FailingRetaineds, Retaineds
from kinmqtt.builtins.delayed import DelayedSettings
from kinmqtt.mqtt.packets import V5, ConnectWill, Puback, Publish
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import ALLOW, Decision, Message, Properties, deny, hookimpl
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.plain import to_plain
from kinmqtt_spi.services.authentication import ConnectRequest, Identity, allow_as
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.services.metric import GaugeSample
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.values import Publisher


def _house(**more: Any) -> House:
    settings = more.pop("delayed", DelayedSettings())
    return House(plugin_settings={"delayed": settings}, **more)


def _reasons(house: House, topic: str, payload: bytes = b"x") -> int:
    return int(house.connect("", V5).publish(topic, payload, qos=1).of(Puback)[-1].reason)


def test_a_message_comes_when_it_is_due() -> None:
    """Not before, and to those who have subscribed by then."""
    house = _house()
    house.connect("pub").publish("$delayed/5/a", b"x", qos=1)
    sub = house.connect("sub").subscribe("a", qos=1)

    house.advance(4)
    early = list(sub.messages)
    house.advance(1)

    assert early == []
    assert sub.messages == [("a", b"x", 1)]


def test_messages_come_in_the_order_of_their_time() -> None:
    """Whatever the order they were sent in; of two that are due at once, the first sent comes first."""
    house = _house()
    sub = house.connect("sub").subscribe("#")
    pub = house.connect("pub")

    for delay_s, payload in ((3, b"3"), (1, b"1"), (2, b"2a"), (2, b"2b"), (0, b"0")):
        pub.publish(f"$delayed/{delay_s}/a", payload)
    house.advance(3)

    assert [payload for _, payload, _ in sub.messages] == [b"0", b"1", b"2a", b"2b", b"3"]


def test_a_delayed_message_may_be_retained() -> None:
    """It is retained when it is due."""
    house = _house()
    house.connect("pub").publish("$delayed/1/a", b"x", retain=True)

    before = house.connect("early").subscribe("a").messages
    house.advance(1)

    assert before == []
    assert house.connect("late").subscribe("a").of(Publish)[0].retain


def test_expiry_begins_when_it_is_published() -> None:
    """A message that waits longer than its expiry interval is delivered all the same [MQTT-3.3.2-6]."""
    house = _house()
    sub = house.connect("sub", V5).subscribe("a")
    house.connect("pub", V5).publish("$delayed/10/a", b"x", properties=Properties(message_expiry_interval=5))

    house.advance(10)

    assert sub.of(Publish)[0].properties.message_expiry_interval == 5


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("$delayed/x/a", 0x90),
        ("$delayed/-1/a", 0x90),
        ("$delayed/5", 0x90),
        ("$delayed/5/", 0x90),
        ("$delayed/99999999999999999999/a", 0x90),
        ("$delayed/1/$delayed/1/a", 0x90),
        ("$delayed/5/$SYS/a", 0x90),
        ("$delayed/5/$CONTROL/a", 0x90),
        ("$delayed/5/$plugin/delayed/k", 0x90),
        ("$delayed/5/$p2p/c/a", 0x90),
        ("$delayed/5/$share/g/a", 0x90),
        ("$delayed/5/a", 0x00),
    ],
)
def test_what_cannot_be_delayed_is_refused(topic: str, reason: int) -> None:
    """With the reason code that says why."""
    assert _reasons(_house(), topic) == reason


class Guard:
    """Lets nobody publish to ``secret``, and says so at once or later."""

    def __init__(self, later: bool) -> None:
        self.asked: list[Deferred[Decision]] = []
        self._later = later

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Any:
        answer = deny() if request.topic == "secret" else ALLOW
        if not self._later:
            return answer
        deferred: Deferred[Decision] = Deferred()
        self.asked.append(deferred)
        return deferred

    def answer(self) -> None:
        """Answer the first that waits."""
        self.asked.pop(0).callback(deny() if not self.asked and self._later else ALLOW)


def test_rights_are_those_to_the_topic() -> None:
    """A delay is no way around an authorizer."""
    house = _house(plugins={"guard": Guard(later=False)})

    assert _reasons(house, "$delayed/1/secret") == 0x87


def test_an_authorizer_may_take_its_time() -> None:
    """Its answer about the topic itself is waited for."""
    guard = Guard(later=True)
    house = _house(plugins={"guard": guard})
    pub = house.connect("pub", V5).publish("$delayed/1/secret", b"x", qos=1)

    guard.asked.pop(0).callback(ALLOW)
    house.settle()
    waiting = list(pub.of(Puback))
    guard.asked.pop(0).callback(deny())
    house.settle()

    assert waiting == []
    assert [int(p.reason) for p in pub.of(Puback)] == [0x87]


def test_a_will_may_be_delayed() -> None:
    """A will under $delayed/ waits as a message does."""
    house = _house()
    sub = house.connect("sub").subscribe("#")
    house.connect("pub", will=ConnectWill("$delayed/5/a", b"x")).drop()

    early = list(sub.messages)
    house.advance(5)

    assert early == []
    assert sub.messages == [("a", b"x", 0)]


@pytest.mark.parametrize(
    "bound",
    [
        {"max_messages": 2},
        {"max_bytes": 7000},
        {"max_messages_per_client": 2},
        {"max_bytes_per_client": 7000},
        {"max_messages": 4, "user_share": 0.5},
        {"max_bytes": 14_000, "user_share": 0.5},
    ],
    ids=str,
)
def test_what_waits_is_bounded(bound: dict[str, Any]) -> None:
    """The excess is refused with 0x97, and what is published makes room."""
    house = _house(delayed=DelayedSettings(**{"user_share": 1, **bound}))
    pub = house.connect("p", V5)

    for _ in range(3):
        pub.publish("$delayed/1/a", b"x" * 500, qos=1)
    house.advance(1)
    pub.publish("$delayed/1/a", b"x" * 500, qos=1)

    assert [int(packet.reason) for packet in pub.of(Puback)] == [0, 0, 0x97, 0]


class Users:
    """Vouches for everybody, by whatever user name."""

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        return ALLOW


def _delays(house: House, client_id: str, number: int, **more: Any) -> int:
    """How many messages a client may delay, of so many that it wants to."""
    pub = house.connect(client_id, V5, **more)
    for _ in range(number):
        pub.publish("$delayed/1000/a", b"x", qos=1)
    return sum(not packet.reason.is_failure for packet in pub.of(Puback))


def _held(house: House) -> dict[str, float]:
    """What the plugin says that it holds."""
    plugin: Any = house.assembly.manager._pm.get_plugin("delayed")
    assert plugin._users.messages == plugin._clients.messages
    assert plugin._users.size_bytes == plugin._clients.size_bytes
    samples = house.assembly.metrics.snapshot(0.0, "n").samples
    return {
        each.name: each.value
        for each in samples
        if each.labels.get("plugin") == "delayed" and isinstance(each, GaugeSample)
    }


def test_one_client_leaves_room_for_others() -> None:
    """It fills its share, and whoever else is there may delay as before, also under the same user name."""
    bounds = DelayedSettings(max_messages=40, max_messages_per_client=5)
    house = _house(delayed=bounds, plugins={"users": Users()})

    taken = [_delays(house, name, 10, username="one") for name in ("a", "b")]
    other = _delays(house, "c", 10, username="other")

    assert (taken, other) == ([5, 5], 5)


def test_one_user_leaves_room_for_others() -> None:
    """Under ever new client ids a client has its user's share, and all together have what there is."""
    bounds = DelayedSettings(max_messages=20, max_messages_per_client=4)
    house = _house(delayed=bounds, plugins={"users": Users()})

    taken = [_delays(house, f"a{number}", 4, username="one") for number in range(5)]
    others = [_delays(house, f"b{number}", 4, username=f"other{number}") for number in range(4)]

    assert taken == [4, 4, 2, 0, 0]
    assert others == [4, 4, 2, 0]


def test_who_is_anonymous_delays_by_its_address() -> None:
    """Whatever client ids and user names it makes up."""
    house = _house(delayed=DelayedSettings(max_messages=20, max_messages_per_client=4))

    here = [_delays(house, f"a{number}", 4, username=f"u{number}") for number in range(4)]
    there = _delays(house, "b", 4, host="198.51.100.1")

    assert (here, there) == ([4, 4, 2, 0], 4)


def test_the_longest_delays_of_one_client_take_delaying_from_nobody() -> None:
    """By the defaults: what ten thousand messages that wait for more than a year did once."""
    house = _house()

    taken = _delays(house, "greedy", 1100)
    other = _delays(house, "other", 10)

    assert (taken, other) == (1000, 10)


@pytest.mark.parametrize("old", [False, True], ids=["as it is kept", "as it was kept before"])
def test_what_waits_over_a_restart_counts(old: bool, tmp_path: Path) -> None:
    """For its client, its user and in all, and as much as before."""
    bounds = DelayedSettings(max_messages=6, max_messages_per_client=2)
    broker = BrokerSettings(sys_interval_s=0, data=str(tmp_path))
    house = _house(delayed=bounds, plugins={"users": Users()}, settings=broker)
    _delays(house, "a", 2, username="one")
    before = _held(house)
    if old:
        context = house.assembly.contexts["delayed"]
        for key, value in dict(house.result(_all(context))).items():
            known = json.loads(value)
            client = known.pop("client")
            known["message"]["publisher"] = {"client_id": client["client_id"], "username": client["username"]}
            context.persist(key, json.dumps(known).encode())
        house.settle()
    clock = TurnableClock(house.clock.now())
    _kill(house)

    house = _house(delayed=bounds, plugins={"users": Users()}, settings=broker, clock=clock)
    after = _held(house)
    same = _delays(house, "a", 2, username="two")
    user = _delays(house, "b", 2, username="one")
    other = _delays(house, "c", 9, username="three")
    house.advance(1000)

    assert after["count"] == 2
    assert old or after == before
    assert (same, user, other) == (0, 1, 2)
    assert set(_held(house).values()) == {0}
    _kill(house)


async def _all(context: Context) -> Mapping[str, bytes]:
    return await context.persisted()


def _kill(house: House) -> None:
    plugin: Any = house.assembly.manager._pm.get_plugin("embedded")
    plugin._journal.abandon()
    plugin._directory.close()


def test_what_could_not_be_kept_counts_no_more() -> None:
    """Its publisher is told that it was not, and sends it again."""
    retaineds = FailingRetaineds()
    house = _house(plugins={"retaineds": retaineds})
    retaineds.refuses = lambda write: True

    pub = house.connect("p", V5).publish("$delayed/5/a", b"x", qos=1)

    assert pub.closed
    assert set(_held(house).values()) == {0}


def test_a_message_that_waits_counts_with_what_is_kept_of_it() -> None:
    """It is held twice: as it is published, and as it is kept."""
    house = _house()

    _delays(house, "a", 1)
    small = _held(house)["size"]
    house.connect("b", V5).publish("$delayed/5/a", b"x" * 3000, qos=1)
    large = _held(house)["size"] - small

    kept = house.broker.runtime.stores.retain.size_bytes()
    assert kept < small + large < kept + 10_000
    assert large - small > 3000 + 3000 * 4 // 3 - 10


def test_a_reload_changes_the_bounds() -> None:
    """What waits already goes on waiting."""
    house = _house()
    sub = house.connect("sub").subscribe("a")
    house.connect("pub").publish("$delayed/2/a", b"x")

    tight = DelayedSettings(max_messages=0)
    settings_of = {"delayed": tight}
    house.result(house.broker.reload(lambda name, cls: settings_of.get(name, cls and cls())))
    refused = _reasons(house, "$delayed/1/a")
    house.advance(2)

    assert refused == 0x97
    assert sub.messages == [("a", b"x", 0)]


def test_many_that_are_due_at_once_all_come() -> None:
    """What becomes due while others are published is published too, and a delay of none is none."""
    house = _house()
    sub = house.connect("sub").subscribe("#", qos=1)
    pub = house.connect("pub")

    for number in range(300):
        pub.publish(f"$delayed/{number % 3}/a", b"%d" % number, qos=1)
        house.advance(0.003)
    house.advance(3)

    assert sorted(int(payload) for _, payload, _ in sub.messages) == list(range(300))
    assert _reasons(house, "$delayed/0/a") == 0


def test_a_delayed_message_that_can_not_be_read_is_passed_over() -> None:
    """The others are published all the same after a restart."""
    retained = Retaineds()
    before = _house(plugins={"retained": retained})
    before.connect("pub").publish("$delayed/5/a", b"x", qos=1)
    before.assembly.contexts["delayed"].persist("bad", b"nonsense")
    before.settle()

    house = _house(plugins={"retained": retained}, clock=TurnableClock(before.clock.now()))
    sub = house.connect("sub").subscribe("a")
    house.advance(6)

    assert sub.messages == [("a", b"x", 0)]


# When it is due the rights are those of that moment


class Rules:
    """Lets clients publish by rules that change, and remembers whom it was asked about."""

    def __init__(self, allows: Any = lambda request: True) -> None:
        self.allows = allows
        self.asked: list[AuthorizationRequest] = []
        self.dropped_for: list[tuple[str, str, str]] = []

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Any:
        if request.action is Action.SUBSCRIBE:
            return ALLOW
        self.asked.append(request)
        answer = self.allows(request)
        return answer if isinstance(answer, Deferred) else ALLOW if answer else deny(text="not any more")

    @hookimpl
    def dropped(self, client_id: str, message: Message, why: str) -> None:
        self.dropped_for.append((client_id, message.topic, why))


class Roles:
    """Lets everybody in, as somebody with a role."""

    def __init__(self) -> None:
        self.role = "editor"

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        return allow_as(Identity(attributes={"role": self.role}))


def _topics(house: House) -> list[str]:
    """The topics of what the store holds for plugins."""
    page: Any = house.broker.runtime.stores.retain.match("$plugin/#", None, 100)
    return [m.topic for m in page.messages]


@pytest.mark.parametrize("there", [True, False])
def test_who_may_not_publish_any_more_has_nothing_published(there: bool) -> None:
    """Whether its publisher is connected or gone, a message is dropped when it is due: counted, told and logged."""
    rules = Rules()
    house = _house(plugins={"rules": rules, "trusting": Trusting()})
    everybody = house.connect("s").subscribe("#")
    publisher = house.connect("pub", username="ann").publish("$delayed/5/a", b"x", qos=1, retain=True)
    if not there:
        publisher.drop()

    rules.allows = lambda request: request.topic != "a"
    with told() as logs:
        house.advance(10)

    assert everybody.messages == []
    assert rules.dropped_for == [("pub", "a", "not_authorized")]
    assert house.broker.runtime.statistics.dropped["not_authorized"].value == 1
    assert _topics(house) == []
    assert len(logs) == 1
    assert all(word in logs[0] for word in ("'pub'", "'ann'", "'a'", "not any more", "rules"))
    assert [(r.action, r.topic, r.qos, r.retain) for r in rules.asked[-2:]] == [(Action.PUBLISH, "a", 1, True)] * 2


@contextmanager
def told() -> Iterator[list[str]]:
    """The lines about messages that are due."""
    lines: list[str] = []

    @provider(ILogObserver)
    def observe(event: Any) -> None:
        if event["log_namespace"] == "kinmqtt.due":
            lines.append(formatEvent(event))

    globalLogPublisher.addObserver(observe)
    try:
        yield lines
    finally:
        globalLogPublisher.removeObserver(observe)


def test_the_log_tells_of_a_client_once_in_a_while() -> None:
    """Whoever has left very many messages does not fill it."""
    rules = Rules()
    house = _house(plugins={"rules": rules})
    for client_id, delay_s in (("one", 1), ("one", 1), ("two", 2), ("one", 30), ("one", 90)):
        house.connect(client_id).publish(f"$delayed/{delay_s}/a", b"x", qos=1)

    rules.allows = lambda request: False
    with told() as logs:
        house.advance(100)

    assert ["'one'" in line for line in logs] == [True, False, True]
    assert house.broker.runtime.statistics.dropped["not_authorized"].value == 5


def test_it_is_asked_with_what_was_known_of_the_client() -> None:
    """Address, listener and attributes are those of then, also after a restart."""
    rules, roles, retained = Rules(lambda r: r.client.attributes.get("role") == "editor"), Roles(), Retaineds()
    plugins = {"rules": rules, "roles": roles, "retained": retained}
    before = _house(plugins=plugins)
    before.connect("pub", V5, username="ann", host="203.0.113.9").publish("$delayed/5/a", b"x", qos=1)
    left = rules.asked[-1].client

    house = _house(plugins=plugins, clock=TurnableClock(before.clock.now() + 3))
    everybody = house.connect("s").subscribe("#")
    house.advance(4)

    assert everybody.messages == [("a", b"x", 0)]
    assert rules.asked[-1].client == left
    assert (left.address.host, left.listener, left.attributes) == ("203.0.113.9", "tcp:1883", {"role": "editor"})


@pytest.mark.parametrize(
    ("username", "role", "published"), [("ann", "guest", False), ("ann", "editor", True), ("bob", "guest", True)]
)
def test_a_client_that_came_back_is_asked_about_as_it_is_now(username: str, role: str, published: bool) -> None:
    """With its present attributes, unless another user has its client id: then as it was when it left the message."""
    rules, roles = Rules(lambda r: r.client.attributes.get("role") == "editor"), Roles()
    house = _house(plugins={"rules": rules, "roles": roles})
    everybody = house.connect("s").subscribe("#")
    house.connect("pub", username="ann").publish("$delayed/5/a", b"x", qos=1)

    roles.role = role
    house.connect("pub", username=username)
    house.advance(6)

    assert [topic for topic, _, _ in everybody.messages] == (["a"] if published else [])


def _as_before(message: Message, due: float) -> bytes:
    """A delayed message as an earlier version kept it."""
    return json.dumps({"due": due, "message": to_plain(message)}).encode()


@pytest.mark.parametrize(("topic", "comes"), [("a", True), ("secret", False), ("$SYS/a", False), ("$p2p/s/a", False)])
def test_what_an_earlier_version_has_kept_is_authorized_too(topic: str, comes: bool) -> None:
    """By the client id and the user name of its publisher; what may not be published now is forgotten."""
    rules, retained = Rules(lambda request: request.topic != "secret"), Retaineds()
    before = _house(plugins={"retained": retained})
    message = Message(topic, b"x", 1, publisher=Publisher("pub", "ann"))
    before.assembly.contexts["delayed"].persist("k", _as_before(message, before.clock.now() + 5))
    before.settle()

    house = _house(plugins={"rules": rules, "retained": retained}, clock=TurnableClock(before.clock.now()))
    everybody = house.connect("s").subscribe("#").subscribe("$SYS/#")
    house.advance(6)

    assert everybody.messages == ([(topic, b"x", 0)] if comes else [])
    assert _topics(house) == []
    assert [(r.client.client_id, r.client.username) for r in rules.asked] == (
        [] if topic.startswith("$SYS") else [("pub", "ann")]
    )


def test_nobody_is_asked_before_all_plugins_have_started() -> None:
    """An authorizer that is still starting would deny what it will allow."""

    class Late(Rules):
        started: bool

        def __init__(self) -> None:
            super().__init__(lambda request: self.started)
            self.begun: Deferred[None] = Deferred()
            self.started = False

        @hookimpl
        async def start(self, context: Any) -> None:
            await self.begun
            self.started = True

    retained, late = Retaineds(), Late()
    before = _house(plugins={"retained": retained})
    before.connect("pub").publish("$delayed/5/a", b"x", qos=1, retain=True)
    clock = TurnableClock(before.clock.now() + 60)
    house = _house(plugins={"retained": retained, "late": late}, clock=clock, order=("delayed", "late"), start=False)

    Deferred.fromCoroutine(house.broker.start())
    house.advance(5)
    early = len(late.asked)
    late.begun.callback(None)
    house.advance(1)

    assert early == 0
    assert house.connect("s").subscribe("a").messages == [("a", b"x", 0)]


def test_an_authorizer_that_answers_late_changes_no_client_s_order() -> None:
    """One client's messages come in the order of their time; another client's wait for nobody."""
    answers: dict[str, Deferred[Decision]] = {}

    def later(request: AuthorizationRequest) -> Any:
        if not request.topic.startswith("due/") or not held:
            return True
        return answers.setdefault(request.topic, Deferred())

    held = False
    house = _house(plugins={"rules": Rules(later)})
    everybody = house.connect("s").subscribe("#")
    one, two = house.connect("one"), house.connect("two")
    for number in range(3):
        one.publish("$delayed/1/due/1" + "/x" * number, b"x")
    two.publish("$delayed/1/due/2", b"x")
    held = True

    house.advance(1)
    asked = sorted(answers)
    for topic in ("due/2", "due/1", "due/1/x", "due/1/x/x"):
        answers[topic].callback(deny() if topic == "due/1/x" else ALLOW)
        house.settle()

    assert asked == ["due/1", "due/2"]
    assert [topic for topic, _, _ in everybody.messages] == ["due/2", "due/1", "due/1/x/x"]


@pytest.mark.parametrize("late", [False, True])
def test_an_authorizer_that_fails_lets_nothing_through(late: bool) -> None:
    """Neither where it raises nor where it does not answer in time."""

    def fails(request: AuthorizationRequest) -> Any:
        if late:
            return Deferred()
        raise ValueError("broken")

    rules = Rules()
    house = _house(plugins={"rules": rules})
    everybody = house.connect("s").subscribe("#")
    house.connect("pub").publish("$delayed/1/a", b"x")
    rules.allows = fails

    house.advance(15)

    assert everybody.messages == []
    assert rules.dropped_for == [("pub", "a", "not_authorized")]


def test_a_delayed_will_takes_the_right_to_publish_too() -> None:
    """Whoever may only leave a will there gets no message there by a delay."""
    rules = Rules(lambda request: request.action is Action.WILL or request.topic.startswith("$delayed/"))
    house = _house(plugins={"rules": rules})
    everybody = house.connect("s").subscribe("#")

    house.connect("pub", will=ConnectWill("$delayed/5/a", b"x")).drop()
    house.advance(6)

    assert everybody.messages == []
    assert [(r.action, r.topic) for r in rules.asked[-2:]] == [(Action.WILL, "a"), (Action.PUBLISH, "a")]


def test_what_is_denied_is_forgotten_until_that_is_kept() -> None:
    """While a store fails it is tried again: after a restart nobody would find the message and ask once more."""
    retained = FailingRetaineds()
    rules = Rules()
    house = _house(plugins={"rules": rules, "retained": retained})
    everybody = house.connect("s").subscribe("#")
    house.connect("pub").publish("$delayed/2/a", b"x", qos=1)
    rules.allows = lambda request: False

    retained.refuses = lambda write: True
    house.advance(4)
    meanwhile = len(_topics(house))
    retained.refuses = lambda write: False
    house.advance(4)

    assert (meanwhile, _topics(house), everybody.messages) == (1, [], [])
    assert house.broker.runtime.statistics.dropped["not_authorized"].value == 1


@pytest.mark.parametrize("refused", [None, Action.WILL, Action.PUBLISH])
def test_both_questions_about_a_delayed_will_may_be_answered_late(refused: Action | None) -> None:
    """Each is waited for, and one denial is enough."""
    waiting: list[tuple[Action, Deferred[Decision]]] = []

    def later(request: AuthorizationRequest) -> Any:
        if request.topic != "a" or not held:
            return True
        waiting.append((request.action, Deferred()))
        return waiting[-1][1]

    held = False
    house = _house(plugins={"rules": Rules(later)})
    client = house.connect("pub", will=ConnectWill("$delayed/5/a", b"x"))
    held = True

    client.drop()
    while waiting:
        action, answer = waiting.pop(0)
        answer.callback(deny() if action is refused else ALLOW)
        house.settle()

    assert len(_topics(house)) == (1 if refused is None else 0)
