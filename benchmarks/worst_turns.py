"""The most expensive packets that the default bounds let in: how long each holds the event loop.

    python benchmarks/worst_turns.py [NAME ...] [--quick] [--rounds N]

One process, no sockets: the broker of the tests' harness, whose every call is timed by itself: a read, a call of the
next reactor turn, a timer. Of each scenario it prints the longest single call and how many calls there were. Other
clients wait that long, so nothing here should take more than ten milliseconds. The processor's time is what counts:
what else a machine does only ever adds.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any, Final

from attrs import define, field

from kinmqtt import TWIN
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.codec.primitives import write_utf8, write_varint
from kinmqtt.mqtt.packets import V5, ConnectWill, Publish, Subscribe, SubscribeRequest, Unsubscribe
from kinmqtt_spi import hookimpl
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.values import ALLOW, Message, Subscription

sys.path.append(str(Path(__file__).resolve().parents[1] / "core" / "tests" / "harness"))
from core_harness.house import House, Peer

READ_BYTES: Final = 256_000
"""What uvloop hands over at one time; other loops read 64 KB."""

LIMIT_MS: Final = 10.0


@define
class Longest:
    """The longest single call of a scenario."""

    seconds: float = 0.0
    calls: int = 0
    what: str = ""
    is_on: bool = False
    each: list[float] = field(factory=list)

    def time(self, what: str, call: Callable[[], object]) -> None:
        """Make a call, and take its time where a scenario is being measured."""
        if not self.is_on:
            call()
            return
        began = thread_time()
        call()
        took = thread_time() - began
        self.calls += 1
        self.each.append(took)
        if took > self.seconds:
            self.seconds, self.what = took, what


class TimedClock(TurnableClock):
    """Takes the time of every timer's call. Its seconds pass while the processor is at work for this thread."""

    def __init__(self, longest: Longest) -> None:
        super().__init__()
        self._longest = longest
        self.soon: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        """Seconds since the clock was made, with those that were worked."""
        return super().monotonic() + thread_time()

    def later(self, delay_s: float, call: Callable[[], object]) -> Any:
        """Make ``call`` later, and take its time. What it wants done soon is done before the next timer's call."""

        def timed() -> None:
            self._longest.time("a timer", call)
            self.soon()

        return super().later(delay_s, timed)


class TimedHouse(House):
    """A broker of which every single call from the event loop is timed."""

    def __init__(self, **more: Any) -> None:
        self.longest = Longest()
        clock = TimedClock(self.longest)
        super().__init__(clock=clock, **more)
        clock.soon = self._run_soon

    def _run_soon(self) -> None:
        for _ in range(len(self._soon)):
            self.longest.time("a turn", self._soon.popleft())

    def settle(self) -> None:
        """Run reactor turns until nothing more happens without time passing."""
        busy = True
        while busy:
            busy = False
            while self._soon:
                self.longest.time("a turn", self._soon.popleft())
                busy = True
            for peer in self.peers:
                # What clients answer is no part of what is measured.
                peer.link.written.clear()
            before = len(self.clock._timers)
            self.clock.advance(0)
            busy |= bool(self._soon) or len(self.clock._timers) != before

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Take the time of what is called in here."""
        gc.collect()
        gc.disable()
        self.longest.is_on = True
        try:
            yield
        finally:
            self.longest.is_on = False
            gc.enable()

    def read(self, peer: Peer, data: bytes, limit: int = READ_BYTES) -> None:
        """Hand a client's bytes over as an event loop reads them."""
        for start in range(0, len(data), limit):
            part = data[start : start + limit]
            if not peer.link.closed:
                self.longest.time("a read", partial(peer.connection.receive, part))
            self.settle()

    def lose(self, *peers: Peer) -> None:
        """Lose connections, all in one turn."""
        for peer in peers:
            peer.link.closed = True
            self.longest.time("a lost connection", partial(peer.connection.lost, "gone"))
        self.settle()


SCENARIOS: dict[str, Callable[[bool], Longest]] = {}


