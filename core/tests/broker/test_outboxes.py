"""Outboxes of plugins: what they get, when publishers are acknowledged, and what happens at their bounds."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any

import pytest

from core_harness.faulty import logged
from core_harness.stores import Failing, FailingSessions, everything, nothing
from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt.mqtt.packets import V5, V311, ConnectWill, DisconnectPacket, Puback, Pubcomp, Publish, Pubrec
from kinmqtt.settings import NEVER_EXPIRES
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import NotCommitted, PublishRefused
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.event import Event, EventKind
from kinmqtt_spi.services.outbox import Accepted, AtMostOnce, OutboxEntry, OutboxSettings, WhenFull
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.session import OpenSession, StoredSession
from kinmqtt_spi.values import Message


class Shipper:
    """A plugin that takes what comes into its outbox, and acknowledges it when the test says so."""

    def __init__(self, filters: Sequence[str] = ("a/#",), **settings: Any) -> None:
        self.filters = filters
        self.settings = OutboxSettings(**settings)
        self.entries: list[OutboxEntry] = []
        self.consumes = True
        self.outbox: Any = None

    @hookimpl
    def start(self, context: Context) -> None:
        self.outbox = context.outbox("out", self.settings, self.filters)
        if self.consumes:
            self.consume()

    def consume(self) -> None:
        self.outbox.consume(self.entries.extend)

    @property
    def payloads(self) -> list[bytes]:
        return [entry.message.payload for entry in self.entries]

    def acknowledge(self, count: int | None = None) -> None:
        taken, self.entries[:] = self.entries[:count], self.entries[count:] if count is not None else []
        self.outbox.acknowledge([entry.number for entry in taken])


class Watcher(MemoryEventLog):
    """A plugin that notes what it is told of messages, and the events of drops."""

    def __init__(self) -> None:
        super().__init__(TurnableClock().later)
        self.drops: list[Event] = []
        self.dropped_messages: list[tuple[str, bytes, str]] = []
        self.told: list[tuple[str, str]] = []

    @hookimpl
    def event_log(self) -> Watcher:
        return self

    def append(self, events: Sequence[Event]) -> Any:
        self.drops += [event for event in events if event.kind is EventKind.QUEUE_DROP]
        return super().append(events)

    @hookimpl
    def dropped(self, client_id: str, message: Message, why: str) -> None:
        self.dropped_messages.append((client_id, message.payload, why))

    @hookimpl
    def message_queued(self, client_id: str, message: Message) -> None:
        self.told.append(("queued", client_id))

    @hookimpl
    def message_expired(self, client_id: str, message: Message) -> None:
        self.told.append(("expired", client_id))


class House:
    """A broker with a shipper, which can be started again over the same stores."""

    def __init__(self, watcher: Watcher | None = None, **settings: Any) -> None:
        self.clock = TurnableClock()
        self.shipper = Shipper(**settings)
        plugins = {"shipper": self.shipper} | ({} if watcher is None else {"watcher": watcher})
        self.broker = BrokerHarness(plugins=plugins, clock=self.clock)

    def publish(self, payload: bytes, qos: int = 1, version: int = V5, client_id: str = "p") -> Any:
        """Publish with a client of its own, and return it."""
        client = self.broker.connect(client_id, version)
        client.publish("a/b", payload, qos=qos)
        self.broker.settle()
        return client


def test_an_outbox_gets_what_matches_its_filters_in_order() -> None:
    """Entries come after the commit, and each has a number of its own."""
    house = House()
    publisher = house.broker.connect("p", V5)
    for number, topic in enumerate(("a/1", "b", "a/2", "a/3")):
        publisher.publish(topic, b"%d" % number, qos=number % 2 + 1)
    house.broker.settle()

    assert house.shipper.payloads == [b"0", b"2", b"3"]
    assert len({entry.number for entry in house.shipper.entries}) == 3
    assert not any(entry.is_repeated for entry in house.shipper.entries)


def test_a_publisher_with_only_an_outbox_as_subscriber_is_not_told_that_there_is_none() -> None:
    """MQTT-3.4.2-1: PUBACK without 0x10."""
    client = House().publish(b"1")

    assert [packet.reason for packet in client.of(Puback)] == [ReasonCode.SUCCESS]


def test_what_is_not_acknowledged_comes_again_to_the_next_consumer() -> None:
    """At least once: only what was acknowledged is gone."""
    house = House()
    for number in range(4):
        house.publish(b"%d" % number)
    house.shipper.acknowledge(2)
    house.broker.settle()
    session = next(iter(house.broker.broker.sessions.outboxes.all))

    assert len(session.outgoing) == 2
    assert house.shipper.outbox.figures().inflight == 2


def test_more_than_a_window_waits_in_the_queue() -> None:
    """The next entry comes when one is acknowledged."""
    house = House(window=2)
    for number in range(5):
        house.publish(b"%d" % number)
    assert house.shipper.payloads == [b"0", b"1"]
    assert house.shipper.outbox.figures().queued == 3
    house.shipper.acknowledge(1)
    house.broker.settle()

    assert house.shipper.payloads == [b"1", b"2"]


def test_messages_wait_for_a_consumer() -> None:
    """An outbox without a consumer collects."""
    shipper = Shipper()
    shipper.consumes = False
    broker = BrokerHarness(plugins={"shipper": shipper})
    broker.connect("p", V5).publish("a/b", b"1", qos=1)
    broker.settle()
    assert shipper.entries == []
    shipper.consume()
    broker.settle()

    assert shipper.payloads == [b"1"]


@pytest.mark.parametrize(
    ("how", "expected"), [(AtMostOnce.PASS, [b"1"]), (AtMostOnce.STORE, [b"1"]), (AtMostOnce.IGNORE, [])]
)
def test_messages_of_qos_0_are_taken_as_the_settings_say(how: AtMostOnce, expected: list[bytes]) -> None:
    """B13: PASS stores nothing; STORE is as QoS 1."""
    house = House(qos_0=how)
    house.publish(b"1", qos=0)

    assert house.shipper.payloads == expected
    assert house.shipper.outbox.figures().inflight == (how is AtMostOnce.STORE)
    house.shipper.acknowledge()
    house.broker.settle()
    assert house.shipper.outbox.figures().inflight == 0


def full(when_full: WhenFull, watcher: Watcher | None = None) -> House:
    """Return a house whose outbox of two messages is full, with one handed out."""
    house = House(watcher, max_messages=2, window=1, when_full=when_full)
    for number in range(3):
        house.publish(b"%d" % number)
    assert house.shipper.outbox.figures().queued == 2
    return house


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_outbox_refuses_and_a_client_of_mqtt_5_is_told(qos: int) -> None:
    """B5: 0x97, and nothing is lost that was acknowledged."""
    client = full(WhenFull.REFUSE).publish(b"x", qos=qos)

    [answer] = client.of(Puback if qos == 1 else Pubrec)
    assert (answer.reason, answer.properties.reason_string) == (ReasonCode.QUOTA_EXCEEDED, "an outbox is full")
    assert not client.closed


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_outbox_refuses_and_a_client_of_mqtt_3_is_disconnected(qos: int) -> None:
    """B5: it would take an acknowledgement for a promise; its identifier counts as new when it comes again."""
    house = full(WhenFull.REFUSE)
    client = house.publish(b"x", qos=qos, version=V311)

    assert client.of(Puback) + client.of(Pubrec) == []
    assert client.closed
    house.shipper.acknowledge()
    house.broker.settle()
    again = house.publish(b"x", qos=qos, version=V311)
    assert len(again.of(Puback if qos == 1 else Pubrec)) == 1


def test_a_full_outbox_drops_the_newest_or_the_oldest() -> None:
    """B5: both are counted, plugins are told, an event is recorded, and the publisher is acknowledged."""
    for when_full, expected, lost in (
        (WhenFull.DROP_NEWEST, [b"1", b"2"], b"x"),
        (WhenFull.DROP_OLDEST, [b"2", b"x"], b"1"),
    ):
        watcher = Watcher()
        house = full(when_full, watcher)
        client = house.publish(b"x")
        assert len(client.of(Puback)) == 1
        assert house.broker.assembly.metrics.sum("outbox.dropped") == 1
        assert watcher.dropped_messages == [("$outbox/test/shipper/out", lost, "queue_full")]
        assert [(event.client_id, event.data["messages"]) for event in watcher.drops] == [
            ("$outbox/test/shipper/out", 1)
        ]
        house.shipper.acknowledge()
        house.broker.settle()
        got = house.shipper.payloads
        house.shipper.acknowledge()
        house.broker.settle()
        assert got + house.shipper.payloads == expected


def test_a_full_outbox_pauses_publishers_until_there_is_room() -> None:
    """B5: the message is queued; its acknowledgement waits, and nothing more is read from the client."""
    house = House(max_messages=10, window=1, when_full=WhenFull.PAUSE)
    for number in range(11):
        house.publish(b"%d" % number)
    client = house.publish(b"x", client_id="late")
    assert client.of(Puback) == []
    assert house.broker.assembly.metrics.sum("outbox.paused") == 1
    for _ in range(4):
        house.shipper.acknowledge()
        house.broker.settle()

    assert [packet.reason for packet in client.of(Puback)] == [ReasonCode.SUCCESS]
    assert house.broker.assembly.metrics.sum("outbox.paused") == 0


@pytest.mark.parametrize("version", [V311, V5])
def test_publishers_that_were_paused_for_too_long_are_refused(version: int) -> None:
    """A client gives up after a while, too."""
    house = House(max_messages=10, window=1, when_full=WhenFull.PAUSE, pause_limit_s=5.0)
    for number in range(11):
        house.publish(b"%d" % number)
    client = house.publish(b"x", version=version, client_id="late")
    house.broker.advance(5.0)

    reasons = [packet.reason for packet in client.of(Puback)]
    assert reasons == ([ReasonCode.QUOTA_EXCEEDED] if version == V5 else [])
    assert client.closed == (version == V311)


def test_an_outbox_a_tenth_above_its_bounds_refuses_at_once() -> None:
    """Publishers that are not paused yet can't fill it without end."""
    house = House(max_messages=10, window=1, when_full=WhenFull.PAUSE)
    for number in range(12):
        house.publish(b"%d" % number, client_id=f"p{number}")
    client = house.publish(b"x", client_id="late")

    assert [packet.reason for packet in client.of(Puback)] == [ReasonCode.QUOTA_EXCEEDED]


