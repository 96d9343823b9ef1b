"""A broker over the embedded store: restarts, clocks that are set back, and failing disks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.builtins.delayed import DelayedSettings
from kinmqtt.builtins.embedded import EmbeddedSettings
from kinmqtt.builtins.embedded.journal import MOST_SEGMENTS
from kinmqtt.builtins.embedded.segment import Segment
from kinmqtt.mqtt.packets import V5, Puback, Publish, Pubrec
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import Properties
from kinmqtt_spi.memory.plugin import TurnableClock

SHARE = "$share/g/t"


class Inn:
    """A data directory, and the house that uses it at present."""

    def __init__(self, data: Path, durability: Any = "commit") -> None:
        self.data = data
        self.durability = durability
        self.house = self._open(None)

    def restart(self, after_s: float = 0.0) -> House:
        """The broker is killed, and another starts when the clock says so much more, or less."""
        now = self.house.clock.now()
        self.kill()
        self.house = self._open(TurnableClock(now + after_s))
        return self.house

    def kill(self) -> None:
        """The broker ends without notice."""
        plugin: Any = self.house.assembly.manager._pm.get_plugin("embedded")
        plugin._journal.abandon()
        plugin._directory.close()

    def _open(self, clock: TurnableClock | None) -> House:
        return House(
            settings=BrokerSettings(sys_interval_s=0, data=str(self.data)),
            plugin_settings={
                "embedded": EmbeddedSettings(durability=self.durability),
                "delayed": DelayedSettings(),
            },
            clock=clock,
        )


@pytest.fixture
def inn(tmp_path: Path) -> Iterator[Inn]:
    """A house with a data directory."""
    made = Inn(tmp_path / "data")
    yield made
    made.kill()


@pytest.fixture
def careful(tmp_path: Path) -> Iterator[Inn]:
    """One where something counts as kept when the disk has it."""
    made = Inn(tmp_path / "data", "fsync")
    yield made
    made.kill()


def payloads(*peers: Peer) -> list[bytes]:
    """What came to some clients, in one list."""
    return [payload for peer in peers for _, payload, _ in peer.messages]


def back(house: House, client_id: str) -> Peer:
    """A client comes back to its session."""
    return house.connect(client_id, V5, clean_start=False, expiry_s=6000)


@pytest.mark.parametrize("late", [False, True], ids=["from the beginning", "when all is with one"])
@pytest.mark.parametrize("after_s", [0, 60], ids=["before it", "when it is over"])
def test_members_that_end_together_give_to_one_that_stays(inn: Inn, after_s: int, late: bool) -> None:
    """What two members held whose time was over at a start reaches the third, all of it (section 4.8.2)."""
    house = inn.house
    house.connect("a", V5, expiry_s=5).subscribe(SHARE, qos=1).drop()
    pub = house.connect("pub", V5)
    if late:
        for number in range(9):
            pub.publish("t", b"%d" % number, qos=1)
    house.connect("b", V5, expiry_s=5).subscribe(SHARE, qos=1).drop()
    house.connect("c", V5, expiry_s=6000).subscribe(SHARE, qos=1).drop()
    if not late:
        for number in range(9):
            pub.publish("t", b"%d" % number, qos=1)

    house = inn.restart(after_s)
    house.advance(8)

    assert len(pub.of(Puback)) == 9
    assert set(house.broker.sessions.by_id) == {"c"}
    assert sorted(payloads(back(house, "c"))) == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("back_s", [1, 1000])
def test_a_clock_set_back_over_a_restart_and_retained_messages(inn: Inn, back_s: int) -> None:
    """What is published, or cleared, after the restart is newer than what was before it."""
    pub = inn.house.connect("p", V5)
    for number in range(5):
        pub.publish(f"other/{number}", b"x", qos=1, retain=True)
    pub.publish("t", b"old", qos=1, retain=True)

    house = inn.restart(-back_s)
    pub = house.connect("p", V5).publish("t", b"new", qos=1, retain=True)
    after = payloads(house.connect("s", V5).subscribe("t", qos=1))
    pub.publish("t", b"", qos=1, retain=True)
    cleared = house.connect("s2", V5).subscribe("t", qos=1)

    assert [answer.reason.is_failure for answer in pub.of(Puback)] == [False, False]
    assert after == [b"new"]
    assert payloads(cleared) == []
    assert payloads(inn.restart().connect("s", V5).subscribe("#", qos=1)) == [b"x"] * 5


def test_a_clock_set_back_over_a_restart_and_a_cleared_topic(inn: Inn) -> None:
    """A deletion is remembered, and what is published afterwards is newer, whatever the clock says."""
    inn.house.connect("p", V5).publish("t", b"old", qos=1, retain=True).publish("t", b"", qos=1, retain=True)

    house = inn.restart(-3600)
    house.connect("p", V5).publish("t", b"new", qos=1, retain=True)

    assert payloads(house.connect("s", V5).subscribe("t", qos=1)) == [b"new"]
    assert payloads(inn.restart().connect("s", V5).subscribe("t", qos=1)) == [b"new"]


@pytest.mark.parametrize("when", ["over each restart", "in use"])
def test_a_clock_set_back_and_a_delayed_message(inn: Inn, when: str) -> None:
    """One that was published is gone for good: it does not come again at the next start."""
    inn.house.connect("off", V5, expiry_s=6000).subscribe("w", qos=2).drop()
    pub = inn.house.connect("c", V5)
    for number in range(5):
        pub.publish(f"other/{number}", b"x", qos=1, retain=True)
    pub.publish("$delayed/5/w", b"later", qos=2)
    begin = inn.house.clock.now()
    came: list[list[bytes]] = []

    for life in range(3):
        start = begin - 3 if when == "over each restart" else begin + 1 + 60 * life
        house = inn.restart(start - inn.house.clock.now())
        if when == "in use" and life == 0:
            house.clock.step(-1000)
        house.advance(20)
        client = back(house, "off")
        came.append(payloads(client))
        client.drop()

    assert came == [[b"later"], [], []]
    kept: Any = inn.house.broker.runtime.stores.retain.match("$plugin/#")
    assert kept.messages == ()


@pytest.mark.parametrize("retain", [False, True])
def test_a_disk_that_is_full_disconnects_no_subscriber(
    inn: Inn, retain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the turn was kept, and that is certain: its subscriber's session is as it was, and stays in use."""
    sub = inn.house.connect("s", V5, expiry_s=6000).subscribe("w", qos=1)
    pub = inn.house.connect("p", V5)

    def full(segment: Segment, data: bytes) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Segment, "append", full)
    pub.publish("w", b"lost", qos=1, retain=retain)
    inn.house.advance(1)
    monkeypatch.undo()
    inn.house.connect("again", V5).publish("w", b"x", qos=1, retain=retain)

    assert [answer.reason.is_failure for answer in pub.of(Puback)] in ([], [True])
    assert not sub.closed
    assert payloads(sub) == [b"x"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_delayed_message_that_the_disk_may_not_have(
    careful: Inn, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher was told that it was not kept and repeats it: it comes after all, and of QoS 2 once."""
    house = careful.house
    live = house.connect("live", V5).subscribe("w", qos=2)
    pub = house.connect("q", V5, expiry_s=6000)
    sync = Segment.sync
    failures: list[Segment] = []

    def fails_once(segment: Segment) -> None:
        if not failures:
            failures.append(segment)
            raise OSError(5, "Input/output error")
        sync(segment)

    monkeypatch.setattr(Segment, "sync", fails_once)
    pub.publish("$delayed/2/w", b"later", qos=qos, packet_id=1)
    house.advance(5)

    again = back(house, "q")
    again.publish("$delayed/2/w", b"later", qos=qos, packet_id=1, dup=True)
    house.advance(10)

    assert (len(failures), pub.of(Puback), pub.of(Pubrec), pub.closed) == (1, [], [], True)
    assert len(again.of(Pubrec if qos == 2 else Puback)) == 1
    assert payloads(live) == [b"later"] if qos == 2 else set(payloads(live)) == {b"later"}
    kept: Any = house.broker.runtime.stores.retain.match("$plugin/#")
    assert kept.messages == ()


def test_a_message_in_many_queues_takes_no_more_at_each_restart(inn: Inn) -> None:
    """A log of many segments is told anew at most to about the size of what it tells of."""
    for number in range(40):
        inn.house.connect(f"s{number}", V5, expiry_s=6000).subscribe("t", qos=1).drop()
    inn.house.connect("p", V5).publish("t", b"x" * 200_000, qos=1)

    for life in range(MOST_SEGMENTS + 4):
        house = inn.restart(1)
        house.connect("p", V5).publish("r", b"%d" % life, qos=1, retain=True)
        house.advance(2)

    assert sum(path.stat().st_size for path in inn.data.glob("journal-*")) < 2_000_000
    assert [p.payload for p in back(inn.house, "s7").of(Publish)] == [b"x" * 200_000]


def test_properties_count_where_queues_are_bounded(inn: Inn) -> None:
    """A message of one byte with large properties is a large message, also after a restart."""
    large = Properties(user_property=(("k", "x" * 30_000),))
    inn.house.connect("s", V5, expiry_s=6000).subscribe("t", qos=1).drop()
    inn.house.connect("p", V5).publish("t", b"x", qos=1, properties=large)
    before = inn.house.broker.runtime.stores.queue.totals()

    after = inn.restart().broker.runtime.stores.queue.totals()

    assert before.queued_bytes > 30_000
    assert after == before
