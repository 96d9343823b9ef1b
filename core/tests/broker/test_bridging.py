"""The sinks and sources of a broker's plugins, over outboxes in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred

from core_harness.house import House
from kinmqtt.broker.bridging import PARKED, BridgeParts, Bridging, publish_on_asyncio
from kinmqtt.hooks.awaitables import run
from kinmqtt_spi.errors import AssemblyError, ServiceUnavailable, SinkRefused
from kinmqtt_spi.markers import hookimpl
from kinmqtt_spi.memory.bridge import ListSink, MemoryOutbox
from kinmqtt_spi.services.bridge import Item, Poison, Publish, SendSettings, Sink, SinkPlan, SinkState, Source
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.services.plugin import Context, Health, HealthState
from kinmqtt_spi.testing.build import message
from kinmqtt_spi.values import Message

AT_ONCE = SendSettings(linger_s=0)


class OneSource(Source):
    """Publishes one message, and waits."""

    def __init__(self, topic: str = "from/source") -> None:
        self.topic = topic
        self.cancelled = 0

    async def run(self, publish: Publish) -> None:
        await publish([Message(self.topic, b"x", 1)])
        try:
            await Deferred()
        finally:
            self.cancelled += 1


class HangingSink(ListSink):
    """Answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: Deferred[None] = Deferred()

    def send(self, items: Sequence[Item]) -> Any:
        self.batches.append(tuple(items))
        return self.waiting


class Bridges:
    """A plugin whose sinks and sources tests set."""

    def __init__(self) -> None:
        self.plans: Any = {}
        self.origins: Any = {}
        self.told: list[tuple[str, Any]] = []

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        if isinstance(self.plans, Exception):
            raise self.plans
        return self.plans  # type: ignore[no-any-return]

    @hookimpl
    def sources(self, context: Context) -> Mapping[str, Source]:
        return self.origins  # type: ignore[no-any-return]

    @hookimpl
    def sink_state(self, name: str, state: SinkState, why: str) -> None:
        self.told.append((name, state))

    @hookimpl
    def poisoned(self, name: str, message: Message, why: str) -> None:
        self.told.append((name, why))


class Bench:
    """A broker's hooks, and bridges over outboxes in memory."""

    def __init__(self) -> None:
        self.plugin = Bridges()
        self.house = House(plugins={"kafka": self.plugin})
        self.clock = self.house.broker.runtime.clock
        self.outboxes: dict[tuple[str, str], MemoryOutbox] = {}
        self.published: list[Message] = []
        broker = self.house.broker
        self.bridging = Bridging(
            BridgeParts(
                broker.runtime.hooks,
                broker.assembly.contexts,
                Random(1),
                self.open_outbox,
                self.publish,
                self.after_commit,
            )
        )

    def open_outbox(self, plugin: str, name: str, settings: OutboxSettings, filters: Sequence[str]) -> MemoryOutbox:
        outbox = self.outboxes[plugin, name] = MemoryOutbox(name, settings, self.clock)
        outbox.subscribe(filters)
        return outbox

    def after_commit(self, done: Callable[[], None], failed: Callable[[], None]) -> None:
        self.clock.later(0, done)

    async def publish(self, messages: Sequence[Message]) -> None:
        self.published += messages

    def begin(self) -> None:
        self.bridging.assemble()
        self.bridging.start()
        self.turn()

    def turn(self, seconds: float = 0.0) -> None:
        self.house.advance(seconds)
        for _ in range(4):
            self.house.settle()

    def wait(self, awaitable: Any, seconds: float = 0.0) -> Any:
        """Return the result of a coroutine of the bridges."""
        results: list[Any] = []
        run(awaitable).addCallback(results.append)
        self.turn(seconds)
        [result] = results
        return result

    def reload(self) -> list[str]:
        lines: list[str] = self.wait(self.bridging.reload(5))
        return lines

    def health(self, **own: Health) -> Health:
        found: dict[str, Health] = self.wait(self.bridging.health(own))
        return found.get("kafka", Health(HealthState.HEALTHY))


def plan(sink: Sink, *filters: str, **changes: Any) -> SinkPlan:
    return evolve(SinkPlan(sink, filters or ("a/#",), sending=AT_ONCE), **changes)


