"""Outboxes that break one promise each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from attrs import evolve

from kinmqtt_spi.memory.bridge import MemoryOutbox
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.outbox import (
    Accepted,
    AtMostOnce,
    EntryHandler,
    OutboxFigures,
    OutboxSettings,
    WhenFull,
)
from kinmqtt_spi.testing.outbox import OutboxContract
from kinmqtt_spi.values import Message
from spi_harness.memory_outbox_house import MemoryHouse


class _Broken(OutboxContract):
    """``double`` is an outbox in memory."""

    double: type[MemoryOutbox]

    @pytest.fixture
    def house(self, clock: TurnableClock) -> MemoryHouse:
        return MemoryHouse(clock, self.double)


class _With(MemoryOutbox):
    """Settings that replace those of the test."""

    changed: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str, settings: OutboxSettings, clock: Any, stored: Any = None) -> None:
        super().__init__(name, evolve(settings, **self.changed), clock, stored)


class TestOUTBOX_01_HandsOutBackwards(_Broken):
    class double(MemoryOutbox):
        def consume(self, handler: EntryHandler) -> None:
            super().consume(lambda entries: handler(entries[::-1]))


class TestOUTBOX_02_HandsOutAtOnce(_Broken):
    class double(MemoryOutbox):
        def _schedule(self) -> None:
            self._turn()


class TestOUTBOX_03_IgnoresTheWindow(_Broken):
    class double(_With):
        changed: ClassVar[dict[str, Any]] = {"window": 1000}


class TestOUTBOX_04_AlwaysSaysRepeated(_Broken):
    class double(MemoryOutbox):
        def consume(self, handler: EntryHandler) -> None:
            super().consume(lambda entries: handler([entry._replace(is_repeated=True) for entry in entries]))


class TestOUTBOX_05_ForgetsAtARestart(_Broken):
    class double(MemoryOutbox):
        def __init__(self, name: str, settings: OutboxSettings, clock: Any, stored: Any = None) -> None:
            super().__init__(name, settings, clock, {})


class TestOUTBOX_06_StoresWhatWasAcknowledged(_Broken):
    class double(MemoryOutbox):
        def acknowledge(self, numbers: Sequence[int]) -> None:
            super().acknowledge(numbers)
            self._removed.clear()


class TestOUTBOX_07_ForgetsWhatItHandedOut(_Broken):
    class double(MemoryOutbox):
        def _hand_out(self) -> None:
            super()._hand_out()
            for entry in self.stored.values():
                entry.handed_out = False


class TestOUTBOX_08_CountsWhatIsHandedOut(_Broken):
    class double(MemoryOutbox):
        def figures(self) -> OutboxFigures:
            figures = super().figures()
            return evolve(figures, queued=figures.queued + figures.inflight)


class TestOUTBOX_09_NeverRefuses(_Broken):
    class double(_With):
        changed: ClassVar[dict[str, Any]] = {"when_full": WhenFull.DROP_OLDEST}


class TestOUTBOX_10_RefusesAtOnce(_Broken):
    class double(_With):
        changed: ClassVar[dict[str, Any]] = {"when_full": WhenFull.REFUSE}


class TestOUTBOX_11_DropsTheNewest(_Broken):
    class double(MemoryOutbox):
        def put(self, message: Message) -> Accepted:
            full = self.figures().fullness >= 1
            return Accepted.ACCEPTED if full else super().put(message)


class TestOUTBOX_12_RefusesInstead(_Broken):
    class double(_With):
        changed: ClassVar[dict[str, Any]] = {"when_full": WhenFull.REFUSE}


class TestOUTBOX_13_CountsNoBytes(_Broken):
    class double(_With):
        changed: ClassVar[dict[str, Any]] = {"max_bytes": 1 << 30}


class TestOUTBOX_14_StaysFull(_Broken):
    class double(MemoryOutbox):
        is_full = False

        def put(self, message: Message) -> Accepted:
            accepted = Accepted.REFUSED if self.is_full else super().put(message)
            self.is_full = accepted is Accepted.REFUSED
            return accepted


class TestOUTBOX_15_StoresQoS0(_Broken):
    class double(_With):
        changed: ClassVar[dict[str, Any]] = {"qos_0": AtMostOnce.STORE}


class TestOUTBOX_16_OnlyPassesQoS0(_Broken):
    class double(_With):
        changed: ClassVar[dict[str, Any]] = {"qos_0": AtMostOnce.PASS}


class TestOUTBOX_17_PassesQoS0(_Broken):
    class double(_With):
        changed: ClassVar[dict[str, Any]] = {"qos_0": AtMostOnce.PASS}


class TestOUTBOX_18_HandsOutExpiredMessages(_Broken):
    class double(MemoryOutbox):
        def _append(self, message: Message) -> None:
            super()._append(evolve(message, expires_at=None))


class TestOUTBOX_19_TakesAnyTopic(_Broken):
    class double(MemoryOutbox):
        def put(self, message: Message) -> Accepted:
            try:
                return super().put(message)
            except ValueError:
                return Accepted.DROPPED


class TestOUTBOX_20_TakesSharedFilters(_Broken):
    class double(MemoryOutbox):
        def subscribe(self, filters: Sequence[str]) -> None:
            super().subscribe([each for each in filters if not each.startswith("$share/")])


class TestOUTBOX_21_AddsFilters(_Broken):
    class double(MemoryOutbox):
        def subscribe(self, filters: Sequence[str]) -> None:
            super().subscribe([*self.filters, *filters])


class TestOUTBOX_22_DiscardsOnlyWhatWaits(_Broken):
    class double(MemoryOutbox):
        def discard(self) -> None:
            handed_out = {number: entry for number, entry in self.stored.items() if entry.handed_out}
            super().discard()
            self.stored |= handed_out


class TestOUTBOX_23_MakesRoomTwice(_Broken):
    class double(MemoryOutbox):
        def acknowledge(self, numbers: Sequence[int]) -> None:
            for number in numbers:
                if number not in self._inflight and self._inflight:
                    self._inflight.pop(next(iter(self._inflight)))
            super().acknowledge(numbers)


class TestOUTBOX_24_CountsTheNewMessage(_Broken):
    class double(MemoryOutbox):
        def put(self, message: Message) -> Accepted:
            full = self.figures().queued_bytes + message.size_bytes > self.settings.max_bytes
            return Accepted.REFUSED if full else super().put(message)


class TestOUTBOX_25_HoldsNothing(_Broken):
    class double(MemoryOutbox):
        def hold(self, numbers: Sequence[int]) -> None:
            pass
