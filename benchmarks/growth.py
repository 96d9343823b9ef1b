"""How cost grows with work: matches, retained messages, fan-out and memory, in one process and without sockets.

    python benchmarks/growth.py [--quick] [--json FILE] [--plots DIR]

Each time is the least of several repeats: whatever else a machine does only ever adds. Python's garbage collector is
off while time is taken. docs/growth.md has the figures of a full run, and why they are what they are.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, Final, NamedTuple

from attrs import asdict, define, field
from svg_plot import Line, log_log_plot

from kinmqtt import TWIN
from kinmqtt.builtins.hash import HashIndex
from kinmqtt.builtins.trie import TrieIndex
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.packets import V311, Puback, Publish
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.subscription import NaiveIndex
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.subscription import SubscriptionIndex
from kinmqtt_spi.values import Message, MessageId, Publisher, Subscription

sys.path.append(str(Path(__file__).resolve().parents[1] / "core" / "tests" / "harness"))
from core_harness.house import House, Peer

MEASURES: Final = ("temperature", "pressure", "humidity", "voltage", "current", "speed", "state")
DEVICES_OF_A_DEPOT: Final = 100
PAGE: Final = 100
PAYLOAD: Final = bytes(64)


class Pace(NamedTuple):
    """How far and how carefully a run goes."""

    sizes: Sequence[int]
    naive_sizes: Sequence[int]
    fanout_sizes: Sequence[int]
    passes: int
    repeats: int
    batch_s: float
    """How long the calls that are timed together take at least; a call that takes longer is timed alone."""
    topics: int
    """Of how many topics a match is taken in turn."""


FULL: Final = Pace(
    (100, 1_000, 10_000, 100_000, 1_000_000), (100, 1_000, 10_000), (1, 10, 100, 1_000, 10_000), 3, 10, 0.004, 1_000
)
QUICK: Final = Pace((100, 1_000), (100,), (1, 10), 1, 2, 0.0002, 20)


@define
class Chart:
    """What was measured of one thing: a table, and a plot."""

    name: str
    """Of the plot's file, too."""
    title: str
    x_title: str
    y_title: str
    x_values: Sequence[int]
    columns: dict[str, dict[int, float]] = field(factory=dict)

    def put(self, column: str, x: int, y: float) -> None:
        """Note a figure; the least of all that are noted counts."""
        figures = self.columns.setdefault(column, {})
        figures[x] = min(y, figures.get(x, y))

    def put_all(self, other: Chart) -> None:
        """Note the figures of another chart of the same thing."""
        for column, figures in other.columns.items():
            for x, y in figures.items():
                self.put(column, x, y)

    def table(self) -> str:
        """As Markdown."""
        head = [self.x_title, *self.columns]
        rows = [head, ["---:"] * len(head)]
        rows += [[f"{x:,}", *(_shown(column.get(x)) for column in self.columns.values())] for x in self.x_values]
        return "\n".join(
            [f"### {self.title}", "", f"{self.y_title}:", "", *("| " + " | ".join(r) + " |" for r in rows)]
        )

    def plot(self) -> str:
        """As SVG."""
        lines = [Line(name.replace("`", ""), sorted(column.items())) for name, column in self.columns.items()]
        return log_log_plot(self.title, self.x_title, self.y_title, lines)


def _shown(figure: float | None) -> str:
    """With three digits that count."""
    if figure is None:
        return ""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:#.3g}"


def fastest_us(pace: Pace, work: Callable[[], object]) -> float:
    """Microseconds of one call, the least of several repeats."""
    times = 1
    while (took_s := _timed_s(work, times)) < pace.batch_s:
        times *= 2
    return min(took_s, *(_timed_s(work, times) for _ in range(pace.repeats))) / times * 1e6


def _timed_s(work: Callable[[], object], times: int) -> float:
    calls = range(times)
    begin = perf_counter()
    for _ in calls:
        work()
    return perf_counter() - begin


# Matches


def subscriptions(count: int, *, wildcards: bool) -> Iterator[tuple[str, Subscription]]:
    """Client ids with their subscriptions: ten for each device, seven of them exact; without ``wildcards`` all are.

    However many there are, a message of a device's temperature goes to four of them, or one without ``wildcards``.
    """
    for number in range(count):
        device, sort = divmod(number, 10)
        depot = device // DEVICES_OF_A_DEPOT
        if sort < len(MEASURES):
            filter = f"fleet/{depot}/{device}/{MEASURES[sort]}"
        elif not wildcards:
            filter = f"fleet/{depot}/{device}/more{sort}"
        elif sort == 7:
            filter = f"fleet/{depot}/{device}/+"
        elif sort == 8:
            filter = f"fleet/+/{device}/temperature"
        else:
            filter = f"fleet/{depot}/{device}/#"
        yield f"client-{number}", Subscription(filter, 1)


def index_of(make: Callable[[], SubscriptionIndex], count: int, *, wildcards: bool) -> SubscriptionIndex:
    """An index with so many subscriptions."""
    index = make()
    for client_id, subscription in subscriptions(count, wildcards=wildcards):
        index.add(client_id, subscription)
    return index


