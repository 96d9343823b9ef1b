"""The broker's dealings with its stores: nothing gets lost, doubled or stuck between a claim, a write and a read."""

from __future__ import annotations

import json
from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any

import pytest
from harness import House, Peer
from stores import FULL, Failing, FailingSessions, Later, Retaineds, SlowQueues, SlowSessions
from twisted.internet.defer import Deferred, fail

from kinmqtt.broker.handlers import incoming_publish
from kinmqtt.broker.ownership import redistribution
from kinmqtt.broker.routing.fanouts import CACHED_TARGETS
from kinmqtt.builtins.delayed import DelayedSettings
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Connect, Puback, Publish, Pubrec, Will
from kinmqtt_spi import Message, Properties, hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.plain import to_plain
from kinmqtt_spi.properties import text_bytes
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.event import Event
from kinmqtt_spi.services.queue import Append, Entry, InboundClose
from kinmqtt_spi.services.session import OpenSession, StoredSession
from kinmqtt_spi.values import NodeIdentity

SHARE = "$share/g/t"
ONE_AT_A_TIME = Properties(receive_maximum=1)
LONGEST_EXPIRY_S = 4_294_967_295
DELAYED = {"delayed": DelayedSettings()}
OTHER = NodeIdentity("other", 9)


class Queues(SlowQueues):
    """A queue store that looks at once and answers later: what it tells may be old by then."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = Later()
        self.damaged: set[str] = set()
        """Clients whose queues can't be loaded."""

    def read(self, client_id: str, after: int, limit: int) -> Any:
        found = MemoryQueueStore.read(self, client_id, after, limit)
        return self.reads(lambda: found)

    def load(self, client_id: str) -> Any:
        if client_id in self.damaged:
            raise ServiceUnavailable("damaged")
        return self.loads(lambda: MemoryQueueStore.load(self, client_id))


class LateSessions(MemorySessionStore):
    """A session store that claims at once, and looks for wills at once, and may answer later."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = Later()
        self.wills = Later()

    def claim(self, client_id: str, node: Any) -> Any:
        claim = MemorySessionStore.claim(self, client_id, node)
        return self.claims(lambda: claim)

    def due_wills(self, now: float, limit: int) -> Any:
        found = MemorySessionStore.due_wills(self, now, limit)
        return self.wills(lambda: found) if found else found

    @hookimpl
    def session_store(self) -> LateSessions:
        return self


class SlowRetaineds(MemoryRetainStore):
    """A retain store whose writes may be made to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = Later()

    def put(self, writes: Sequence[Any]) -> Any:
        return self.writes(lambda: MemoryRetainStore.put(self, writes))

    @hookimpl
    def retain_store(self) -> SlowRetaineds:
        return self


class FailingEvents(MemoryEventLog):
    """An event log that the test can make fail."""

    def __init__(self) -> None:
        super().__init__(lambda delay_s, call: None)
        self.fails = False

    def append(self, events: Sequence[Event]) -> None:
        if self.fails:
            raise FULL
        super().append(events)

    @hookimpl
    def event_log(self) -> FailingEvents:
        return self


class UnfitWills:
    """A plugin that makes a message of each will that nobody can be sent."""

    @hookimpl
    def will_publishing(self, client: Any, message: Message) -> Message:
        return message.replace(topic="a/#")


class LongStart:
    """A plugin whose start takes a second."""

    @hookimpl
    async def start(self, context: Any) -> None:
        over: Deferred[None] = Deferred()
        context.clock.later(1.0, lambda: over.callback(None))
        await over