def test_an_outbox_takes_no_room_from_clients() -> None:
    """limits.max_all_queued_bytes is theirs, and so is the number of sessions."""
    shipper = Shipper()
    shipper.consumes = False
    broker = BrokerHarness(max_all_queued_bytes=4096, plugins={"shipper": shipper})
    publisher = broker.connect("p", V5)
    for _ in range(20):
        publisher.publish("a/b", b"x" * 1000, qos=1)
    broker.settle()

    assert broker.assembly.metrics.sum("queued.size") == 0
    assert broker.assembly.metrics.sum("clients.total") == 1
    assert shipper.outbox.figures().queued + shipper.outbox.figures().inflight == 20


@pytest.mark.parametrize("client_id", ["$outbox/n/shipper/out", "$bridge/far"])
def test_no_client_can_use_the_client_id_of_an_outbox_or_a_bridge(client_id: str) -> None:
    """MQTT-3.1.3-8: 0x85. Its messages would be taken for theirs."""
    client = House().broker.connect(client_id, V5)

    assert client.connack.reason is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def test_a_plugin_puts_messages_in_itself() -> None:
    """Whatever its filters say."""
    house = House()
    assert house.shipper.outbox.put(Message("c", b"1", 1)) is Accepted.ACCEPTED
    house.broker.settle()

    assert house.shipper.payloads == [b"1"]


