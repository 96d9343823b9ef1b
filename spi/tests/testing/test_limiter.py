"""The reference limiter keeps its contract."""

from __future__ import annotations

import pytest
from attrs import evolve

from kinmqtt_spi.memory.limiter import Rule, TokenBuckets
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.limiter import LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.testing.limiter import LimiterCase, LimiterContract
from spi_harness.broken_limiter import SoundSlots

PUBLISH = Resource(ResourceKind.PUBLISH, "tcp:1883", "192.0.2.1", "client", "user")
CONNECT = Resource(ResourceKind.CONNECT, "tcp:1883", "192.0.2.1", "client")


class TestDelayingBuckets(LimiterContract):
    """Token buckets that delay."""

    bounded = True
    bound = 1000

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        rule = Rule("publishes", ResourceKind.PUBLISH, 5, 8)
        return LimiterCase(TokenBuckets([rule], clock.monotonic, buckets=self.bound), PUBLISH, 8, CONNECT, 5)

    def size(self, case: LimiterCase) -> int:
        return len(case.plugin)


class TestRefusingBuckets(TestDelayingBuckets):
    """Token buckets that refuse."""

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        rule = Rule("connects", ResourceKind.CONNECT, 0.5, 3, "address", verdict=LimitVerdict.REJECT)
        plugin = TokenBuckets([rule], clock.monotonic, buckets=self.bound)
        same, own = [evolve(CONNECT, client_id="other")], [evolve(CONNECT, address="192.0.2.10")]
        return LimiterCase(plugin, CONNECT, 3, PUBLISH, 0.5, same, own)


class TestSoundSlots(SoundSlots):
    """A limiter by how much there is at once: what doubles are made from."""
