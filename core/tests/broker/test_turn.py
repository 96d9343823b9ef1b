"""What a turn gathers is kept before anybody hears of it; and what happens where it is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from harness import House, Peer
from stores import Later, SlowQueues, SlowSessions
from twisted.internet.defer import Deferred

from kinmqtt.broker.turn import Stores, Turn
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V311,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt_spi import Properties, hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.reference.event import MemoryEventLog
from kinmqtt_spi.reference.plugin import TurnableClock
from kinmqtt_spi.reference.queue import MemoryQueueStore
from kinmqtt_spi.reference.retain import MemoryRetainStore
from kinmqtt_spi.reference.session import MemorySessionStore
from kinmqtt_spi.services.queue import InboundOpen, Send

FULL = ServiceUnavailable("the disk is full", ReasonCode.QUOTA_EXCEEDED)


class Failing(MemoryQueueStore):
    """A queue store of which the test says what fails."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: Callable[[Any], bool] = lambda write: False
        """Whether a batch with that write is not kept."""
        self.read_error: Exception | None = None
        self.batches: list[Sequence[Any]] = []

    def apply(self, writes: Sequence[Any]) -> None:
        if any(self.refuses(write) for write in writes):
            raise FULL
        self.batches.append(list(writes))
        super().apply(writes)

    def read(self, client_id: str, after: int, limit: int) -> Any:
        if self.read_error is not None:
            raise self.read_error
        return super().read(client_id, after, limit)

    @hookimpl
    def queue_store(self) -> Failing:
        return self


def slow() -> tuple[House, SlowQueues, SlowSessions]:
    """A house with stores that can be made to wait."""
    queues, sessions = SlowQueues(), SlowSessions()
    return House(plugins={"queues": queues, "sessions": sessions}), queues, sessions


def answer(house: House, store: Later, error: BaseException | None = None) -> None:
    """Let the oldest waiting write be kept, or fail."""
    store.answer(error)
    house.settle()


# Acknowledgements wait


@pytest.mark.parametrize(
    ("packet", "told"),
    [
        (Publish.build("t", b"x", 1, packet_id=1), Puback),
        (Publish.build("t", b"x", 2, packet_id=1), Pubrec),
        (Pubrel(7), Pubcomp),
        (Pubrec(1), Pubrel),
    ],
    ids=["PUBLISH 1", "PUBLISH 2", "PUBREL", "PUBREC"],
)
def test_an_answer_waits_until_the_queue_is_kept(packet: Packet, told: type[Packet]) -> None:
    """Each step of QoS 1 and 2 is kept before its answer goes out [MQTT-4.3.2-4, MQTT-4.3.3-8]."""
    house, queues, _ = slow()
    client = house.connect("c", clean_start=False, silent=True).subscribe("t", qos=2)
    house.connect("p").publish("t", qos=2)
    client.publish("other", qos=2, packet_id=7)
    before = len(client.of(told))
    queues.writes.slow = True

    client.send(packet)
    early = len(client.of(told)) - before
    answer(house, queues.writes)

    assert (early, len(client.of(told)) - before) == (0, 1)


@pytest.mark.parametrize(
    ("packet", "told"),
    [(Subscribe(9, (SubscribeRequest("u"),)), Suback), (Unsubscribe(9, ("t",)), Unsuback)],
    ids=["SUBSCRIBE", "UNSUBSCRIBE"],
)
def test_an_answer_waits_until_the_subscription_is_kept(packet: Packet, told: type[Packet]) -> None:
    """SUBACK and UNSUBACK go out when the session's subscriptions are kept [MQTT-3.8.4-1, MQTT-3.10.4-4]."""
    house, _, sessions = slow()
    client = house.connect("c", clean_start=False).subscribe("t")
    before = len(client.of(told))
    sessions.writes.slow = True

    client.send(packet)
    early = len(client.of(told)) - before
    answer(house, sessions.writes)

    assert (early, len(client.of(told)) - before) == (0, 1)


def test_a_read_is_kept_in_one_batch() -> None:
    """However many messages come together, the store is asked once, and each is answered [MQTT-4.6.0-2]."""
    store = Failing()
    house = House(plugins={"store": store})
    house.connect("s", clean_start=False).subscribe("t", qos=1).drop()
    pub = house.connect("p")
    packets = [Publish.build("t", b"%d" % number, 1, packet_id=number) for number in range(1, 51)]
    before = len(store.batches)

    pub.send_bytes(b"".join(encode(packet, V311) for packet in packets))

    assert [len(batch) for batch in store.batches[before:]] == [50]
    assert [packet.packet_id for packet in pub.of(Puback)] == list(range(1, 51))