class Drops:
    """A plugin that notes what is dropped, of whom and why."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, str]] = []

    @hookimpl
    def dropped(self, client_id: str, message: Message, why: str) -> None:
        self.seen.append((client_id, message.payload, why))


def everything(write: Any) -> bool:
    """Refuse any write."""
    return True


def nothing(write: Any) -> bool:
    """Refuse no write."""
    return False


def payloads(*peers: Peer) -> list[bytes]:
    """What came to some clients, in one list."""
    return [payload for peer in peers for _, payload, _ in peer.messages]


def back(house: House, client_id: str, **more: Any) -> Peer:
    """A client comes back to its session."""
    return house.connect(client_id, V5, clean_start=False, expiry_s=600, **more)


def a_will(topic: str, delay_s: int = 0) -> Will:
    return Will(topic, b"gone", 1, False, Properties(will_delay_interval=delay_s))


# Claims


@pytest.mark.parametrize("how", ["disconnect", "drop"])
@pytest.mark.parametrize("expiry_s", [None, 60], ids=["clean", "ended early"])
def test_a_client_that_leaves_for_good_leaves_no_record(how: str, expiry_s: int | None) -> None:
    """The session store forgets a client id that is nobody's and has no session: there may be any number of them."""
    house = House()
    for number in range(20):
        client = house.connect(f"c{number}", V5, expiry_s=expiry_s)
        if how == "disconnect" or expiry_s:
            client.disconnect(properties=Properties(session_expiry_interval=0) if expiry_s else Properties())
        else:
            client.drop()

    house.advance(2)

    store: Any = house.broker.runtime.stores.session
    assert store._records == {}


def test_a_client_that_was_not_let_in_leaves_no_record() -> None:
    """Where there are too many sessions, the claim of one more is given back."""
    sessions = FailingSessions()
    house = House(plugins={"sessions": sessions}, max_sessions=1)
    house.connect("first", V5, expiry_s=60)

    refused = [house.connect(f"c{number}", V5, expiry_s=60) for number in range(5)]

    assert {peer.connack.reason for peer in refused} == {ReasonCode.QUOTA_EXCEEDED}
    assert list(sessions._records) == ["first"]


def test_a_session_whose_clean_start_was_refused_still_expires() -> None:
    """A claim that came to nothing is no use of the session: it ends when its time is over."""
    queues, sessions = Failing(), FailingSessions()
    house = House(plugins={"queues": queues, "sessions": sessions})
    house.connect("a", V5, expiry_s=5).subscribe("t", qos=1).drop()
    queues.refuses = sessions.refuses = everything
    refused = house.connect("a", V5, clean_start=True)
    queues.refuses = sessions.refuses = nothing

    house.advance(60)

    assert refused.connack.reason.is_failure
    assert "a" not in house.broker.sessions.by_id
    assert sessions.count() == 0


def test_no_more_sessions_than_may_be_in_one_turn() -> None:
    """Clients that connect at the same moment count too: the store has none of them yet."""
    house = House(max_sessions=3, user_share=1)
    peers = [house.open(V5) for _ in range(50)]
    for number, peer in enumerate(peers):
        connect = Connect(
            version=V5,
            client_id=f"c{number}",
            clean_start=False,
            will=None,
            keep_alive=0,
            username=None,
            password=None,
            properties=Properties(session_expiry_interval=100),
        )
        peer.connection.receive(encode(connect, V5))

    house.settle()

    assert sum(not peer.connack.reason.is_failure for peer in peers) == 3
    assert house.broker.runtime.stores.session.count() == 3


def test_a_will_that_becomes_due_while_its_client_comes_back() -> None:
    """It is published once, and the client is let in, whichever is first."""
    sessions = LateSessions()
    house = House(plugins={"sessions": sessions})
    live = house.connect("live", V5).subscribe("wills", qos=1)
    house.connect("a", V5, expiry_s=60, will=a_will("wills", 3)).subscribe("x", qos=1).drop()
    house.advance(2)
    sessions.wills.slow = sessions.claims.slow = True
    house.advance(2)

    again = house.connect("a", V5, clean_start=True, expiry_s=60)
    sessions.wills.answer_all()
    house.settle()
    sessions.claims.answer_all()
    house.advance(3)

    assert not again.closed
    assert not again.connack.reason.is_failure
    assert payloads(live) == [b"gone"]


# What is written of a client while it is claimed


class Fencing(LateSessions):
    """A session store whose claims raise the epoch of the queue store too, as stores of one plugin may."""

    def __init__(self, queues: SlowQueues) -> None:
        super().__init__()
        self.queues = queues

    def claim(self, client_id: str, node: NodeIdentity) -> Any:
        claim = MemorySessionStore.claim(self, client_id, node)
        MemoryQueueStore.apply(self.queues, [InboundClose(client_id, claim.epoch, 1)])
        return self.claims(lambda: claim)