def test_sinks_and_sources_run_and_are_told_of() -> None:
    """Messages reach the sink, those of the source are published, and plugins learn the sink's state."""
    bench = Bench()
    sink, source = ListSink(), OneSource()
    bench.plugin.plans = {"readings": plan(sink)}
    bench.plugin.origins = {"commands": source}

    bench.begin()
    bench.outboxes["kafka", "readings"].publish(message("a/b", b"1", qos=1))
    bench.outboxes["kafka", "readings"].publish(message("b", b"2", qos=1))
    bench.turn()

    assert [item.message.payload for item in sink.taken] == [b"1"]
    assert [each.topic for each in bench.published] == ["from/source"]
    assert bench.plugin.told == [("kafka:readings", SinkState.OPEN)]
    assert bench.outboxes["kafka", "readings.parked"].settings == PARKED


WRONG_OUTBOXES: list[tuple[Any, str]] = [
    ({"window": 0}, "window is 0, expected a whole number from 1 to 65535"),
    ({"window": "x"}, 'window is the string "x", expected a whole number'),
    ({"max_messages": 0}, "max_messages is 0, expected a whole number not below 1"),
    ({"max_bytes": 1.5e9}, "max_bytes is 1500000000.0, expected a whole number not below 1024"),
    ({"pause_limit_s": float("inf")}, "pause_limit_s is inf, expected a number not below 0.1"),
    ({"when_full": "pause"}, 'when_full is the string "pause", expected one of WhenFull.PAUSE, '),
]

WRONG_SENDING: list[tuple[Any, str]] = [
    ({"batch": "x"}, 'batch is the string "x", expected a whole number'),
    ({"batch": True}, "batch is true, expected a whole number"),
    ({"parallel": 0}, "parallel is 0, expected a whole number from 1 to 256"),
    ({"linger_s": float("nan")}, "linger_s is nan, expected a number not below 0"),
    ({"time_limit_s": None}, "time_limit_s is a NoneType, expected a number"),
    ({"poison": "foo"}, 'poison is the string "foo", expected one of park, drop, stop'),
]


@pytest.mark.parametrize(
    ("plans", "text"),
    [
        ({"Readings": plan(ListSink())}, "plugin 'kafka', sink 'Readings': a name has"),
        ({"x" * 65: plan(ListSink())}, "a name has 1 to 64"),
        ({"a.parked": plan(ListSink())}, "a name has 1 to 64"),
        ({7: plan(ListSink())}, "sink 7: a name has"),
        ({"bad": plan(ListSink(), "a/#/b")}, "plugin 'kafka', sink 'bad': its outbox can't be opened: 'a/#/b'"),
        ({"bad": ListSink()}, "its sink 'bad' is a ListSink, not a SinkPlan"),
        ({"bad": plan(ListSink(), key=None)}, "its key is not callable"),
        ({"bad": plan(ListSink(), filters=["a"])}, "its filters is a list"),
        *(
            ({"bad": plan(ListSink(), outbox=OutboxSettings(**wrong))}, f"its sink 'bad': its outbox: {text}")
            for wrong, text in WRONG_OUTBOXES
        ),
        *(
            ({"bad": plan(ListSink(), sending=SendSettings(**wrong))}, f"its sink 'bad': its sending: {text}")
            for wrong, text in WRONG_SENDING
        ),
        (["bad"], "sinks returned a list"),
        (ValueError("no servers"), "plugin 'kafka' has no sinks: no servers"),
    ],
)
def test_wrong_sinks_stop_the_start(plans: Any, text: str) -> None:
    """The error names the plugin and the sink."""
    bench = Bench()
    bench.plugin.plans = plans

    with pytest.raises(AssemblyError) as raised:
        bench.bridging.assemble()

    assert text in str(raised.value)


def test_wrong_sources_stop_the_start() -> None:
    """The error names the plugin and the source."""
    bench = Bench()
    bench.plugin.origins = {"commands": object()}

    with pytest.raises(AssemblyError, match="its source 'commands' is an object, not a Source"):
        bench.bridging.assemble()


