"""Outboxes of a whole broker keep the contract, over stores that outlive its process."""

from __future__ import annotations

import pytest

from core_harness.nodes import NodeStores, SharedStores
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.outbox import Outbox, OutboxSettings
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.testing.outbox import OutboxContract, OutboxHouse
from kinmqtt_spi.values import Message, NodeIdentity


class Opener:
    """A plugin that opens an outbox with the settings that it was given."""

    def __init__(self, settings: OutboxSettings) -> None:
        self.settings = settings
        self.context: Context
        self.outbox: Outbox

    @hookimpl
    def start(self, context: Context) -> None:
        self.context = context
        self.outbox = context.outbox("sink", self.settings)


class BrokerHouse(OutboxHouse):
    """One broker after the other over the same stores; a dead one writes nothing more."""

    def __init__(self, clock: TurnableClock) -> None:
        self.clock = clock
        self._stores = SharedStores()
        self._broker: BrokerHarness | None = None
        self._opener: Opener | None = None
        self._uid = 0

    def open(self, settings: OutboxSettings) -> Outbox:
        if self._opener is None:
            self._uid += 1
            node = NodeIdentity("n", self._uid)
            self._opener = Opener(settings)
            self._broker = BrokerHarness(
                plugins={"stores": NodeStores(self._stores, node), "opener": self._opener},
                services=dict.fromkeys(("session", "queue", "retain"), "stores"),
                clock=self.clock,
                node=node,
            )
        return self._opener.outbox

    def turn(self, seconds: float = 0.0) -> None:
        broker = self._broker
        assert broker is not None
        broker.settle()
        if seconds:
            broker.advance(seconds)

    def kill(self) -> None:
        assert self._broker is not None
        self._broker._soon.clear()
        self._stores.sessions.bury(NodeIdentity("n", self._uid))
        self._broker = self._opener = None

    def publish(self, message: Message) -> None:
        assert self._opener is not None
        self._opener.context.publish(message)


class TestOutboxesOfBrokers(OutboxContract):
    """The core's outboxes."""

    @pytest.fixture
    def house(self, clock: TurnableClock) -> BrokerHouse:
        return BrokerHouse(clock)
