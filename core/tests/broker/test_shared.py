"""Shared subscriptions: one member of a group gets each message, and none is lost with a member (section 4.8.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve

from core_harness.house import House, Peer
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V31, V311, DisconnectPacket, Puback, Publish, Pubrec, Subscribe, SubscribeRequest
from kinmqtt_spi import Properties, Subscription, hookimpl
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.queue import OverflowPolicy
from kinmqtt_spi.services.subscription import Subscriber

VERSIONS = [V31, V311, V5]


def member(house: House, client_id: str, qos: int = 2, filter: str = "$share/g/t", **more: Any) -> Peer:
    """A member of a group, with a session that outlives its connection."""
    more = {"clean_start": False, "expiry_s": 60} | more
    return house.connect(client_id, V5, **more).subscribe(filter, qos)


def back(house: House, client_id: str, **more: Any) -> Peer:
    """A member that comes back to its session."""
    return house.connect(client_id, V5, clean_start=False, expiry_s=60, **more)


def payloads(*peers: Peer) -> list[list[bytes]]:
    """What each of several clients got."""
    return [[payload for _, payload, _ in peer.messages] for peer in peers]


def publish(house: House, number: int, qos: int, topic: str = "t") -> Peer:
    """Publish that many messages with their number as payload."""
    pub = house.connect("p", V5)
    for n in range(number):
        pub.publish(topic, b"%d" % n, qos=qos)
    return pub


# One member each


@pytest.mark.parametrize("index", ["trie", "hash"])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(index: str, version: int, qos: int) -> None:
    """All members together get each message once, each of them its part, in order, in every version."""
    house = House(services={"subscription": index})
    members = [house.connect(f"m{n}", version).subscribe("$share/g/t", qos=2) for n in range(3)]

    publish(house, 9, qos)

    got = payloads(*members)
    assert sorted(payload for part in got for payload in part) == [b"%d" % n for n in range(9)]
    assert [len(part) for part in got] == [3, 3, 3]
    assert all(part == sorted(part) for part in got)
    assert {level for peer in members for _, _, level in peer.messages} == {qos}


def test_groups_and_filters_are_apart() -> None:
    """Each group, each filter of a group, and each plain subscription gets every message it matches."""
    house = House()
    g = [house.connect(f"g{n}").subscribe("$share/g/t") for n in range(2)]
    h = house.connect("h").subscribe("$share/h/t")
    wide = house.connect("w").subscribe("$share/g/+")
    plain = house.connect("plain").subscribe("t")

    publish(house, 4, 0)

    everything = [b"0", b"1", b"2", b"3"]
    assert sorted(payload for part in payloads(*g) for payload in part) == everything
    assert payloads(h, wide, plain) == [everything] * 3


def test_a_member_may_subscribe_for_itself_too() -> None:
    """Its plain subscription and its shared ones are different ones: each brings the message [section 4.8.2]."""
    house = House()
    client = house.connect("c", V5)
    client.subscribe("$share/g/t", 1, Properties(subscription_identifier=(1,)))
    client.subscribe("t", 2, Properties(subscription_identifier=(2,)))

    publish(house, 1, 2)
    client.unsubscribe("t")
    publish(house, 1, 2)

    got = sorted((p.qos, p.properties.subscription_identifier) for p in client.of(Publish))
    assert got == [(1, (1,)), (1, (1,)), (2, (2,))]


def test_each_member_has_its_own_qos() -> None:
    """A message goes to a member with no more than that member was granted [MQTT-4.8.2-3]."""
    house = House()
    members = [house.connect(f"m{n}").subscribe("$share/g/t", qos=n) for n in range(3)]

    publish(house, 6, 2)

    assert [Counter(level for _, _, level in peer.messages) for peer in members] == [{0: 2}, {1: 2}, {2: 2}]


def test_wildcards_and_dollar_topics() -> None:
    """The filter behind the group's name matches as any other does [MQTT-4.7.2-1]."""
    house = House()
    client = house.connect("c").subscribe("$share/g/#")
    other = house.connect("d").subscribe("$share/g/$X/#")
    pub = house.connect("p")

    for topic in ("a", "a/b", "$X/a"):
        pub.publish(topic)

    assert sorted(topic for topic, _, _ in client.messages) == ["a", "a/b"]
    assert [topic for topic, _, _ in other.messages] == ["$X/a"]


def test_no_local_is_an_error() -> None:
    """No Local on a Shared Subscription closes the connection, and makes no subscription [MQTT-3.8.3-4]."""
    house = House()
    data = encode(Subscribe(1, (SubscribeRequest("$share/g/t", 1),)), V5)

    client = house.connect("c", V5).send_bytes(data[:-1] + bytes((data[-1] | 0x04,)))

    assert [p.reason for p in client.of(DisconnectPacket)] == [ReasonCode.PROTOCOL_ERROR]
    assert house.broker.router.index.count() == 0


