"""What a turn gathers is kept before anybody hears of it; and what happens where it is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred, fail

from core_harness.house import House, Peer
from core_harness.stores import FULL, Failing, FailingSessions, Later, SlowQueues, SlowSessions
from kinmqtt.broker.turn.batch import Stores
from kinmqtt.broker.turn.turn import Turn
from kinmqtt.builtins.rate_limits import RateLimitSettings, RuleSettings
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V311,
    DisconnectPacket,
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
from kinmqtt_spi import Drop, Message, Properties, Reject, hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.limiter import LimitVerdict, ResourceKind
from kinmqtt_spi.services.queue import (
    Append,
    InboundClose,
    InboundOpen,
    OverflowPolicy,
    Purge,
    QueueSizes,
    Remove,
    Send,
)
from kinmqtt_spi.services.session import (
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
    SaveSubscriptions,
)
from kinmqtt_spi.values import NodeIdentity


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

    pub.send_bytes(encode(Publish.build("t", b"x", 1, packet_id=3), V311) + encode(DisconnectPacket(), V311))
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
    assert client.of(DisconnectPacket)[0].reason is ReasonCode.QUOTA_EXCEEDED


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


# What has happened whether it was kept or not


def failing() -> tuple[House, Failing, FailingSessions]:
    """A house with stores of which the test says what they do not keep."""
    queues, sessions = Failing(), FailingSessions()
    return House(plugins={"queues": queues, "sessions": sessions}), queues, sessions


def test_a_session_left_while_its_store_fails_expires_in_time() -> None:
    """That its client is gone is kept a little later, with the moment that was right when it went."""
    house, _, sessions = failing()
    client = house.connect("c", V5, expiry_s=10)
    sessions.refuses = lambda write: isinstance(write, ReleaseSession)
    client.drop()
    house.advance(3)
    not_released = sessions.expired(house.clock.now() + 100, 10)

    sessions.refuses = lambda write: False
    house.advance(6)
    early = sessions.count()
    house.advance(2)

    assert (not_released, early) == ([], 1)
    assert (sessions.count(), "c" in house.broker.sessions.by_id) == (0, False)


@pytest.mark.parametrize("which", ["queues", "sessions"])
def test_a_session_that_ends_while_a_store_fails_leaves_nothing(which: str) -> None:
    """Neither its messages nor itself, whichever store could not forget it at first [MQTT-4.1.0-2]."""
    house, queues, sessions = failing()
    client = house.connect("c", V5, expiry_s=60, silent=True).subscribe("t", 2)
    house.connect("p").publish("t", b"x", 2)
    client.publish("t", b"y", 2, packet_id=5)
    store = queues if which == "queues" else sessions
    store.refuses = lambda write: isinstance(write, Purge | DiscardSession)
    client.disconnect(properties=Properties(session_expiry_interval=0))
    house.advance(2)
    held = (queues.sizes("c"), sessions.count())

    store.refuses = lambda write: False
    house.advance(1)

    assert held != (QueueSizes(), 0)
    assert (queues.sizes("c"), sessions.count()) == (QueueSizes(), 0)


@pytest.mark.parametrize("which", ["queues", "sessions"])
def test_a_session_that_has_ended_does_not_come_back(which: str) -> None:
    """A client back before its session's end was kept finds none, and keeps the one it gets [MQTT-3.2.2-3]."""
    house, queues, sessions = failing()
    client = house.connect("c", V5, expiry_s=60).subscribe("t", 1)
    store = queues if which == "queues" else sessions
    store.refuses = lambda write: isinstance(write, Purge | DiscardSession)
    client.disconnect(properties=Properties(session_expiry_interval=0))
    store.refuses = lambda write: False

    again = house.connect("c", V5, expiry_s=60, clean_start=False)
    house.connect("p").publish("t", b"1", 1)
    again.subscribe("u", 1)
    house.connect("p").publish("u", b"2", 1)
    house.advance(3)

    assert not again.connack.session_present
    assert (again.messages, again.closed) == ([("u", b"2", 1)], False)
    [(_, stored)] = sessions.iterate().sessions
    assert [subscription.filter for subscription in stored.subscriptions] == ["u"]


