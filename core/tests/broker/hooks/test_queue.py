"""The hooks of the queue, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from core_harness.house import House, Peer
from kinmqtt.mqtt.packets import V5, DisconnectPacket, Puback
from kinmqtt.settings import LimitSettings
from kinmqtt_spi import Message, Properties, ReasonCode, hookimpl
from kinmqtt_spi.errors import AssemblyError, ServiceUnavailable
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.services.queue import Append, OverflowPolicy, QueueFull


def broken(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def coroutine(value: Any) -> Any:
    """A coroutine's answer."""
    return value


# queue_store


class SlowStore(MemoryQueueStore):
    """Keeps what it is given when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Deferred[None]] = []

    def apply(self, writes: Sequence[Any]) -> Any:
        if not any(isinstance(write, Append) for write in writes):
            return super().apply(writes)
        commit: Deferred[None] = Deferred()
        commit.addCallback(lambda _: MemoryQueueStore.apply(self, writes))
        self.commits.append(commit)
        return commit


class Provider:
    """Provides the queue store."""

    def __init__(self, store: Any) -> None:
        self.store = store

    @hookimpl
    def queue_store(self, context: Any) -> Any:
        return self.store() if callable(self.store) else self.store


def test_queue_store_of_the_only_plugin_is_used() -> None:
    """A publisher is acknowledged when the plugin's store has kept its message, and not before."""
    store = SlowStore()
    house = House(plugins={"slow": Provider(store)})
    sub = house.connect("sub", clean_start=False).subscribe("t", 1)
    pub = house.connect("pub").publish("t", b"x", 1)
    assert (pub.of(Puback), sub.messages) == ([], [])

    store.commits[0].callback(None)
    house.settle()

    assert house.assembly.providers["queue"] == "slow"
    assert len(pub.of(Puback)) == 1
    assert sub.messages == [("t", b"x", 1)]


def test_queue_store_that_does_not_keep_a_message_acknowledges_nothing() -> None:
    """The publisher is disconnected with the store's reason, and sends again."""
    store = SlowStore()
    house = House(plugins={"slow": Provider(store)})
    house.connect("sub", clean_start=False).subscribe("t", 1)
    pub = house.connect("pub", V5).publish("t", b"x", 1)

    store.commits[0].errback(ServiceUnavailable("disk full", ReasonCode.QUOTA_EXCEEDED))
    house.settle()

    assert pub.of(Puback) == []
    assert [packet.reason for packet in pub.of(DisconnectPacket)] == [ReasonCode.QUOTA_EXCEEDED]


@pytest.mark.parametrize("store", [broken, lambda: None, lambda: object(), lambda: succeed(MemoryQueueStore())])
def test_queue_store_that_fails_stops_the_assembly(store: Callable[[], Any]) -> None:
    """A plugin that raises, or answers anything but a store, keeps the broker from starting, and is named."""
    with pytest.raises(AssemblyError, match="plugin 'bad'"):
        House(plugins={"bad": Provider(store)})


# queue_full