def scenario(call: Callable[[bool], Longest]) -> Callable[[bool], Longest]:
    """Register a scenario; it is handed whether it is to be quick."""
    SCENARIOS[call.__name__] = call
    return call


def packet(first_byte: int, body: bytes) -> bytes:
    """A whole packet."""
    return bytes((first_byte,)) + write_varint(len(body)) + body


def listed(one: bytes, size_bytes: int) -> bytes:
    """A property list that is full of one property."""
    properties = one * (size_bytes // len(one))
    return write_varint(len(properties)) + properties


EMPTY_PAIR: Final = b"\x26\0\0\0\0"
LARGEST_LIST: Final = 500_000


def one_packet(data: bytes, version: int = V5, house: TimedHouse | None = None, **of_connect: Any) -> Longest:
    """What one packet of a connected client takes."""
    house = house or TimedHouse()
    peer = house.connect("attacker", version, **of_connect)
    with house.measured():
        house.read(peer, data)
    return house.longest


# Property lists


@scenario
def connect_with_user_properties(quick: bool) -> Longest:
    house = TimedHouse()
    peer = house.open(V5)
    body = write_utf8("MQTT") + bytes((5, 2, 0, 0)) + listed(EMPTY_PAIR, 60_000) + write_utf8("c")
    with house.measured():
        house.read(peer, packet(0x10, body))
    return house.longest


@scenario
def connect_with_will_properties(quick: bool) -> Longest:
    house = TimedHouse()
    peer = house.open(V5)
    will = listed(EMPTY_PAIR, 60_000) + write_utf8("t") + write_utf8("")
    body = write_utf8("MQTT") + bytes((5, 6, 0, 0, 0)) + write_utf8("c") + will
    with house.measured():
        house.read(peer, packet(0x10, body))
    return house.longest


@scenario
def publish_with_user_properties(quick: bool) -> Longest:
    return one_packet(packet(0x30, write_utf8("t") + listed(EMPTY_PAIR, LARGEST_LIST)))


@scenario
def publish_with_long_user_properties(quick: bool) -> Longest:
    pair = b"\x26" + write_utf8("é" * 32_000) + write_utf8("é" * 32_000)
    return one_packet(packet(0x30, write_utf8("t") + listed(pair, LARGEST_LIST)))


@scenario
def publish_with_subscription_identifiers(quick: bool) -> Longest:
    return one_packet(packet(0x30, write_utf8("t") + listed(b"\x0b\x01", LARGEST_LIST)))


@scenario
def publish_with_user_properties_to_mixed_versions(quick: bool) -> Longest:
    """What the bound lets in, encoded anew for somebody with a subscription identifier."""
    house = TimedHouse()
    for number in range(100):
        house.connect(f"s{number}", V5).subscribe("t", properties=Properties(subscription_identifier=(1,)))
    pair = b"\x26" + write_utf8("name") + write_utf8("value")
    return one_packet(packet(0x30, write_utf8("t") + listed(pair, 100 * len(pair))), house=house)


@scenario
def subscribe_with_user_properties(quick: bool) -> Longest:
    return one_packet(packet(0x82, b"\0\1" + listed(EMPTY_PAIR, LARGEST_LIST) + write_utf8("t") + b"\0"))


@scenario
def unsubscribe_with_user_properties(quick: bool) -> Longest:
    return one_packet(packet(0xA2, b"\0\1" + listed(EMPTY_PAIR, LARGEST_LIST) + write_utf8("t")))


@scenario
def puback_with_user_properties(quick: bool) -> Longest:
    return one_packet(packet(0x40, b"\0\1\0" + listed(EMPTY_PAIR, LARGEST_LIST)))


@scenario
def disconnect_with_user_properties(quick: bool) -> Longest:
    return one_packet(packet(0xE0, b"\0" + listed(EMPTY_PAIR, LARGEST_LIST)))


@scenario
def auth_with_user_properties(quick: bool) -> Longest:
    return one_packet(packet(0xF0, b"\x18" + listed(EMPTY_PAIR, LARGEST_LIST)))


# SUBSCRIBE and UNSUBSCRIBE


class Guard:
    """An authorizer that allows everything, and an intercept that changes nothing."""

    @hookimpl
    def authorize(self, request: Any) -> Any:
        return ALLOW

    @hookimpl
    def subscribing(self, client: Any, subscription: Any) -> Any:
        return None

    @hookimpl
    def unsubscribing(self, client: Any, filter: Any) -> Any:
        return None


def most_filters(house: TimedHouse) -> int:
    """As many as one packet may have."""
    limits = house.broker.runtime.limits
    return int(min(limits.max_filters, limits.max_subscriptions))


def requests(filters: list[str], packet_id: int = 1) -> bytes:
    """A SUBSCRIBE for many filters."""
    return encode(Subscribe(packet_id, tuple(SubscribeRequest(filter) for filter in filters)), V5)


def subscribe_all(house: TimedHouse, peer: Peer, filters: list[str]) -> None:
    """As many SUBSCRIBE packets as it takes."""
    most = most_filters(house)
    for start in range(0, len(filters), most):
        house.read(peer, requests(filters[start : start + most]))


@scenario
def subscribe_to_most_filters(quick: bool) -> Longest:
    house = TimedHouse()
    return one_packet(requests([f"a/{n}" for n in range(most_filters(house))]), house=house)


@scenario
def subscribe_to_most_filters_with_plugins(quick: bool) -> Longest:
    house = TimedHouse(plugins={"guard": Guard()})
    return one_packet(requests([f"a/{n}" for n in range(most_filters(house))]), house=house)


@scenario
def subscribe_to_most_filters_of_a_kept_session(quick: bool) -> Longest:
    house = TimedHouse()
    return one_packet(requests([f"a/{n}" for n in range(most_filters(house))]), house=house, expiry_s=1000)


@scenario
def subscribe_over_quota(quick: bool) -> Longest:
    house = TimedHouse()
    peer = house.connect("attacker", V5)
    subscribe_all(house, peer, [f"a/{n}" for n in range(house.broker.runtime.limits.max_subscriptions)])
    with house.measured():
        house.read(peer, requests([f"b/{n}" for n in range(most_filters(house))]))
    return house.longest


@scenario
def subscribe_to_deep_filters(quick: bool) -> Longest:
    house = TimedHouse()
    deep = [f"{n}/" + "/".join("+" * 199) for n in range(most_filters(house))]
    return one_packet(requests(deep), house=house)


@scenario
def unsubscribe_from_most_filters(quick: bool) -> Longest:
    house = TimedHouse()
    peer = house.connect("attacker", V5)
    filters = [f"a/{n}" for n in range(most_filters(house))]
    house.read(peer, requests(filters))
    with house.measured():
        house.read(peer, encode(Unsubscribe(1, tuple(filters)), V5))
    return house.longest


@scenario
def unsubscribe_from_what_is_not_there(quick: bool) -> Longest:
    house = TimedHouse()
    return one_packet(encode(Unsubscribe(1, tuple(f"a/{n}" for n in range(most_filters(house)))), V5), house=house)


# Matches


def cube(levels: int) -> list[str]:
    """Every filter of that many levels that is made of ``a`` and ``+``."""
    return ["/".join(each) for each in product("a+", repeat=levels)]


@scenario
def publish_to_overlapping_filters(quick: bool) -> Longest:
    """Three clients with 8,192 filters each that match one topic; somebody subscribes before each PUBLISH."""
    house = TimedHouse()
    for number in range(3):
        peer = house.connect(f"overlapping-{number}", V5)
        subscribe_all(house, peer, cube(13))
    publisher = house.connect("publisher", V5)
    other = house.connect("other", V5)
    for number in range(5):
        other.subscribe(f"other/{number}/+")
        with house.measured():
            house.read(publisher, encode(Publish.build("/".join("a" * 13), b""), V5))
    return house.longest


@scenario
def publish_to_deep_overlapping_filters(quick: bool) -> Longest:
    """Three clients with as many filters of 200 levels as they may have, whose last level alone does not match."""
    house = TimedHouse()
    random = Random(1)
    count = 100 if quick else 1000
    for number in range(3):
        peer = house.connect(f"overlapping-{number}", V5)
        filters = ["/".join(random.choice("a+") for _ in range(199)) + "/b" for _ in range(count)]
        subscribe_all(house, peer, filters)
    publisher = house.connect("publisher", V5)
    with house.measured():
        house.read(publisher, encode(Publish.build("/".join("a" * 200), b""), V5))
    return house.longest


@scenario
def publish_to_shared_groups_of_one_client(quick: bool) -> Longest:
    house = TimedHouse()
    peer = house.connect("sharing", V5)
    subscribe_all(house, peer, [f"$share/g{n}/a" for n in range(house.broker.runtime.limits.max_subscriptions)])
    publisher = house.connect("publisher", V5)
    for _ in range(2):
        with house.measured():
            house.read(publisher, encode(Publish.build("a", b""), V5))
    return house.longest


@scenario
def publish_to_many_topics_after_changes(quick: bool) -> Longest:
    """A cache full of fan-outs, then a change, then one PUBLISH."""
    house = TimedHouse()
    house.connect("all", V5).subscribe("#")
    publisher = house.connect("publisher", V5)
    count = 2000 if quick else 20_000
    for start in range(0, count, 1000):
        packets = [encode(Publish.build(f"t/{n}", b""), V5) for n in range(start, start + 1000)]
        house.read(publisher, b"".join(packets))
    other = house.connect("other", V5)
    with house.measured():
        house.read(other, requests(["x/+"]))
        house.read(publisher, encode(Publish.build("t/1", b""), V5))
        house.read(publisher, encode(Publish.build("u/1", b""), V5))
    return house.longest


# Retained messages


def retain(house: TimedHouse, topics: list[str]) -> None:
    """Have a message retained for each topic."""
    for start in range(0, len(topics), 1000):
        for topic in topics[start : start + 1000]:
            house.broker.publish(Message(topic, b"x", 0, True))
        house.settle()


@scenario
def retained_filters_that_match_nothing(quick: bool) -> Longest:
    house = TimedHouse()
    retain(house, [f"d/{n // 100}/{n}/t" for n in range(10_000 if quick else 100_000)])
    peers = [house.connect(f"attacker{n}", V5) for n in range(3)]
    filters = [f"d/+/+/none{n}" for n in range(5 if quick else 20)]
    with house.measured():
        for peer in peers:

            def read(peer: Peer = peer) -> None:
                peer.connection.receive(requests(filters))

            house.longest.time("a read", read)
        house.settle()
    return house.longest


@scenario
def retained_exact_filters(quick: bool) -> Longest:
    house = TimedHouse()
    peer = house.connect("attacker", V5)
    with house.measured():
        house.read(peer, requests([f"none/{n}" for n in range(most_filters(house))]))
    return house.longest


@scenario
def retained_of_many_clients(quick: bool) -> Longest:
    """Many clients subscribe to everything at once."""
    house = TimedHouse()
    retain(house, [f"d/{n // 100}/{n}/t" for n in range(2000)])
    peers = [house.connect(f"c{n}", V5) for n in range(100)]
    with house.measured():
        for peer in peers:

            def read(peer: Peer = peer) -> None:
                peer.connection.receive(requests(["d/+/+/none", "#"]))

            house.longest.time("a read", read)
        house.settle()
    return house.longest


@scenario
def retained_large_messages(quick: bool) -> Longest:
    house = TimedHouse()
    for n in range(100):
        house.broker.publish(Message(f"d/{n}", bytes(256 << 10), 0, True))
    house.settle()
    return one_packet(requests(["d/#"]), house=house)


# Floods


def flood(one: bytes, **of_connect: Any) -> Longest:
    """A read that is full of one packet."""
    house = TimedHouse()
    house.connect("subscriber", V5).subscribe("t")
    return one_packet(one * (READ_BYTES // len(one)), house=house, **of_connect)


@scenario
def flood_of_pingreq(quick: bool) -> Longest:
    return flood(b"\xc0\0")


@scenario
def flood_of_puback(quick: bool) -> Longest:
    return flood(b"\x40\2\0\1")


@scenario
def flood_of_pubrec(quick: bool) -> Longest:
    return flood(b"\x50\2\0\1")


@scenario
def flood_of_pubrel(quick: bool) -> Longest:
    return flood(b"\x62\2\0\1")


@scenario
def flood_of_qos_0(quick: bool) -> Longest:
    return flood(encode(Publish.build("t", b""), V5))


@scenario
def flood_of_qos_0_with_properties(quick: bool) -> Longest:
    return flood(packet(0x30, write_utf8("t") + listed(EMPTY_PAIR, 5)))


@scenario
def flood_of_qos_0_to_new_topics(quick: bool) -> Longest:
    house = TimedHouse()
    house.connect("subscriber", V5).subscribe("#")
    packets = b"".join(encode(Publish.build(f"{n:x}", b""), V5) for n in range(30_000))
    return one_packet(packets[:READ_BYTES], house=house)


@scenario
def flood_of_qos_0_to_200_subscribers(quick: bool) -> Longest:
    house = TimedHouse()
    for number in range(200):
        house.connect(f"s{number}", V5).subscribe("t")
    return one_packet(encode(Publish.build("t", b""), V5) * 30_000, house=house)


@scenario
def flood_of_qos_1(quick: bool) -> Longest:
    house = TimedHouse()
    house.connect("subscriber", V5).subscribe("t", qos=1)
    packets = b"".join(encode(Publish.build("t", b"", qos=1, packet_id=n), V5) for n in range(1, 1000)) * 40
    return one_packet(packets[:READ_BYTES], house=house, version=4)


@scenario
def flood_of_qos_1_to_kept_sessions(quick: bool) -> Longest:
    house = TimedHouse()
    for number in range(20):
        house.connect(f"s{number}", V5, expiry_s=1000).subscribe("t", qos=1)
    packets = b"".join(encode(Publish.build("t", b"", qos=1, packet_id=n), V5) for n in range(1, 1000)) * 40
    return one_packet(packets[: 64 << 10], house=house, version=4)


@scenario
def flood_of_retained(quick: bool) -> Longest:
    packets = b"".join(encode(Publish.build(f"{n:x}", b"x", retain=True), V5) for n in range(30_000))
    return one_packet(packets[:READ_BYTES])


@scenario
def flood_of_subscribe(quick: bool) -> Longest:
    packets = b"".join(requests([f"{n:x}"]) for n in range(30_000))
    return one_packet(packets[:READ_BYTES])


@scenario
def flood_of_unsubscribe(quick: bool) -> Longest:
    packets = b"".join(encode(Unsubscribe(1, (f"{n:x}",)), V5) for n in range(30_000))
    return one_packet(packets[:READ_BYTES])


@scenario
def flood_before_connack(quick: bool) -> Longest:
    """Packets that come with CONNECT."""
    house = TimedHouse()
    peer = house.open(V5)
    connect = packet(0x10, write_utf8("MQTT") + bytes((5, 2, 0, 0, 0)) + write_utf8("c"))
    with house.measured():
        house.read(peer, connect + b"\xc0\0" * 120_000)
    return house.longest


@scenario
def long_topic_filter(quick: bool) -> Longest:
    """As many bytes of UTF-8 in filters as a packet has room for."""
    house = TimedHouse(max_topic_bytes=4096)
    count = most_filters(house)
    return one_packet(requests([f"{n}" + "é" * 2000 for n in range(count)]), house=house)


@scenario
def deep_topics(quick: bool) -> Longest:
    house = TimedHouse()
    house.connect("subscriber", V5).subscribe("#")
    packets = b"".join(encode(Publish.build(f"{n}" + "/a" * 199, b""), V5) for n in range(600))
    return one_packet(packets, house=house)


@scenario
def large_publish(quick: bool) -> Longest:
    house = TimedHouse()
    house.connect("subscriber", V5).subscribe("t")
    return one_packet(encode(Publish.build("t", bytes(8_000_000)), V5), house=house)


# Ends


def huge_session(house: TimedHouse, client_id: str, quick: bool, expiry_s: int = 1000, queued: bool = True) -> Peer:
    """A session with as many subscriptions as it may have, and a full queue."""
    count = 1000 if quick else house.broker.runtime.limits.max_subscriptions
    peer = house.connect(client_id, V5, expiry_s=expiry_s, silent=True)
    subscribe_all(house, peer, ["q", *(f"{client_id}/{n}/+" for n in range(count - 1))])
    house.read(peer, encode(Subscribe(1, (SubscribeRequest("q", 1),)), V5))
    if queued:
        for _ in range(house.broker.runtime.limits.max_queued_messages // 1000):
            for _ in range(1000):
                house.broker.publish(Message("q", bytes(10), 1))
            house.settle()
    return peer


@scenario
def loss_of_a_huge_session(quick: bool) -> Longest:
    house = TimedHouse()
    peer = huge_session(house, "huge", quick, expiry_s=0)
    with house.measured():
        house.lose(peer)
    return house.longest


@scenario
def expiry_of_huge_sessions(quick: bool) -> Longest:
    house = TimedHouse()
    peers = [huge_session(house, f"huge{n}", quick, expiry_s=10) for n in range(2)]
    house.lose(*peers)
    with house.measured():
        house.advance(12)
    return house.longest


@scenario
def takeover_of_a_huge_session(quick: bool) -> Longest:
    house = TimedHouse()
    huge_session(house, "huge", quick)
    with house.measured():
        house.read(house.open(V5), packet(0x10, write_utf8("MQTT") + bytes((5, 0, 0, 0, 0)) + write_utf8("huge")))
        house.read(house.open(V5), packet(0x10, write_utf8("MQTT") + bytes((5, 2, 0, 0, 0)) + write_utf8("huge")))
    return house.longest


@scenario
def return_to_a_huge_queue(quick: bool) -> Longest:
    house = TimedHouse()
    peer = huge_session(house, "huge", quick)
    house.lose(peer)
    with house.measured():
        expiry = b"\5\x11\0\0\xff\xff"
        body = write_utf8("MQTT") + bytes((5, 0, 0, 0)) + expiry + write_utf8("huge")
        house.read(house.open(V5), packet(0x10, body))
    return house.longest


@scenario
def loss_of_many_with_wills(quick: bool) -> Longest:
    """10,000 clients are gone at once, each with a will that somebody wants."""
    house = TimedHouse()
    house.connect("subscriber", V5).subscribe("will/#", qos=1)
    count = 1000 if quick else 10_000
    peers = [house.connect(f"c{n}", V5, will=ConnectWill(f"will/{n}", b"gone", 1, True)) for n in range(count)]
    with house.measured():
        house.lose(*peers)
    return house.longest


@scenario
def delayed_wills_of_one_second(quick: bool) -> Longest:
    house = TimedHouse()
    house.connect("subscriber", V5).subscribe("will/#", qos=1)
    count = 1000 if quick else 10_000
    later = Properties(will_delay_interval=5)
    will = [ConnectWill(f"will/{n}", b"gone", 1, True, later) for n in range(count)]
    peers = [house.connect(f"c{n}", V5, will=will[n], expiry_s=100) for n in range(count)]
    house.lose(*peers)
    with house.measured():
        house.advance(8)
    return house.longest


@scenario
def expiry_of_many_sessions(quick: bool) -> Longest:
    house = TimedHouse()
    count = 1000 if quick else 10_000
    peers = [house.connect(f"c{n}", V5, expiry_s=5).subscribe("a") for n in range(count)]
    house.lose(*peers)
    with house.measured():
        house.advance(20)
    return house.longest


@scenario
def housekeeping_over_many_sessions(quick: bool) -> Longest:
    house = TimedHouse()
    count = 1000 if quick else 20_000
    house.lose(*(house.connect(f"c{n}", V5, expiry_s=5000) for n in range(count)))
    with house.measured():
        house.advance(5)
    return house.longest


@scenario
def keep_alive_of_many_in_one_second(quick: bool) -> Longest:
    house = TimedHouse()
    count = 1000 if quick else 10_000
    for n in range(count):
        house.connect(f"c{n}", V5, keep_alive=5, will=ConnectWill(f"will/{n}", b"gone"))
    with house.measured():
        house.advance(10)
    return house.longest


@scenario
def expiry_of_retained_in_one_second(quick: bool) -> Longest:
    house = TimedHouse()
    soon = Properties(message_expiry_interval=5)
    for n in range(1000 if quick else 20_000):
        house.broker.publish(Message(f"r/{n}", b"x", 0, True, soon))
    house.settle()
    with house.measured():
        house.advance(30)
    return house.longest


@scenario
def expiry_of_a_queue_in_one_second(quick: bool) -> Longest:
    house = TimedHouse()
    house.lose(house.connect("away", V5, expiry_s=1000).subscribe("q", qos=1))
    soon = Properties(message_expiry_interval=5)
    for _ in range(1000 if quick else 10_000):
        house.broker.publish(Message("q", b"x", 1, False, soon))
    house.settle()
    with house.measured():
        house.advance(20)
    return house.longest


@scenario
def delayed_messages_of_one_second(quick: bool) -> Longest:
    house = TimedHouse()
    house.connect("subscriber", V5).subscribe("d/#")
    peer = house.connect("attacker", V5)
    for start in range(0, 1000 if quick else 10_000, 1000):
        packets = [encode(Publish.build(f"$delayed/5/d/{n}", b"x"), V5) for n in range(start, start + 1000)]
        house.read(peer, b"".join(packets))
    with house.measured():
        house.advance(8)
    return house.longest


@scenario
def rights_that_change(quick: bool) -> Longest:
    """Everybody's rights are asked for anew, with 10,000 clients that are connected."""
    from kinmqtt_spi.services.authorization import Scope

    house = TimedHouse(plugins={"guard": Guard()})
    count = 1000 if quick else 10_000
    for n in range(count):
        house.connect(f"c{n}", V5).publish("t")
    with house.measured():
        house.longest.time("a change of rights", lambda: house.broker.authorization_changed(Scope()))
        house.settle()
    return house.longest


# Large fan-outs


@scenario
def publish_to_10_000_subscribers(quick: bool) -> Longest:
    """What 10,000 deliveries take, after one more has subscribed."""
    house = TimedHouse()
    count = 1000 if quick else 10_000
    for n in range(count):
        house.connect(f"c{n}", V5).subscribe("t")
    publisher = house.connect("publisher", V5)
    house.read(publisher, encode(Publish.build("t", b""), V5))
    house.connect("one more", V5).subscribe("t")
    with house.measured():
        house.read(publisher, encode(Publish.build("t", b""), V5))
    return house.longest


def subscriptions_of(filter: str) -> Subscription:
    """A plain subscription."""
    return Subscription(filter)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios; left out for all")
    parser.add_argument("--quick", action="store_true", help="smaller, to see whether it runs")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is run; the least counts")
    options = parser.parse_args()

    print(f"Message path: {TWIN}; Python {sys.version.split()[0]}")
    print("| scenario | longest call, ms | which | calls |")
    print("|---|---:|---|---:|")
    for name in options.names or SCENARIOS:
        runs = [SCENARIOS[name](options.quick) for _ in range(options.rounds)]
        best = min(runs, key=lambda run: run.seconds)
        mark = " !" if best.seconds * 1000 > LIMIT_MS else ""
        print(f"| {name} | {best.seconds * 1000:,.1f}{mark} | {best.what} | {best.calls:,} |", flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