def test_a_full_outbox_says_so_to_its_plugin() -> None:
    """REFUSED: nobody may be told that it was accepted; DROPPED: it is lost."""
    assert full(WhenFull.REFUSE).shipper.outbox.put(Message("c", b"1", 1)) is Accepted.REFUSED
    assert full(WhenFull.DROP_NEWEST).shipper.outbox.put(Message("c", b"1", 1)) is Accepted.DROPPED
    assert full(WhenFull.DROP_OLDEST).shipper.outbox.put(Message("c", b"1", 1)) is Accepted.ACCEPTED


@pytest.mark.parametrize("filters", [["a/#/b"], ["$share/g/a"], [""]])
def test_filters_that_an_outbox_cannot_have_are_refused(filters: list[str]) -> None:
    """With the filter in the message."""
    house = House()
    with pytest.raises(ValueError, match=r"filter|shared"):
        house.shipper.outbox.subscribe(filters)


def test_a_name_of_a_sinks_parked_messages_is_refused() -> None:
    """A sink and `kinmqtt outbox` know them by it."""
    house = House()

    with pytest.raises(ValueError, match="parked"):
        house.broker.assembly.contexts["shipper"].outbox("orders.parked")


@pytest.mark.parametrize("filters", ["a/b", b"a", 5, None, [5], ["a", None]])
def test_filters_that_are_no_list_of_texts_are_refused(filters: Any) -> None:
    """A text is no list of its characters."""
    house = House()
    with pytest.raises(ValueError, match="filter"):
        house.shipper.outbox.subscribe(filters)


