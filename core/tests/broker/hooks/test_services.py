"""The hooks that provide a service: of several plugins the named one is used, by all of the broker's traffic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from core_harness.house import House
from kinmqtt.builtins import DEFAULTS
from kinmqtt.hooks.manager import PROVIDERS
from kinmqtt.mqtt.packets import V5, Puback
from kinmqtt_spi import ReasonCode, hookimpl
from kinmqtt_spi.errors import AssemblyError, Fenced, ServiceUnavailable
from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.event_feed import LocalFeed
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.memory.subscription import NaiveIndex

MEMORY: dict[str, Callable[[Any], Any]] = {
    "subscription": lambda context: NaiveIndex(),
    "queue": lambda context: MemoryQueueStore(),
    "retain": lambda context: MemoryRetainStore(),
    "session": lambda context: MemorySessionStore(),
    "event": lambda context: MemoryEventLog(context.clock.later),
    "feed": lambda context: LocalFeed(MemoryEventLog(context.clock.later), "node"),
    "cluster": lambda context: SingleNode(),
}
WORK = {
    "subscription": "add",
    "queue": "apply",
    "retain": "put",
    "session": "claim",
    "event": "append",
    "feed": "consume",
    "cluster": "claim",
}
"""By family, a method that the traffic below leads to."""

FAMILIES = sorted(DEFAULTS)


class Provider:
    """Provides the service of one family; what the broker asks of it may be watched and answered otherwise."""

    def __init__(self, family: str, instead: Callable[..., Any] | None = None) -> None:
        self.family = family
        self.calls = 0
        self.instead = instead
        self.provided = 0
        setattr(type(self), PROVIDERS[family], hookimpl(lambda self, context: self._provide(context)))

    def __new__(cls, family: str, *_: Any, **__: Any) -> Provider:
        return super().__new__(type(f"{family.title()}Provider", (cls,), {}))

    def _provide(self, context: Any) -> Any:
        self.provided += 1
        service = MEMORY[self.family](context)
        name = WORK[self.family]
        original = getattr(service, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            return original(*arguments, **named) if self.instead is None else self.instead(original, *arguments)

        setattr(service, name, watched)
        return service


def traffic(house: House) -> list[tuple[str, bytes, int]]:
    """A bit of everything: what a subscriber that was away gets in the end."""
    house.connect("s", V5, expiry_s=60).subscribe("a/#", qos=1).drop()
    house.connect("p").publish("a/b", b"x", qos=1, retain=True)
    return house.connect("s", V5, expiry_s=60, clean_start=False).messages


@pytest.mark.parametrize("family", FAMILIES)
def test_a_named_provider_is_used(family: str) -> None:
    """Of two plugins the settings' one serves: it alone is asked to provide, once, and it gets the work."""
    named, other = Provider(family), Provider(family)

    house = House(plugins={"other": other, "named": named}, services={family: "named"})
    house.assembly.contexts["named"].events.consume("group", lambda batch: None)
    messages = traffic(house)

    assert messages == [("a/b", b"x", 1)]
    assert house.assembly.providers == {**DEFAULTS, family: "named"}
    assert (named.provided, other.provided) == (1, 0)
    assert named.calls > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_built_in_provider_may_be_named(family: str) -> None:
    """Naming the built-in keeps an installed provider out."""
    provider = Provider(family)

    house = House(plugins={"other": provider}, services={family: DEFAULTS[family]})

    assert traffic(house) == [("a/b", b"x", 1)]
    assert provider.provided == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_two_providers_need_a_name(family: str) -> None:
    """The broker does not guess between two plugins, and says what to write."""
    plugins = {"one": Provider(family), "two": Provider(family)}

    with pytest.raises(AssemblyError, match=f"'one' and 'two' both provide the {family} service; name one"):
        House(plugins=plugins)


# Stores that take their time, or fail


@pytest.mark.parametrize("family", ["queue", "retain", "event"])
def test_a_client_is_answered_when_a_slow_store_has_kept_its_message(family: str) -> None:
    """PUBACK waits for the commit of each store that the message goes to."""
    commits: list[Deferred[None]] = []

    def slow(original: Callable[..., Any], *arguments: Any) -> Any:
        original(*arguments)
        commits.append(Deferred())
        return commits[-1]

    provider = Provider(family)
    house = House(plugins={"slow": provider})
    house.connect("s", V5, expiry_s=60).subscribe("a", qos=1).drop()
    pub = house.connect("p", V5)
    provider.instead = slow

    pub.publish("a", b"x", qos=1, retain=True)
    assert pub.of(Puback) == []
    commits[0].callback(None)
    house.settle()

    assert [puback.reason for puback in pub.of(Puback)] == [ReasonCode.SUCCESS]