def test_deliveries_keep_their_order_over_commits() -> None:
    """A message whose commit is done first is still sent second [MQTT-4.6.0-5]."""
    house, queues, _ = slow()
    sub = house.connect("s", clean_start=False).subscribe("t", qos=1)
    pub = house.connect("p")
    queues.writes.slow = True
    pub.publish("t", b"1", qos=1).publish("t", b"2", qos=1)

    queues.writes.pending.rotate(1)
    answer(house, queues.writes)
    early = len(sub.messages)
    queues.writes.answer_all()
    house.settle()

    assert early == 0
    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]


def test_a_session_that_is_not_kept_does_not_wait() -> None:
    """The store of one subscriber holds up neither another's messages nor QoS 0."""
    house, queues, _ = slow()
    kept = house.connect("k", clean_start=False).subscribe("t", qos=1)
    other = house.connect("o").subscribe("t", qos=1)
    queues.writes.slow = True

    house.connect("p").publish("t", b"1", qos=1).publish("t", b"0")

    assert [payload for _, payload, _ in other.messages] == [b"1", b"0"]
    assert [payload for _, payload, _ in kept.messages] == [b"0"]


def test_a_goodbye_waits_for_what_it_is_owed() -> None:
    """A client that publishes and disconnects in one write gets its PUBACK when the message is kept, then the end."""
    house, queues, _ = slow()
    house.connect("s", clean_start=False).subscribe("t", qos=1).drop()
    pub = house.connect("p")
    queues.writes.slow = True

    pub.send_bytes(encode(Publish.build("t", b"x", 1, packet_id=3), V311) + encode(Disconnect(), V311))
    early = (len(pub.of(Puback)), pub.closed)
    answer(house, queues.writes)

    assert early == (0, False)
    assert [packet.packet_id for packet in pub.of(Puback)] == [3]
    assert pub.closed


def test_a_publisher_that_is_gone_loses_nothing() -> None:
    """A message is delivered though its publisher is not there any more when it is kept."""
    house, queues, _ = slow()
    sub = house.connect("s", clean_start=False).subscribe("t", qos=1)
    pub = house.connect("p")
    queues.writes.slow = True

    pub.publish("t", b"x", qos=1).drop()
    queues.writes.answer_all()
    house.settle()

    assert sub.messages == [("t", b"x", 1)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_subscriber_that_comes_back_before_the_commit(qos: int) -> None:
    """What was not sent over the old connection is sent once over the new one, without DUP [MQTT-3.3.1-1]."""
    house, queues, _ = slow()
    sub = house.connect("s", clean_start=False).subscribe("t", qos=2)
    pub = house.connect("p")
    queues.writes.slow = True
    pub.publish("t", b"x", qos=qos)

    sub.drop()
    again = house.connect("s", clean_start=False)
    queues.writes.answer_all()
    house.settle()

    assert sub.messages == []
    assert [(packet.payload, packet.dup) for packet in again.of(Publish)] == [(b"x", False)]
    assert len(pub.of(Puback if qos == 1 else Pubrec)) == 1


def test_a_takeover_waits_for_what_is_under_way() -> None:
    """CONNACK comes when the writes of the connection before are kept, and nothing is lost [MQTT-3.1.4-3]."""
    house, queues, _ = slow()
    old = house.connect("s", clean_start=False).subscribe("t", qos=1)
    queues.writes.slow = True
    house.connect("p").publish("t", b"x", qos=1)

    new = house.connect("s", clean_start=False)
    early = len(new.packets)
    queues.writes.answer_all()
    house.settle()

    assert (old.closed, early) == (True, 0)
    assert new.connack.session_present
    assert old.messages + new.messages == [("t", b"x", 1)]


def test_what_is_kept_late_is_sent_when_it_is_kept() -> None:
    """A message that had to wait goes out behind its commit, though its place was free before that."""
    house, queues, _ = slow()
    sub = house.connect("s", V5, expiry_s=60, properties=Properties(receive_maximum=1), silent=True)
    sub.subscribe("t", qos=1)
    pub = house.connect("p").publish("t", b"1", qos=1)
    queues.writes.slow = True
    pub.publish("t", b"2", qos=1)

    sub.send(Puback(1))
    queues.writes.answer_all()
    house.settle()

    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]


