"""Outboxes over any run of messages, acknowledgements, failing stores and restarts lose nothing acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core_harness.nodes import NodeStores, SharedStores
from core_harness.stores import everything, nothing
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, Puback, Publish
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.memory.shared_queue import NodeQueueStore
from kinmqtt_spi.services.outbox import AtMostOnce, OutboxEntry, OutboxSettings, WhenFull
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.services.queue import QueueWrite
from kinmqtt_spi.values import NodeIdentity

WINDOW, MOST = 3, 8


class Shipper:
    """Takes what it gets; entries of an earlier process are not its own."""

    def __init__(self, when_full: WhenFull) -> None:
        self.entries: list[OutboxEntry] = []
        self.handed_out: set[int] = set()
        self.settings = OutboxSettings(
            max_messages=MOST, window=WINDOW, when_full=when_full, qos_0=AtMostOnce.IGNORE, pause_limit_s=5.0
        )
        self.outbox: Any = None

    @hookimpl
    def start(self, context: Context) -> None:
        self.outbox = context.outbox("out", self.settings, ["a"])
        self.outbox.consume(self._take)

    def _take(self, entries: list[OutboxEntry]) -> None:
        for entry in entries:
            assert entry.is_repeated or entry.number not in self.handed_out
            self.handed_out.add(entry.number)
        known = {entry.number for entry in self.entries}
        self.entries += [entry for entry in entries if entry.number not in known]


class FailingQueues(NodeQueueStore):
    """Queues that refuse writes while they are told to."""

    refuses = staticmethod(nothing)

    def apply(self, writes: Sequence[QueueWrite]) -> Any:
        if any(self.refuses(write) for write in writes):
            raise ServiceUnavailable("told to fail")
        return super().apply(writes)


class OutboxMachine(RuleBasedStateMachine):
    """One outbox, one publisher of each version, and what they know."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = SharedStores()
        self.clock = TurnableClock()
        self.when_full = WhenFull.REFUSE
        self.generation = 0
        self.number = 0
        self.acknowledged: list[bytes] = []
        """Payloads whose publishers got PUBACK with success."""
        self.taken: list[bytes] = []
        """Payloads that the consumer has acknowledged."""
        self.is_failing = False
        self.start()

    def start(self) -> None:
        self.generation += 1
        node = NodeIdentity("n", self.generation)
        stores = NodeStores(self.stores, node)
        stores.queues = self.queues = FailingQueues(self.stores.queues, stores.sessions.is_home)
        self.shipper = Shipper(self.when_full)
        self.broker = BrokerHarness(
            plugins={"stores": stores, "shipper": self.shipper},
            services=dict.fromkeys(("session", "queue", "retain"), "stores"),
            clock=self.clock,
            node=node,
        )

    @rule(version=st.sampled_from((V311, V5)), count=st.integers(1, 4))
    def publish(self, version: int, count: int) -> None:
        self.number += 1
        client = self.broker.connect(f"p{self.number}", version)
        payloads = [b"%d-%d" % (self.number, number) for number in range(count)]
        for packet_id, payload in enumerate(payloads, 1):
            client.send_bytes(_publish(payload, packet_id, version))
        self.broker.settle()
        for packet in client.of(Puback):
            if not packet.reason.is_failure:
                self.acknowledged.append(payloads[packet.packet_id - 1])
        client.drop()
        self.broker.settle()

    @precondition(lambda self: self.shipper.entries)
    @rule(count=st.integers(1, WINDOW))
    def acknowledge(self, count: int) -> None:
        taken = self.shipper.entries[:count]
        del self.shipper.entries[:count]
        self.shipper.outbox.acknowledge([entry.number for entry in taken])
        self.broker.settle()
        self.taken += [entry.message.payload for entry in taken]

    @rule()
    def fail_or_work(self) -> None:
        self.is_failing = not self.is_failing
        self.queues.refuses = everything if self.is_failing else nothing

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds: int) -> None:
        self.broker.advance(float(seconds))

    @rule(when_full=st.sampled_from((WhenFull.REFUSE, WhenFull.PAUSE)))
    def restart(self, when_full: WhenFull) -> None:
        """Killed, and started again with other settings."""
        self.stores.sessions.bury(NodeIdentity("n", self.generation))
        self.when_full = when_full
        self.is_failing = False
        self.start()

    @invariant()
    def bounds_hold(self) -> None:
        figures = self.shipper.outbox.figures()
        assert figures.inflight <= WINDOW
        assert figures.queued <= MOST * 1.1 + 1

    def teardown(self) -> None:
        """All that was acknowledged has come, or comes now."""
        self.queues.refuses = nothing
        self.broker.advance(10.0)
        for _ in range(100):
            self.broker.settle()
            if not self.shipper.entries:
                break
            self.acknowledge(WINDOW)
        assert set(self.acknowledged) <= set(self.taken)
        assert self.shipper.outbox.figures().queued == self.shipper.outbox.figures().inflight == 0
        self.order_holds()

    def order_holds(self) -> None:
        """First copies of one publisher's messages come in their order."""
        first = list(dict.fromkeys(self.taken))
        for publisher in {payload.split(b"-")[0] for payload in first}:
            numbers = [int(each.split(b"-")[1]) for each in first if each.split(b"-")[0] == publisher]
            assert numbers == sorted(numbers)


def _publish(payload: bytes, packet_id: int, version: int) -> bytes:
    return encode(Publish.build("a", payload, qos=1, packet_id=packet_id), version)


TestOutboxes = OutboxMachine.TestCase
TestOutboxes.settings = hypothesis_settings(max_examples=25, stateful_step_count=30, deadline=None)
