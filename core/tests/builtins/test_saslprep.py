"""SASLprep: the RFC's examples, and what holds for every text."""

from __future__ import annotations

import stringprep
from unicodedata import ucd_3_2_0

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kinmqtt.builtins.saslprep import prepared


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("\uff41nn", "ann"),
        ("a\u3000b", "a b"),
        ("e\u0301", "\u00e9"),
        ("\u0627\u0628", "\u0627\u0628"),
        ("", ""),
        ("\u00ad", ""),
    ],
)
def test_a_text_has_one_spelling(text: str, name: str) -> None:
    """The examples of RFC 4013 section 3, and those of wide, combined and absent signs."""
    assert prepared(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "\u0007",
        "a\0",
        "a\x7f",
        "a\u0085",
        "a\u2028b",
        "\ue000",
        "\ufdd0",
        "\U0001ffff",
        "\ud800",
        "a\ufffd",
        "a\u2ff0",
        "a\u202eb",
        "\U000e0041",
    ],
)
def test_a_forbidden_sign_is_named(text: str) -> None:
    """Each table of RFC 4013 section 2.3 holds; the text itself, which may be a password, is not in the error."""
    with pytest.raises(ValueError, match=r"U\+[0-9A-F]{4,6}, which SASLprep forbids"):
        prepared(text)


@pytest.mark.parametrize("text", ["\u06271", "\u0627a\u0628", "1\u0627"])
def test_directions_of_writing_do_not_mix(text: str) -> None:
    """RFC 3454 section 6: one with letters from right to left has none of the others, and begins and ends so."""
    with pytest.raises(ValueError, match=r"SASLprep forbids|it is right-to-left, but"):
        prepared(text)


@given(st.text())
@example("\u0344\u00ad\u0301")
def test_what_is_prepared_stays_as_it_is(text: str) -> None:
    """A prepared text is its own spelling, so that a name has no second one."""
    try:
        name = prepared(text)
    except ValueError:
        return

    assert prepared(name) == name


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_printable_ascii_is_left_alone(text: str) -> None:
    """Names of plain letters are what they were."""
    assert prepared(text) == text


@given(st.text(alphabet=st.sampled_from("ann\u00ad\u200d\ufeff\uff41\uff4e\u1d43")))
def test_it_is_what_the_rfc_says_step_by_step(text: str) -> None:
    """Map and normalize (RFC 4013 section 2), written a second time over the standard library."""
    kept = "".join(sign for sign in text if not stringprep.in_table_b1(sign))

    assert prepared(text) == ucd_3_2_0.normalize("NFKC", kept)