def test_what_comes_while_a_client_is_claimed_is_kept_under_its_new_epoch() -> None:
    """A message for a client that is just coming back waits for its claim, and then is not refused."""
    queues = SlowQueues()
    sessions = Fencing(queues)
    house = House(plugins={"sessions": sessions, "queues": queues})
    house.connect("c", V5, clean_start=False, expiry_s=60).subscribe("a", qos=1).drop()
    publisher = house.connect("p", V5)
    sessions.claims.slow = True
    again = house.connect("c", V5, clean_start=False, expiry_s=60)

    publisher.publish("a", b"meanwhile", qos=1, packet_id=1)
    house.settle()
    before = publisher.of(Puback)
    sessions.claims.answer_all()
    house.settle()

    assert before == []
    assert len(publisher.of(Puback)) == 1
    assert payloads(again) == [b"meanwhile"]
    assert not again.closed


def test_a_claim_waits_for_what_is_on_its_way() -> None:
    """A client is not claimed before what was written of it has been kept: it would be refused."""
    queues = SlowQueues()
    sessions = Fencing(queues)
    house = House(plugins={"sessions": sessions, "queues": queues})
    house.connect("c", V5, clean_start=False, expiry_s=60).subscribe("a", qos=1).drop()
    publisher = house.connect("p", V5)
    queues.writes.slow = True
    publisher.publish("a", b"before", qos=1, packet_id=1)
    house.settle()

    again = house.connect("c", V5, clean_start=False, expiry_s=60)
    publisher.publish("a", b"behind", qos=1, packet_id=2)
    house.settle()
    queues.writes.answer_all()
    house.settle()

    assert len(publisher.of(Puback)) == 2
    assert payloads(again) == [b"before", b"behind"]


# Going back to what the store holds


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
    queues = Queues()
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


class LookingAtOnce(Queues):
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
    queues = Queues()
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
    queues = Queues()
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
    queues = Queues()
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
    assert house.broker.sessions.by_id["s"].waiting.count == 0


# What others fail at


@pytest.mark.parametrize("retain", [False, True])
def test_an_event_log_that_fails_holds_up_nobody(retain: bool) -> None:
    """Nobody was promised an event: messages are kept, acknowledged and delivered all the same."""
    events = FailingEvents()
    house = House(plugins={"events": events})
    sub = house.connect("s", V5, expiry_s=600).subscribe("t", qos=1)
    pub = house.connect("pub", V5, expiry_s=600)
    events.fails = True

    pub.publish("t", b"x", qos=1, retain=retain)

    assert (pub.closed, sub.closed) == (False, False)
    assert payloads(sub) == [b"x"]


def test_an_error_that_a_turn_ends_with_does_not_end_all_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster backend that raises as it is told of a session's end harms nobody else."""
    sessions = FailingSessions()
    house = House(plugins={"sessions": sessions})
    lost = house.connect("a", V5, expiry_s=60).subscribe("t", qos=1)
    other = house.connect("b", V5).subscribe("z")
    sessions.claim("a", OTHER)
    calls: list[object] = []

    def broken(version: int, added: Sequence[Any], removed: Sequence[Any]) -> None:
        calls.append(removed)
        if removed:
            raise RuntimeError("cluster")

    monkeypatch.setattr(house.broker.router._cluster, "routes_update", broken)
    try:
        lost.subscribe("u", qos=1)
    except RuntimeError:
        calls.append("the reactor got the error")
    monkeypatch.undo()
    house.connect("pub").publish("z", b"1")
    house.advance(3)

    assert any(calls)
    assert payloads(other) == [b"1"]


def test_a_retained_qos_2_message_that_another_store_did_not_keep() -> None:
    """Its publisher repeats it, and it is taken as new: delivered and retained once [MQTT-4.3.3-10]."""
    retained = SlowRetaineds()
    house = House(plugins={"retained": retained})
    live = house.connect("live", V5).subscribe("t", qos=2)
    retained.writes.slow = True
    pub = house.connect("pub", V5, expiry_s=60).publish("t", b"x", qos=2, retain=True, packet_id=7)
    retained.writes.answer(FULL)
    house.settle()
    retained.writes.slow = False

    back(house, "pub").publish("t", b"x", qos=2, retain=True, packet_id=7, dup=True)
    house.advance(3)

    assert pub.closed
    assert payloads(live) == [b"x"]
    assert len(retained.match("t").messages) == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_a_delayed_message_whose_time_comes_before_it_is_known_not_to_be_kept(qos: int) -> None:
    """Its publisher sends it again: it is published once."""
    retained = SlowRetaineds()
    house = House(plugins={"retained": retained}, plugin_settings=DELAYED)
    live = house.connect("live", V5).subscribe("t", qos=2)
    retained.writes.slow = True
    pub = house.connect("pub", V5, expiry_s=60).publish("$delayed/1/t", b"x", qos=qos, packet_id=7)
    house.advance(2)
    while retained.writes.pending:
        retained.writes.answer(FULL)
    house.settle()
    retained.writes.slow = False

    back(house, "pub").publish("$delayed/1/t", b"x", qos=qos, packet_id=7, dup=True)
    house.advance(6)

    assert pub.closed
    assert payloads(live) == [b"x"]