class Arbiter:
    """Gives one policy, and remembers the questions."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.asked: list[QueueFull] = []

    @hookimpl
    def queue_full(self, question: QueueFull) -> Any:
        self.asked.append(question)
        return self.answer()


def full(*arbiters: Arbiter, persistent: bool = True, **limits: Any) -> tuple[House, Peer]:
    """A house, and a publisher that has filled the queue of a client with ``t/0`` and ``t/1``."""
    plugins = {f"arbiter{n}": arbiter for n, arbiter in enumerate(arbiters)}
    house = House(plugins=plugins, max_queued_messages=2, max_inflight=1, **limits)
    if persistent:
        house.connect("sub", V5, expiry_s=100).subscribe("#", 1).drop()
    else:
        house.connect("sub", V5, silent=True).subscribe("#", 1)
    pub = house.connect("pub", V5)
    if not persistent:
        pub.publish("in/flight", qos=1)
    return house, pub.publish("t/0", qos=1).publish("t/1", qos=1)


def waiting(house: House) -> list[str]:
    """The topics that waited for the client, now that it takes them."""
    sub = house.peers[0]
    if sub.closed:
        sub = house.connect("sub", V5, clean_start=False, expiry_s=100)
    else:
        sub.silent = False
        sub.send(Puback(1))
    return [topic for topic, _, _ in sub.messages if topic != "in/flight"]


def test_queue_full_is_asked_for_each_message_too_many() -> None:
    """The question holds the client, where it is connected, the queue's sizes and the message."""
    offline, online = Arbiter(lambda: None), Arbiter(lambda: None)

    full(offline)[1].publish("t/2", qos=1).publish("t/3", qos=1)
    full(online, persistent=False)[1].publish("t/2", qos=1)

    assert [(q.client_id, q.client, q.sizes.queued, q.message.topic) for q in offline.asked] == [
        ("sub", None, 2, "t/2"),
        ("sub", None, 2, "t/3"),
    ]
    [question] = online.asked
    assert question.client is not None
    assert (question.client.client_id, question.sizes.queued, question.sizes.inflight) == ("sub", 2, 1)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(
    ("policy", "topic", "left", "told"),
    [
        (OverflowPolicy.DROP_NEWEST, "t/2", ["t/0", "t/1"], ReasonCode.SUCCESS),
        (OverflowPolicy.DROP_OLDEST, "t/2", ["t/1", "t/2"], ReasonCode.SUCCESS),
        (OverflowPolicy.DROP_QOS_0, "t/2", ["t/0", "t/1"], ReasonCode.SUCCESS),
        (OverflowPolicy.KEEP_LATEST, "t/1", ["t/0", "t/1"], ReasonCode.SUCCESS),
        (OverflowPolicy.KEEP_LATEST, "t/2", ["t/1", "t/2"], ReasonCode.SUCCESS),
        (OverflowPolicy.REFUSE, "t/2", ["t/0", "t/1"], ReasonCode.QUOTA_EXCEEDED),
    ],
)
def test_queue_full_says_what_gives_way(
    policy: OverflowPolicy, topic: str, left: list[str], told: ReasonCode, persistent: bool
) -> None:
    """Each policy, for a queue in the store and for one that ends with its connection."""
    house, pub = full(Arbiter(lambda: policy), persistent=persistent)

    pub.publish(topic, qos=1)

    assert pub.of(Puback)[-1].reason is told
    assert waiting(house) == left
    assert house.broker.runtime.statistics.dropped["queue_full"].value == 1


def test_queue_full_is_the_first_plugins_that_answers() -> None:
    """None leaves the question to the next plugin; the one after the answer is not asked."""
    third = Arbiter(lambda: OverflowPolicy.REFUSE)
    house, pub = full(Arbiter(lambda: None), Arbiter(lambda: OverflowPolicy.DROP_OLDEST), third)

    pub.publish("t/2", qos=1)

    assert waiting(house) == ["t/1", "t/2"]
    assert third.asked == []


@pytest.mark.parametrize("answer", [lambda: None, broken, lambda: coroutine(None), lambda: succeed(None)])
def test_queue_full_falls_back_on_the_settings(answer: Callable[[], Any]) -> None:
    """Where all plugins abstain, raise or want to be waited for, the settings' policy holds."""
    house, pub = full(Arbiter(answer), queue_full=OverflowPolicy.DROP_OLDEST)

    pub.publish("t/2", qos=1)

    assert waiting(house) == ["t/1", "t/2"]


def test_queue_full_that_raises_is_counted() -> None:
    """A broken arbiter is seen, and the next one decides."""
    house, pub = full(Arbiter(broken), Arbiter(lambda: OverflowPolicy.REFUSE))

    pub.publish("t/2", qos=1)

    assert pub.of(Puback)[-1].reason is ReasonCode.QUOTA_EXCEEDED
    assert house.assembly.metrics.sum("plugin.failures") == 1