def test_poison_is_parked_and_told_of() -> None:
    """The parked message degrades the plugin's health."""
    bench = Bench()
    bench.plugin.plans = {"readings": plan(ListSink(lambda item: Poison("too long")))}
    bench.begin()

    bench.outboxes["kafka", "readings"].put(message("a", qos=1))
    bench.turn()

    assert ("kafka:readings", "too long") in bench.plugin.told
    assert bench.outboxes["kafka", "readings.parked"].figures().queued == 1
    assert bench.health() == Health(HealthState.DEGRADED, "sink readings: 1 messages are parked")


def test_health_is_that_of_the_worst_part() -> None:
    """WAITING and a nearly full outbox degrade; REFUSED and a full outbox fail; the plugin's own text stays."""
    bench = Bench()
    bench.plugin.plans = {"s": plan(HangingSink(), outbox=OutboxSettings(max_messages=10, window=1))}
    bench.begin()
    assert bench.health().state is HealthState.HEALTHY
    outbox = bench.outboxes["kafka", "s"]
    outbox.put(message("a", qos=1))
    bench.turn()
    for _ in range(9):
        outbox.put(message("a", qos=1))
    assert bench.health() == Health(HealthState.DEGRADED, "sink s: its outbox is 90% full")
    outbox.put(message("a", qos=1))
    assert bench.health() == Health(HealthState.FAILED, "sink s: its outbox is full")
    own = Health(HealthState.DEGRADED, "odd")
    assert bench.health(kafka=own) == Health(HealthState.FAILED, "odd; sink s: its outbox is full")


def test_an_unreachable_or_refused_target_shows_in_the_health() -> None:
    """WAITING is degraded, REFUSED has failed, and so it is under ``$SYS``."""
    bench = Bench()
    sink = ListSink()
    sink.open_errors.extend([ServiceUnavailable("away"), SinkRefused("wrong password")])
    bench.plugin.plans = {"s": plan(sink)}
    bench.begin()
    assert bench.health() == Health(HealthState.DEGRADED, "sink s: waiting: away")
    bench.turn(1)
    assert bench.health() == Health(HealthState.FAILED, "sink s: refused: wrong password")

    bench.outboxes["kafka", "s"].put(message("a", qos=1))
    bench.turn()
    shown = {each.topic: each.read() for each in bench.bridging.sys_topics()}
    assert shown == {"$SYS/bridge/kafka/s/state": "refused", "$SYS/bridge/kafka/s/queued": "1"}


class Unspeakable(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise KeyError("text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("odd"), "ValueError: odd"),
        (asyncio.CancelledError("over"), "CancelledError: over"),
        (Unspeakable(), "Unspeakable: its text can't be read (KeyError)"),
    ],
)
def test_a_sink_says_more_about_its_target(error: BaseException, text: str) -> None:
    """What ``check`` answers counts; if it raises, the plugin is degraded."""

    class Checked(ListSink):
        def check(self) -> Any:
            raise error

    bench = Bench()
    bench.plugin.plans = {"s": plan(Checked())}
    bench.begin()

    assert bench.health() == Health(HealthState.DEGRADED, f"sink s: its check failed: {text}")


def test_a_reload_starts_changes_and_stops() -> None:
    """New sinks start, changed ones follow their plans, and those that are gone keep their outboxes."""
    bench = Bench()
    changed, gone, new, same = ListSink(), ListSink(), ListSink(), ListSink()
    bench.plugin.plans = {"changed": plan(changed), "gone": plan(gone), "same": plan(same)}
    bench.begin()
    other = ListSink()
    bench.plugin.plans = {"changed": plan(other, "b"), "new": plan(new), "same": plan(same)}

    assert bench.reload() == []

    assert bench.outboxes["kafka", "changed"].filters == ("b",)
    assert not bench.outboxes["kafka", "gone"].filters
    bench.outboxes["kafka", "changed"].put(message("b", qos=1))
    bench.outboxes["kafka", "gone"].put(message("a", qos=1))
    bench.outboxes["kafka", "new"].put(message("a", qos=1))
    bench.turn()
    assert (len(changed.taken), len(other.taken), len(gone.taken), len(new.taken)) == (0, 1, 0, 1)
    assert (gone.closed, same.opened) == (1, 2)

    bench.plugin.plans = {"gone": plan(gone)}
    assert bench.reload() == []
    assert len(gone.taken) == 1
    assert bench.outboxes["kafka", "gone"].filters == ("a/#",)