@pytest.mark.parametrize("family", ["queue", "retain", "event"])
def test_acknowledgements_keep_their_order_over_slow_commits(family: str) -> None:
    """Where a later commit is done first its PUBACK still comes second [MQTT-4.6.0-2]."""
    commits: list[Deferred[None]] = []

    def slow(original: Callable[..., Any], *arguments: Any) -> Any:
        original(*arguments)
        commits.append(Deferred())
        return commits[-1]

    provider = Provider(family)
    house = House(plugins={"slow": provider})
    house.connect("s", V5, expiry_s=60).subscribe("#", qos=1).drop()
    pub = house.connect("p", V5)
    provider.instead = slow
    pub.publish("a", b"x", qos=1, retain=True, packet_id=11).publish("b", b"x", qos=1, retain=True, packet_id=12)

    commits[1].callback(None)
    house.settle()
    assert pub.of(Puback) == []
    commits[0].callback(None)
    house.settle()

    assert [puback.packet_id for puback in pub.of(Puback)] == [11, 12]


@pytest.mark.parametrize("family", ["queue", "retain"])
@pytest.mark.parametrize("sort", ["raises", "fires with a failure"])
def test_a_store_that_does_not_keep_a_message_costs_its_publisher_the_connection(family: str, sort: str) -> None:
    """Nothing is acknowledged that depended on it, and the client is told the store's reason."""

    def refuse(original: Callable[..., Any], *arguments: Any) -> Any:
        error = ServiceUnavailable("the disk is full", ReasonCode.QUOTA_EXCEEDED)
        if sort == "raises":
            raise error
        failed: Deferred[None] = Deferred()
        failed.errback(error)
        return failed

    provider = Provider(family)
    house = House(plugins={"full": provider})
    house.connect("s", V5, expiry_s=60).subscribe("a", qos=1).drop()
    pub = house.connect("p", V5)
    provider.instead = refuse

    pub.publish("a", b"x", qos=1, retain=True)

    assert pub.of(Puback) == []
    assert pub.closed
    assert int(pub.packets[-1].reason) == ReasonCode.QUOTA_EXCEEDED  # type: ignore[union-attr]


def test_a_fenced_session_is_given_up() -> None:
    """Where the store knows a newer owner, the client here is disconnected with 0x8E, and the others live on."""

    def fence(original: Callable[..., Any], writes: Any) -> Any:
        raise Fenced({"mine"})

    provider = Provider("queue")
    house = House(plugins={"fencing": provider})
    mine = house.connect("mine", V5, expiry_s=60).subscribe("a", qos=1)
    other = house.connect("other", V5).subscribe("a", qos=1)
    provider.instead = fence

    house.connect("p").publish("a", b"x", qos=1)

    assert mine.closed
    assert int(mine.packets[-1].reason) == ReasonCode.SESSION_TAKEN_OVER  # type: ignore[union-attr]
    assert other.messages == [("a", b"x", 1)]


# Services that have to be waited for


@pytest.mark.parametrize("family", ["session", "cluster"])
def test_a_claim_may_take_its_time(family: str) -> None:
    """CONNACK waits until the client id is this node's."""
    waiting: list[Deferred[None]] = []

    def slow(original: Callable[..., Any], *arguments: Any) -> Any:
        waiting.append(Deferred())
        return waiting[-1].addCallback(lambda _: original(*arguments))

    house = House(plugins={"slow": Provider(family, slow)})

    client = house.connect("c", V5)
    assert client.packets == []
    waiting[0].callback(None)
    house.settle()

    assert client.connack.reason is ReasonCode.SUCCESS


def test_subscribe_waits_for_the_other_nodes() -> None:
    """SUBACK comes when every node knows the route, or those that do not have had their time."""
    known: list[Deferred[Any]] = []

    class Slow(SingleNode):
        def route_barrier(self, version: int, limit_s: float) -> Any:
            known.append(Deferred())
            return known[-1]

    class Cluster:
        @hookimpl
        def cluster_backend(self) -> SingleNode:
            return Slow()

    house = House(plugins={"cluster": Cluster()})
    client = house.connect("c").subscribe("a")
    assert len(client.packets) == 1

    known[0].callback(())
    house.settle()

    assert client.granted == [0]


def test_services_may_answer_with_deferreds_that_have_fired() -> None:
    """A store that always answers with a Deferred serves as well as one that answers at once."""

    def fired(original: Callable[..., Any], *arguments: Any) -> Any:
        return succeed(original(*arguments))

    plugins = {family: Provider(family, fired) for family in ("queue", "retain", "session", "event", "cluster")}

    assert traffic(House(plugins=plugins)) == [("a/b", b"x", 1)]
