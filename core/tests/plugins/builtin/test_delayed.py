"""Delayed publish in a whole broker."""

from __future__ import annotations

from typing import Any

import pytest
from harness import House
from stores import Retaineds
from twisted.internet.defer import Deferred

from kinmqtt.mqtt.packets import V5, Puback, Publish, Will
from kinmqtt.plugins.builtin.delayed import DelayedSettings
from kinmqtt_spi import ALLOW, Decision, Properties, deny, hookimpl
from kinmqtt_spi.reference.plugin import TurnableClock
from kinmqtt_spi.services.authorization import AuthorizationRequest


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
        ("$delayed/5/$SYS/a", 0x87),
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
    house.connect("pub", will=Will("$delayed/5/a", b"x")).drop()

    early = list(sub.messages)
    house.advance(5)

    assert early == []
    assert sub.messages == [("a", b"x", 0)]


@pytest.mark.parametrize("bound", [DelayedSettings(max_messages=2), DelayedSettings(max_bytes=4)])
def test_what_waits_is_bounded(bound: DelayedSettings) -> None:
    """The excess is refused with 0x97, and what is published makes room."""
    house = _house(delayed=bound)

    reasons = [_reasons(house, "$delayed/1/a") for _ in range(3)]
    house.advance(1)
    again = _reasons(house, "$delayed/1/a")

    assert (reasons, again) == ([0, 0, 0x97], 0)


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
    before.assembly.contexts["delayed"].keep("bad", b"nonsense")
    before.settle()

    house = _house(plugins={"retained": retained}, clock=TurnableClock(before.clock.now()))
    sub = house.connect("sub").subscribe("a")
    house.advance(6)

    assert sub.messages == [("a", b"x", 0)]