def test_a_publisher_may_be_the_member() -> None:
    """A member gets its own messages as the others', for there is no No Local in a group."""
    house = House()
    client = house.connect("c", V5).subscribe("$share/g/t", 1)

    client.publish("t", b"x", qos=1)

    assert client.messages == [("t", b"x", 1)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_member_alone_keeps_the_order(qos: int) -> None:
    """A group's only member gets everything in order, over its window and a lost connection [MQTT-4.6.0-6]."""
    house = House()
    first = member(house, "m", properties=Properties(receive_maximum=3))
    first.silent = True
    publish(house, 5, qos)
    first.drop()
    publish(house, 5, qos)

    again = back(house, "m")

    assert payloads(again) == [[b"%d" % n for n in [*range(5), *range(5)]]]


# Members that are away


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_members_that_are_there_go_first(qos: int) -> None:
    """A member whose client is away gets nothing while another is connected."""
    house = House()
    member(house, "away").drop()
    here = member(house, "here")

    publish(house, 4, qos)

    assert len(here.messages) == 4
    assert house.broker.sessions.by_id["away"].queue.count == 0


@pytest.mark.parametrize(("qos", "kept"), [(0, 0), (1, 4), (2, 4)])
def test_where_all_are_away_messages_wait(qos: int, kept: int) -> None:
    """Without a connected member QoS 1 and 2 wait for one of those there are; nothing is doubled."""
    house = House()
    for client_id in "ab":
        member(house, client_id).drop()
    publish(house, 4, qos)

    got = [payload for part in payloads(back(house, "a"), back(house, "b")) for payload in part]

    assert sorted(got) == [b"0", b"1", b"2", b"3"][:kept]


def test_without_members_nobody_wants_it() -> None:
    """The last member's leave, by whichever way, leaves no group behind."""
    house = House()
    house.connect("a").subscribe("$share/g/t").unsubscribe("$share/g/t")
    house.connect("b").subscribe("$share/g/t").drop()
    house.connect("c", V5, expiry_s=5).subscribe("$share/g/t", 1).drop()
    house.advance(10)

    pub = publish(house, 1, 1)

    assert [p.reason for p in pub.of(Puback)] == [ReasonCode.NO_MATCHING_SUBSCRIBERS]
    assert house.broker.router.index.count() == 0


def test_members_come_and_go_between_messages() -> None:
    """The next message knows who is there: new members, those gone, and those back."""
    house = House()
    a = member(house, "a")
    pub = house.connect("p").publish("t", b"1", qos=1)
    a.unsubscribe("$share/g/t")
    b = member(house, "b")
    pub.publish("t", b"2", qos=1)
    b.drop()
    c = member(house, "c")
    pub.publish("t", b"3", qos=1)
    c.drop()
    b = back(house, "b")
    pub.publish("t", b"4", qos=1)

    assert payloads(a, b, c) == [[b"1"], [b"4"], [b"3"]]


def test_a_full_member_is_passed_over() -> None:
    """What one member's queue refuses another gets; where all refuse, connected or not, the publisher is told."""
    house = House(max_inflight=1, max_queued_messages=1, queue_full=OverflowPolicy.REFUSE)
    slow = member(house, "slow", silent=True)
    quick = member(house, "quick")

    pub = publish(house, 8, 1)
    quick.drop()
    for _ in range(2):
        pub.publish("t", b"more", qos=1)  # The queue of the one that is away takes one more.

    assert len(slow.messages) == 1
    assert len(quick.messages) == 6
    assert [p.reason for p in pub.of(Puback)] == [0] * 9 + [ReasonCode.QUOTA_EXCEEDED]


# What a lost member held


@pytest.mark.parametrize("expiry_s", [0, 60])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_lost_member_held_goes_to_another(expiry_s: int, qos: int) -> None:
    """What was not sent goes on to a connected member, and of QoS 1 what was not acknowledged, without DUP."""
    house = House(max_inflight=2)
    lost = member(house, "lost", expiry_s=expiry_s, silent=True)
    publish(house, 5, qos)
    other = member(house, "other")
    plain = house.connect("plain").subscribe("t", 2)

    lost.drop()

    assert payloads(lost, plain) == [[b"0", b"1"], []]
    got = [(p.payload, p.dup) for p in other.of(Publish)]
    if qos == 1:
        assert got == [(b"%d" % n, False) for n in range(5)]
    else:
        assert got == [(b"%d" % n, False) for n in range(2, 5)]


def test_a_qos_2_exchange_stays_with_its_member() -> None:
    """What was sent with QoS 2 is completed with the same member when it comes back [MQTT-4.8.2-4]."""
    house = House()
    lost = member(house, "lost", silent=True)
    publish(house, 2, 2)
    other = member(house, "other")
    lost.send(Pubrec(1)).drop()

    again = back(house, "lost")

    assert other.messages == []
    assert [(p.payload, p.dup) for p in again.of(Publish)] == [(b"1", True)]
    assert house.broker.sessions.by_id["lost"].outgoing.flights == {}


@pytest.mark.parametrize("expired", [False, True])
def test_a_qos_2_exchange_ends_with_its_session(expired: bool) -> None:
    """A session that ends takes its QoS 2 exchanges with it: nobody else gets them [MQTT-4.8.2-5]."""
    house = House()
    lost = member(house, "lost", expiry_s=5 if expired else 0, silent=True)
    publish(house, 2, 2)
    other = member(house, "other")

    lost.drop()
    house.advance(10)

    assert other.messages == []


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)])
def test_what_a_member_refuses_goes_to_nobody(qos: int, answer: Any) -> None:
    """A PUBACK or PUBREC with a failure ends the message for the whole group [MQTT-4.8.2-6]."""
    house = House()
    refusing = member(house, "refusing", silent=True)
    publish(house, 1, qos)
    other = member(house, "other")

    refusing.send(answer(1, ReasonCode.NOT_AUTHORIZED)).drop()
    house.advance(100)

    assert other.messages == []
    assert back(house, "refusing").messages == []


