"""Claims of client ids: sessions that end, wills that are due and writes that come during a claim."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, a_will, payloads
from core_harness.stores import Failing, FailingSessions, Fencing, LateSessions, SlowQueues, everything, nothing
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Connect, Puback
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode


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
