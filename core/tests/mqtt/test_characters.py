"""The code points that MQTT tells senders to leave out (section 1.5.4)."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt.mqtt.characters import check_characters, disallowed_in
from kinmqtt.mqtt.errors import MalformedPacket
from kinmqtt_spi.reasons import ReasonCode


def is_disallowed(character: str) -> bool:
    """By Unicode's own tables: control characters but U+0000, which MQTT forbids elsewhere, and non-characters."""
    code = ord(character)
    is_control = unicodedata.category(character) == "Cc" and code != 0
    return is_control or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def test_every_code_point() -> None:
    """Exactly the 65 control characters but U+0000, and the 66 non-characters, are found."""
    found = [code for code in range(sys.maxunicode + 1) if disallowed_in(chr(code)) is not None]

    assert found == [code for code in range(sys.maxunicode + 1) if is_disallowed(chr(code))]
    assert len(found) == 64 + 66


# Only when an example is drawn: each process that collects the tests would look at all code points.
disallowed = st.deferred(
    lambda: st.sampled_from([chr(code) for code in range(sys.maxunicode + 1) if is_disallowed(chr(code))])
)


@given(st.text(st.one_of(st.characters(codec="utf-8"), disallowed), max_size=20))
def test_the_first_is_named(name: str) -> None:
    """Wherever it stands, and whatever stands around it."""
    expected = next((f"U+{ord(each):04X}" for each in name if is_disallowed(each)), None)

    assert disallowed_in(name) == expected


def test_a_name_with_one_is_malformed() -> None:
    """The text says which it is; what is absent is no name."""
    check_characters("fine", None, "a b", "")

    with pytest.raises(MalformedPacket, match=r"^U\+001B in a name: ") as raised:
        check_characters("fine", "red \x1b[31m")

    assert raised.value.reason is ReasonCode.MALFORMED_PACKET
