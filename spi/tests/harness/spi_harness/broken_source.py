"""Sources that break one promise each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kinmqtt_spi.errors import PublishRefused
from kinmqtt_spi.memory.polling import Pending
from kinmqtt_spi.services.bridge import Publish
from kinmqtt_spi.testing.bridge import SourceCase, SourceContract
from kinmqtt_spi.values import Message
from spi_harness.targets import OriginSource, source_case


class SourceSuite(SourceContract):
    """``double`` is a source over an origin in memory."""

    can_fail = True
    double: type[OriginSource]

    @pytest.fixture
    def source(self) -> SourceCase:
        case, self.origin = source_case(self.double)
        return case

    def failing(self, case: SourceCase) -> Callable[[], object]:
        self.origin.is_down = True
        return lambda: setattr(self.origin, "is_down", False)


class TestSOURCE_01_PublishesBackwards(SourceSuite):
    class double(OriginSource):
        def messages(self, payloads: Sequence[bytes]) -> list[Message]:
            return super().messages(payloads[::-1])


class TestSOURCE_02_LooksOnce(SourceSuite):
    class double(OriginSource):
        async def run(self, publish: Publish) -> None:
            if self.origin.offered:
                await super().run(publish)
            await Pending[Any]()


class TestSOURCE_03_AcknowledgesAtOnce(SourceSuite):
    class double(OriginSource):
        async def run(self, publish: Publish) -> None:
            async def early(messages: Sequence[Message]) -> None:
                self.origin.acknowledged += [each.payload for each in messages]
                await publish(messages)

            await super().run(early)


class TestSOURCE_04_SkipsWhatIsRefused(SourceSuite):
    class double(OriginSource):
        async def run(self, publish: Publish) -> None:
            async def careless(messages: Sequence[Message]) -> None:
                try:
                    await publish(messages)
                except PublishRefused:
                    return

            await super().run(careless)


class TestSOURCE_05_CatchesItsCancellation(SourceSuite):
    class double(OriginSource):
        async def run(self, publish: Publish) -> None:
            while True:
                try:
                    await super().run(publish)
                except asyncio.CancelledError:
                    self.origin.changed = Pending()


class TestSOURCE_06_BeginsAtTheBeginning(SourceSuite):
    class double(OriginSource):
        async def run(self, publish: Publish) -> None:
            if self.origin.acknowledged:
                await publish(self.messages(self.origin.acknowledged))
            await super().run(publish)


class TestSOURCE_07_PublishesToAFilter(SourceSuite):
    class double(OriginSource):
        def messages(self, payloads: Sequence[bytes]) -> list[Message]:
            return [Message("from/+", payload, 1) for payload in payloads]


class TestSOURCE_08_EndsInSilence(SourceSuite):
    class double(OriginSource):
        async def run(self, publish: Publish) -> None:
            if self.origin.is_down:
                await Pending[Any]()
            await super().run(publish)
