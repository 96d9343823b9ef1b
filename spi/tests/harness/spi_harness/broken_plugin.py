"""Plugins whose life breaks one promise each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import field, frozen

import kinmqtt_spi
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.markers import fails_closed, hookimpl, on_topics
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements
from kinmqtt_spi.settings import setting
from kinmqtt_spi.testing.faults import Held
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract
from kinmqtt_spi.values import Drop, Message


@frozen(slots=True)
class TickerSettings:
    """``[plugins.ticker]``."""

    topic: str = setting("", help="where to tick")
    every_s: float = setting(10.0, help="how often", minimum=0.1)


class Ticker:
    """A sound plugin: publishes on a topic every few seconds."""

    def __init__(self) -> None:
        self.settings = TickerSettings()
        self.timer: Any = None
        self.bound: Any = None
        self.broken = False

    @hookimpl
    def requirements(self) -> Requirements:
        return Requirements(spi_version=2)

    @hookimpl
    def settings_class(self) -> type[Any]:
        return TickerSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        self.take(context.settings)
        self.bound = context
        context.claim_topics("$ticker/#", Action.PUBLISH, Action.WILL)
        context.metrics.gauge("ticks.topics", "topics", lambda: 1)
        self.ticks = context.metrics.counter("ticks", "messages")

    @hookimpl
    async def start(self, context: Context) -> None:
        if context.data is not None:
            folder = context.data / "plugins" / context.name
            folder.mkdir(parents=True)
            (folder / "ticks").write_bytes(b"0")
        self.arm()
        if self.broken:
            raise OSError("there is no room")
        context.log.info("ticks on {topic}", topic=self.settings.topic)

    @hookimpl
    def ready(self) -> None:
        self.context.log.debug("ready")

    @hookimpl
    def reload(self, settings: TickerSettings) -> Sequence[str]:
        self.take(settings)
        return ()

    @hookimpl
    async def drain(self, deadline_s: float) -> None:
        self.context.log.debug("drains within {deadline_s} s", deadline_s=deadline_s)

    @hookimpl
    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    @hookimpl
    def health(self) -> Any:
        return Health(HealthState.HEALTHY, f"ticks on {self.settings.topic}")

    @hookimpl
    @on_topics("$ticker/#")
    async def publish_received(self, message: Message) -> Any:
        return Drop("nobody sets the ticker yet")

    @hookimpl
    def will_publishing(self, message: Message) -> Any:
        return Drop() if message.topic.split("/")[0] == "$ticker" else None

    @property
    def context(self) -> Any:
        return self.bound

    def take(self, settings: TickerSettings) -> None:
        if not settings.topic:
            raise NotConfigured("there is no topic")
        self.settings = settings

    def arm(self) -> None:
        self.timer = self.context.clock.later(self.settings.every_s, self.tick)

    def tick(self) -> None:
        self.ticks.value += 1
        self.context.publish(Message(self.settings.topic, b"tick"))
        self.arm()


class SoundTicker(PluginContract):
    """``double`` is the plugin, which breaks nothing here."""

    reloads = True
    refuses_settings = True
    can_fail = True
    double: Any = Ticker

    @pytest.fixture
    def plugin(self) -> PluginCase:
        return PluginCase(self.double, 'topic = "a"', 'topic = "b"\nevery_s = 3.0', "every_s = 1.0", "ticker")

    def failing(self, plugin: Any, context: BareContext) -> None:
        plugin.broken = True


class TestPLUGIN_01_NamesWhatIsInstalled(SoundTicker):
    class double(Ticker):
        @hookimpl
        def requirements(self) -> Requirements:
            return Requirements(spi_version=kinmqtt_spi.SPI_VERSION)


class TestPLUGIN_01_WasForAnother(SoundTicker):
    class double(Ticker):
        @hookimpl
        def requirements(self) -> Requirements:
            return Requirements(spi_version=0)


class TestPLUGIN_02_MistypesAHook(SoundTicker):
    class double(Ticker):
        @hookimpl
        def publish_recieved(self, message: Message) -> None:
            pass


class TestPLUGIN_02_WantsAnotherArgument(SoundTicker):
    class double(Ticker):
        @hookimpl
        def message_unrouted(self, message: Message, client: Any) -> None:
            pass


class TestPLUGIN_03_AnswersLater(SoundTicker):
    class double(Ticker):
        @hookimpl
        async def limiter_needs(self) -> Any:
            pass


class TestPLUGIN_03_PushesIn(SoundTicker):
    class double(Ticker):
        @hookimpl(tryfirst=True)
        def message_unrouted(self, message: Message) -> None:
            pass


class TestPLUGIN_03_LimitsToTopics(SoundTicker):
    class double(Ticker):
        @hookimpl
        @on_topics("a/#")
        def message_unrouted(self, message: Message) -> None:
            pass


class TestPLUGIN_21_MarksANotice(SoundTicker):
    class double(Ticker):
        @hookimpl
        @fails_closed
        def message_unrouted(self, message: Message) -> None:
            pass


@frozen(slots=True)
class _Unsettled:
    topics: list[object] = field(factory=list)


class TestPLUGIN_04_CantBeParsed(SoundTicker):
    class double(Ticker):
        @hookimpl
        def settings_class(self) -> type[Any]:
            return _Unsettled


class TestPLUGIN_05_RaisesWhatItLikes(SoundTicker):
    class double(Ticker):
        def take(self, settings: TickerSettings) -> None:
            if not settings.topic:
                raise KeyError("topic")
            self.settings = settings


class TestPLUGIN_05_NeverActs(SoundTicker):
    class double(Ticker):
        def take(self, settings: TickerSettings) -> None:
            raise NotConfigured("not today")


class TestPLUGIN_06_KeepsItsContextInTheClass(SoundTicker):
    class double(Ticker):
        held: Any = None

        @hookimpl
        def configure(self, context: Context) -> None:
            super().configure(context)
            type(self).held = context

        @property
        def context(self) -> Any:
            return type(self).held


class TestPLUGIN_06_KeepsItsSettingsInTheClass(SoundTicker):
    class double(Ticker):
        held: Any = TickerSettings()

        def take(self, settings: TickerSettings) -> None:
            super().take(settings)
            type(self).held = settings

        @hookimpl
        def health(self) -> Any:
            return Health(HealthState.HEALTHY, f"ticks on {self.held.topic}")


class TestPLUGIN_07_AnswersAText(SoundTicker):
    class double(Ticker):
        @hookimpl
        def reload(self, settings: TickerSettings) -> Any:
            self.take(settings)
            return "done"


class TestPLUGIN_07_AnswersNothing(SoundTicker):
    class double(Ticker):
        @hookimpl
        def reload(self, settings: TickerSettings) -> Any:
            self.take(settings)


class TestPLUGIN_07_IgnoresThem(SoundTicker):
    class double(Ticker):
        @hookimpl
        def reload(self, settings: TickerSettings) -> Any:
            return ()


class TestPLUGIN_08_TakesThemFirst(SoundTicker):
    class double(Ticker):
        def take(self, settings: TickerSettings) -> None:
            self.settings = settings
            super().take(settings)


class TestPLUGIN_08_SwallowsTheError(SoundTicker):
    class double(Ticker):
        @hookimpl
        def reload(self, settings: TickerSettings) -> Any:
            try:
                self.take(settings)
            except NotConfigured as error:
                return (str(error),)
            return ()


class TestPLUGIN_09_IsNeverReady(SoundTicker):
    class double(Ticker):
        @hookimpl
        def ready(self) -> None:
            raise RuntimeError("not ready")


class TestPLUGIN_10_CancelsWhatIsNotThere(SoundTicker):
    class double(Ticker):
        @hookimpl
        def stop(self) -> None:
            self.timer.cancel()


class TestPLUGIN_11_ClosesTwice(SoundTicker):
    class double(Ticker):
        stopped = False

        @hookimpl
        def stop(self) -> None:
            assert not self.stopped
            self.stopped = True
            super().stop()


class TestPLUGIN_12_TicksOn(SoundTicker):
    class double(Ticker):
        @hookimpl
        def stop(self) -> None:
            pass


class TestPLUGIN_13_LeavesWhatItBegan(SoundTicker):
    class double(Ticker):
        @hookimpl
        async def start(self, context: Context) -> None:
            await super().start(context)
            self.started = True

        @hookimpl
        def stop(self) -> None:
            if getattr(self, "started", False):
                super().stop()


class TestPLUGIN_14_TakesItsTime(SoundTicker):
    class double(Ticker):
        @hookimpl
        async def drain(self, deadline_s: float) -> None:
            late = Held(lambda: None)
            self.context.clock.later(deadline_s * 2, late.go)
            await late


class TestPLUGIN_15_SaysYes(SoundTicker):
    class double(Ticker):
        @hookimpl
        def health(self) -> Any:
            return True


class TestPLUGIN_15_KnowsItselfWhenStarted(SoundTicker):
    class double(Ticker):
        @hookimpl
        def health(self) -> Any:
            assert self.timer is not None
            return super().health()


class TestPLUGIN_16_Prints(SoundTicker):
    class double(Ticker):
        def tick(self) -> None:
            print("tick")
            super().tick()


class TestPLUGIN_16_WritesToStandardError(SoundTicker):
    class double(Ticker):
        @hookimpl
        def ready(self) -> None:
            sys.stderr.write("ready\n")


class TestPLUGIN_17_ForgetsAValue(SoundTicker):
    class double(Ticker):
        @hookimpl
        def ready(self) -> None:
            self.context.log.info("ready on {topic}")


class TestPLUGIN_18_Shouts(SoundTicker):
    class double(Ticker):
        @hookimpl
        def configure(self, context: Context) -> None:
            super().configure(context)
            context.metrics.counter("Ticks Total", "messages")


class TestPLUGIN_18_CantBeRead(SoundTicker):
    class double(Ticker):
        @hookimpl
        def configure(self, context: Context) -> None:
            super().configure(context)
            context.metrics.gauge("ticks.rate", "ticks", lambda: 1 / 0)


class TestPLUGIN_19_WritesWhereItStands(SoundTicker):
    class double(Ticker):
        @hookimpl
        async def start(self, context: Context) -> None:
            await super().start(context)
            if context.data is not None:
                (context.data / "ticks.json").write_bytes(b"{}")


class TestPLUGIN_20_TakesNothing(SoundTicker):
    class double(Ticker):
        publish_received: Any = None


class TestPLUGIN_20_LooksAtAPart(SoundTicker):
    class double(Ticker):
        @hookimpl
        @on_topics("$ticker/+")
        def publish_received(self, message: Message) -> Any:
            return Drop()


class TestPLUGIN_20_LetsThroughWhatItDoesNotKnow(SoundTicker):
    class double(Ticker):
        @hookimpl
        @on_topics("$ticker/#")
        def publish_received(self, message: Message) -> Any:
            return Drop() if message.payload == b"set" else None


class TestPLUGIN_20_ForgetsWills(SoundTicker):
    class double(Ticker):
        @hookimpl
        def will_publishing(self, message: Message) -> Any:
            return Drop() if message.topic.startswith("$ticker/") else None