def test_a_delayed_message_that_was_due_while_the_broker_was_down() -> None:
    """It is published when all sessions are there again, however long the start of another plugin takes."""
    plugins = {"queues": Failing(), "sessions": FailingSessions(), "retained": Retaineds()}
    before = House(plugins=plugins, plugin_settings=DELAYED)
    before.connect("off", V5, expiry_s=600).subscribe("w", qos=2).drop()
    before.connect("pub", V5).publish("$delayed/5/w", b"later", qos=2)
    house = House(
        plugins={**plugins, "slow": LongStart()},
        plugin_settings=DELAYED,
        clock=TurnableClock(before.clock.now() + 10),
        order=("delayed", "slow"),
        start=False,
    )
    started: list[Any] = []

    Deferred.fromCoroutine(house.broker.start()).addBoth(started.append)
    house.settle()
    early = list(started)
    house.advance(5)

    assert (early, started) == ([], [None])
    assert payloads(back(house, "off")) == [b"later"]
    assert plugins["retained"].match("$plugin/#").messages == ()


def test_a_delayed_message_waits_for_a_session_store_that_takes_its_time() -> None:
    """What was due while the broker was down is for every session there was, the last one restored included."""
    sessions = SlowSessions()
    plugins = {"queues": Failing(), "sessions": sessions, "retained": Retaineds()}
    before = House(plugins=plugins, plugin_settings=DELAYED)
    for number in range(3):
        before.connect(f"off{number}", V5, expiry_s=600).subscribe("w", qos=2).drop()
    before.connect("pub", V5).publish("$delayed/5/w", b"later", qos=2)
    clock = TurnableClock(before.clock.now() + 10)
    house = House(plugins=plugins, plugin_settings=DELAYED, clock=clock, start=False)
    sessions.claims.slow = True

    Deferred.fromCoroutine(house.broker.start())
    for _ in range(3):
        house.advance(2)
        sessions.claims.answer()
    sessions.claims.answer_all()
    house.advance(2)

    assert [payloads(back(house, f"off{number}")) for number in range(3)] == [[b"later"]] * 3


# Wills


@pytest.mark.parametrize("how", ["expired", "cut short", "clean start"])
def test_an_unfit_will_does_not_keep_its_session_alive(how: str) -> None:
    """Where a plugin makes something of a will that can't be published, the session still ends when it should."""
    sessions = FailingSessions()
    house = House(plugins={"sessions": sessions, "unfit": UnfitWills()})
    delay_s = 100 if how == "expired" else 30
    client = house.connect("a", V5, expiry_s=50, will=a_will("w", delay_s)).subscribe("t")

    if how == "cut short":
        leave = Properties(session_expiry_interval=0)
        client.disconnect(reason=ReasonCode.DISCONNECT_WITH_WILL, properties=leave)
    else:
        client.drop()
    if how == "clean start":
        house.connect("a", V5, clean_start=True)
    house.advance(100)

    session = house.broker.sessions.by_id.get("a")
    assert session is None or (how == "clean start" and not session.kept)
    assert sessions.count() == 0


def test_a_will_of_which_a_plugin_makes_something_invalid_is_dropped() -> None:
    """As where the plugin raises: nobody gets what it was to change, and the session goes on without it."""
    sessions = FailingSessions()
    house = House(plugins={"sessions": sessions, "unfit": UnfitWills()})
    live = house.connect("live", V5).subscribe("w", qos=1)
    house.connect("a", V5, expiry_s=500, will=a_will("w", 2)).subscribe("t").drop()

    house.advance(20)

    assert payloads(live) == []
    assert sessions.due_wills(house.clock.now(), 10) == []
    assert "a" in house.broker.sessions.by_id


