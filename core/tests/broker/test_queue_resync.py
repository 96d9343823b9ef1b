"""StaleQueues that are read again from the store: nothing is lost, repeated or sent too early."""

from __future__ import annotations

from typing import Any

from core_harness.house import House, a_will, back, payloads
from core_harness.stores import FULL, Failing, Fencing, SlowQueues, StaleQueues
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Puback, Publish, Pubrec
from kinmqtt_spi import Message, Properties
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import Append, Entry
from kinmqtt_spi.values import NodeIdentity

ONE_AT_A_TIME = Properties(receive_maximum=1)


OTHER = NodeIdentity("other", 9)


def test_a_qos_2_message_whose_repeat_was_not_acknowledged_is_not_taken_twice() -> None:
    """That something else of the turn was not kept takes nothing back of what was before [MQTT-4.3.3-10]."""
    queues = Failing()
    house = House(plugins={"queues": queues})
    sub = house.connect("sub", V5).subscribe("t", qos=2)
    house.connect("away", V5, expiry_s=600).subscribe("o", qos=1).drop()
    other = house.connect("other", V5)
    pub = house.connect("pub", V5, expiry_s=60, silent=True).publish("t", b"x", qos=2, packet_id=7)
    queues.refuses = lambda write: write.client_id == "away"

    repeat = encode(Publish.build("t", b"x", qos=2, packet_id=7, dup=True), V5)
    pub.connection.receive(repeat)
    other.connection.receive(encode(Publish.build("o", b"y", qos=1, packet_id=1), V5))
    house.settle()
    queues.refuses = lambda write: False
    back(house, "pub").send_bytes(repeat)
    house.advance(3)

    assert (pub.closed, len(pub.of(Pubrec))) == (True, 1)
    assert payloads(sub) == [b"x"]


