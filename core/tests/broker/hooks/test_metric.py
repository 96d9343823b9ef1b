"""The hooks of metrics, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, ensureDeferred, succeed

from core_harness.house import House
from kinmqtt.broker.connection.route import TopicRoute
from kinmqtt.broker.handlers.incoming_publish import CACHED_ROUTES
from kinmqtt.broker.lifecycle import FAREWELL_LIMIT_S, STOP_LIMIT_S
from kinmqtt.broker.routing import traffic as traffic_module
from kinmqtt.broker.routing.traffic import AT_ONCE, TrafficLedger, TrafficSampling
from kinmqtt.hooks.dispatch import HookVerdict
from kinmqtt.mqtt.packets import V5, V311
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import hookimpl, values
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Authorization, AuthorizationRequest, Cache, Scope
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.services.metric import CounterSample, Snapshot, SysTopic, TrafficSnapshot
from kinmqtt_spi.values import Client

EVERY_10_S = BrokerSettings(sys_interval_s=10)


def broken() -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def coroutine(value: Any) -> Any:
    """A coroutine's answer."""
    return value


# sys_topics


class Speaker:
    """Has topics of its own."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.asked = 0

    @hookimpl
    def sys_topics(self) -> Any:
        self.asked += 1
        return self.answer()


def heard(plugins: dict[str, Any], filter: str, seconds: float) -> list[tuple[str, bytes]]:
    """What a subscriber hears of some topics in some seconds."""
    house = House(plugins=plugins, settings=EVERY_10_S)
    sub = house.connect("sub").subscribe(filter)
    house.advance(seconds)
    return [(topic, payload) for topic, payload, _ in sub.messages]


def test_sys_topics_are_published_at_each_interval() -> None:
    """Their payload is read each time; those that say so are published only when it has changed."""
    numbers = iter(range(100))
    topics = [
        SysTopic("$SYS/mine/counted", lambda: str(next(numbers))),
        SysTopic("$SYS/mine/constant", lambda: "same", on_change_only=True),
    ]
    speaker = Speaker(lambda: topics)

    said = heard({"speaker": speaker}, "$SYS/mine/#", 25)

    assert said == [
        ("$SYS/mine/counted", b"0"),
        ("$SYS/mine/constant", b"same"),
        ("$SYS/mine/counted", b"1"),
        ("$SYS/mine/counted", b"2"),
    ]
    assert speaker.asked == 1


def test_sys_topics_are_retained() -> None:
    """Who comes later finds the last value."""
    house = House(plugins={"speaker": Speaker(lambda: [SysTopic("$SYS/mine", lambda: "x")])}, settings=EVERY_10_S)
    house.advance(5)

    assert house.connect("late").subscribe("$SYS/mine").messages == [("$SYS/mine", b"x", 0)]


def test_sys_topics_are_those_of_all_plugins() -> None:
    """The union; of two plugins that name one topic the first in the order of the settings has it."""
    plugins = {
        "a": Speaker(lambda: [SysTopic("$SYS/mine/both", lambda: "a"), SysTopic("$SYS/mine/a", lambda: "a")]),
        "b": Speaker(lambda: [SysTopic("$SYS/mine/both", lambda: "b"), SysTopic("$SYS/mine/b", lambda: "b")]),
    }

    said = heard(plugins, "$SYS/mine/#", 5)

    assert sorted(said) == [("$SYS/mine/a", b"a"), ("$SYS/mine/b", b"b"), ("$SYS/mine/both", b"a")]


@pytest.mark.parametrize("answer", [broken, lambda: None, lambda: coroutine([]), lambda: succeed([])])
def test_sys_topics_that_fail_are_left_out(answer: Callable[[], Any]) -> None:
    """A plugin that raises, has none, or wants to be waited for, costs only its own part."""
    good = Speaker(lambda: [SysTopic("$SYS/mine", lambda: "x")])

    assert heard({"a": Speaker(answer), "b": good}, "$SYS/mine", 5) == [("$SYS/mine", b"x")]


def test_sys_topics_must_be_below_sys() -> None:
    """What stands elsewhere is left out: it is not the broker's own voice."""
    speaker = Speaker(lambda: [SysTopic("mine", lambda: "x")])

    assert heard({"speaker": speaker}, "mine", 15) == []