def test_queue_full_without_plugins_is_the_settings_affair() -> None:
    """The default drops the newest message."""
    house, pub = full()

    pub.publish("t/2", qos=1)

    assert LimitSettings().queue_full is OverflowPolicy.DROP_NEWEST
    assert waiting(house) == ["t/0", "t/1"]


# message_queued, message_expired


class Diary:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []

    @hookimpl
    def message_queued(self, client_id: str, message: Message) -> None:
        self.told.append(("queued", client_id, message.topic))

    @hookimpl
    def message_expired(self, client_id: str, message: Message) -> None:
        self.told.append(("expired", client_id, message.topic))


def test_message_queued_is_told_of_messages_that_wait() -> None:
    """A message waits for a client that is away, or whose window is full; one sent at once does not."""
    one, two = Diary(), Diary()
    house = House(plugins={"one": one, "two": two}, max_inflight=1)
    house.connect("away", clean_start=False).subscribe("t", 1).drop()
    house.connect("busy", silent=True).subscribe("t", 1)
    house.connect("idle").subscribe("t", 1)

    house.connect("pub").publish("t", qos=1).publish("t", qos=1)

    assert sorted(one.told) == [("queued", "away", "t")] * 2 + [("queued", "busy", "t")]
    assert two.told == one.told


def test_message_queued_is_told_when_the_entry_is_kept() -> None:
    """While the store has not kept the entry, and where it never does, nothing is told."""
    store, diary = SlowStore(), Diary()
    house = House(plugins={"slow": Provider(store), "diary": diary})
    house.connect("away", clean_start=False).subscribe("t", 1).drop()
    pub = house.connect("pub").publish("t", qos=1).publish("t", qos=1)
    assert diary.told == []

    store.commits[0].callback(None)
    store.commits[1].errback(ServiceUnavailable("disk full"))
    house.settle()

    assert diary.told == [("queued", "away", "t")]
    assert pub.closed


def test_message_queued_is_not_told_of_messages_dropped_at_once() -> None:
    """A message that finds no room does not wait."""
    diary = Diary()
    house = House(plugins={"diary": diary}, max_queued_messages=1)
    house.connect("away", clean_start=False).subscribe("t", 1).drop()

    house.connect("pub").publish("t", qos=1).publish("t", qos=1)

    assert diary.told == [("queued", "away", "t")]


@pytest.mark.parametrize("persistent", [True, False])
def test_message_expired_is_told_of_messages_that_waited_too_long(persistent: bool) -> None:
    """A message whose expiry interval passes while it waits is not sent, and its entry is removed."""
    diary = Diary()
    house = House(plugins={"diary": diary}, max_inflight=1)
    sub = house.connect("sub", V5, silent=True, expiry_s=100 if persistent else None).subscribe("t/#", 1)
    pub = house.connect("pub", V5).publish("t/0", qos=1)
    pub.publish("t/1", qos=1, properties=Properties(message_expiry_interval=5)).publish("t/2", qos=1)

    house.advance(10)
    sub.send(Puback(1))

    assert [topic for topic, _, _ in sub.messages] == ["t/0", "t/2"]
    assert [told for told in diary.told if told[0] == "expired"] == [("expired", "sub", "t/1")]
    assert house.broker.runtime.statistics.dropped["expired"].value == 1


@pytest.mark.parametrize("notice", ["message_queued", "message_expired"])
def test_queue_notices_that_raise_harm_nobody(notice: str) -> None:
    """The message is queued, or gone, all the same; other plugins are told, and the failure is counted."""

    def tell(self: object) -> None:
        broken()

    tell.__name__ = notice
    diary = Diary()
    house = House(plugins={"broken": type("Broken", (), {notice: hookimpl(tell)})(), "diary": diary})
    house.connect("away", clean_start=False).subscribe("t", 1).drop()

    house.connect("pub", V5).publish("t", qos=1, properties=Properties(message_expiry_interval=5))
    house.advance(10)

    assert [told[0] for told in diary.told] == ["queued", "expired"]
    assert house.assembly.metrics.sum("plugin.failures") == 1
