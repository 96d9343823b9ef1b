"""The errors a service may raise."""

from __future__ import annotations

import pytest

from kinmqtt_spi import errors
from kinmqtt_spi.errors import (
    AssemblyError,
    Fenced,
    NotConfigured,
    OffsetOutOfRange,
    ServiceUnavailable,
    SettingsError,
    SpiError,
    SubscriptionRefused,
)
from kinmqtt_spi.reasons import ReasonCode


def test_every_error_of_the_spi_has_one_base() -> None:
    """A caller can tell a service's own errors from its mistakes."""
    own = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)}

    assert own >= {NotConfigured, AssemblyError, SettingsError, SpiError}
    assert all(issubclass(each, SpiError) for each in own)


def test_fenced_names_whose_writes_were_refused() -> None:
    """The core must know which sessions it has lost, each once."""
    error = Fenced(["b", "a", "b"])

    assert error.client_ids == {"a", "b"}
    assert str(error) == "a newer owner holds a, b"


def test_an_unavailable_service_has_a_reason_for_the_client() -> None:
    """Where nothing else is said, the client is told that the server is unavailable (0x88)."""
    errors = [ServiceUnavailable("down"), ServiceUnavailable("full", ReasonCode.QUOTA_EXCEEDED)]

    assert [error.reason for error in errors] == [ReasonCode.SERVER_UNAVAILABLE, ReasonCode.QUOTA_EXCEEDED]
    assert str(errors[0]) == "down"


def test_settings_errors_hold_one_line_each() -> None:
    """All mistakes of a file are shown at once."""
    error = SettingsError(line for line in ("one", "two"))

    assert (error.problems, str(error)) == (("one", "two"), "one\ntwo")


@pytest.mark.parametrize("reason", [ReasonCode.TOPIC_FILTER_INVALID, ReasonCode.QUOTA_EXCEEDED])
def test_a_refused_subscription_has_the_code_of_its_suback(reason: ReasonCode) -> None:
    """The client learns why in the SUBACK (MQTT-3.8.4-6)."""
    assert SubscriptionRefused("no", reason).reason is reason


def test_a_lost_offset_says_where_to_go_on() -> None:
    """A consumer that came too late knows the first event it can still have."""
    error = OffsetOutOfRange(7)

    assert (error.oldest, str(error)) == (7, "events before offset 7 are gone")
