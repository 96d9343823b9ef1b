"""Sessions that, as the store says, another node holds, or a node that is gone has left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from core_harness.house import House
from core_harness.stores import Later, SlowQueues, SlowSessions
from kinmqtt.mqtt.packets import V5, Connack, Connect, ConnectWill
from kinmqtt_spi import Properties, hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.queue import Append
from kinmqtt_spi.services.session import SessionPage
from kinmqtt_spi.testing.build import entry
from kinmqtt_spi.values import NodeIdentity

KEPT: dict[str, Any] = {"version": V5, "clean_start": False, "expiry_s": 60}
OTHER = NodeIdentity("other", 8)


class SharedSessions(SlowSessions):
    """A store that says of clients what a test has it say."""

    def __init__(self) -> None:
        super().__init__()
        self.others: set[str] = set()
        """Who is said to be held by another node."""
        self.behind: list[str] = []
        """Who is said to be left behind, until somebody claims it."""
        self.asks = Later()

    def iterate(self, cursor: object = None, limit: int = 1000) -> SessionPage:
        return evolve(super().iterate(cursor, limit), elsewhere=frozenset(self.others))

    def orphaned(self, node: NodeIdentity, limit: int) -> Any:
        return self.asks(lambda: tuple(self.behind[:limit]))

    def adopt(self, client_id: str, node: NodeIdentity) -> Any:
        return self.claim(client_id, node) if client_id in self.behind else None

    def claim(self, client_id: str, node: Any, above: int = 0) -> Any:
        if client_id in self.behind:
            self.behind.remove(client_id)
        return super().claim(client_id, node, above)

    @hookimpl
    def session_store(self) -> SharedSessions:
        return self


class FailingQueues(SlowQueues):
    """A queue store that can't tell what it holds, as often as a test says."""

    fails = 0

    def load(self, client_id: str) -> Any:
        if self.fails:
            self.fails -= 1
            raise ServiceUnavailable("the store is away")
        return super().load(client_id)


def left(will: ConnectWill | None = None, names: Sequence[str] = ("c",)) -> tuple[SharedSessions, FailingQueues]:
    """The stores of a broker that is gone, at which clients that subscribe to their names were connected."""
    sessions, queues = SharedSessions(), FailingQueues()
    gone = House(plugins={"sessions": sessions, "queues": queues})
    for name in names:
        gone.connect(name, will=will, **KEPT).subscribe(name, qos=1)
    return sessions, queues


def survivor(sessions: SharedSessions, queues: SlowQueues) -> House:
    """A broker that runs while all that is stored is held by another."""
    sessions.others = {stored.client_id for _, stored in sessions.iterate().sessions}
    return House(plugins={"sessions": sessions, "queues": queues}, clock=TurnableClock())


def append(client_id: str, epoch: int, payload: bytes) -> Any:
    """An entry that is queued."""
    return Append(client_id, epoch, entry(1, payload=payload))


def test_who_starts_leaves_alone_what_others_hold() -> None:
    """Of a page's sessions those that are elsewhere are not claimed; the others are."""
    sessions, queues = left(names=("c", "d"))
    sessions.others = {"c"}
    before = {stored.client_id: epoch for epoch, stored in sessions.iterate().sessions}

    house = House(plugins={"sessions": sessions, "queues": queues})

    after = {stored.client_id: epoch for epoch, stored in sessions.iterate().sessions}
    assert set(house.broker.sessions.by_id) == {"d"}
    assert after == {"c": before["c"], "d": before["d"] + 1}


def test_who_starts_adopts_what_was_left_behind() -> None:
    """What is named at the start is there once the broker has started, claimed once."""
    sessions, queues = left(names=("c", "d"))
    sessions.behind = ["c", "d"]

    house = House(plugins={"sessions": sessions, "queues": queues})

    assert set(house.broker.sessions.by_id) == {"c", "d"}
    assert {epoch for epoch, _ in sessions.iterate().sessions} == {2}


def test_what_was_left_behind_is_adopted() -> None:
    """Within a second what comes for the session is queued here, behind what waited for it there."""
    sessions, queues = left()
    queues.apply([append("c", 1, b"before")])
    house = survivor(sessions, queues)

    sessions.behind = ["c"]
    house.advance(1)
    house.connect("p").publish("c", b"since", qos=1)

    client = house.connect("c", **KEPT)
    assert client.connack.session_present
    assert [payload for _, payload, _ in client.messages] == [b"before", b"since"]


