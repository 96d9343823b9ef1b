"""The example guard by itself, without a broker."""

from __future__ import annotations

import pytest

from kinmqtt_example_guard import Guard, GuardSettings
from kinmqtt_spi import Client, Message
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.plugin import Requirements
from kinmqtt_spi.settings import Document, parse

CLIENT = Client("c")


def _guard(*deny: str, max_payload_bytes: int | None = None) -> Guard:
    guard = Guard()
    settings = GuardSettings(deny=deny, max_payload_bytes=max_payload_bytes)
    guard.configure(BareContext("example_guard", settings))
    return guard


def _parsed(section: str) -> GuardSettings:
    document = Document.parse(f"[plugins.example_guard]\n{section}", "kinmqtt.toml")
    return parse(Guard().settings_class(), document, ("plugins", "example_guard"))


def test_a_denied_topic_is_refused() -> None:
    """A publish to a topic that a filter matches is rejected as not authorized."""
    guard = _guard("secret/#")

    outcome = guard.publish_received(CLIENT, Message("secret/a"))

    assert outcome is not None
    assert outcome.reason is ReasonCode.NOT_AUTHORIZED


def test_other_topics_pass() -> None:
    """A publish to any other topic is left as it is."""
    guard = _guard("secret/#")

    assert guard.publish_received(CLIENT, Message("open/a")) is None


def test_the_client_is_told_the_reason() -> None:
    """The refusal carries the text of the settings."""
    guard = Guard()
    guard.configure(BareContext("example_guard", GuardSettings(deny=("secret/#",), reason="ask the owner")))

    outcome = guard.publish_received(CLIENT, Message("secret/a"))

    assert outcome is not None
    assert outcome.text == "ask the owner"


def test_a_will_is_no_way_around() -> None:
    """A will to a denied topic is refused and counted like a publish."""
    guard = _guard("secret/#")

    assert guard.will_publishing(CLIENT, Message("secret/a")) is not None
    assert guard.will_publishing(CLIENT, Message("open/a")) is None
    assert guard.health().text == "1 publishes refused"


def test_a_long_payload_is_refused_on_any_topic() -> None:
    """With a limit and no filter, the length of the payload alone decides; the limit itself passes."""
    guard = _guard(max_payload_bytes=3)

    assert guard.publish_received(CLIENT, Message("open/a", b"1234")) is not None
    assert guard.publish_received(CLIENT, Message("open/a", b"123")) is None


def test_more_topics_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting topics costs time and never the right answer."""
    monkeypatch.setattr("kinmqtt_example_guard._guard.CACHED_TOPICS", 2)
    guard = _guard("secret/#")
    topics = ["open/a", "secret/a", "open/b", "secret/b", "open/a", "secret/a"]

    refused = [topic for topic in topics if guard.publish_received(CLIENT, Message(topic)) is not None]

    assert refused == ["secret/a", "secret/b", "secret/a"]


def test_refusals_are_counted() -> None:
    """Each refusal shows in the $SYS topic."""
    guard = _guard("secret/#")
    guard.publish_received(CLIENT, Message("secret/a"))
    guard.publish_received(CLIENT, Message("secret/a"))

    [topic] = guard.sys_topics()

    assert topic.read() == "2"


def test_nothing_to_guard_means_to_abstain() -> None:
    """A guard without filters says that it is not configured."""
    with pytest.raises(NotConfigured, match="deny"):
        _guard()


def test_new_filters_hold_at_once() -> None:
    """A reload forgets what the old filters said of a topic."""
    guard = _guard("secret/#")
    guard.publish_received(CLIENT, Message("secret/a"))

    left = guard.reload(GuardSettings(deny=("other/#",)))

    assert left == ()
    assert guard.publish_received(CLIENT, Message("secret/a")) is None


def test_a_reload_to_nothing_is_refused() -> None:
    """A guard that stands does not vanish: the old settings hold on."""
    guard = _guard("secret/#")

    with pytest.raises(NotConfigured, match="deny"):
        guard.reload(GuardSettings())

    assert guard.publish_received(CLIENT, Message("secret/a")) is not None


def test_settings_are_read_from_the_section() -> None:
    """Filters, reason and a size with its unit."""
    settings = _parsed('deny = ["secret/#", "+/x"]\nreason = "no"\nmax_payload_bytes = "1 KiB"')

    assert settings == GuardSettings(deny=("secret/#", "+/x"), reason="no", max_payload_bytes=1024)


@pytest.mark.parametrize("filter", ["", "a/#/b", "a#", "a/b+", "$share/group/a"])
def test_a_filter_that_matches_nothing_is_a_mistake(filter: str) -> None:
    """A mistyped filter is found when the settings are read, with its place and key."""
    with pytest.raises(
        SettingsError, match=r"kinmqtt\.toml:2:.*plugins\.example_guard\.deny: .* is not a topic filter"
    ):
        _parsed(f'deny = ["{filter}"]')


def test_the_requirements_name_a_version() -> None:
    """The plugin says what it was written for, whichever SPI is installed."""
    assert Guard().requirements() == Requirements(spi_version=2)


def test_it_is_well() -> None:
    """Health tells what the guard has done."""
    assert _guard("a").health().text == "0 publishes refused"
