"""What is written in a hurry is what would be written at leisure: messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_redis_session.codec import dumps, message_json
from kinmqtt_spi.plain import to_plain
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.testing.build import message
from kinmqtt_spi.values import Message, MessageId, Publisher

NUMBERS = st.integers(0, 2**64 - 1)
TIMES = st.floats(allow_nan=False, allow_infinity=False)
MESSAGES = st.builds(
    Message,
    topic=st.text(),
    payload=st.binary(),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=st.just(NO_PROPERTIES) | st.builds(Properties, content_type=st.text()),
    publisher=st.builds(Publisher, st.text(), st.none() | st.text()),
    id=st.builds(MessageId, NUMBERS, NUMBERS),
    received_at=TIMES,
    expires_at=st.none() | TIMES,
)


@given(MESSAGES)
def test_a_message_is_written_as_its_plain_form(its: Message) -> None:
    """Character by character, whatever is in it."""
    assert message_json(its) == dumps(to_plain(its))


@pytest.mark.parametrize("moments", [{"received_at": float("nan")}, {"expires_at": float("inf")}])
def test_a_moment_that_is_no_number_is_not_written(moments: dict[str, float]) -> None:
    """JSON has no such thing."""
    with pytest.raises(ValueError, match="expected a finite number"):
        message_json(message(**moments))