def test_its_will_and_its_expiry_go_on() -> None:
    """The will of an adopted session is published once, and the session ends in its time."""
    sessions, queues = left(ConnectWill("wills", b"gone"))
    house = survivor(sessions, queues)
    heir = house.connect("heir").subscribe("wills")

    sessions.behind = ["c"]
    house.advance(1)
    house.advance(2)
    published = len(heir.messages)
    house.advance(61)
    house.advance(2)

    assert (published, len(heir.messages)) == (1, 1)
    assert sessions.count() == 0
    assert "c" not in house.broker.sessions.by_id


def test_a_client_that_comes_meanwhile_is_not_disturbed() -> None:
    """Who connects between the naming and the adoption keeps its connection, under the one claim that it made."""
    sessions, queues = left()
    house = survivor(sessions, queues)
    sessions.behind = ["c"]
    sessions.asks.slow = True
    house.advance(1)
    named = list(sessions.behind)

    client = house.connect("c", **KEPT)
    sessions.asks.pending.popleft()[1].callback(named)
    house.settle()
    house.connect("p").publish("c", b"x", qos=1)

    client.collect()
    assert not client.closed
    assert [payload for _, payload, _ in client.messages] == [b"x"]
    assert [epoch for epoch, _ in sessions.iterate().sessions] == [2]


def test_a_client_that_comes_during_the_adoption_waits_for_it() -> None:
    """A CONNECT while the claim is under way stands in line, and finds its session."""
    sessions, queues = left()
    house = survivor(sessions, queues)
    sessions.behind = ["c"]
    sessions.claims.slow = True
    house.advance(1)

    client = house.open(V5)
    client.send(
        Connect(
            version=V5,
            client_id="c",
            clean_start=False,
            keep_alive=0,
            properties=Properties(session_expiry_interval=60),
            will=None,
            username=None,
            password=None,
        )
    )
    early = client.of(Connack)
    sessions.claims.answer_all()
    house.settle()
    client.collect()

    assert early == []
    assert client.connack.session_present
    assert not client.closed


def test_an_older_copy_gives_way() -> None:
    """Where the client had been here before it was there, what is adopted is what was kept there since."""
    sessions, queues = left(names=())
    house = survivor(sessions, queues)
    house.connect("c", **KEPT).subscribe("c", qos=1).drop()
    epoch = sessions.claim("c", OTHER).epoch
    queues.apply([append("c", epoch, b"there")])

    sessions.behind = ["c"]
    house.advance(1)

    client = house.connect("c", **KEPT)
    house.connect("p").publish("c", b"here", qos=1)
    assert [payload for _, payload, _ in client.messages] == [b"there", b"here"]
    assert house.broker.router.index.count() == 1


def test_who_was_taken_for_gone_goes_on() -> None:
    """A session that is named to the node that holds it, client and all, goes on undisturbed."""
    sessions, queues = left(names=())
    house = survivor(sessions, queues)
    client = house.connect("c", **KEPT).subscribe("c", qos=1)
    waiting = house.connect("w", **KEPT).subscribe("w", qos=1).drop()

    sessions.behind = ["c", "w"]
    house.advance(1)
    house.connect("p").publish("c", b"x", qos=1).publish("w", b"x", qos=1)
    house.advance(30)

    assert not client.closed
    assert [payload for _, payload, _ in client.messages] == [b"x"]
    assert waiting.closed
    assert [payload for _, payload, _ in house.connect("w", **KEPT).messages] == [b"x"]
    house.advance(61)
    assert sessions.count() == 2


def test_a_queue_that_can_not_be_read_is_asked_again() -> None:
    """Once a session is claimed it is adopted, however long its queue can't be told."""
    sessions, queues = left()
    house = survivor(sessions, queues)
    queues.fails = 2
    sessions.behind = ["c"]
    house.advance(1)
    early = "c" in house.broker.sessions.by_id

    for _ in range(3):
        house.advance(1)

    assert not early
    assert "c" in house.broker.sessions.by_id
    house.advance(61)
    assert sessions.count() == 0
