"""What is parked can be sent again as it was."""

from __future__ import annotations

from kinmqtt_spi.bridging.parking import REASON_PROPERTY, unparked
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.testing.build import message


def test_only_the_last_reason_is_taken_out() -> None:
    """A publisher may have such a property of its own."""
    own = ((REASON_PROPERTY, "mine"), ("a", "b"))
    plain = message("t", properties=Properties(content_type="text"))
    parked = message("t", properties=Properties(content_type="text", user_property=((REASON_PROPERTY, "bad"),)))
    others = message("t", properties=Properties(user_property=(*own, (REASON_PROPERTY, "bad"))))

    assert unparked(plain) is plain
    assert unparked(parked).properties == plain.properties
    assert unparked(others).properties.user_property == own
    assert unparked(others).id == others.id