def test_sys_topics_that_can_not_be_read_cost_only_themselves() -> None:
    """The others are published, and this one again when it can be read."""
    answers: Iterator[Callable[[], Any]] = iter([broken, lambda: "x"])
    topics = [SysTopic("$SYS/mine/a", lambda: next(answers)()), SysTopic("$SYS/mine/b", lambda: "y")]

    said = heard({"speaker": Speaker(lambda: topics)}, "$SYS/mine/#", 15)

    assert said == [("$SYS/mine/b", b"y"), ("$SYS/mine/a", b"x"), ("$SYS/mine/b", b"y")]


# sampled


class Sink:
    """Takes snapshots."""

    def __init__(self, answer: Callable[[], Any] = lambda: None) -> None:
        self.answer = answer
        self.snapshots: list[Snapshot] = []

    @hookimpl
    def sampled(self, snapshot: Snapshot) -> Any:
        self.snapshots.append(snapshot)
        return self.answer()


def test_sampled_comes_at_each_interval() -> None:
    """A snapshot says when and where it was taken, and holds the metrics of broker and plugins."""

    class Counting:
        @hookimpl
        def configure(self, context: Any) -> None:
            context.metrics.counter("things", "things").value = 3

    sink = Sink()
    house = House(plugins={"sink": sink, "counting": Counting()}, settings=EVERY_10_S)
    began = house.clock.now()

    house.connect("c")
    house.advance(25)

    assert [(snapshot.at - began, snapshot.node) for snapshot in sink.snapshots] == [
        (1.0, "test"),
        (11.0, "test"),
        (21.0, "test"),
    ]
    samples: dict[str, Any] = {sample.name: sample for sample in sink.snapshots[-1].samples}
    assert samples["clients.connected"].value == 1
    assert (samples["things"].value, samples["things"].labels) == (3, {"plugin": "counting"})


def test_sampled_does_not_pile_up_on_a_slow_sink() -> None:
    """A sink that has not done with one snapshot gets the next when it has; another sink is not held up."""
    answer: Deferred[None] = Deferred()
    slow, quick = Sink(lambda: answer), Sink()
    house = House(plugins={"slow": slow, "quick": quick}, settings=EVERY_10_S)
    house.advance(25)
    assert (len(slow.snapshots), len(quick.snapshots)) == (1, 3)

    answer.callback(None)
    house.settle()

    assert len(slow.snapshots) == 3


def test_sampled_that_raises_harms_nobody() -> None:
    """Other sinks get their snapshots, the next one comes, and the failures are counted."""
    bad, good = Sink(broken), Sink()
    house = House(plugins={"bad": bad, "good": good}, settings=EVERY_10_S)

    house.advance(15)

    assert (len(bad.snapshots), len(good.snapshots)) == (2, 2)
    assert house.assembly.metrics.sum("plugin.failures") == 2


# traffic_sampled


