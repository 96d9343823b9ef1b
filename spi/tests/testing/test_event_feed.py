"""The feed of a node's own log keeps its contract."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.event_feed import LocalFeed
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.testing.event_feed import EventFeedContract
from spi_harness.broken_event_feed import Feeds


class TestLocalFeed(Feeds):
    """Over a log that runs coroutines, shared with another node's feed."""


class TestPlainLocalFeed(EventFeedContract):
    """As it comes: one node, and handlers that answer at once."""

    @pytest.fixture
    def event_feed(self, clock: TurnableClock) -> LocalFeed:
        return LocalFeed(MemoryEventLog(clock.later), self.node)

    def record(self, feed: Any, drive: Any, *events: Any) -> None:
        feed._log.append(events)
