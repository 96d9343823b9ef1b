"""Numbers, times and foreign strings as a person reads them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics import formatting


@pytest.mark.parametrize(
    ("value_s", "written"),
    [
        (0, "0 s"),
        (0.00035, "350 µs"),
        (0.0012, "1.2 ms"),
        (0.9999, "1.0 s"),
        (4.5, "4.5 s"),
        (60, "60 s"),
        (720, "12 min"),
        (3599.9, "1 h"),
        (12000, "3 h 20 min"),
        (47 * 3600, "47 h"),
        (187200, "2 d 4 h"),
        (86400 * 365, "365 d"),
    ],
)
def test_a_duration_has_the_unit_that_people_name(value_s: float, written: str) -> None:
    """Nobody reads 0.00035 s or 187200 s."""
    assert formatting.duration(value_s) == written


@pytest.mark.parametrize(
    ("value", "short", "size"),
    [(0, "0", "0 B"), (999, "999", "999 B"), (4620, "4.6\u202fk", "4.6 kB"), (12_345_678, "12\u202fM", "12 MB")],
)
def test_large_numbers_are_short(value: float, short: str, size: str) -> None:
    """A plot's axis has no room for zeros."""
    assert (formatting.short(value), formatting.size(value)) == (short, size)


@given(st.floats(0, 1e9))
def test_every_number_has_a_short_form(value: float) -> None:
    """No number makes a report fail, and none gets long."""
    for write in (formatting.short, formatting.size, formatting.duration):
        assert 0 < len(write(value)) <= 16


@given(st.text(max_size=3000))
def test_a_foreign_string_is_short_and_can_be_seen(text: str) -> None:
    """A client id can't hide letters, break a line, turn the direction of writing or fill a page."""
    shown = formatting.name(text)

    assert shown
    assert len(shown) <= 2 * formatting.LONGEST_NAME + 25
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)


def test_a_cut_is_seen() -> None:
    """Two long names that begin alike are not taken for one short one."""
    assert formatting.name("x" * 150 + "y" * 150, 40) == "x" * 20 + "…" + "y" * 10 + " (300 characters)"
    assert formatting.name("a\x07b\u202ec") == "a\\u{7}b\\u{202e}c"