class Listening:
    """Takes what it is told of traffic."""

    def __init__(self) -> None:
        self.told: list[TrafficSnapshot] = []

    @hookimpl
    def traffic_sampled(self, traffic: TrafficSnapshot) -> None:
        self.told.append(traffic)

    def pairs(self) -> dict[tuple[str, str], tuple[int, int]]:
        """All that was told, added up."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for traffic in self.told:
            for pair in traffic.pairs:
                messages, size = found.get((pair.client_id, pair.topic), (0, 0))
                found[pair.client_id, pair.topic] = (messages + pair.messages, size + pair.bytes)
        return found


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("heard", [False, True])
def test_traffic_is_told_by_client_and_topic(version: int, qos: int, heard: bool) -> None:
    """Each PUBLISH packet counts once, in the first snapshot behind it; what was told is not told again."""
    listening = Listening()
    house = House(plugins={"listening": listening}, settings=EVERY_10_S)
    if heard:
        house.connect("sub").subscribe("#")
    pub = house.connect("p", version)
    for number in range(5):
        pub.publish("a", b"x" * number, qos=qos)
    pub.publish("b", b"", qos=qos)
    house.connect("q", version).publish("a", b"xyz", qos=qos).disconnect()
    house.advance(21)
    size = 5 + (2 if qos else 0) + (version == V5)

    assert listening.pairs() == {("p", "a"): (5, 5 * size + 10), ("p", "b"): (1, size), ("q", "a"): (1, size + 3)}
    assert sum(len(traffic.pairs) for traffic in listening.told) == 3


def test_traffic_adds_up_to_what_was_received() -> None:
    """More topics than a connection remembers, answers that are asked each time, denials: nothing is left out."""

    class Forgetful:
        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> Authorization | None:
            if request.topic.endswith("7"):
                return Authorization(values.Verdict.DENY)
            return Authorization(values.Verdict.ALLOW, cache=Cache.NEVER) if request.topic.endswith("8") else None

    listening = Listening()
    house = House(plugins={"listening": listening, "forgetful": Forgetful()}, settings=EVERY_10_S)
    pub = house.connect("p", V5)
    for _ in range(2):
        for number in range(CACHED_ROUTES + 10):
            pub.publish(f"t/{number}", b"x", qos=1)
    house.broker.authorization_changed(Scope())
    pub.publish("t/1", b"x")
    house.advance(11)
    told = listening.pairs()

    assert sum(messages for messages, _ in told.values()) == 2 * (CACHED_ROUTES + 10) + 1
    assert told["p", "t/1"][0] == 3
    assert told["p", "t/7"][0] == told["p", "t/8"][0] == 2
    assert house.broker.runtime.statistics.messages_received.value == 2 * (CACHED_ROUTES + 10) + 1


@pytest.mark.parametrize("qos", [0, 1])
def test_traffic_that_turns_back_is_told_where_no_limiter_stopped_it(qos: int) -> None:
    """What was denied, dropped for memory or refused by a plugin has come; a flood that is limited is not in it."""

    class Refusing:
        @hookimpl
        def limiter_needs(self) -> LimiterNeeds:
            return LimiterNeeds(frozenset({ResourceKind.PUBLISH}), True)

        @hookimpl
        def acquire(self, resource: Resource, amount: int) -> LimitDecision | None:
            return LimitDecision(LimitVerdict.DROP, "rule") if resource.topic == "limited" else None

        @hookimpl
        def authorize(self, request: AuthorizationRequest) -> values.Decision | None:
            return values.deny(ReasonCode.NOT_AUTHORIZED) if request.topic == "denied" else None

        @hookimpl
        def publish_received(self, client: Client, message: values.Message) -> values.Drop | None:
            return values.Drop() if message.topic == "refused" else None

    listening = Listening()
    plugins = {"listening": listening, "refusing": Refusing()}
    house = House(plugins=plugins, settings=EVERY_10_S, memory_slow_bytes=100, memory_drop_bytes=200)
    pub = house.connect("p", V5)
    for _ in range(2):
        for topic in ("limited", "denied", "refused", "dropped"):
            pub.publish(topic, b"x", qos=qos)
        house.memory_bytes = 250
        house.advance(1)
    house.advance(11)

    assert {topic: messages for (_, topic), (messages, _) in listening.pairs().items()} == {
        "denied": 2,
        "refused": 2,
        "dropped": 2,
    }
    assert house.broker.runtime.statistics.dropped["overload"].value == (0 if qos else 2)


def test_traffic_is_bounded() -> None:
    """Above so many pairs the others are told as a sum."""
    ledger = TrafficLedger(True, max_pairs=2)
    routes = [TopicRoute(topic, HookVerdict(values.ALLOW, "test")) for topic in "abc"]
    for route in routes * 2:
        route.messages, route.bytes = 1, 10
        ledger.add("c", route)
    first = ledger.take_snapshot(5.0, "here")
    second = ledger.take_snapshot(6.0, "here")

    assert {(pair.topic, pair.messages, pair.bytes) for pair in first.pairs} == {("a", 2, 20), ("b", 2, 20)}
    assert (first.at, first.node, first.others_messages, first.others_bytes) == (5.0, "here", 2, 20)
    assert (second.pairs, second.others_messages) == ((), 0)


def test_traffic_is_bounded_by_what_names_take() -> None:
    """Clients choose names of 64 KB; what no longer fits is told as a sum, and the next interval begins anew."""
    ledger = TrafficLedger(True, max_name_bytes=10)
    told = []
    for _ in range(2):
        for topic in ("abcd", "\u00e4", "abcd", "e"):
            route = TopicRoute(topic, HookVerdict(values.ALLOW, "test"))
            route.messages, route.bytes = 1, 10
            ledger.add("c", route)
        told.append(ledger.take_snapshot(5.0, "here"))

    assert [{pair.topic: pair.messages for pair in each.pairs} for each in told] == [{"abcd": 2, "\u00e4": 1}] * 2
    assert [each.others_messages for each in told] == [1, 1]


class Publishers:
    """Connections that have published so much to so many topics each."""

    def __init__(self, ledger: TrafficLedger, number: int, topics: int) -> None:
        self.ledger = ledger
        self.routes = {
            f"c{client}": [TopicRoute(f"t{topic}", HookVerdict(values.ALLOW, "test")) for topic in range(topics)]
            for client in range(number)
        }
        self.publish()

    def publish(self) -> None:
        """One more message each."""
        for routes in self.routes.values():
            for route in routes:
                route.messages += 1
                route.bytes += 10

    def connections(self) -> list[Any]:
        """What is counted together."""
        return [Publisher(self.ledger, client_id, routes) for client_id, routes in self.routes.items()]


class Publisher:
    """One of them."""

    def __init__(self, ledger: TrafficLedger, client_id: str, routes: list[TopicRoute]) -> None:
        self.ledger, self.client_id, self.routes = ledger, client_id, routes

    def count_routes(self) -> int:
        """As of a connection."""
        self.ledger.add_all(self.client_id, self.routes)
        return len(self.routes)


class Turns:
    """Samples of a ledger, and the reactor's next turn."""

    def __init__(self, ledger: TrafficLedger) -> None:
        self.soon: list[Callable[[], object]] = []
        self.told: list[TrafficSnapshot] = []
        self.sampling = TrafficSampling(
            self.soon.append, lambda at: self.told.append(ledger.take_snapshot(at, "here"))
        )

    def turn(self) -> None:
        """What was put off to it."""
        calls, self.soon[:] = list(self.soon), []
        for call in calls:
            call()

    def messages(self) -> dict[float, int]:
        """What was told, by the moment of the sample."""
        return {each.at: sum(pair.messages for pair in each.pairs) for each in self.told}