@pytest.mark.parametrize("name", ["", "a/b", "ä", "x" * 65, "a\n"])
def test_names_that_an_outbox_cannot_have_are_refused(name: Any) -> None:
    """They are part of client ids in the stores."""
    bringer = Bringer()
    BrokerHarness(plugins={"shipper": bringer})
    with pytest.raises(ValueError, match="an outbox's name has"):
        bringer.context.outbox(name, OutboxSettings(), [])


@pytest.mark.parametrize("name", [5, None])
def test_names_that_are_no_texts_are_refused(name: Any) -> None:
    """Compiled code says so by itself."""
    bringer = Bringer()
    BrokerHarness(plugins={"shipper": bringer})
    with pytest.raises((ValueError, TypeError), match=r"an outbox's name has|str object expected"):
        bringer.context.outbox(name, OutboxSettings(), [])


def test_settings_that_an_outbox_cannot_have_are_refused() -> None:
    """With the field in the message."""
    bringer = Bringer()
    BrokerHarness(plugins={"shipper": bringer})
    with pytest.raises(ValueError, match="outbox 'other': max_messages is 0, expected a whole number not below 1"):
        bringer.context.outbox("other", OutboxSettings(max_messages=0), [])


def test_a_consumer_that_raises_asyncios_cancellation_is_asked_again() -> None:
    """For what comes later; the broker goes on."""
    house = House()
    taken: list[OutboxEntry] = []

    def consume(entries: Sequence[OutboxEntry]) -> None:
        taken.extend(entries)
        raise CancelledError

    house.shipper.consumes = False
    broker = BrokerHarness(plugins={"shipper": house.shipper})
    house.shipper.outbox.consume(consume)
    publisher = broker.connect("p", V5)
    for _ in range(2):
        publisher.publish("a/b", b"1", qos=1)
        broker.settle()

    assert len(taken) == len(publisher.of(Puback)) == 2


def test_the_filters_of_an_outbox_can_be_changed() -> None:
    """What is in it stays."""
    house = House()
    house.publish(b"1")
    house.shipper.outbox.subscribe(["b"])
    house.publish(b"2")
    house.broker.connect("q", V5).publish("b", b"3", qos=1)
    house.broker.settle()

    assert house.shipper.payloads == [b"1", b"3"]