def test_a_lost_member_that_is_alone_keeps_its_messages() -> None:
    """Where nobody else is connected everything waits for the member, in order, what was sent with DUP."""
    house = House(max_inflight=2)
    member(house, "away").drop()
    lost = member(house, "lost", silent=True)
    publish(house, 3, 1)
    lost.drop()

    again = back(house, "lost")

    assert [(p.payload, p.dup) for p in again.of(Publish)] == [(b"0", True), (b"1", True), (b"2", False)]


@pytest.mark.parametrize("end", ["expires", "clean start", "disconnect"])
def test_a_session_that_ends_gives_its_messages_also_to_members_that_are_away(end: str) -> None:
    """QoS 1 that was sent or waits goes to another member as its session ends, connected or not [section 4.8.2]."""
    house = House(max_inflight=2)
    member(house, "away").drop()
    lost = member(house, "lost", expiry_s=20, silent=True)
    publish(house, 5, 1)

    if end == "disconnect":
        lost.disconnect(properties=Properties(session_expiry_interval=0))
    else:
        lost.drop()
        house.advance(25 if end == "expires" else 5)
        house.connect("lost", V5)
    again = back(house, "away")

    assert payloads(again) == [[b"0", b"1", b"2", b"3", b"4"]]


def test_only_the_groups_messages_are_given_away() -> None:
    """What a lost member has by plain subscriptions stays its own."""
    house = House(max_inflight=1)
    lost = member(house, "lost", silent=True).subscribe("own", 1)
    pub = house.connect("p")
    for n in range(4):
        pub.publish("t" if n % 2 else "own", b"%d" % n, qos=1)
    other = member(house, "other").subscribe("own", 0)

    lost.drop()
    again = back(house, "lost")

    assert payloads(other, again) == [[b"1", b"3"], [b"0", b"2"]]


def test_a_member_that_gives_up_its_subscription_keeps_what_it_was_sent() -> None:
    """UNSUBSCRIBE ends no delivery that was begun, and what comes after it is others' [MQTT-3.10.4-3]."""
    house = House()
    leaving = member(house, "leaving", silent=True)
    publish(house, 1, 1)
    other = member(house, "other")

    leaving.unsubscribe("$share/g/t")
    publish(house, 2, 1)
    leaving.drop()

    assert payloads(other) == [[b"0", b"1"]]
    assert [(p.payload, p.dup) for p in back(house, "leaving").of(Publish)] == [(b"0", True)]


# Members that are full