def test_a_late_end_of_a_former_owner_harms_no_session() -> None:
    """What is handed over again after its client has come back is shut out by its epoch, and costs nobody a thing."""
    house, _, sessions = failing()
    first = house.connect("c", V5, expiry_s=60).subscribe("t", 1)
    sessions.refuses = lambda write: isinstance(write, ReleaseSession)
    first.drop()
    sessions.refuses = lambda write: False

    again = house.connect("c", V5, expiry_s=60, clean_start=False)
    house.connect("p").publish("t", b"1", 1)
    house.advance(120)

    assert again.connack.session_present
    assert (again.messages, again.closed) == ([("t", b"1", 1)], False)
    assert sessions.count() == 1


def test_a_session_whose_beginning_was_not_kept_begins_anew() -> None:
    """Its client is refused, and the session it gets afterwards is one that a restart brings back [MQTT-3.1.2-6]."""
    house, queues, sessions = failing()
    sessions.refuses = lambda write: isinstance(write, OpenSession)
    refused = house.connect("c", V5, expiry_s=60)

    sessions.refuses = lambda write: False
    client = house.connect("c", V5, expiry_s=60, clean_start=False).subscribe("t", 1)
    client.drop()
    after = House(plugins={"queues": queues, "sessions": sessions}).connect("c", V5, expiry_s=60, clean_start=False)

    assert refused.connack.reason is ReasonCode.QUOTA_EXCEEDED
    assert not client.connack.session_present
    assert after.connack.session_present


def test_a_session_whose_beginning_was_not_kept_is_forgotten() -> None:
    """Nothing is left of it when its time is over, though its client does not come again."""
    house, _, sessions = failing()
    sessions.refuses = lambda write: isinstance(write, OpenSession)
    house.connect("c", V5, expiry_s=5)

    sessions.refuses = lambda write: False
    house.advance(10)

    assert (sessions.count(), "c" in house.broker.sessions.by_id) == (0, False)


# Back to what the store holds


class Unreadable(Failing):
    """A queue store that can't be loaded so many times, at once or later."""

    def __init__(self, later: bool) -> None:
        super().__init__()
        self.failures = 0
        self.later = later

    def load(self, client_id: str) -> Any:
        if self.failures:
            self.failures -= 1
            if self.later:
                return fail(ServiceUnavailable("no answer"))
            raise ServiceUnavailable("no answer")
        return super().load(client_id)


@pytest.mark.parametrize("answer", [Puback(1), Puback(1, ReasonCode.UNSPECIFIED_ERROR)], ids=["success", "failure"])
def test_an_acknowledgement_that_was_not_kept_was_not_given(answer: Puback) -> None:
    """Its client is sent away with the store's reason, and gets again what the store holds [MQTT-4.4.0-1]."""
    store = Failing()
    house = House(plugins={"store": store})
    sub = house.connect("s", V5, expiry_s=60, properties=Properties(receive_maximum=2), silent=True)
    sub.subscribe("t", qos=1)
    pub = house.connect("p")
    for payload in (b"1", b"2", b"3"):
        pub.publish("t", payload, qos=1)
    store.refuses = lambda write: isinstance(write, Remove)
    sub.send(answer)
    others = (pub.closed, "s" in house.broker.sessions.by_id)

    store.refuses = lambda write: False
    again = house.connect("s", V5, clean_start=False, expiry_s=60)
    pub.publish("t", b"4", qos=1)

    assert [packet.reason for packet in sub.of(DisconnectPacket)] == [ReasonCode.QUOTA_EXCEEDED]
    assert (others, sub.closed) == ((False, True), True)
    assert [(p.payload, p.dup) for p in again.of(Publish)] == [
        (b"1", True),
        (b"2", True),
        (b"3", False),
        (b"4", False),
    ]
    assert (store.sizes("s"), house.broker.sessions.by_id["s"].sizes) == (QueueSizes(), QueueSizes())


