"""The example guard by itself, without a broker."""

from __future__ import annotations

import pytest

from kinmqtt_example_guard import Guard, GuardSettings
from kinmqtt_spi import Client, Message
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.reference.plugin import BareContext

CLIENT = Client("c")


def _guard(*deny: str) -> Guard:
    guard = Guard()
    guard.configure(BareContext("example_guard", GuardSettings(deny=deny)))
    return guard


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


def test_it_is_well() -> None:
    """Health tells what the guard has done."""
    assert _guard("a").health().text == "0 publishes refused"