class Copyist:
    """Names a copy of the first candidate, as a plugin in another process would; thirty times at most."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    @hookimpl
    def choose_member(self, candidates: Sequence[Subscriber]) -> Subscriber | None:
        self.asked.append([candidate.client_id for candidate in candidates])
        return evolve(candidates[0]) if len(self.asked) <= 30 else None


def test_a_copy_of_a_full_member_is_passed_over() -> None:
    """A plugin's answer is known by its client: where that one's queue refuses the next member is asked, once."""
    copyist = Copyist()
    house = House(plugins={"copyist": copyist}, max_queued_messages=1, queue_full=OverflowPolicy.REFUSE)
    for client_id in "ab":
        member(house, client_id).drop()

    pub = publish(house, 3, 1)

    assert copyist.asked == [["a", "b"], ["a", "b"], ["b"], ["a", "b"], ["b"]]
    assert [int(packet.reason) for packet in pub.of(Puback)] == [0, 0, ReasonCode.QUOTA_EXCEEDED]
    assert payloads(back(house, "a"), back(house, "b")) == [[b"0"], [b"1"]]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kept", [True, False])
def test_while_a_member_has_room_nothing_is_dropped(kept: bool, qos: int) -> None:
    """By the default policy too a full member is passed over; only where all are full does a message give way."""
    log = MemoryEventLog(lambda delay_s, call: None)

    class Log:
        @hookimpl
        def event_log(self) -> MemoryEventLog:
            return log

    house = House(plugins={"log": Log(), "copyist": Copyist()}, max_queued_messages=2, max_inflight=1)
    for client_id in "ab":
        if kept:
            member(house, client_id).drop()
        else:
            member(house, client_id, clean_start=True, expiry_s=None, silent=True)
    dropped = house.broker.runtime.statistics.dropped["queue_full"]

    publish(house, 4 if kept else 6, qos)
    early = (dropped.value, drops(log))
    publish(house, 1, qos)

    assert early == (0, [])
    assert [house.broker.sessions.by_id[client_id].queue.count for client_id in "ab"] == [2, 2]
    assert (dropped.value, drops(log)) == (1, ["b"])


def drops(log: MemoryEventLog) -> list[str]:
    """The clients of whose queues it was recorded that something was dropped."""
    return [r.event.client_id for r in log.read(-1, 1000) if r.event.kind is EventKind.QUEUE_DROP]


def test_a_member_that_can_be_sent_to_is_not_full() -> None:
    """Where all queues together are full, a member whose client takes its messages at once gets them."""
    house = House(max_all_queued_bytes=1024, user_share=1)
    house.connect("hoarder", V5, expiry_s=60).subscribe("hoard", 1).drop()
    house.connect("p").publish("hoard", bytes(2000), qos=1)
    members = [member(house, client_id) for client_id in ("a", "b")]
    member(house, "away").drop()

    publish(house, 4, 1)

    assert sorted(payload for part in payloads(*members) for payload in part) == [b"0", b"1", b"2", b"3"]
    assert house.broker.runtime.statistics.dropped["queue_full"].value == 0


# Turns


@pytest.mark.parametrize("how", ["unsubscribes", "is lost"])
def test_the_others_go_on_where_they_were(how: str) -> None:
    """A member that leaves, or comes, does not have the rotation begin anew with the first."""
    house = House()
    members = [house.connect(client_id).subscribe("$share/g/t") for client_id in "abcd"]
    pub = house.connect("p")

    pub.publish("t", b"1").publish("t", b"2")
    if how == "unsubscribes":
        members[3].unsubscribe("$share/g/t")
    else:
        members[3].drop()
    pub.publish("t", b"3").publish("t", b"4")

    assert payloads(*members) == [[b"1", b"4"], [b"2"], [b"3"], []]


# A client in more than one


@pytest.mark.parametrize("how", ["in flight", "waiting", "waiting in the store"])
@pytest.mark.parametrize("there", ["a/#", "a/+", "both"])
def test_what_a_member_held_goes_to_its_own_shared_subscription(how: str, there: str) -> None:
    """Not to members of another filter under the same name: who stays alone with a filter keeps what came by it."""
    house = House(max_inflight=10 if how == "in flight" else 1)
    on_commit_failed: dict[str, Any] = {"clean_start": True, "expiry_s": None} if how == "waiting" else {}
    lost = member(house, "lost", filter="$share/g/a/#", silent=True, **on_commit_failed)
    lost.subscribe("$share/g/a/+", 2).subscribe("own", 1)
    house.connect("p").publish("own", b"own", qos=1)
    publish(house, 2, 1, "a/b")
    others = {
        filter: member(house, filter, filter=f"$share/g/{filter}")
        for filter in ("a/#", "a/+")
        if there in (filter, "both")
    }

    lost.drop()
    left = [] if how == "waiting" else payloads(back(house, "lost"))[0]

    assert [sorted(part) for part in payloads(*others.values())] == [[b"0", b"1"]] * len(others)
    if how != "waiting":
        assert sorted(left) == [*([] if there == "both" else [b"0", b"1"]), b"own"]


def test_a_member_whose_session_is_gone_gives_its_turn_to_the_next() -> None:
    """What was meant for it is neither lost nor refused; where nobody else is left, there is nobody to get it."""
    house = House()
    member(house, "away").drop()
    house.broker.router.subscribe("gone", Subscription("t", 1, "g"))

    publish(house, 4, 1)
    got = payloads(back(house, "away").disconnect(properties=Properties(session_expiry_interval=0)))
    answered = house.connect("last", V5).publish("t", b"x", qos=1).of(Puback)

    assert got == [[b"0", b"1", b"2", b"3"]]
    assert [packet.reason for packet in answered] == [0]