def topics_in_turn(count: int, many: int) -> list[str]:
    """Topics of devices chosen by chance, the same in each run."""
    chance = Random(count)
    devices = [chance.randrange(count // 10) for _ in range(many)]
    return [f"fleet/{device // DEVICES_OF_A_DEPOT}/{device}/temperature" for device in devices]


def _match_all(match: Callable[[str], object], topics: Sequence[str]) -> None:
    for topic in topics:
        match(topic)


def measure_matches(pace: Pace) -> Iterator[Chart]:
    """A match among more and more subscriptions."""
    chart = Chart("match", "Match of a topic", "subscriptions", "microseconds per match", pace.sizes)
    for name, make, sizes, wildcards in (
        ("trie", TrieIndex, pace.sizes, True),
        ("hash, exact filters only", HashIndex, pace.sizes, False),
        ("one by one (reference)", NaiveIndex, pace.naive_sizes, True),
    ):
        for count in sizes:
            index = index_of(make, count, wildcards=wildcards)
            topics = topics_in_turn(count, pace.topics)
            assert {len(index.match(topic).subscribers) for topic in topics} == {4 if wildcards else 1}
            chart.put(f"{name}: one topic", count, fastest_us(pace, partial(index.match, topics[0])))
            if make is not NaiveIndex:
                match = index.match
                all_us = fastest_us(pace, partial(_match_all, match, topics))
                chart.put(f"{name}: {pace.topics:,} topics in turn", count, all_us / len(topics))
            del index
            gc.collect()
    yield chart


# Retained messages


def tree_topics(count: int) -> Iterator[str]:
    """Ten for each device, a hundred devices to a depot; one device in ten thousand topics has an alarm."""
    for number in range(count):
        device, sort = divmod(number, 10)
        if sort < len(MEASURES):
            measure = MEASURES[sort]
        else:
            measure = "alarm" if sort == 9 and device % 1_000 == 9 else f"more{sort}"
        yield f"fleet/{device // DEVICES_OF_A_DEPOT}/{device}/{measure}"


def flat_topics(count: int) -> Iterator[str]:
    """All in one level."""
    return (f"fleet/{number}" for number in range(count))


def store_of(topics: Iterator[str]) -> MemoryRetainStore:
    """A store with a message for each topic, a payload of 64 bytes each."""
    store = MemoryRetainStore()
    publisher = Publisher("client", "user")
    for number, topic in enumerate(topics):
        payload = number.to_bytes(len(PAYLOAD), "big")
        message = Message(
            topic, payload, 1, True, publisher=publisher, id=MessageId(7, number), received_at=1.7e9 + number
        )
        store.put([RetainWrite(message, RetainVersion(message.received_at, 7, number))])
    return store


def measure_retained(pace: Pace) -> Iterator[Chart]:
    """A look-up among more and more retained messages."""
    chart = Chart(
        "retained", "Look-up of retained messages", "retained messages", "microseconds per look-up", pace.sizes
    )
    for count in pace.sizes:
        store = store_of(tree_topics(count))
        device = topics_in_turn(count, 1)[0].rpartition("/")[0]
        depot = device.rpartition("/")[0]
        for name, filter in (
            ("exact topic", f"{device}/temperature"),
            ("`depot/device/+`, finds 10", f"{device}/+"),
            ("`depot/+/temperature`, finds up to 100", f"{depot}/+/temperature"),
            ("`fleet/+/+/alarm`, finds 1 in 10,000", "fleet/+/+/alarm"),
            ("`fleet/#`, first page of 100", "fleet/#"),
        ):
            chart.put(name, count, fastest_us(pace, partial(store.match, filter, None, PAGE)))
        del store
        gc.collect()
        store = store_of(flat_topics(count))
        page = partial(store.match, "fleet/#", None, PAGE)
        assert len(page().messages) == min(count, PAGE)
        chart.put("`fleet/#`, first page, all in one level", count, fastest_us(pace, page))
        del store, page
        gc.collect()
    yield chart


# Fan-out


class Crowd:
    """A broker with a publisher and many subscribers to one topic, none of which the house looks after."""

    TOPIC: Final = "fleet/all"

    def __init__(self, count: int) -> None:
        self.house = House()
        self.publisher = self._alone(self.house.connect("publisher"))
        self.bystander = self._alone(self.house.connect("bystander"))
        self.subscribers = [self._alone(self.house.connect(f"client-{number}")) for number in range(count)]
        for peer in self.subscribers:
            peer.subscribe(self.TOPIC, qos=1)
        self._empty()

    def _alone(self, peer: Peer) -> Peer:
        # The house asks each of its peers after each call, which is more work than what is measured.
        self.house.peers.clear()
        return peer

    def publish_s(self, qos: int) -> float:
        """How long it takes until the broker has written a message to everybody."""
        packet = encode(Publish.build(self.TOPIC, PAYLOAD, qos=qos, packet_id=1 if qos else 0), V311)
        begin = perf_counter()
        self.publisher.connection.receive(packet)
        self.house.settle()
        took_s = perf_counter() - begin
        assert all(len(peer.link.written) == len(packet) for peer in self.subscribers)
        if not qos:
            self._empty()
        return took_s

    def acknowledge_s(self) -> float:
        """How long it takes until everybody's PUBACK is worked off."""
        answers = []
        for peer in self.subscribers:
            publish = decode(bytes(peer.link.written), 2, V311)
            assert isinstance(publish, Publish)
            answers.append((peer.connection, encode(Puback(publish.packet_id), V311)))
        self._empty()
        begin = perf_counter()
        for connection, answer in answers:
            connection.receive(answer)
        self.house.settle()
        return perf_counter() - begin

    def subscribe_elsewhere(self) -> None:
        """Somebody else subscribes to something else, and gives it up again."""
        self.bystander.subscribe("elsewhere")
        self.bystander.unsubscribe("elsewhere")

    def _empty(self) -> None:
        for peer in chain((self.publisher, self.bystander), self.subscribers):
            peer.link.written.clear()


def measure_fanout(pace: Pace) -> Iterator[Chart]:
    """One message to more and more subscribers, through a whole broker."""
    message = Chart("fanout", "Fan-out of one message", "subscribers", "microseconds per message", pace.fanout_sizes)
    delivery = Chart(
        "fanout-delivery", "Fan-out, for each delivery", "subscribers", "microseconds per delivery", pace.fanout_sizes
    )
    for count in pace.fanout_sizes:
        crowd = Crowd(count)
        gc.collect()
        least: dict[str, float] = {}

        def note(name: str, took_s: float, least: dict[str, float] = least) -> None:
            least[name] = min(least.get(name, took_s), took_s)

        # A single message is a short time to take: fewer subscribers, more repeats.
        for _ in range(pace.repeats * (1 if count > 1_000 else 10)):
            crowd.subscribe_elsewhere()
            note("QoS 0, the first after any subscription", crowd.publish_s(0))
            note("QoS 0", crowd.publish_s(0))
            sent_s = crowd.publish_s(1)
            note("QoS 1", sent_s)
            note("QoS 1 with its acknowledgements", sent_s + crowd.acknowledge_s())
        for name in ("QoS 0", "QoS 0, the first after any subscription", "QoS 1", "QoS 1 with its acknowledgements"):
            message.put(name, count, least[name] * 1e6)
            delivery.put(name, count, least[name] * 1e6 / count)
        del crowd
        gc.collect()
    yield message
    yield delivery


# Memory


def measure_memory(pace: Pace) -> Iterator[Chart]:
    """What each subscription and each retained message takes, its strings counted in."""
    chart = Chart("memory", "Memory", "subscriptions or retained messages", "bytes for each of them", pace.sizes)
    for count in pace.sizes:
        for name, make in (
            ("trie, a subscription", partial(index_of, TrieIndex, count, wildcards=True)),
            ("hash, a subscription", partial(index_of, HashIndex, count, wildcards=False)),
            ("a retained message, ten to a device", lambda count=count: store_of(tree_topics(count))),
            ("a retained message, all in one level", lambda count=count: store_of(flat_topics(count))),
        ):
            chart.put(name, count, _taken_bytes(make) / count)
    yield chart


def _taken_bytes(make: Callable[[], object]) -> int:
    """What Python has allocated for an object and does not give back while it is there."""
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        gc.collect()
        taken_bytes, _ = tracemalloc.get_traced_memory()
        del made
    finally:
        tracemalloc.stop()
    return taken_bytes


# The run


def measured(pace: Pace) -> Iterator[Chart]:
    """Every chart. Times are the least of several passes: a machine may be slow for as long as one size takes."""
    charts: dict[str, Chart] = {}
    for _ in range(pace.passes):
        for measure in (measure_matches, measure_retained, measure_fanout):
            for chart in _undisturbed(measure, pace):
                charts.setdefault(chart.name, chart).put_all(chart)
    yield from charts.values()
    yield from _undisturbed(measure_memory, pace)


def _undisturbed(measure: Callable[[Pace], Iterator[Chart]], pace: Pace) -> list[Chart]:
    gc.disable()
    try:
        return list(measure(pace))
    finally:
        gc.enable()


def _as_json(charts: Sequence[Chart]) -> dict[str, Any]:
    about = {"python": platform.python_version(), "machine": platform.machine(), "message_path": TWIN}
    return {**about, "charts": [asdict(chart) for chart in charts]}


def main() -> None:
    """Measure, and print a table of each thing."""
    parser = argparse.ArgumentParser(description="How cost grows with work.")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few repeats: whether it runs, not figures"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write an SVG file for each table there")
    options = parser.parse_args()

    print(f"Python {platform.python_version()}, {platform.machine()}; message path: {TWIN}")
    charts = []
    for chart in measured(QUICK if options.quick else FULL):
        charts.append(chart)
        print(f"\n{chart.table()}", flush=True)
        if options.plots is not None:
            options.plots.mkdir(parents=True, exist_ok=True)
            (options.plots / f"{chart.name}.svg").write_text(chart.plot(), encoding="utf-8")
    if options.json is not None:
        options.json.write_text(json.dumps(_as_json(charts), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
