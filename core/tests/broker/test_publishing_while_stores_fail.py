"""The broker's own publications while a store fails: delivered once, and not before they are committed."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer, payloads
from core_harness.stores import Failing, FailingRetaineds, FailingSessions, SlowQueues, everything, nothing
from kinmqtt.broker.ownership import wills
from kinmqtt.builtins.delayed import DelayedSettings
from kinmqtt.mqtt.packets import V5, V311, ConnectWill, Publish, Pubrec
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import QueueSizes

SHARE = "$share/g/t"


class Stores:
    """A house with stores that can be made to fail, and the clients that should get each message once."""

    def __init__(self, **limits: Any) -> None:
        self.queues, self.sessions, self.retained = Failing(), FailingSessions(), FailingRetaineds()
        plugins = {"queues": self.queues, "sessions": self.sessions, "retained": self.retained}
        self.house = House(plugins=plugins, plugin_settings={"delayed": DelayedSettings()}, **limits)

    def fail(self) -> None:
        """From now on they fail, as one store that keeps all would."""
        for store in (self.queues, self.sessions, self.retained):
            store.refuses = everything

    def work(self) -> None:
        """From now on none does."""
        for store in (self.queues, self.sessions, self.retained):
            store.refuses = nothing

    def heirs(self, topic: str) -> tuple[Peer, Peer]:
        """A client whose session is kept, and one whose is not."""
        kept = self.house.connect("kept", V5, expiry_s=600).subscribe(topic, qos=2)
        return kept, self.house.connect("live", V5).subscribe(topic, qos=2)

    def back(self, client_id: str, expiry_s: int = 600) -> Peer:
        """The client comes back to its session."""
        return self.house.connect(client_id, V5, clean_start=False, expiry_s=expiry_s)


# Wills


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("delay_s", [0, 5])
def test_a_will_due_while_a_store_fails(retain: bool, qos: int, kept: bool, delay_s: int) -> None:
    """It comes when the store works again, once to everybody, and is retained [MQTT-3.1.2-8]."""
    stores = Stores()
    house = stores.house
    heirs = stores.heirs("wills")
    will = ConnectWill("wills", b"gone", qos, retain, Properties(will_delay_interval=delay_s))
    client = house.connect("c", V5, expiry_s=60 if kept else 0, will=will)
    stores.fail()
    client.drop()
    house.advance(8)
    early = payloads(heirs[1])

    stores.work()
    house.advance(3)
    back = stores.back("kept")
    late = house.connect("late", V5).subscribe("wills")

    # A will of which nothing is to be kept needs no store.
    assert early == ([] if retain or qos or kept else [b"gone"])
    assert payloads(heirs[1]) == [b"gone"]
    assert payloads(heirs[0], back) == [b"gone"]
    assert payloads(late) == ([b"gone"] if retain else [])
    house.advance(20)
    assert payloads(heirs[1]) == [b"gone"]


def test_a_will_that_is_not_published_stays_in_the_store() -> None:
    """A broker that dies while a store fails, and starts anew, still has it."""
    stores = Stores()
    stores.heirs("wills")
    client = stores.house.connect("c", V5, expiry_s=60, will=ConnectWill("wills", b"gone", 1, False))
    stores.fail()

    client.drop()
    stores.house.advance(3)
    [(_, stored)] = [held for held in stores.sessions.iterate().sessions if held[1].client_id == "c"]
    while_it_fails = stored.will
    stores.work()
    stores.house.advance(3)
    [(_, stored)] = [held for held in stores.sessions.iterate().sessions if held[1].client_id == "c"]

    assert while_it_fails is not None
    assert stored.will is None


def test_who_comes_back_before_its_will_is_published() -> None:
    """Is not let in: the session must not go on with another will before that. It waits for one attempt only."""
    stores = Stores()
    _, live = stores.heirs("wills")
    client = stores.house.connect("c", V5, expiry_s=60, will=ConnectWill("wills", b"gone", 1, False))
    stores.fail()
    client.drop()
    refused = stores.back("c", 60)
    stores.house.advance(2)
    let_in = stores.back("c", 60)
    stores.work()
    stores.house.advance(2)

    assert (refused.connack.reason, refused.closed) == (ReasonCode.SERVER_UNAVAILABLE, True)
    assert let_in.connack.session_present
    assert payloads(live) == [b"gone"]


def test_who_takes_over_a_session_whose_will_is_being_kept_waits() -> None:
    """The will comes before the CONNACK, however long the store takes [MQTT-3.1.4-3]."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues})
    heir = house.connect("heir", V5, expiry_s=600).subscribe("wills", qos=1)
    house.connect("c", V5, expiry_s=60, will=ConnectWill("wills", b"gone", 1, False))
    queues.writes.slow = True

    again = house.connect("c", V5, expiry_s=60, clean_start=False)
    early = (list(again.packets), payloads(heir))
    queues.writes.answer_all()
    house.settle()

    assert early == ([], [])
    assert again.connack.session_present
    assert payloads(heir) == [b"gone"]