@pytest.mark.parametrize(("number", "topics"), [(3000, 0), (300, 20), (10, 1000)])
def test_the_traffic_of_very_many_is_counted_in_several_turns(number: int, topics: int) -> None:
    """In each no more than AT_ONCE connections and topics, and one connection's: who waits, waits milliseconds."""
    ledger = TrafficLedger(True)
    turns = Turns(ledger)
    publishers = Publishers(ledger, number, topics)
    left = [number * topics]
    turns.sampling.begin(5.0, publishers.connections())
    while turns.soon:
        assert turns.told == []
        left.append(sum(route.messages for routes in publishers.routes.values() for route in routes))
        turns.turn()
    left.append(0)
    steps = [before - after for before, after in pairwise(left)]

    assert turns.messages() == {5.0: number * topics}
    assert len(steps) >= number * (1 + topics) // (AT_ONCE + topics)
    assert max(steps) <= AT_ONCE + topics


@given(st.lists(st.sampled_from(["publish", "begin", "turn", "finish", "close"]), max_size=30))
def test_whenever_traffic_comes_it_is_told_once(steps: list[str]) -> None:
    """Also what comes, and who goes, while it is counted together; samples are told in their order."""
    ledger = TrafficLedger(True)
    turns = Turns(ledger)
    publishers = Publishers(ledger, 30, 100)
    published, at = 3000, 0.0
    for step in [*steps, "begin", "finish"]:
        if step == "publish":
            publishers.publish()
            published += 100 * len(publishers.routes)
        elif step == "begin":
            at += 1
            turns.sampling.begin(at, publishers.connections())
        elif step == "finish":
            turns.sampling.finish()
        elif step == "turn":
            turns.turn()
        elif publishers.routes:
            ledger.add_all(*publishers.routes.popitem())

    assert sum(turns.messages().values()) == published
    assert [each.at for each in turns.told] == [float(number) for number in range(1, int(at) + 1)]