def test_a_discarded_outbox_is_gone() -> None:
    """It gets nothing more, and the stores have nothing of it."""
    house = House()
    house.publish(b"1")
    done: list[object] = []
    house.shipper.outbox.discard().addCallback(done.append)
    house.broker.settle()
    assert done == [None]
    client = house.publish(b"2", client_id="q")

    assert house.broker.broker.sessions.outboxes.all == ()
    assert [packet.reason for packet in client.of(Puback)] == [ReasonCode.NO_MATCHING_SUBSCRIBERS]


def test_an_outbox_that_is_discarded_before_it_opens_is_deleted_with_what_it_had() -> None:
    """A plugin that needs it no more says so when it starts."""
    stores = {"sessions": FailingSessions(), "queues": Failing()}
    BrokerHarness(plugins={**stores, "shipper": Shipper()}).connect("p", V5).publish("a/b", b"1", qos=1)
    done: list[object] = []

    class Discarding(Shipper):
        @hookimpl
        def start(self, context: Context) -> None:
            super().start(context)
            self.outbox.discard().addCallback(done.append)

    broker = BrokerHarness(plugins={**stores, "shipper": Discarding()})
    broker.settle()
    assert done == [None]
    assert broker.broker.sessions.outboxes.all == ()
    after = Shipper()
    BrokerHarness(plugins={**stores, "shipper": after}).settle()

    assert after.payloads == []


def test_a_stored_outbox_whose_client_id_names_no_owner_is_left_alone() -> None:
    """The broker starts, and a line names it."""
    sessions = FailingSessions()
    sessions.apply([OpenSession(1, StoredSession("$outbox/x", NEVER_EXPIRES))])
    shipper = Shipper()
    with logged() as lines:
        broker = BrokerHarness(plugins={"sessions": sessions, "shipper": shipper})
        broker.connect("p", V5).publish("a/b", b"1", qos=1)
        broker.settle()

    assert shipper.payloads == [b"1"]
    assert [each.client_id for each in broker.broker.sessions.outboxes.all if each.client_id == "$outbox/x"]
    assert any("outbox '$outbox/x' has 0 messages, and no plugin consumes it" in line for line in lines)


def test_qos_2_is_completed_as_usual() -> None:
    """PUBREC follows the commit for the outbox."""
    house = House()
    client = house.publish(b"1", qos=2)

    assert len(client.of(Pubrec)) == len(client.of(Pubcomp)) == 1
    assert client.of(DisconnectPacket) == client.of(Publish) == []


class Bringer(Shipper):
    """A plugin that brings messages in."""

    context: Context

    @hookimpl
    def start(self, context: Context) -> None:
        super().start(context)
        self.context = context

    def bring(self, broker: BrokerHarness, *messages: Message) -> list[Any]:
        """Publish, and return where the result arrives."""
        results: list[Any] = []
        as_deferred(self.context.publish_acknowledged(messages)).addBoth(results.append)
        broker.settle()
        return results


def test_messages_from_elsewhere_are_acknowledged_when_they_are_committed() -> None:
    """Those for a client that is away, and those for an outbox that pauses their publisher."""
    bringer = Bringer(max_messages=1, window=1, when_full=WhenFull.PAUSE, pause_limit_s=5.0)
    broker = BrokerHarness(plugins={"shipper": bringer})
    away = broker.connect("away", V5, expiry_s=60).subscribe("a/#", qos=1)
    away.drop()
    done = bringer.bring(broker, Message("a/1", b"1", 1), Message("b", b"2", 0))
    assert done == [None]
    assert bringer.bring(broker, Message("a/2", b"2", 1)) == [None]
    waiting = bringer.bring(broker, Message("a/3", b"3", 1))
    assert waiting == []
    broker.advance(5.0)

    assert [type(each.value) for each in waiting] == [PublishRefused]
    back = broker.connect("away", V5, expiry_s=60, clean_start=False)
    assert [payload for _, payload, _ in back.messages] == [b"1", b"2", b"3"]