# Where plugins keep values


def forged(due: float) -> bytes:
    """A delayed message as the plugin keeps it, of somebody who may not publish it."""
    return json.dumps({"due": due, "message": to_plain(Message("secret/door", b"open", 0, False))}).encode()


@pytest.mark.parametrize("after_s", [-10, 60])
@pytest.mark.parametrize("how", ["will", "delayed"])
def test_no_client_writes_where_plugins_keep_values(how: str, after_s: int) -> None:
    """Neither with its will nor with a delayed message: a plugin would take it for its own after a restart."""
    retained = Retaineds()
    house = House(plugins={"retained": retained}, plugin_settings=DELAYED)
    value = forged(house.clock.now() + after_s)
    if how == "will":
        house.connect("evil", V5, will=Will("$plugin/delayed/k", value, 1, True)).drop()
    else:
        house.connect("evil", V5).publish("$delayed/1/$plugin/delayed/k", value, qos=1, retain=True)
    house.advance(3)
    kept = retained.match("$plugin/#").messages

    later = House(plugins={"retained": retained}, plugin_settings=DELAYED, clock=TurnableClock(house.clock.now()))
    everybody = later.connect("s").subscribe("#")
    later.advance(61)

    assert kept == ()
    assert everybody.messages == []


# Shared subscriptions


def holding(house: House, expiry_s: int = 500, qos: int = 1) -> Peer:
    """A member with one message in flight, 1, and two more in its queue."""
    member = house.connect("a", V5, expiry_s=expiry_s, properties=ONE_AT_A_TIME, silent=True)
    member.subscribe(SHARE, qos=qos)
    pub = house.connect("pub")
    for payload in (b"1", b"2", b"3"):
        pub.publish("t", payload, qos=qos)
    return member


def test_a_session_ends_though_its_queue_could_not_be_read() -> None:
    """A queue that could not be read when its client left is read again, and the session does not stay."""
    queues, sessions = Failing(), FailingSessions()
    house = House(plugins={"queues": queues, "sessions": sessions})
    member = holding(house)
    queues.read_error = FULL
    member.disconnect(properties=Properties(session_expiry_interval=0))
    queues.read_error = None

    house.advance(10)

    assert "a" not in house.broker.sessions.by_id
    assert sessions.count() == 0


