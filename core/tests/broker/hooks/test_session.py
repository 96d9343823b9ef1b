"""The hooks of sessions, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail, succeed

from core_harness.house import House
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi import Client, ReasonCode, hookimpl
from kinmqtt_spi.errors import AssemblyError, ServiceUnavailable
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.values import Address


def broken(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


# session_store


class Provider:
    """Provides the session store."""

    def __init__(self, store: Any) -> None:
        self.store = store

    @hookimpl
    def session_store(self, context: Any) -> Any:
        return self.store() if callable(self.store) else self.store


class SlowStore(MemorySessionStore):
    """Answers claims when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[Deferred[None]] = []

    def claim(self, client_id: str, node: Any, above: int = 0) -> Any:
        answer: Deferred[Any] = Deferred()
        answer.addCallback(lambda _: MemorySessionStore.claim(self, client_id, node))
        self.claims.append(answer)
        return answer


def test_session_store_of_the_only_plugin_is_used() -> None:
    """A client gets its CONNACK when the plugin's store has answered the claim."""
    store = SlowStore()
    house = House(plugins={"slow": Provider(store)})
    peer = house.connect("c")
    assert peer.packets == []

    store.claims[0].callback(None)
    house.settle()

    assert house.assembly.providers["session"] == "slow"
    assert peer.connack.reason is ReasonCode.SUCCESS


def test_session_store_survives_the_broker() -> None:
    """A broker that starts with a store of the past takes up its sessions."""
    store = MemorySessionStore()
    first = House(plugins={"store": Provider(store)})
    first.connect("c", clean_start=False).subscribe("t", 1).drop()

    second = House(plugins={"store": Provider(store)})

    assert second.connect("c", clean_start=False).connack.session_present
    assert second.broker.router.index.count() == 1


def test_session_store_that_is_away_refuses_the_client() -> None:
    """A claim that fails is told with the store's reason."""

    class Away(MemorySessionStore):
        def claim(self, client_id: str, node: Any, above: int = 0) -> Any:
            return fail(ServiceUnavailable("no route", ReasonCode.SERVER_BUSY))

    peer = House(plugins={"away": Provider(Away())}).connect("c", V5)

    assert peer.connack.reason is ReasonCode.SERVER_BUSY
    assert peer.closed


@pytest.mark.parametrize("store", [broken, lambda: None, lambda: object(), lambda: succeed(MemorySessionStore())])
def test_session_store_that_fails_stops_the_assembly(store: Callable[[], Any]) -> None:
    """A plugin that raises, or answers anything but a store, keeps the broker from starting, and is named."""
    with pytest.raises(AssemblyError, match="plugin 'bad'"):
        House(plugins={"bad": Provider(store)})


# The notices


class Diary:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    @hookimpl
    def session_created(self, client: Client) -> None:
        self.told.append(("created", client.client_id))

    @hookimpl
    def session_resumed(self, client: Client) -> None:
        self.told.append(("resumed", client.client_id))

    @hookimpl
    def session_taken_over(self, client: Client, old_address: Address) -> None:
        self.told.append(("taken over", client.client_id, client.address.host, old_address.host))

    @hookimpl
    def session_expired(self, client_id: str) -> None:
        self.told.append(("expired", client_id))

    @hookimpl
    def session_discarded(self, client_id: str) -> None:
        self.told.append(("discarded", client_id))


def test_session_created_and_session_resumed_are_told_at_connect() -> None:
    """A session is new once, and is resumed each time its client comes back; every plugin is told."""
    one, two = Diary(), Diary()
    house = House(plugins={"one": one, "two": two})

    house.connect("c", clean_start=False).disconnect()
    house.connect("c", clean_start=False).disconnect()

    assert one.told == two.told == [("created", "c"), ("resumed", "c")]


def test_session_discarded_is_told_when_a_session_ends_with_its_connection() -> None:
    """However the connection ended."""
    diary = Diary()
    house = House(plugins={"diary": diary})

    house.connect("a").disconnect()
    house.connect("b").drop()

    assert diary.told == [("created", "a"), ("discarded", "a"), ("created", "b"), ("discarded", "b")]


def test_session_discarded_is_told_of_a_clean_start() -> None:
    """The old session ends before the new one begins."""
    diary = Diary()
    house = House(plugins={"diary": diary})

    house.connect("c", clean_start=False).disconnect()
    house.connect("c", V5, clean_start=True, expiry_s=100)

    assert diary.told == [("created", "c"), ("discarded", "c"), ("created", "c")]


def test_session_taken_over_shows_who_came_and_where_the_old_one_was() -> None:
    """The new connection has the session; the old one is closed."""
    diary = Diary()
    house = House(plugins={"diary": diary})
    old = house.connect("c", clean_start=False, host="192.0.2.1")

    house.connect("c", clean_start=False, host="192.0.2.2")

    assert old.closed
    assert diary.told == [("created", "c"), ("taken over", "c", "192.0.2.2", "192.0.2.1"), ("resumed", "c")]


def test_session_expired_is_told_when_the_time_is_over() -> None:
    """Not before, and not of a session whose client came back."""
    diary = Diary()
    house = House(plugins={"diary": diary})
    house.connect("a", V5, expiry_s=30).drop()
    house.connect("b", V5, expiry_s=30).drop()
    house.advance(25)
    house.connect("b", V5, clean_start=False, expiry_s=30)
    assert ("expired", "a") not in diary.told

    house.advance(10)

    assert [told for told in diary.told if told[0] in ("expired", "discarded")] == [("expired", "a")]


@pytest.mark.parametrize(
    "notice", ["session_created", "session_resumed", "session_taken_over", "session_expired", "session_discarded"]
)
def test_session_notices_that_raise_harm_nobody(notice: str) -> None:
    """Sessions come and go all the same; other plugins are told, and the failure is counted."""

    def tell(self: object) -> None:
        broken()

    tell.__name__ = notice
    diary = Diary()
    house = House(plugins={"broken": type("Broken", (), {notice: hookimpl(tell)})(), "diary": diary})

    house.connect("a", V5, expiry_s=10)
    house.connect("a", V5, clean_start=False, expiry_s=10).drop()
    house.advance(15)
    house.connect("b").disconnect()

    assert [told[0] for told in diary.told] == [
        "created",
        "taken over",
        "resumed",
        "expired",
        "created",
        "discarded",
    ]
    assert house.assembly.metrics.sum("plugin.failures") == (2 if notice == "session_created" else 1)