# What is not kept


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_sent_that_was_not_kept(version: int, qos: int) -> None:
    """The subscriber gets nothing and keeps its window; the publisher gets no answer but the end."""
    store = Failing()
    house = House(plugins={"store": store})
    sub = house.connect("s", V5, expiry_s=60, properties=Properties(receive_maximum=1)).subscribe("t", qos=2)
    store.refuses = lambda write: True

    pub = house.connect("p", version).publish("t", b"lost", qos=qos)
    store.refuses = lambda write: False
    house.connect("p").publish("t", b"kept", qos=qos)

    assert pub.of(Puback if qos == 1 else Pubrec) == []
    assert pub.closed
    assert sub.messages == [("t", b"kept", qos)]
    assert house.broker.runtime.statistics.dropped["store_failed"].value == 1
    assert len(house.broker.sessions.by_id["s"].outgoing) == 0


def test_what_was_not_kept_may_be_sent_again() -> None:
    """A QoS 2 message without PUBREC is new when its publisher repeats it, and is delivered once [MQTT-4.3.3-10]."""
    store = Failing()
    house = House(plugins={"store": store})
    sub = house.connect("s", clean_start=False).subscribe("t", qos=2)
    house.connect("p", clean_start=False).drop()
    store.refuses = lambda write: isinstance(write, InboundOpen)
    house.connect("p", clean_start=False).publish("t", b"x", qos=2, packet_id=5)

    store.refuses = lambda write: False
    again = house.connect("p", clean_start=False).publish("t", b"x", qos=2, packet_id=5, dup=True)

    assert [packet.packet_id for packet in again.of(Pubrec)] == [5]
    assert sub.messages == [("t", b"x", 2)]


def test_a_release_that_is_not_kept_is_not_sent() -> None:
    """Without the commit no PUBREL goes out; the client comes back and the exchange ends well [MQTT-4.3.3-4]."""
    house, queues, _ = slow()
    sub = house.connect("s", clean_start=False, silent=True).subscribe("t", qos=2)
    house.connect("p").publish("t", b"x", qos=2)
    queues.writes.slow = True

    sub.send(Pubrec(1))
    queues.writes.slow = False
    answer(house, queues.writes, FULL)
    again = house.connect("s", clean_start=False)

    assert sub.of(Pubrel) == []
    assert sub.closed
    assert [packet.packet_id for packet in again.of(Pubrel)] == [1]
    assert all(packet.dup for packet in again.of(Publish))
    assert queues.sizes("s").inflight == len(house.broker.sessions.by_id["s"].outgoing) == 0


def test_a_subscription_that_is_not_kept_is_not_granted() -> None:
    """No SUBACK goes out for what a store did not keep; the client is sent away with the store's reason."""
    house, _, sessions = slow()
    client = house.connect("c", V5, expiry_s=60)
    sessions.writes.slow = True

    client.subscribe("t")
    sessions.writes.slow = False
    answer(house, sessions.writes, FULL)

    assert client.of(Suback) == []
    assert client.of(Disconnect)[0].reason is ReasonCode.QUOTA_EXCEEDED


def test_what_waits_is_not_lost_where_its_sending_is_not_kept() -> None:
    """A message that was kept and acknowledged stays in its queue where the store fails as it is to be sent."""
    store = Failing()
    house = House(plugins={"store": store})
    house.connect("s", clean_start=False).subscribe("t", qos=1).drop()
    pub = house.connect("p").publish("t", b"1", qos=1).publish("t", b"2", qos=1)
    store.refuses = lambda write: isinstance(write, Send)
    first = house.connect("s", clean_start=False).drop()

    store.refuses = lambda write: False
    again = house.connect("s", clean_start=False)
    pub.publish("t", b"3", qos=1)

    assert first.messages == []
    assert [payload for _, payload, _ in again.messages] == [b"1", b"2", b"3"]
    assert store.sizes("s").queued == 0


@pytest.mark.parametrize("sort", ["raises", "fires with a failure"])
def test_a_queue_that_can_not_be_read_waits(sort: str) -> None:
    """A failing read costs nobody anything: others are served, and the queue is read again a second later."""
    store, queues = Failing(), SlowQueues()
    later = sort != "raises"
    house = House(plugins={"store": queues if later else store})
    house.connect("s", clean_start=False).subscribe("t", qos=1).drop()
    pub = house.connect("p").publish("t", b"1", qos=1)
    queues.reads.slow = True
    store.read_error = ServiceUnavailable("no answer")

    sub = house.connect("s", clean_start=False)
    if later:
        queues.reads.slow = False
        answer(house, queues.reads, store.read_error)
    other = house.connect("o").subscribe("t")
    pub.publish("t", b"0")
    store.read_error = None
    pub.publish("t", b"2", qos=1)
    house.advance(1)

    assert [payload for _, payload, _ in other.messages] == [b"0", b"2"]
    assert [payload for _, payload, level in sub.messages if level] == [b"1", b"2"]


