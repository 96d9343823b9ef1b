"""StaleQueues of ending members of shared subscriptions, over slow and failing stores."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer, back, payloads
from core_harness.stores import FULL, Failing, FailingSessions, SlowQueues, StaleQueues, everything, nothing
from kinmqtt.broker.ownership import redistribution
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi import Message, Properties, hookimpl
from kinmqtt_spi.services.queue import Entry

SHARE = "$share/g/t"


ONE_AT_A_TIME = Properties(receive_maximum=1)


class Drops:
    """A plugin that notes what is dropped, of whom and why."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, str]] = []

    @hookimpl
    def dropped(self, client_id: str, message: Message, why: str) -> None:
        self.seen.append((client_id, message.payload, why))


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
    queues = StaleQueues()
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
    queues = StaleQueues()
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
    limits: dict[str, Any] = {} if bound == "messages" else {"max_all_queued_bytes": most, "user_share": 1}
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
    assert house.broker.runtime.queued.size_bytes == 0
