"""The hooks of retained messages, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from core_harness.house import House, Peer
from kinmqtt.mqtt.packets import V5, ConnectWill, DisconnectPacket, Puback
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import Disconnect as DisconnectOutcome
from kinmqtt_spi import Drop, Message, Properties, ReasonCode, Reject, hookimpl
from kinmqtt_spi.errors import AssemblyError, ServiceUnavailable
from kinmqtt_spi.memory.retain import MemoryRetainStore


def broken(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def broken_later(*_: Any) -> Any:
    """What a broken plugin does that answers later."""
    raise ValueError("broken")


async def coroutine(value: Any) -> Any:
    """A coroutine's answer."""
    return value


def kept(house: House, filter: str = "#") -> list[tuple[str, bytes]]:
    """What a new subscriber finds."""
    return [(topic, payload) for topic, payload, _ in house.connect("reader").subscribe(filter).messages]


# retain_store


class Provider:
    """Provides the retain store."""

    def __init__(self, store: Any) -> None:
        self.store = store

    @hookimpl
    def retain_store(self, context: Any) -> Any:
        return self.store() if callable(self.store) else self.store


class FullStore(MemoryRetainStore):
    """Has no room for anything."""

    def put(self, writes: Any) -> Any:
        return fail(ServiceUnavailable("disk full", ReasonCode.QUOTA_EXCEEDED))


def test_retain_store_of_the_only_plugin_is_used() -> None:
    """A plugin that provides a store stands in for the built-in one."""
    store = MemoryRetainStore()
    house = House(plugins={"store": Provider(store)})

    house.connect("pub").publish("t", b"x", retain=True)

    assert house.assembly.providers["retain"] == "store"
    assert store.count() == 1
    assert kept(house) == [("t", b"x")]


def test_retain_store_that_does_not_keep_a_message_acknowledges_nothing() -> None:
    """The publisher is disconnected with the store's reason, and sends again."""
    house = House(plugins={"full": Provider(FullStore())})

    pub = house.connect("pub", V5).publish("t", b"x", 1, retain=True)

    assert pub.of(Puback) == []
    assert [packet.reason for packet in pub.of(DisconnectPacket)] == [ReasonCode.QUOTA_EXCEEDED]


@pytest.mark.parametrize("store", [broken, lambda: None, lambda: object(), lambda: succeed(MemoryRetainStore())])
def test_retain_store_that_fails_stops_the_assembly(store: Callable[[], Any]) -> None:
    """A plugin that raises, or answers anything but a store, keeps the broker from starting, and is named."""
    with pytest.raises(AssemblyError, match="plugin 'bad'"):
        House(plugins={"bad": Provider(store)})


# retaining


class Curator:
    """Makes of each message to be retained what it is told to."""

    def __init__(self, answer: Callable[[Message], Any]) -> None:
        self.answer = answer
        self.seen: list[tuple[str, bytes]] = []

    @hookimpl
    def retaining(self, message: Message) -> Any:
        self.seen.append((message.topic, message.payload))
        return self.answer(message)


def curated(*answers: Callable[[Message], Any]) -> tuple[House, Peer, Peer]:
    """A house with curators, a subscriber to everything, and a publisher."""
    house = House(plugins={f"curator{n}": Curator(answer) for n, answer in enumerate(answers)})
    return house, house.connect("sub").subscribe("#", 1), house.connect("pub", V5)


def test_retaining_may_change_what_is_kept() -> None:
    """A fold: each plugin sees what the one before made of the message; what is delivered stays as it was."""
    house, sub, pub = curated(
        lambda message: coroutine(message.replace(payload=message.payload + b"1")),
        lambda message: None,
        lambda message: message.replace(payload=message.payload + b"2"),
    )

    pub.publish("t", b"x", retain=True)

    assert kept(house) == [("t", b"x12")]
    assert sub.messages == [("t", b"x", 0)]


@pytest.mark.parametrize(
    "answer", [lambda m: Drop(), lambda m: Reject(), lambda m: DisconnectOutcome(), broken, broken_later]
)
def test_retaining_may_leave_the_store_as_it_is(answer: Callable[[Message], Any]) -> None:
    """Dropped, rejected or failed: nothing is kept, and the message is delivered and acknowledged all the same."""
    house, sub, pub = curated(lambda message: answer(message) if message.payload == b"new" else None)
    pub.publish("t", b"old", 1, retain=True)

    pub.publish("t", b"new", 1, retain=True)

    assert kept(house) == [("t", b"old")]
    assert [payload for _, payload, _ in sub.messages] == [b"old", b"new"]
    assert [ack.reason for ack in pub.of(Puback)] == [ReasonCode.SUCCESS] * 2
    assert not pub.closed