def test_too_many_wills_while_a_store_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of clients that are gone for good wait in memory: not more than so many."""
    monkeypatch.setattr(wills, "MAX_AWAITING_RETRY", 2)
    stores = Stores()
    _, live = stores.heirs("wills")
    clients = [stores.house.connect(f"c{n}", V311, will=ConnectWill("wills", b"%d" % n, 1, False)) for n in range(4)]
    stores.fail()
    for client in clients:
        client.drop()

    stores.work()
    stores.house.advance(3)

    assert payloads(live) == [b"0", b"1"]
    assert stores.house.broker.runtime.statistics.dropped["store_failed"].value >= 2


# Sessions that end


@pytest.mark.parametrize("how", ["expired", "cut short", "clean start"])
def test_a_session_that_ends_while_a_store_fails(how: str) -> None:
    """What it held for its group, and its will, reach others when the store works again, once; then it is gone."""
    stores = Stores()
    house = stores.house
    lost = house.connect("a", V5, expiry_s=5, will=ConnectWill("wills", b"gone", 1, False)).subscribe(SHARE, qos=1)
    heirs = stores.heirs("wills")
    house.connect("b", V5, expiry_s=600).subscribe(SHARE, qos=1).drop()
    lost.silent = True
    lost.link.blocked = True
    pub = house.connect("pub")
    for payload in (b"1", b"2", b"3"):
        pub.publish("t", payload, qos=1)
    stores.fail()

    if how == "cut short":
        leave = Properties(session_expiry_interval=0)
        lost.disconnect(reason=ReasonCode.DISCONNECT_WITH_WILL, properties=leave)
    else:
        lost.drop()
    if how == "clean start":
        refused = house.connect("a", V5, clean_start=True)
    house.advance(10)
    early = payloads(heirs[1])
    stores.work()
    house.advance(3)
    back = stores.back("b")

    assert early == []
    assert how != "clean start" or refused.connack.reason is ReasonCode.SERVER_UNAVAILABLE
    assert sorted(payloads(back)) == [b"1", b"2", b"3"]
    assert payloads(heirs[1]) == [b"gone"]
    assert "a" not in house.broker.sessions.by_id
    assert stores.queues.sizes("a") == QueueSizes()
    assert not stores.queues.read("a", 0, 10)


def test_what_a_client_held_whose_session_was_not_kept() -> None:
    """It has no store to come back to: it is given to the others again until that is kept."""
    stores = Stores()
    house = stores.house
    lost = house.connect("a", V5, silent=True).subscribe(SHARE, qos=1)
    house.connect("pub").publish("t", b"1", qos=1)
    house.connect("b", V5, expiry_s=600).subscribe(SHARE, qos=1).drop()
    stores.fail()

    lost.drop()
    house.advance(3)
    stores.work()
    house.advance(2)

    assert payloads(stores.back("b")) == [b"1"]


# Delayed messages


def test_a_delayed_message_due_while_a_store_fails() -> None:
    """It is published when the store works again, once, and until then it is kept over a restart."""
    stores = Stores()
    kept, live = stores.heirs("t")
    stores.house.connect("pub").publish("$delayed/3/t", b"x", qos=1)
    stores.fail()
    stores.house.advance(6)
    early = payloads(kept, live)
    while_it_fails = stores.retained.match("$plugin/#").messages

    stores.work()
    stores.house.advance(3)

    assert early == []
    assert payloads(live) == [b"x"]
    assert payloads(kept, stores.back("kept")) == [b"x"]
    assert (len(while_it_fails), stores.retained.match("$plugin/#").messages) == (1, ())


@pytest.mark.parametrize("qos", [1, 2])
def test_a_delayed_message_that_was_not_kept(qos: int) -> None:
    """Its publisher is not acknowledged and sends it again: it is published once."""
    stores = Stores()
    _, live = stores.heirs("t")
    stores.fail()
    pub = stores.house.connect("pub", V5, expiry_s=60).publish("$delayed/3/t", b"x", qos=qos, packet_id=7)
    stores.work()

    stores.back("pub", 60).publish("$delayed/3/t", b"x", qos=qos, packet_id=7, dup=True)
    stores.house.advance(6)

    assert pub.closed
    assert payloads(live) == [b"x"]


# QoS 2 of a client


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_qos_2_message_that_was_not_kept_comes_once(granted: int) -> None:
    """Also to who is connected and keeps nothing: the publisher sends it again [MQTT-4.3.3-2]."""
    stores = Stores()
    house = stores.house
    live = house.connect("live", V5).subscribe("t", qos=granted)
    stores.fail()
    pub = house.connect("pub", V5, expiry_s=60).publish("t", b"x", qos=2, packet_id=7)
    early = payloads(live)
    stores.work()

    again = stores.back("pub", 60).publish("t", b"x", qos=2, packet_id=7, dup=True)

    assert (pub.closed, pub.of(Pubrec), early) == (True, [], [])
    assert len(again.of(Pubrec)) == 1
    assert payloads(live) == [b"x"]


def test_who_is_gone_before_a_qos_2_message_is_kept_does_not_get_it() -> None:
    """What waits for the store is for who is there then; it is counted."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues})
    live = house.connect("live").subscribe("t", qos=2)
    pub = house.connect("pub", V5, expiry_s=60)
    queues.writes.slow = True
    pub.publish("t", b"x", qos=2)

    live.drop()
    queues.writes.answer_all()
    house.settle()

    assert len(pub.of(Pubrec)) == 1
    assert live.of(Publish) == []
    assert house.broker.runtime.statistics.dropped["offline"].value == 1


def test_messages_of_qos_2_keep_their_order() -> None:
    """Those that wait for the store go out in the order in which they came [MQTT-4.6.0-5]."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues})
    live = house.connect("live").subscribe("t", qos=2)
    pub = house.connect("pub", V5, expiry_s=60)
    queues.writes.slow = True
    for payload in (b"1", b"2"):
        pub.publish("t", payload, qos=2)

    queues.writes.answer_all()
    house.settle()

    assert payloads(live) == [b"1", b"2"]
