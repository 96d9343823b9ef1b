"""The harness that plugin authors test with: what is not used by every other test here."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import frozen

from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import Message, Reject, Will, hookimpl
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.settings import setting


@frozen(slots=True)
class NoiseSettings:
    """What is turned away."""

    word: str = setting("noise", help="topics that are refused")


class Noise:
    """Refuses a topic that the settings name."""

    @hookimpl
    def settings_class(self) -> type[NoiseSettings]:
        return NoiseSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        self.word = context.settings.word

    @hookimpl
    def publish_received(self, message: Message) -> Reject | None:
        return Reject() if message.topic == self.word else None


def test_settings_may_be_an_object_or_toml() -> None:
    """A plugin's settings come from its section, strictly parsed, or are handed over; else they are the defaults."""
    noise = Noise()

    BrokerHarness(plugins={"noise": noise})
    assert noise.word == "noise"
    BrokerHarness(plugins={"noise": noise}, config='plugins.noise.word = "hush"')
    assert noise.word == "hush"
    BrokerHarness(plugins={"noise": noise}, plugin_settings={"noise": NoiseSettings(word="other")})
    assert noise.word == "other"


@pytest.mark.parametrize("config", ["plugins.noise.wort = 'x'", "plugins.nose.word = 'x'"])
def test_settings_that_nobody_reads_are_a_mistake(config: str) -> None:
    """A misspelt key or section is not passed over."""
    with pytest.raises(SettingsError, match=r"wort|no plugin reads plugins\.nose"):
        BrokerHarness(plugins={"noise": Noise()}, config=config)


@pytest.mark.parametrize("table", ["limits", "broker"])
def test_what_is_no_plugins_section_says_where_it_goes(table: str) -> None:
    """Limits and the broker's own settings are handed over in other ways."""
    why = "only [plugins.NAME] here: limits are keyword arguments, broker settings go in settings="

    with pytest.raises(SettingsError) as caught:
        BrokerHarness(config=f"{table}.x = 1")

    assert caught.value.problems == (f"the harness's config: {table}: {why}",)


@pytest.mark.parametrize(
    ("keyword", "hint"),
    [("max_inflihgt", "did you mean 'max_inflight'"), ("colour", "see docs/limits.md")],
)
def test_a_limit_that_is_none_is_a_mistake(keyword: str, hint: str) -> None:
    """With the nearest that is one."""
    limits: dict[str, Any] = {keyword: 1}
    with pytest.raises(TypeError, match=f"no keyword '{keyword}', and there is no such limit; {hint}"):
        BrokerHarness(**limits)


def test_a_will_may_be_the_spis() -> None:
    """A plugin's author needs no packet of the core's to leave a will."""
    broker = BrokerHarness()
    subscriber = broker.connect("subscriber").subscribe("will")

    broker.connect("a", 5, will=Will(Message("will", b"gone"), 3), expiry_s=10).drop()
    broker.advance(2)
    assert subscriber.messages == []
    broker.advance(2)

    assert subscriber.messages == [("will", b"gone", 0)]


def test_the_fixture_makes_brokers(kinmqtt_broker: Any) -> None:
    """The SPI's pytest plugin hands out the harness without an import of the core."""
    assert kinmqtt_broker is BrokerHarness