def test_more_messages_from_elsewhere_than_an_outbox_has_room_for_wait_for_it() -> None:
    """None is refused while the outbox is drained, and nothing is acknowledged before all are in."""
    bringer = Bringer(max_messages=10, window=2, when_full=WhenFull.PAUSE, pause_limit_s=5.0)
    broker = BrokerHarness(plugins={"shipper": bringer})
    done = bringer.bring(broker, *(Message("a/b", b"%d" % number, 1) for number in range(50)))
    got: list[bytes] = []
    while bringer.entries:
        assert done == [] or len(got) >= 35
        got += bringer.payloads
        bringer.acknowledge()
        broker.settle()

    assert done == [None]
    assert got == [b"%d" % number for number in range(50)]


def test_after_a_refused_message_from_elsewhere_no_further_one_is_published() -> None:
    """They would all come again."""
    bringer = Bringer(max_messages=10, window=2, when_full=WhenFull.PAUSE, pause_limit_s=5.0)
    broker = BrokerHarness(plugins={"shipper": bringer})
    done = bringer.bring(broker, *(Message("a/b", b"%d" % number, 1) for number in range(50)))
    broker.advance(5.0)

    assert [type(each.value) for each in done] == [PublishRefused]
    assert bringer.outbox.figures().queued == 11


def test_messages_from_elsewhere_that_a_store_does_not_commit_are_to_be_published_again() -> None:
    """Nothing is acknowledged where they come from."""
    queues = Failing()
    bringer = Bringer()
    broker = BrokerHarness(plugins={"queues": queues, "shipper": bringer})
    queues.refuses = everything
    done = bringer.bring(broker, Message("a/1", b"1", 1))

    assert [type(each.value) for each in done] == [NotCommitted]
    assert bringer.payloads == []


def test_of_messages_from_elsewhere_with_an_invalid_one_none_is_published() -> None:
    """The plugin finds out which."""
    bringer = Bringer()
    broker = BrokerHarness(plugins={"shipper": bringer})
    done = bringer.bring(broker, Message("a/1", b"1", 1), Message("a/#", b"2", 1))

    assert [type(each.value) for each in done] == [ValueError]
    assert bringer.payloads == []


def test_what_a_store_does_not_commit_never_leaves_the_broker() -> None:
    """B15: the publisher is disconnected, and sends it again."""
    queues = Failing()
    shipper = Shipper()
    broker = BrokerHarness(plugins={"queues": queues, "shipper": shipper})
    queues.refuses = everything
    publisher = broker.connect("p", V5)
    publisher.publish("a/b", b"1", qos=1)
    broker.settle()

    assert publisher.of(Puback) == []
    assert publisher.closed
    assert shipper.payloads == []


def test_an_outbox_whose_first_commit_fails_is_opened_again() -> None:
    """Until then nobody is acknowledged whose message would be in no outbox."""
    sessions = FailingSessions()
    shipper = Shipper()
    broker = BrokerHarness(plugins={"sessions": sessions, "shipper": shipper}, start=False)
    sessions.refuses = everything
    started = as_deferred(broker.broker.start())
    broker.settle()
    sessions.refuses = nothing
    broker.advance(2)
    assert started.called
    client = broker.connect("p", V5)
    client.publish("a/b", b"1", qos=1)
    broker.settle()

    assert [packet.reason for packet in client.of(Puback)] == [ReasonCode.SUCCESS]
    assert shipper.payloads == [b"1"]


def test_a_will_enters_a_full_outbox() -> None:
    """Nobody would publish it again, and its sender was told that it is safe."""
    house = full(WhenFull.REFUSE)
    will = ConnectWill("a/will", b"gone", 1)
    house.broker.connect("mortal", V5, will=will).drop()
    house.broker.settle()
    house.shipper.acknowledge()
    house.broker.settle()
    got = []
    while house.shipper.entries:
        got += house.shipper.payloads
        house.shipper.acknowledge()
        house.broker.settle()

    assert b"gone" in got