def test_a_queue_is_given_away_once() -> None:
    """A member that leaves and starts clean gives the others what waited for it, and not twice (section 4.8.2)."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues})
    member = holding(house, qos=2)
    other = house.connect("b", V5).subscribe(SHARE, qos=2)
    queues.reads.slow = True

    member.drop()
    house.connect("a", V5, clean_start=True)
    queues.reads.answer_all()
    house.settle()
    house.advance(2)

    assert sorted(payloads(other)) == [b"2", b"3"]


def test_a_long_queue_is_given_away_once_at_a_takeover() -> None:
    """However many reads it takes, and though the member is back before it is over (section 4.8.2)."""
    house = House()
    house.connect("a", V5, expiry_s=500, properties=ONE_AT_A_TIME, silent=True).subscribe(SHARE, qos=2)
    pub = house.connect("pub")
    for number in range(400):
        pub.publish("t", b"%d" % number, qos=2)
    other = house.connect("b", V5).subscribe(SHARE, qos=2)

    house.connect("a", V5, clean_start=True, expiry_s=500)
    house.advance(2)

    assert len(payloads(other)) == len(set(payloads(other))) >= 399


@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize("how", ["clean start", "expired"])
def test_a_late_answer_of_the_queue_store_harms_no_newer_session(how: str, in_use: bool) -> None:
    """What was asked for the session that was is nothing to the next one of that client id."""
    queues = Queues()
    house = House(plugins={"queues": queues})
    member = holding(house, 500 if how == "clean start" else 5, 1 if how == "clean start" else 2)
    other = house.connect("b", V5).subscribe(SHARE, qos=2)
    queues.reads.slow = True
    member.drop()
    queues.reads.slow = False
    if how == "expired":
        house.advance(10)

    again = house.connect("a", V5, clean_start=True, expiry_s=500).subscribe("own", qos=1)
    pub = house.connect("new")
    if in_use:
        again.subscribe(SHARE, qos=2)
        for payload in (b"4", b"5"):
            pub.publish("t", payload, qos=1)
        pub.publish("own", b"early", qos=1)
    queues.reads.answer_all()
    house.settle()
    house.advance(2)
    pub.publish("own", b"hello", qos=1)

    assert not again.closed
    assert again.messages[-1] == ("own", b"hello", 1)
    assert len(payloads(other)) == len(set(payloads(other)))


def test_what_was_given_away_and_not_kept_is_given_again() -> None:
    """A session does not end with messages that another was to get and that were not kept for that one."""
    queues = Queues()
    house = House(plugins={"queues": queues})
    member = house.connect("a", V5, expiry_s=500, properties=ONE_AT_A_TIME, silent=True).subscribe(SHARE, qos=1)
    pub = house.connect("pub").publish("t", b"1", qos=1)
    house.connect("b", V5, expiry_s=600).subscribe(SHARE, qos=1).drop()
    pub.publish("t", b"2", qos=1)
    queues.reads.slow = queues.writes.slow = True

    member.disconnect(properties=Properties(session_expiry_interval=0))
    queues.writes.answer(FULL)
    queues.writes.answer_all()
    house.settle()
    queues.reads.answer_all()
    house.settle()
    house.advance(5)

    assert "a" not in house.broker.sessions.by_id
    assert sorted(payloads(back(house, "b"))) == [b"1", b"2"]


@pytest.mark.parametrize("late", [False, True], ids=["from the beginning", "when all is with one"])
def test_members_that_end_together_give_to_one_that_stays(late: bool) -> None:
    """And not to each other: all that the group was sent reaches who is left of it (section 4.8.2)."""
    house = House()
    house.connect("a", V5, expiry_s=5).subscribe(SHARE, qos=1).drop()
    pub = house.connect("pub", V5)
    if late:
        for number in range(9):
            pub.publish("t", b"%d" % number, qos=1)
    house.connect("b", V5, expiry_s=5).subscribe(SHARE, qos=1).drop()
    house.connect("c", V5, expiry_s=600).subscribe(SHARE, qos=1).drop()
    if not late:
        for number in range(9):
            pub.publish("t", b"%d" % number, qos=1)

    house.advance(8)

    assert set(house.broker.sessions.by_id) == {"c", "pub"}
    assert sorted(payloads(back(house, "c"))) == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("bound", ["messages", "bytes"])
def test_what_clean_members_held_while_a_store_fails_is_bounded(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits in memory for the store: not more than so many messages or bytes, the others are counted."""
    monkeypatch.setattr(redistribution, "MAX_AWAITING_RETRY", 5 if bound == "messages" else 10_000)
    queues, drops = Failing(), Drops()
    most = 5 * Entry(1, Message("t", b"1-1"), 1, shared_filter=SHARE).size_bytes
    limits = {} if bound == "messages" else {"max_all_queued_bytes": most, "user_share": 1}
    house = House(plugins={"queues": queues, "drops": drops}, **limits)
    house.connect("off", V5, expiry_s=600).subscribe(SHARE, qos=1).drop()
    pub = house.connect("pub", V5)
    queues.refuses = everything
    for number in range(3):
        member = house.connect(f"c{number}", V5, silent=True).subscribe(SHARE, qos=1)
        for payload in (b"1", b"2"):
            pub.publish("t", b"%d-%s" % (number, payload), qos=1)
        member.drop()
        house.advance(2)

    queues.refuses = nothing
    house.advance(3)

    assert not pub.closed
    assert sorted(payloads(back(house, "off"))) == [b"0-1", b"0-2", b"1-1", b"1-2"]
    assert [each for each in drops.seen if each[0] != "off"] == [
        ("c2", b"2-1", "store_failed"),
        ("c2", b"2-2", "store_failed"),
    ]
    assert house.broker.runtime.statistics.dropped["store_failed"].value >= 2
    assert house.broker.runtime.waiting.size_bytes == 0


# Clocks


