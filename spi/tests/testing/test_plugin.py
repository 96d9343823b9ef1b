"""The reference plugins keep what any plugin promises."""

from __future__ import annotations

import pytest

from kinmqtt_spi.memory.authentication import StaticUsers
from kinmqtt_spi.memory.authorization import Rule, StaticRules
from kinmqtt_spi.memory.limiter import TokenBuckets
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract
from kinmqtt_spi.values import Verdict
from spi_harness.broken_plugin import SoundTicker


class TestStaticUsers(PluginContract):
    """Users from a dict."""

    @pytest.fixture
    def plugin(self) -> PluginCase:
        return PluginCase(lambda: StaticUsers({"alice": b"secret"}))


class TestStaticRules(PluginContract):
    """Rules from a list."""

    @pytest.fixture
    def plugin(self) -> PluginCase:
        return PluginCase(lambda: StaticRules([Rule(Verdict.DENY, "secret/#")]))


class TestTokenBuckets(PluginContract):
    """Token buckets."""

    @pytest.fixture
    def plugin(self, clock: TurnableClock) -> PluginCase:
        return PluginCase(lambda: TokenBuckets([], clock.monotonic))


class TestTicker(SoundTicker):
    """A plugin with a whole life: what the doubles are made from."""
