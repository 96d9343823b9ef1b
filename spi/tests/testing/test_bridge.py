"""The reference sinks and sources keep their contracts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.bridge import ListSink
from kinmqtt_spi.services.bridge import Item, Poison, Publish
from kinmqtt_spi.testing.bridge import SinkCase, SinkContract, SourceContract
from spi_harness.broken_bridge import BridgeSuite
from spi_harness.broken_source import SourceSuite
from spi_harness.targets import POISON, OriginSource, TargetSink


class TestTargetSink(BridgeSuite):
    """A sink that answers later, with everything that the suite asks for."""

    double = TargetSink


class AsyncioSink(TargetSink):
    """A sink that uses asyncio."""

    async def reach(self) -> None:
        await asyncio.sleep(3600 if self.target.state == "hanging" else 0)
        await super().reach()


class TestAsyncioSink(BridgeSuite):
    """A sink whose answers come from asyncio's loop."""

    reactor = "asyncio"
    double = AsyncioSink


class AsyncioSource(OriginSource):
    """A source that uses asyncio."""

    async def run(self, publish: Publish) -> None:
        origin = self.origin
        while True:
            if origin.is_down:
                raise ServiceUnavailable("the origin is down")
            batch = origin.offered[len(origin.acknowledged) :][:10]
            if batch:
                await publish(self.messages(batch))
                origin.acknowledged += batch
            await asyncio.sleep(0)


class TestAsyncioSource(SourceSuite):
    """A source that runs as a task of asyncio's loop."""

    reactor = "asyncio"
    double = AsyncioSource


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