@pytest.mark.parametrize("how", ["queued", "retained"])
def test_the_longest_expiry_and_a_clock_that_was_set_back(how: str) -> None:
    """A message says no more than its publisher did, and so holds up nobody and nothing behind it [MQTT-3.3.2-6]."""
    house = House()
    house.connect("s", V5, expiry_s=600).subscribe("q", qos=1).drop()
    pub = house.connect("pub", V5)
    longest = Properties(message_expiry_interval=LONGEST_EXPIRY_S)
    if how == "queued":
        pub.publish("q", b"long", qos=1, properties=longest)
        pub.publish("q", b"plain", qos=1)
    else:
        pub.publish("r/0", b"long", qos=1, retain=True, properties=longest)
        pub.publish("r/1", b"plain", qos=1, retain=True)

    house.clock.step(-2)
    sub = back(house, "s", properties=ONE_AT_A_TIME)
    if how == "retained":
        sub.subscribe("r/#", qos=1)
    house.advance(1)

    assert not sub.closed
    assert sorted(payloads(sub)) == [b"long", b"plain"]
    [told] = [p.properties.message_expiry_interval for p in sub.of(Publish) if p.payload == b"long"]
    assert told <= LONGEST_EXPIRY_S


# Memory


@pytest.mark.parametrize("properties", [Properties(), Properties(content_type="x")], ids=["plain", "with properties"])
def test_a_connection_does_not_remember_long_topics(properties: Properties) -> None:
    """One client could have the broker remember tens of megabytes of them otherwise."""
    house = House()
    pub = house.connect("pub", V5)
    longest = "x" * incoming_publish.LONGEST_CACHED_BYTES

    for topic in ("t", longest, longest + "x"):
        pub.publish(topic, b"", properties=properties)

    assert set(pub.connection.routes or {}) == {b"t", longest.encode()}


def test_properties_count_where_queues_are_bounded() -> None:
    """A queue is full of messages of one byte when their properties are large."""
    house = House(max_queued_bytes=100_000)
    house.connect("s", V5, expiry_s=600).subscribe("t", qos=1).drop()
    large = Properties(user_property=(("k", "x" * 30_000),))
    pub = house.connect("pub", V5)

    for _ in range(10):
        pub.publish("t", b"x", qos=1, properties=large)

    assert 1 <= len(payloads(back(house, "s"))) <= 4


def test_long_topics_take_the_place_of_many() -> None:
    """The router's cache is bounded by what its topics take, not by their number alone."""
    house = House(max_topic_bytes=65_535)
    pub = house.connect("pub", V5)
    held = []

    for letter in ("x", "\u4e2d"):
        for number in range(400):
            pub.publish(f"{number:05}".ljust(20_000, letter), b"")
        held.append(sum(map(text_bytes, house.broker.fanouts.remembered)))

    assert 0 < min(held) <= max(held) <= 100 * CACHED_TARGETS + 80_000


def test_a_store_that_is_claimed_by_another_is_not_given_back() -> None:
    """A clean session that ends late gives back its own claim only, not that of a newer owner."""
    sessions = FailingSessions()
    house = House(plugins={"sessions": sessions})
    client = house.connect("a", V5)
    epoch = sessions.claim("a", OTHER).epoch
    sessions.apply([OpenSession(epoch, StoredSession("a", 60))])

    client.drop()

    assert sessions.claim("a", OTHER).previous_owner == OTHER
    assert sessions.count() == 1


class WithAReason(Exception):
    """An error of another library, which has a ``reason`` as those of TLS and of codecs have."""

    reason = "WRONG_VERSION_NUMBER"


@pytest.mark.parametrize("error", [WithAReason(), CancelledError(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("late", [False, True])
def test_whatever_a_store_raises_its_clients_are_told_and_the_broker_goes_on(
    error: BaseException, late: bool
) -> None:
    """Nobody waits for ever, and no later turn waits for one that failed."""

    class Raises(SlowQueues):
        broken = True

        def apply(self, writes: Sequence[Any]) -> Any:
            if not self.broken:
                return super().apply(writes)
            if late:
                return fail(error) if not isinstance(error, GeneratorExit) else fail(WithAReason())
            raise error

    queues = Raises()
    house = House(plugins={"queues": queues})
    queues.broken = False
    sub = house.connect("sub", V5, expiry_s=60).subscribe("t", qos=1)
    queues.broken = True

    pub = house.connect("pub", V5).publish("t", b"1", qos=1)
    queues.broken = False
    house.advance(3)
    again = back(house, "sub")
    house.connect("pub2", V5).publish("t", b"2", qos=1)

    assert (pub.closed, house.broker.runtime.turn.commits_under_way) == (True, 0)
    assert b"2" in payloads(again) + payloads(sub)