@pytest.mark.parametrize("publishes", ["itself", "another"])
def test_new_messages_of_a_batch_that_did_more_are_forgotten_too(publishes: str) -> None:
    """What came together with an acknowledgement that was not kept is dropped once, and takes no place."""
    store = Failing()
    house = House(plugins={"store": store})
    sub = house.connect("s", V5, expiry_s=60, silent=True).subscribe("t", qos=1)
    pub = sub if publishes == "itself" else house.connect("p", V5)
    pub.publish("t", b"1", qos=1)
    store.refuses = lambda write: isinstance(write, Remove)

    sub.connection.receive(encode(Puback(1), V5))
    pub.publish("t", b"2", qos=1, packet_id=9)
    store.refuses = lambda write: False
    again = house.connect("s", V5, clean_start=False, expiry_s=60)
    house.connect("q").publish("t", b"3", qos=1)

    assert 9 not in [packet.packet_id for packet in pub.of(Puback)]
    assert pub.closed
    assert [payload for _, payload, _ in again.messages] == [b"1", b"3"]
    assert house.broker.runtime.statistics.dropped["store_failed"].value == 1
    assert (store.sizes("s"), house.broker.sessions.by_id["s"].sizes) == (QueueSizes(), QueueSizes())


def test_a_pubrel_that_was_not_kept_was_not_taken() -> None:
    """No PUBCOMP goes out; the identifier is still taken when the client comes back and sends it again."""
    store = Failing()
    house = House(plugins={"store": store})
    pub = house.connect("p", V5, expiry_s=60, silent=True).publish("t", qos=2, packet_id=5)
    store.refuses = lambda write: isinstance(write, InboundClose)
    pub.send(Pubrel(5))

    store.refuses = lambda write: False
    again = house.connect("p", V5, clean_start=False, expiry_s=60, silent=True)
    taken = set(house.broker.sessions.by_id["p"].incoming.packet_ids)
    again.send(Pubrel(5))

    assert pub.of(Pubcomp) == []
    assert [packet.reason for packet in pub.of(DisconnectPacket)] == [ReasonCode.QUOTA_EXCEEDED]
    assert taken == {5}
    assert [int(packet.reason) for packet in again.of(Pubcomp)] == [0]
    assert store.load("p").inbound == frozenset()


