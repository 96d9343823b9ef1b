"""The reference sinks and sources keep their contracts."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_spi.memory.bridge import ListSink
from kinmqtt_spi.services.bridge import Item, Poison
from kinmqtt_spi.testing.bridge import SinkCase, SinkContract, SourceContract
from spi_harness.broken_bridge import BridgeSuite
from spi_harness.broken_source import SourceSuite
from spi_harness.targets import POISON, OriginSource, TargetSink


class TestTargetSink(BridgeSuite):
    """A sink that answers later, with everything that the suite asks for."""

    double = TargetSink


class TestListSink(SinkContract):
    """The sink that answers at once."""

    has_poison = True

    @pytest.fixture
    def sink(self) -> SinkCase:
        def answer(item: Item) -> Any:
            return Poison("forbidden") if item.message.payload == POISON.payload else None

        sink = ListSink(answer)
        return SinkCase(sink, lambda: [item.message.payload for item in sink.taken], POISON)


class TestOriginSource(SourceSuite):
    """A source with everything that the suite asks for."""

    double = OriginSource


assert issubclass(SourceSuite, SourceContract)
