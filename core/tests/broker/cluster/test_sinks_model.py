"""Sinks over the outboxes of two nodes, by filter and by tap: random answers, kills and adoptions lose nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from twisted.internet.defer import Deferred

from core_harness.nodes import Nodes
from kinmqtt.mqtt.packets import V5, V311, Puback
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.bridge import Answer, Item, Poison, Retry, SendSettings, Sink, SinkPlan
from kinmqtt_spi.services.outbox import OutboxSettings, WhenFull
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.values import Maybe

MOST, WINDOW = 6, 3
SINKS = ("filled", "tapped")


class Target:
    """Where the sinks of all nodes lead. It takes everything, if the machine has not decided otherwise."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.taken: set[bytes] = set()
        self.poison: set[bytes] = set()
        self.waiting: list[tuple[Deferred[Any], Link, Sequence[Item]]] = []

    def send(self, link: Link, items: Sequence[Item]) -> Maybe[Sequence[Answer] | None]:
        kind = self.answers.pop(0) if self.answers else "take"
        payloads = [item.message.payload for item in items]
        if kind == "hang":
            answer: Deferred[Any] = Deferred()
            self.waiting.append((answer, link, items))
            return answer
        if kind == "away":
            raise ServiceUnavailable("away")
        if kind == "poison":
            self.poison.add(payloads[0])
            self.taken.update(payloads[1:])
            return [Poison("never"), *[None] * (len(items) - 1)]
        if kind == "retry":
            return [Retry("later")] * len(items)
        self.taken.update(payloads)
        if kind == "take and fail":
            raise ServiceUnavailable("it went away")
        return None

    def go_on(self) -> None:
        """Answer what waits; a dead process gets no answer."""
        waiting, self.waiting = self.waiting, []
        for answer, link, items in waiting:
            if link.is_alive and not answer.called:
                try:
                    answer.callback(self.send(link, items))
                except ServiceUnavailable as error:
                    answer.errback(error)


class Link(Sink):
    """The way to a target from one process."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.is_alive = True

    def send(self, items: Sequence[Item]) -> Maybe[Sequence[Answer] | None]:
        if not self.is_alive:
            raise ServiceUnavailable("killed")
        return self.target.send(self, items)


class Exporter:
    """The plugin of one process: one sink has a filter, the other is filled by a tap."""

    def __init__(self, targets: Mapping[str, Target], when_full: WhenFull) -> None:
        self.links = {name: Link(target) for name, target in targets.items()}
        outbox = OutboxSettings(max_messages=MOST, window=WINDOW, when_full=when_full, pause_limit_s=5.0)
        self.plan = SinkPlan(next(iter(self.links.values())), ("a",), outbox, SendSettings(batch=3, linger_s=0.0))

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        filters = {"filled": ("a",), "tapped": ()}
        return {name: evolve(self.plan, sink=link, filters=filters[name]) for name, link in self.links.items()}

    @hookimpl
    def start(self, context: Context) -> None:
        context.tap(["a"], lambda message: context.put("exporter:tapped", message))


class SinksMachine(RuleBasedStateMachine):
    """Two nodes, and what their publishers know."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = Nodes(0)
        self.targets = {name: Target() for name in SINKS}
        self.exporters: list[Exporter] = []
        self.places: dict[str, int] = {}
        """By name of a living node: its place in ``nodes``."""
        self.number = 0
        self.acknowledged: set[bytes] = set()
        for name in ("n1", "n2"):
            self.start(name, WhenFull.PAUSE)

    def start(self, name: str, when_full: WhenFull) -> None:
        exporter = Exporter(self.targets, when_full)
        self.places[name] = len(self.nodes.brokers)
        self.exporters.append(exporter)
        self.nodes.add(name=name, plugins={"exporter": exporter})
        self.nodes.settle()

    def broker(self, name: str) -> BrokerHarness:
        return self.nodes.brokers[self.places[name]]

    @rule(node=st.sampled_from(("n1", "n2")), version=st.sampled_from((V311, V5)), count=st.sampled_from((12, 1, 4)))
    def publish(self, node: str, version: int, count: int) -> None:
        if node not in self.places:
            return
        before = self.number
        client = self.broker(node).connect(f"p{before}", version)
        for _ in range(count):
            self.number += 1
            if not client.closed:
                client.publish("a", b"%d" % self.number, qos=1)
        self.nodes.settle()
        for packet in client.of(Puback):
            if not packet.reason.is_failure:
                self.acknowledged.add(b"%d" % (before + packet.packet_id))
        client.drop()
        self.nodes.settle()

    @rule(
        sink=st.sampled_from(SINKS),
        answers=st.lists(
            st.sampled_from(("hang", "away", "poison", "retry", "take and fail", "take")), min_size=1, max_size=4
        ),
    )
    def decide(self, sink: str, answers: list[str]) -> None:
        self.targets[sink].answers += answers

    @rule(sink=st.sampled_from(SINKS))
    def answer(self, sink: str) -> None:
        self.targets[sink].go_on()
        self.nodes.settle()

    @rule(seconds=st.sampled_from((1, 6, 31)))
    def wait(self, seconds: int) -> None:
        self.nodes.advance(seconds)

    @precondition(lambda self: len(self.places) == 2)
    @rule(node=st.sampled_from(("n1", "n2")))
    def kill(self, node: str) -> None:
        """The other node adopts what this one had."""
        place = self.places.pop(node)
        for link in self.exporters[place].links.values():
            link.is_alive = False
        self.nodes.kill(place)
        self.nodes.settle()

    @precondition(lambda self: len(self.places) == 1)
    @rule(when_full=st.sampled_from((WhenFull.PAUSE, WhenFull.REFUSE)))
    def come_back(self, when_full: WhenFull) -> None:
        """It takes its outboxes again, with other settings."""
        (there,) = self.places
        self.start("n1" if there == "n2" else "n2", when_full)

    @invariant()
    def bounds_hold(self) -> None:
        for name in self.places:
            for session in self.broker(name).broker.sessions.outboxes.all:
                if not session.client_id.endswith(".parked"):
                    assert len(session.outgoing) <= WINDOW
                    assert session.queue.count <= MOST * 1.1 + 1

    def teardown(self) -> None:
        """What was acknowledged has come to each target, or comes now, or is parked."""
        for target in self.targets.values():
            target.answers.clear()
        for _ in range(4):
            for target in self.targets.values():
                target.go_on()
            self.nodes.advance(31)
        for name, target in self.targets.items():
            assert self.acknowledged <= target.taken | target.poison, name
        parked = 0
        for name in self.places:
            for session in self.broker(name).broker.sessions.outboxes.all:
                if session.client_id.endswith(".parked"):
                    parked += session.queue.count
                else:
                    assert session.is_drained
        assert parked >= sum(len(target.poison - target.taken) for target in self.targets.values())


TestSinks = SinksMachine.TestCase
TestSinks.settings = hypothesis_settings(max_examples=20, stateful_step_count=25, deadline=None)