# The turn by itself


class Desk:
    """A turn with slow stores and a reactor that the test runs."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], object]] = deque()
        self.queues = SlowQueues()
        clock = TurnableClock()
        stores = Stores(self.queues, MemorySessionStore(), MemoryRetainStore(), MemoryEventLog(clock.later))
        self.turn = Turn(stores, self.soon.append)
        self.told: list[str] = []

    def gather(self, name: str, kept: bool = True) -> None:
        """Something to keep, in a turn of its own, and somebody to tell of how it went."""
        if kept:
            self.turn.batch.queue.append(InboundOpen(name, 1, 1))
        self.turn.batch.afterwards.append(lambda: self.told.append(f"{name} is kept"))
        self.turn.batch.otherwise.append(lambda reason: self.told.append(f"{name}: {reason.name}"))
        self.turn.touch()
        self.run()

    def run(self) -> None:
        """Let the reactor turn."""
        while self.soon:
            self.soon.popleft()()


def test_a_turn_ends_once() -> None:
    """However often a turn is touched, one call ends it."""
    desk = Desk()

    for _ in range(5):
        desk.turn.touch()

    assert len(desk.soon) == 1


def test_afterwards_waits_for_the_turns_before() -> None:
    """What is to be told of a turn is told behind that of the turns before it, whichever is kept first."""
    desk = Desk()
    desk.queues.writes.slow = True
    desk.gather("a")
    desk.gather("b")
    desk.gather("nothing to keep", kept=False)

    desk.queues.writes.pending.rotate(1)
    desk.queues.writes.answer()
    early = list(desk.told)
    desk.queues.writes.answer_all()

    assert early == []
    assert desk.told == ["a is kept", "b is kept", "nothing to keep is kept"]


def test_a_failure_is_told_of_its_own_turn_only() -> None:
    """Those who wait for a turn that is not kept hear the store's reason; the turns around it are kept."""
    desk = Desk()
    desk.queues.writes.slow = True
    for name in ("a", "b", "c"):
        desk.gather(name)

    desk.queues.writes.answer()
    desk.queues.writes.answer(FULL)
    desk.queues.writes.answer(ValueError("a bug"))

    assert desk.told == ["a is kept", "b: QUOTA_EXCEEDED", "c: SERVER_UNAVAILABLE"]


def test_drained_is_when_no_commit_is_under_way() -> None:
    """For an orderly stop: a commit that fails is over, too."""
    desk = Desk()
    desk.queues.writes.slow = True
    desk.gather("a")
    desk.gather("b")
    done: list[None] = []

    drained: Deferred[None] = desk.turn.drained()
    drained.addCallback(done.append)
    desk.run()
    under_way = desk.turn.commits_under_way
    desk.queues.writes.answer()
    early = list(done)
    desk.queues.writes.answer(FULL)

    assert (under_way, early, done) == (3, [], [None])
    assert desk.turn.commits_under_way == 0


@pytest.mark.parametrize("late", [False, True])
def test_an_error_in_what_is_told_ends_no_turn(late: bool) -> None:
    """Whoever is told and raises harms neither the others of that turn nor the turns behind it."""
    desk = Desk()
    desk.queues.writes.slow = late

    def broken() -> None:
        raise ValueError("broken")

    desk.turn.batch.afterwards.append(broken)
    try:
        desk.gather("a")
        desk.queues.writes.answer_all()
    except ValueError:
        desk.told.append("the reactor got the error")
    desk.gather("b")

    assert desk.told == ["a is kept", "b is kept"]


def test_of_several_clients_each_hears_of_its_own() -> None:
    """Messages of two publishers that come in one turn are kept together and answered to whom they are from."""
    house, queues, _ = slow()
    house.connect("s", clean_start=False).subscribe("t", qos=1).drop()
    peers: list[Peer] = [house.connect("a"), house.connect("b")]
    queues.writes.slow = True

    for number, peer in enumerate(peers, 1):
        peer.connection.receive(encode(Publish.build("t", b"x", 1, packet_id=number), V311))
    house.settle()
    batches = len(queues.writes.pending)
    queues.writes.answer_all()
    house.settle()

    assert batches == 1
    assert [[packet.packet_id for packet in peer.of(Puback)] for peer in peers] == [[1], [2]]