def test_a_sample_is_of_one_moment() -> None:
    """Metrics and traffic of it: two would come to lie in two windows of time."""

    class Both(Listening):
        def __init__(self) -> None:
            super().__init__()
            self.moments: list[float] = []

        @hookimpl
        def sampled(self, snapshot: Snapshot) -> None:
            self.moments.append(snapshot.at)

    both = Both()
    house = House(plugins={"both": both}, settings=EVERY_10_S)

    def slow() -> float:
        house.clock.step(1.0)
        return 0.0

    house.assembly.metrics.gauge("test.slow", "seconds", slow)
    house.advance(21)

    assert [traffic.at for traffic in both.told] == both.moments
    assert len(set(both.moments)) == 3


def test_a_broker_that_stops_while_it_counts_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample that is under way, and the last one."""

    class Counting(Listening):
        when_stopped: int

        @hookimpl
        def stop(self) -> None:
            self.when_stopped = len(self.told)

    monkeypatch.setattr(traffic_module, "AT_ONCE", 1)
    sink = Counting()
    house = House(plugins={"sink": sink}, settings=EVERY_10_S)
    house.advance(2)
    sink.told.clear()
    for name in "abcdefgh":
        client = house.connect(name)
        client.link.lingers = True
        for number in range(20):
            client.publish(f"t/{number}", b"x")
    house.broker.sampler.sample()
    stopping = ensureDeferred(house.broker.stop())
    house.advance(FAREWELL_LIMIT_S + 1)

    assert stopping.called
    assert sink.when_stopped == len(sink.told) == 2
    assert len(sink.pairs()) == sum(messages for messages, _ in sink.pairs().values()) == 160


def test_without_an_interval_nothing_is_counted() -> None:
    """Nobody would ever take it."""
    house = House(plugins={"listening": Listening()}, settings=BrokerSettings(sys_interval_s=0))

    assert not house.broker.traffic.active


# The end


class Remembering(Listening):
    """Takes what it is told, and what has been told when it is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[int] = []
        self.stopped_after: list[int] = []
        self.gone: list[str] = []

    @hookimpl
    def sampled(self, snapshot: Snapshot) -> None:
        counts = {sample.name: sample.value for sample in snapshot.samples if isinstance(sample, CounterSample)}
        self.received.append(counts["messages.received"])

    @hookimpl
    def disconnected(self, client: Client) -> None:
        self.gone.append(client.client_id)

    @hookimpl
    def stop(self) -> None:
        self.stopped_after.append(len(self.gone))


def test_the_end_is_sampled_too() -> None:
    """A broker that stops tells sinks what it has counted since the last interval, before they are stopped."""
    sink = Remembering()
    house = House(plugins={"sink": sink}, settings=EVERY_10_S)
    house.advance(11)
    for name in "pq":
        house.connect(name).publish("t", b"x")
    house.result(house.broker.stop())

    assert sink.received[-1] == 2
    assert sum(pair.messages for pair in sink.told[-1].pairs) == 2
    assert sink.stopped_after == [2]


def test_a_sink_that_hangs_does_not_keep_the_broker() -> None:
    """A notice that nobody answers holds up the end for a bounded time."""

    class Hanging:
        @hookimpl
        def sampled(self, snapshot: Snapshot) -> Any:
            return Deferred()

    house = House(plugins={"hanging": Hanging()}, settings=EVERY_10_S)
    house.advance(11)
    stopped = ensureDeferred(house.broker.stop())
    house.advance(STOP_LIMIT_S + 1)

    assert stopped.called
