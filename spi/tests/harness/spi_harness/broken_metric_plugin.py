"""Plugins with metrics that break one promise each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kinmqtt_spi.markers import hookimpl
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.metric import Snapshot, SysTopic, TrafficSnapshot
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.testing.faults import Held
from kinmqtt_spi.testing.metric import MetricPluginContract


class Sink:
    """A sound plugin: says how many snapshots it has taken."""

    def __init__(self, clock: TurnableClock) -> None:
        self.clock = clock
        self.taken = 0
        self.down = False

    @hookimpl
    def sys_topics(self) -> Sequence[SysTopic]:
        return [SysTopic("$SYS/sink/taken", lambda: str(self.taken)), SysTopic("$SYS/sink/state", lambda: "up")]

    @hookimpl
    async def sampled(self, snapshot: Snapshot) -> None:
        if self.down:
            late = Held(lambda: None)
            self.clock.later(self.patience_s, late.go)
            await late
            raise ConnectionError("nobody there")
        self.take(snapshot)

    @hookimpl
    def traffic_sampled(self, traffic: TrafficSnapshot) -> None:
        self.take_traffic(traffic)

    def take_traffic(self, traffic: TrafficSnapshot) -> None:
        self.taken += len(traffic.pairs)

    patience_s = 5.0

    def take(self, snapshot: Snapshot) -> None:
        self.taken += 1


class SoundPlugin(MetricPluginContract):
    """``double`` is the plugin, which breaks nothing here."""

    can_fail = True
    takes_traffic = True
    double: type[Sink] = Sink

    @pytest.fixture
    def metric_plugin(self, clock: TurnableClock, drive: Driver) -> Sink:
        return self.double(clock)

    def failing(self, plugin: Any) -> None:
        plugin.down = True


class _Topics(Sink):
    def named(self) -> list[str]:
        raise NotImplementedError

    @hookimpl
    def sys_topics(self) -> Sequence[SysTopic]:
        return [SysTopic(name, lambda: "") for name in self.named()]


class TestMETRIC_09_IsSomewhereElse(SoundPlugin):
    class double(_Topics):
        def named(self) -> list[str]:
            return ["$SYS/a", "SYS/b"]


class TestMETRIC_09_HasAWildcard(SoundPlugin):
    class double(_Topics):
        def named(self) -> list[str]:
            return ["$SYS/a/#"]


class TestMETRIC_10_NamesOneTwice(SoundPlugin):
    class double(_Topics):
        def named(self) -> list[str]:
            return ["$SYS/a", "$SYS/b", "$SYS/a"]


class TestMETRIC_11_ReadsNumbers(SoundPlugin):
    class double(Sink):
        @hookimpl
        def sys_topics(self) -> Sequence[SysTopic]:
            return [SysTopic("$SYS/sink/taken", lambda: self.taken)]  # type: ignore[arg-type, return-value]


class TestMETRIC_11_CanBeReadOnce(SoundPlugin):
    class double(Sink):
        @hookimpl
        def sys_topics(self) -> Sequence[SysTopic]:
            numbers = iter("1")
            return [SysTopic("$SYS/sink/taken", lambda: next(numbers))]


class TestMETRIC_12_NeedsASample(SoundPlugin):
    class double(Sink):
        def take(self, snapshot: Snapshot) -> None:
            self.taken = int(snapshot.samples[0].value)  # type: ignore[union-attr]


class TestMETRIC_12_NeedsWholeNumbers(SoundPlugin):
    class double(Sink):
        def take(self, snapshot: Snapshot) -> None:
            self.taken = sum(int(getattr(sample, "value", 0)) for sample in snapshot.samples)


class TestMETRIC_13_AddsALabel(SoundPlugin):
    class double(Sink):
        def take(self, snapshot: Snapshot) -> None:
            for sample in snapshot.samples:
                sample.labels["node"] = snapshot.node  # type: ignore[index]


class TestMETRIC_14_WaitsForEver(SoundPlugin):
    class double(Sink):
        @hookimpl
        async def sampled(self, snapshot: Snapshot) -> None:
            while self.down:
                await _retried(self.clock)


class TestMETRIC_14_WaitsTooLong(SoundPlugin):
    class double(Sink):
        patience_s = 90.0


class TestMETRIC_17_NeedsAPair(SoundPlugin):
    class double(Sink):
        def take_traffic(self, traffic: TrafficSnapshot) -> None:
            self.taken = max(pair.bytes for pair in traffic.pairs)


class TestMETRIC_17_NeedsAClient(SoundPlugin):
    class double(Sink):
        def take_traffic(self, traffic: TrafficSnapshot) -> None:
            if not all(pair.client_id for pair in traffic.pairs):
                raise ValueError("nobody published it")


class TestMETRIC_17_TakesPairsOut(SoundPlugin):
    class double(Sink):
        def take_traffic(self, traffic: TrafficSnapshot) -> None:
            object.__setattr__(traffic, "pairs", traffic.pairs[:1])


async def _retried(clock: TurnableClock) -> None:
    late = Held(lambda: None)
    clock.later(1.0, late.go)
    await late