@pytest.mark.parametrize("later", [False, True])
def test_what_the_store_holds_is_asked_for_until_it_is_told(later: bool) -> None:
    """The client's next CONNECT waits for as long, so that it comes back to nothing else."""
    store = Unreadable(later)
    house = House(plugins={"store": store})
    sub = house.connect("s", V5, expiry_s=60, silent=True).subscribe("t", qos=1)
    house.connect("p").publish("t", b"1", qos=1)
    store.refuses = lambda write: isinstance(write, Remove)
    store.failures = 2
    sub.send(Puback(1))
    store.refuses = lambda write: False

    again = house.connect("s", V5, clean_start=False, expiry_s=60)
    house.advance(1)
    early = list(again.packets)
    house.advance(1)

    assert sub.closed
    assert (early, store.failures) == ([], 0)
    assert again.connack.session_present
    assert [(p.payload, p.dup) for p in again.of(Publish)] == [(b"1", True)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_one_store_kept_and_another_did_not(qos: int) -> None:
    """Where the session store fails, the queue store may hold what was not acknowledged: it is still delivered."""
    house, queues, sessions = failing()
    sub = house.connect("s", V5, expiry_s=60).subscribe("t", qos=qos)
    pub = house.connect("p", V5, expiry_s=60, silent=True)
    other = house.connect("o", V5, expiry_s=60)
    sessions.refuses = lambda write: isinstance(write, SaveSubscriptions)
    pub.connection.receive(encode(Publish.build("t", b"x", qos, packet_id=5), V5))
    other.subscribe("u")
    sessions.refuses = lambda write: False

    again = house.connect("p", V5, expiry_s=60, clean_start=False)
    again.publish("t", b"x", qos, packet_id=5, dup=True).publish("t", b"y", qos, packet_id=6)
    back = house.connect("s", V5, expiry_s=60, clean_start=False)

    assert pub.closed
    assert {payload for _, payload, _ in sub.messages + back.messages} == {b"x", b"y"}
    assert (queues.sizes("s"), house.broker.sessions.by_id["s"].sizes) == (QueueSizes(), QueueSizes())


def test_a_session_that_ends_meanwhile_is_not_brought_back() -> None:
    """Where the store can't tell what it holds, a session whose time is over goes as soon as it can: not before, for
    what it holds may be for others of a shared subscription.
    """
    store = Unreadable(False)
    house = House(plugins={"store": store})
    sub = house.connect("s", V5, expiry_s=3, silent=True).subscribe("t", qos=1)
    house.connect("p").publish("t", b"1", qos=1)
    store.refuses = lambda write: isinstance(write, Remove)
    store.failures = 1000
    sub.send(Puback(1))
    store.refuses = lambda write: False

    house.advance(5)
    held = "s" in house.broker.sessions.by_id
    store.failures = 0
    house.advance(2)

    assert held
    assert "s" not in house.broker.sessions.by_id
    assert store.sizes("s") == QueueSizes()


# Identifiers of QoS 2 messages from clients


class Answering:
    """Answers to each message that is published, or to be retained, as it is told; counts them."""

    def __init__(self, published: Any = None, retaining: Any = None) -> None:
        self.published = published
        self.answer = retaining
        self.seen: list[str] = []

    @hookimpl
    def publish_received(self, message: Message) -> Any:
        self.seen.append(message.topic)
        return self.published

    @hookimpl
    def retaining(self, message: Message) -> Any:
        return self.answer


DROP_RULE = RuleSettings(
    name="r", kind=ResourceKind.PUBLISH, rate_per_s=0.001, burst=1, per="client", verdict=LimitVerdict.DROP
)
REJECT_RULE = evolve(DROP_RULE, verdict=LimitVerdict.REJECT)


def of_the_last_batch(store: Failing, client_id: str) -> list[type[Any]]:
    """The sorts of writes for a client in the last batch that was kept."""
    return [type(write) for write in store.batches[-1] if write.client_id == client_id]


@pytest.mark.parametrize(
    ("version", "published", "rule"),
    [
        (V5, Drop(), None),
        (V311, Drop(), None),
        (V311, Reject(ReasonCode.QUOTA_EXCEEDED), None),
        (V5, None, DROP_RULE),
        (V311, None, DROP_RULE),
        (V311, None, REJECT_RULE),
    ],
    ids=["dropped 5", "dropped 3", "refused 3", "dropped by limit 5", "dropped by limit 3", "refused by limit 3"],
)
def test_the_identifier_of_a_message_that_goes_nowhere_is_kept(
    version: int, published: Any, rule: RuleSettings | None
) -> None:
    """A message that is answered as if it were taken is no new one when it comes again [MQTT-4.3.3-10]."""
    store, plugin = Failing(), Answering(published)
    limits = RateLimitSettings(rules=() if rule is None else (rule,))
    house = House(plugins={"store": store, "plugin": plugin}, plugin_settings={"rate_limits": limits})
    kept: dict[str, Any] = {"clean_start": False} | ({"expiry_s": 60} if version == V5 else {})
    pub = house.connect("p", version, silent=True, **kept)
    if rule is not None:
        pub.publish("t")

    pub.publish("t", qos=2, packet_id=5)
    opened = of_the_last_batch(store, "p")
    after_restart = store.load("p").inbound
    pub.drop()
    again = house.connect("p", version, silent=True, **kept).publish("t", qos=2, packet_id=5, dup=True)
    seen = len(plugin.seen)
    again.send(Pubrel(5))

    assert [(p.packet_id, int(p.reason)) for peer in (pub, again) for p in peer.of(Pubrec)] == [(5, 0), (5, 0)]
    assert (opened, after_restart) == ([InboundOpen], frozenset({5}))
    assert seen == 1
    assert (of_the_last_batch(store, "p"), store.load("p").inbound) == ([InboundClose], frozenset())
    assert [(p.packet_id, int(p.reason)) for p in again.of(Pubcomp)] == [(5, 0)]


@pytest.mark.parametrize("published", [Reject(ReasonCode.QUOTA_EXCEEDED)])
def test_the_identifier_of_a_refused_message_is_free(published: Any) -> None:
    """A PUBREC that says why a message is refused ends its exchange: nothing is kept of it (section 4.3.3)."""
    store = Failing()
    house = House(plugins={"store": store, "plugin": Answering(published)})
    pub = house.connect("p", V5, expiry_s=60, silent=True)

    pub.publish("t", qos=2, packet_id=5)

    assert [int(p.reason) for p in pub.of(Pubrec)] == [ReasonCode.QUOTA_EXCEEDED]
    assert (store.batches, store.load("p").inbound) == ([], frozenset())


def test_an_identifier_is_kept_with_its_deliveries() -> None:
    """One batch has both: either alone would lose a message, or double one [MQTT-4.3.3-10]."""
    store = Failing()
    house = House(plugins={"store": store})
    house.connect("s", clean_start=False).subscribe("t", qos=2).drop()

    house.connect("p", clean_start=False, silent=True).publish("t", qos=2, packet_id=5)

    assert {(type(write), write.client_id) for write in store.batches[-1]} == {(Append, "s"), (InboundOpen, "p")}


@pytest.mark.parametrize("gone", [False, True])
def test_an_identifier_is_kept_when_it_is_known_what_is_retained(gone: bool) -> None:
    """Together with the deliveries and not before, though its client is not there any more [MQTT-4.3.3-10]."""
    answer: Deferred[None] = Deferred()
    store = Failing()
    house = House(plugins={"store": store, "plugin": Answering(retaining=answer)})
    house.connect("s", clean_start=False).subscribe("t", qos=2).drop()
    before = len(store.batches)
    pub = house.connect("p", clean_start=False, silent=True).publish("t", b"x", 2, True, packet_id=5)
    if gone:
        pub.drop()
    early = (len(store.batches) - before, store.load("p").inbound, pub.of(Pubrec))

    answer.callback(None)
    house.settle()
    again = house.connect("p", clean_start=False, silent=True).publish("t", b"x", 2, True, packet_id=5, dup=True)

    assert early == (0, frozenset(), [])
    assert [{(type(w), w.client_id) for w in batch} for batch in store.batches[before:]] == [
        {(Append, "s"), (InboundOpen, "p")}
    ]
    assert store.load("p").inbound == {5}
    assert [p.packet_id for p in again.of(Pubrec)] == [5]
    assert house.connect("s", clean_start=False).messages == [("t", b"x", 2)]


def test_a_message_refused_when_its_client_is_gone_may_come_again() -> None:
    """What was not taken over, and not answered, is new when it is repeated [MQTT-4.3.3-10]."""
    answer: Deferred[None] = Deferred()
    house = House(
        plugins={"plugin": Answering(retaining=answer)}, max_queued_messages=1, queue_full=OverflowPolicy.REFUSE
    )
    house.connect("s", clean_start=False).subscribe("t", qos=2).drop()
    house.connect("q").publish("t", b"fills", 1)
    house.connect("p", V5, expiry_s=60).publish("t", b"x", 2, True, packet_id=5).drop()
    answer.callback(None)
    house.settle()
    sub = house.connect("s", clean_start=False)

    again = house.connect("p", V5, expiry_s=60, clean_start=False).publish("t", b"x", 2, True, packet_id=5, dup=True)

    assert [int(p.reason) for p in again.of(Pubrec)] == [0]
    assert [payload for _, payload, _ in sub.messages] == [b"fills", b"x"]


@pytest.mark.parametrize("new", [False, True])
def test_an_identifier_is_not_kept_for_a_session_that_has_ended(new: bool) -> None:
    """What comes of a message after its session's end is part of no session [MQTT-3.1.2-4, MQTT-4.1.0-2]."""
    answer: Deferred[None] = Deferred()
    store = Failing()
    house = House(plugins={"store": store, "plugin": Answering(retaining=answer)})
    house.connect("p", V5, expiry_s=5, silent=True).publish("t", b"x", 2, True, packet_id=5).drop()
    if new:
        house.connect("p", V5, expiry_s=60, clean_start=True)
    else:
        house.advance(8)

    answer.callback(None)
    house.settle()

    assert store.load("p").inbound == frozenset()
    assert ("p" in house.broker.sessions.by_id) is new


# The turn by itself


class Desk:
    """A turn with slow stores and a reactor that the test runs."""

    def __init__(self, queues: Any = None, sessions: Any = None) -> None:
        self.soon: deque[Callable[[], object]] = deque()
        self.queues = queues or SlowQueues()
        clock = TurnableClock()
        stores = Stores(
            self.queues, sessions or MemorySessionStore(), MemoryRetainStore(), MemoryEventLog(clock.later)
        )
        self.turn = Turn(stores, self.soon.append)
        self.told: list[str] = []

    def gather(self, name: str, persistent: bool = True) -> None:
        """Something to keep, in a turn of its own, and somebody to tell of how it went."""
        if persistent:
            self.turn.batch.queue.append(InboundOpen(name, 1, 1))
        self.turn.batch.after_commit.append(lambda: self.told.append(f"{name} is kept"))
        self.turn.batch.on_commit_failed.append(lambda reason: self.told.append(f"{name}: {reason.name}"))
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
    desk.gather("nothing to keep", persistent=False)

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


STANDING_WRITES = [
    ClearWill("c", 1),
    DiscardSession("c", 1),
    ReleaseSession("c", 1, 12.0, 3.0),
    RemoveSubscriptions("c", 1, ("t",)),
    Purge("c", 1),
]


def failed(write: Any) -> tuple[Desk, list[Sequence[Any]], Any]:
    """A desk whose turn with a write that stands was not kept, what its store has kept since, and that store."""
    queues, sessions = Failing(), FailingSessions()
    desk = Desk(queues, sessions)
    store: Any = queues if isinstance(write, Purge) else sessions
    store.refuses = lambda write: True
    batch = desk.turn.batch
    (batch.queue if isinstance(write, Purge) else batch.sessions).append(write)
    batch.sessions.append(SaveSubscriptions("c", 1, ()))
    desk.gather("first")
    store.refuses = lambda write: False
    del store.batches[:]
    return desk, store.batches, store


@pytest.mark.parametrize("write", STANDING_WRITES, ids=lambda write: type(write).__name__)
def test_what_has_happened_is_handed_over_with_the_next_turn(write: Any) -> None:
    """Before what is new, once, and without what need not be kept where its turn was not."""
    desk, batches, _ = failed(write)

    desk.turn.batch.sessions.append(ClearWill("n", 1))
    desk.gather("next")
    desk.gather("after that")

    new: list[Any] = [InboundOpen("next", 1, 1)] if isinstance(write, Purge) else [ClearWill("n", 1)]
    assert batches[0] == [write, *new]
    assert not any(write in batch for batch in batches[1:])
    assert desk.told == ["first: QUOTA_EXCEEDED", "next is kept", "after that is kept"]


@pytest.mark.parametrize("write", STANDING_WRITES, ids=lambda write: type(write).__name__)
def test_what_has_happened_is_handed_over_when_it_is_time_to(write: Any) -> None:
    """As often as the store refuses it, and no more once it is kept."""
    desk, batches, store = failed(write)

    for refuses in (True, True, False, False):
        store.refuses = lambda write, refuses=refuses: refuses
        desk.turn.retry()
        desk.run()

    assert batches == [[write]]


def test_what_has_happened_keeps_its_order() -> None:
    """What two turns could not have kept is handed over as it happened."""
    sessions = FailingSessions()
    desk = Desk(Failing(), sessions)
    sessions.refuses = lambda write: True
    for write in (ClearWill("c", 1), ReleaseSession("c", 1, None), DiscardSession("c", 1)):
        desk.turn.batch.sessions.append(write)
        desk.gather("a turn")
    sessions.refuses = lambda write: False

    desk.turn.retry()
    desk.run()

    assert sessions.batches == [[ClearWill("c", 1), ReleaseSession("c", 1, None), DiscardSession("c", 1)]]


def test_it_is_not_time_to_while_a_store_is_asked() -> None:
    """Nothing is handed over again beside a commit that is under way, and nothing where nothing is owed."""
    desk = Desk()
    desk.turn.retry()
    idle = len(desk.soon)
    desk.queues.writes.slow = True
    desk.turn.batch.queue.append(Purge("c", 1))
    desk.gather("a")
    desk.gather("b")
    desk.queues.writes.answer(FULL)
    desk.run()

    desk.turn.retry()
    desk.run()
    beside = len(desk.queues.writes.pending)
    desk.queues.writes.answer()
    desk.run()
    desk.turn.retry()
    desk.run()

    assert (idle, beside, len(desk.queues.writes.pending)) == (0, 1, 1)


def test_who_is_shut_out_late_is_told_under_the_epoch_of_then() -> None:
    """A write handed over again says no more than that its own epoch is over; a new one tells under its own."""
    sessions = FailingSessions()
    desk = Desk(Failing(), sessions)
    fenced: list[tuple[str, int]] = []
    desk.turn.recovery.when_fenced(lambda client_id, epoch: fenced.append((client_id, epoch)))
    sessions.refuses = lambda write: True
    desk.turn.batch.sessions.append(ReleaseSession("c", 1, None))
    desk.gather("first")
    sessions.refuses = lambda write: False
    for _ in range(3):
        sessions.claim("c", NodeIdentity("other", 2))

    desk.turn.batch.sessions.append(ReleaseSession("c", 2, None))
    desk.turn.retry()
    desk.run()
    late = list(fenced)
    desk.turn.batch.sessions.append(ReleaseSession("c", 2, None))
    desk.gather("second")

    assert (late, fenced) == ([("c", 1)], [("c", 1), ("c", 2)])


@pytest.mark.parametrize("late", [False, True])
def test_an_error_in_what_is_told_ends_no_turn(late: bool) -> None:
    """Whoever is told and raises harms neither the others of that turn nor the turns behind it."""
    desk = Desk()
    desk.queues.writes.slow = late

    def broken() -> None:
        raise ValueError("broken")

    desk.turn.batch.after_commit.append(broken)
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


def test_nothing_overtakes_what_was_not_kept() -> None:
    """What a client sent behind a message is not taken either where the store turns out not to have kept that one.

    It was read in the very turn in which the store told of its failure. [MQTT-4.6.0-6]
    """
    house, queues, _ = slow()
    sub = house.connect("s", clean_start=False).subscribe("t", qos=1)
    pub = house.connect("p")
    queues.writes.slow = True
    pub.publish("t", b"1", qos=1, packet_id=1)
    queues.writes.slow = False

    pub.connection.receive(encode(Publish.build("t", b"2", 1, packet_id=2), V311))
    queues.writes.answer(FULL)
    house.settle()
    again = house.connect("p")
    for number in (1, 2):
        again.publish("t", b"%d" % number, qos=1, packet_id=number, dup=True)
    back = house.connect("s", clean_start=False)

    assert pub.of(Puback) == []
    assert pub.closed
    assert [payload for _, payload, _ in sub.messages + back.messages] == [b"1", b"2"]