def test_a_reload_that_fails_leaves_everything_as_it_is() -> None:
    """The line names the plugin; settings of an outbox that can't change now are named, too."""
    bench = Bench()
    sink = ListSink()
    bench.plugin.plans = {"s": plan(sink)}
    bench.begin()
    bench.plugin.plans = ValueError("no servers")
    [line] = bench.reload()
    assert line == "kafka: its old sinks go on: plugin 'kafka' has no sinks: no servers"
    bench.plugin.plans = {"s": plan(sink, "z/#", sending=SendSettings(parallel=0))}
    [line] = bench.reload()
    assert "its sink 's': its sending: parallel is 0" in line
    assert bench.outboxes["kafka", "s"].filters == ("a/#",)
    bench.plugin.plans = {"s": plan(sink, outbox=OutboxSettings(max_messages=7)), "t": plan(sink, "a/#/b")}
    lines = bench.reload()

    assert lines[0] == "kafka: sink s: the outbox's settings are used from the next start on"
    assert lines[1].startswith("kafka: sink t stays as it is: plugin 'kafka', sink 't'")
    bench.outboxes["kafka", "s"].put(message("a", qos=1))
    bench.turn()
    assert len(sink.taken) == 1


def test_a_sink_that_a_reload_leaves_as_it_is_keeps_its_filters() -> None:
    """Here the outbox of parked messages can't be opened."""
    bench = Bench()
    bench.plugin.plans = {"s": plan(ListSink(), sending=SendSettings(poison="drop"))}
    bench.begin()
    proper = bench.open_outbox

    def refusing(plugin: str, name: str, *arguments: Any) -> MemoryOutbox:
        if name.endswith(".parked"):
            raise ValueError("there is one already")
        return proper(plugin, name, *arguments)

    bench.bridging._parts = evolve(bench.bridging._parts, open_outbox=refusing)
    bench.plugin.plans = {"s": plan(ListSink(), "z/#")}

    assert bench.reload() == ["kafka: sink s stays as it is: there is one already"]
    assert bench.outboxes["kafka", "s"].filters == ("a/#",)


def test_a_reload_replaces_sources() -> None:
    """Another source under a name replaces the one before, which is cancelled; the same one goes on."""
    bench = Bench()
    first, same, second = OneSource("first"), OneSource("same"), OneSource("second")
    bench.plugin.origins = {"c": first, "s": same}
    bench.begin()
    bench.plugin.origins = {"c": second, "s": same}

    assert bench.reload() == []

    assert (first.cancelled, same.cancelled, second.cancelled) == (1, 0, 0)
    assert [each.topic for each in bench.published] == ["first", "same", "second"]


def test_a_stop_cancels_sources_and_lets_batches_end() -> None:
    """Nothing is sent afterwards."""
    bench = Bench()
    sink, source = HangingSink(), OneSource()
    bench.plugin.plans = {"s": plan(sink)}
    bench.plugin.origins = {"c": source}
    bench.begin()
    bench.outboxes["kafka", "s"].put(message("a", qos=1))
    bench.turn()

    bench.wait(bench.bridging.stop_sources(5))
    bench.wait(bench.bridging.stop_sinks(5), 5)
    bench.outboxes["kafka", "s"].put(message("a", qos=1))
    bench.turn(120)

    assert source.cancelled == 1
    assert len(sink.batches) == 1
    assert sink.closed == 1
    assert bench.plugin.told[-1] == ("kafka:s", SinkState.STOPPED)
    assert len(bench.outboxes["kafka", "s"].stored) == 2


def test_a_source_on_asyncio_can_await_its_publications() -> None:
    """The broker publishes with Deferreds, which asyncio's tasks can't await; errors come through, too."""

    async def main() -> None:
        for error in (None, ServiceUnavailable("away")):
            committed: Deferred[None] = Deferred()
            task = asyncio.ensure_future(publish_on_asyncio(lambda messages, its=committed: its, []))  # type: ignore[misc]
            await asyncio.sleep(0)
            assert not task.done()
            if error is None:
                committed.callback(None)
                await task
            else:
                committed.errback(error)
                with pytest.raises(ServiceUnavailable):
                    await task

    asyncio.run(main())