def test_wills_fill_an_outbox_up_to_twice_its_bounds() -> None:
    """Else clients that connect and vanish would fill the disk; what is dropped is counted, with a line a minute."""
    house = full(WhenFull.REFUSE)
    with logged() as lines:
        for number in range(10):
            will = ConnectWill("a/will", b"gone", 1)
            house.broker.connect(f"mortal{number}", V5, will=will).drop()
        house.broker.settle()

    assert house.shipper.outbox.figures().queued == 4
    assert house.broker.assembly.metrics.sum("outbox.dropped") == 8
    [line] = [each for each in lines if "has twice what its bounds allow" in each]
    assert "'$outbox/test/shipper/out'" in line


def test_a_consumer_gets_only_that_twice_whose_removal_failed() -> None:
    """What it has already is not handed out again with each failed commit."""
    queues = Failing()
    shipper = Shipper()
    broker = BrokerHarness(plugins={"queues": queues, "shipper": shipper})
    client = broker.connect("p", V5)
    for number in range(3):
        client.publish("a/b", b"%d" % number, qos=1)
    broker.settle()
    queues.refuses = everything
    shipper.outbox.acknowledge([shipper.entries[0].number])
    broker.settle()
    queues.refuses = nothing
    broker.advance(5)

    assert shipper.payloads == [b"0", b"1", b"2", b"0"]
    shipper.outbox.acknowledge([entry.number for entry in shipper.entries])
    broker.settle()
    assert shipper.outbox.figures().inflight == 0


def test_passed_messages_are_bounded_in_bytes() -> None:
    """They are in memory until the consumer has acknowledged them."""
    house = House(max_bytes=5000)
    for _ in range(20):
        house.publish(bytes(1000), qos=0)

    assert 4 <= len(house.shipper.entries) <= 6
    house.shipper.acknowledge()
    house.publish(b"x", qos=0)
    assert house.shipper.payloads == [b"x"]


def test_notices_about_the_queues_of_clients_are_not_about_outboxes() -> None:
    """Neither while a message waits, nor when it expires there, at its turn or in the store; a drop is told."""
    watcher = Watcher()
    house = House(watcher, window=1)
    publisher = house.broker.connect("p", V5)
    publisher.publish("a/b", b"first", qos=1)
    for payload in (b"1", b"2"):
        publisher.publish("a/b", payload, qos=1, properties=Properties(message_expiry_interval=5))
    house.broker.settle()
    house.broker.advance(10)
    house.shipper.acknowledge()
    house.broker.settle()

    assert watcher.told == []
    assert sorted(watcher.dropped_messages) == [
        ("$outbox/test/shipper/out", payload, "expired") for payload in (b"1", b"2")
    ]


def test_what_is_held_keeps_no_others_waiting() -> None:
    """Also what is passed without being stored, and after its removal failed."""
    queues = Failing()
    shipper = Shipper(window=2)
    broker = BrokerHarness(plugins={"queues": queues, "shipper": shipper})
    publisher = broker.connect("p", V5)
    publisher.publish("a/b", b"0", qos=0).publish("a/b", b"1", qos=1).publish("a/b", b"2", qos=1)
    broker.settle()
    assert shipper.payloads == [b"0", b"1"]
    shipper.outbox.hold([entry.number for entry in shipper.entries])
    broker.settle()
    assert shipper.payloads == [b"0", b"1", b"2"]
    queues.refuses = everything
    shipper.outbox.acknowledge([shipper.entries[1].number])
    broker.settle()
    queues.refuses = nothing
    broker.advance(5)
    shipper.acknowledge()
    broker.settle()
    for number in range(3, 7):
        publisher.publish("a/b", b"%d" % number, qos=1)
    broker.settle()

    assert shipper.payloads == [b"3", b"4"]
