"""The example guard keeps what any plugin promises, and what a plugin with ``$SYS`` topics does."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_example_guard import Guard, GuardSettings
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.testing.build import client, message
from kinmqtt_spi.testing.metric import MetricPluginContract
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract


class TestGuard(PluginContract):
    """Its life."""

    reloads = refuses_settings = True

    @pytest.fixture
    def plugin(self) -> PluginCase:
        return PluginCase(
            Guard, 'deny = ["secret/#"]', 'deny = ["open/#"]\nmax_payload_bytes = 3', "deny = []", "example_guard"
        )

    def probe(self, plugin: Any) -> object:
        return [plugin.publish_received(client("c"), message(topic)) for topic in ("secret/x", "open/x")]


class TestGuardsTopics(MetricPluginContract):
    """What it publishes below ``$SYS/``."""

    samples = False

    @pytest.fixture
    def metric_plugin(self) -> Guard:
        guard = Guard()
        guard.configure(BareContext("example_guard", GuardSettings(deny=("secret/#",))))
        return guard