def test_what_is_kept_while_a_queue_is_read_anew_is_not_lost() -> None:
    """A message that comes in the very turn in which the store answers reaches the session that goes back."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues})
    sub = house.connect("s", V5, expiry_s=600).subscribe("s", qos=1)
    house.connect("o", V5, expiry_s=600).subscribe("o", qos=1)
    first, second = house.connect("first", V5), house.connect("second", V5)
    queues.writes.slow = True
    first.publish("s", b"1", qos=1)
    queues.writes.answer(FULL)
    second.connection.receive(encode(Publish.build("o", b"x", qos=1, packet_id=1), V5))
    house.settle()
    under_way = len(queues.writes.pending)

    second.connection.receive(encode(Publish.build("s", b"2", qos=1, packet_id=2), V5))
    queues.writes.answer()
    house.settle()
    queues.writes.answer_all()
    house.settle()
    again = back(house, "s")
    second.publish("s", b"3", qos=1)
    house.advance(3)

    assert (sub.closed, under_way) == (True, 1)
    assert payloads(again) == [b"2", b"3"]


def test_who_comes_back_is_sent_nothing_before_its_queue_is_read_anew() -> None:
    """A client whose session goes back to what the store holds gets what is in flight again, then what is new."""
    queues = StaleQueues()
    house = House(plugins={"queues": queues})
    sub = house.connect("s", V5, expiry_s=600, silent=True).subscribe("t", qos=1)
    pub = house.connect("first", V5).publish("t", b"1", qos=1)
    queues.writes.slow = True
    pub.publish("t", b"2", qos=1)
    again = back(house, "s", silent=True)
    queues.loads.slow = True

    queues.writes.answer(FULL)
    queues.writes.answer_all()
    house.settle()
    house.connect("second", V5).publish("t", b"3", qos=1)
    early = list(again.packets)
    queues.loads.answer_all()
    house.settle()

    assert payloads(sub) == [b"1"]
    assert early == []
    assert [(packet.payload, packet.dup) for packet in again.of(Publish)] == [(b"1", True), (b"3", False)]


class LookingAtOnce(StaleQueues):
    """Looks at once where a queue is loaded, and answers later."""

    def load(self, client_id: str) -> Any:
        found = MemoryQueueStore.load(self, client_id)
        return self.loads(lambda: found)


def test_what_comes_while_a_queue_is_loaded_is_counted_once() -> None:
    """The store looks, a message comes, the store answers: the message waits, and later ones wait behind it."""
    queues = LookingAtOnce()
    house = House(plugins={"queues": queues})
    house.connect("s", V5, expiry_s=600).subscribe("t", qos=1).drop()
    pub = house.connect("pub", V5)
    queues.loads.slow = True
    house.broker.sessions.on_commit_failed("s", [], ReasonCode.SERVER_UNAVAILABLE, False)
    house.settle()

    pub.publish("t", b"1", qos=1, packet_id=1)
    house.settle()
    queues.loads.answer_all()
    house.settle()
    waiting = house.broker.sessions.by_id["s"].sizes
    again = back(house, "s")
    pub.publish("t", b"2", qos=1, packet_id=2)
    house.settle()

    assert (waiting.queued, waiting.queued_bytes) == (1, Entry(1, Message("t", b"1"), 1).size_bytes)
    assert payloads(again) == [b"1", b"2"]
    assert len(pub.of(Puback)) == 2


def test_what_an_earlier_owner_could_not_keep_is_not_taken_off_the_queue() -> None:
    """What is refused since another node had the session in between was never counted where it is again now."""
    queues = LookingAtOnce()
    sessions = Fencing(queues)
    house = House(plugins={"sessions": sessions, "queues": queues})
    house.connect("c", V5, clean_start=False, expiry_s=60).subscribe("a", qos=1).drop()
    pub = house.connect("p", V5)
    elsewhere = MemorySessionStore.claim(sessions, "c", OTHER).epoch
    MemoryQueueStore.apply(queues, [Append("c", elsewhere, Entry(1, Message("a", b"elsewhere"), 1))])
    queues.loads.slow = True
    again = house.connect("c", V5, clean_start=False, expiry_s=60)

    pub.publish("a", b"refused", qos=1, packet_id=1)
    house.settle()
    queues.loads.answer_all()
    house.settle()

    assert payloads(again) == [b"elsewhere"]
    assert (again.closed, pub.of(Puback)) == (False, [])


def test_what_was_read_before_a_session_went_back_is_not_sent() -> None:
    """A read that is answered when the queue has been loaded anew would leave out what the store has not let go."""
    queues = StaleQueues()
    house = House(plugins={"queues": queues})
    two = Properties(receive_maximum=2)
    sub = house.connect("s", V5, expiry_s=600, silent=True, properties=two).subscribe("t", qos=1)
    pub = house.connect("pub", V5)
    for number in range(1, 6):
        pub.publish("t", b"%d" % number, qos=1, packet_id=number)
    first, second = sub.of(Publish)
    queues.writes.slow = True
    sub.send(Puback(first.packet_id))
    house.settle()
    queues.reads.slow = True
    sub.send(Puback(second.packet_id))
    house.settle()
    reading = len(queues.reads.pending)

    while queues.writes.pending:
        queues.writes.answer(FULL)
    queues.writes.slow = False
    house.settle()
    again = back(house, "s")
    queues.reads.answer_all()
    house.settle()

    assert (reading, sub.closed) == (1, True)
    assert payloads(again) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_queue_that_can_not_be_read_holds_up_no_others() -> None:
    """Wills and expiries of other sessions do not wait for one that can't be brought to an end."""
    queues = StaleQueues()
    house = House(plugins={"queues": queues})
    house.connect("a", V5, expiry_s=5).subscribe("a", qos=1)
    leaves = house.connect("w", V5, expiry_s=500, will=a_will("wills", 20))
    live = house.connect("live", V5).subscribe("wills", qos=1)
    queues.damaged.add("a")
    house.broker.sessions.on_commit_failed("a", [], ReasonCode.SERVER_UNAVAILABLE, False)
    house.settle()

    leaves.drop()
    house.advance(30)
    meanwhile = ("a" in house.broker.sessions.by_id, payloads(live))
    queues.damaged.clear()
    house.advance(10)

    assert meanwhile == (True, [b"gone"])
    assert "a" not in house.broker.sessions.by_id


def test_what_expires_in_the_store_while_it_is_sent() -> None:
    """It is counted out of the queue once, and what waits behind it still comes [MQTT-3.3.2-5]."""
    queues = StaleQueues()
    house = House(plugins={"queues": queues})
    sub = house.connect("s", V5, expiry_s=600, properties=ONE_AT_A_TIME, silent=True).subscribe("t", qos=1)
    pub = house.connect("pub", V5).publish("t", b"0", qos=1)
    pub.publish("t", b"1", qos=1, properties=Properties(message_expiry_interval=3))
    pub.publish("t", b"2", qos=1)
    house.advance(2)
    queues.writes.slow = True
    sub.silent = False
    for packet in sub.of(Publish):
        [answer] = sub._answer(packet)
        sub.send(answer)

    house.advance(2)
    queues.writes.answer_all()
    house.settle()
    pub.publish("t", b"3", qos=1)
    house.advance(5)

    assert [payload for payload in payloads(sub) if payload != b"1"] == [b"0", b"2", b"3"]
    assert house.broker.sessions.by_id["s"].queue.count == 0