def test_retaining_is_asked_for_everybodys_messages() -> None:
    """A client's, a will's and the broker's own; and before a topic is cleared."""
    curator = Curator(lambda message: None)
    house = House(plugins={"curator": curator}, settings=BrokerSettings(sys_interval_s=10))

    house.connect("c").publish("t", b"x", retain=True).publish("t", retain=True).publish("other", b"x")
    house.connect("d", will=ConnectWill("gone", b"d", 0, True)).drop()
    house.advance(1)

    assert curator.seen[:3] == [("t", b"x"), ("t", b""), ("gone", b"d")]
    assert "$SYS/broker/version" in [topic for topic, _ in curator.seen]


def test_retaining_holds_the_publisher_while_it_is_awaited() -> None:
    """The message is routed, and acknowledged, when it is known what is kept of it."""
    answer: Deferred[None] = Deferred()
    house, sub, pub = curated(lambda message: answer)
    pub.publish("t", b"x", 1, retain=True)
    assert (sub.messages, pub.of(Puback)) == ([], [])

    answer.callback(None)
    house.settle()

    assert sub.messages == [("t", b"x", 1)]
    assert len(pub.of(Puback)) == 1


def test_retaining_has_ten_seconds() -> None:
    """A plugin that takes longer has failed: nothing is kept, and the message is delivered."""
    house, sub, pub = curated(lambda message: Deferred())
    pub.publish("t", b"x", retain=True)

    house.advance(11)

    assert sub.messages == [("t", b"x", 0)]
    assert kept(house) == []
    assert house.assembly.metrics.sum("plugin.failures") == 1


# retained, retain_cleared


class Diary:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    @hookimpl
    def retained(self, message: Message) -> None:
        self.told.append(("retained", message.topic, message.payload))

    @hookimpl
    def retain_cleared(self, topic: str) -> None:
        self.told.append(("cleared", topic))


def test_retained_and_retain_cleared_are_told_in_order() -> None:
    """Every plugin is told of what was kept, as it was kept, and of what was cleared."""
    one, two = Diary(), Diary()
    curator = Curator(lambda message: message.replace(payload=b"y") if message.payload else None)
    house = House(plugins={"curator": curator, "one": one, "two": two})

    house.connect("c").publish("t", b"x", retain=True).publish("t", retain=True).publish("t", b"z", retain=True)

    assert one.told == two.told == [("retained", "t", b"y"), ("cleared", "t"), ("retained", "t", b"y")]


def test_retain_cleared_is_told_of_messages_that_expired() -> None:
    """A retained message whose expiry interval has passed is gone."""
    diary = Diary()
    house = House(plugins={"diary": diary})
    expiry = Properties(message_expiry_interval=5)
    house.connect("c", V5).publish("t", b"x", retain=True, properties=expiry)

    house.advance(10)

    assert diary.told == [("retained", "t", b"x"), ("cleared", "t")]
    assert kept(house) == []


def test_retained_is_not_told_of_what_is_not_kept() -> None:
    """Neither what a plugin kept out, nor what the store had no room for."""
    one, two = Diary(), Diary()
    kept_out = House(plugins={"curator": Curator(lambda message: Drop()), "diary": one})
    no_room = House(plugins={"full": Provider(FullStore()), "diary": two})

    for house in (kept_out, no_room):
        house.connect("c").publish("t", b"x", retain=True).publish("t", retain=True)

    assert (one.told, two.told) == ([], [])


@pytest.mark.parametrize("notice", ["retained", "retain_cleared"])
def test_retain_notices_that_raise_harm_nobody(notice: str) -> None:
    """The store has the message all the same; other plugins are told, and the failure is counted."""

    def tell(self: object) -> None:
        broken()

    tell.__name__ = notice
    diary = Diary()
    house = House(plugins={"broken": type("Broken", (), {notice: hookimpl(tell)})(), "diary": diary})

    peer = house.connect("c").publish("a", b"x", retain=True).publish("b", retain=True)

    assert not peer.closed
    assert diary.told == [("retained", "a", b"x"), ("cleared", "b")]
    assert kept(house) == [("a", b"x")]
    assert house.assembly.metrics.sum("plugin.failures") == 1
