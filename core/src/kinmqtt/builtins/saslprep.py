"""SASLprep (RFC 4013): normalizes names and passwords, and rejects forbidden characters."""

from __future__ import annotations

import stringprep
from typing import Final
from unicodedata import ucd_3_2_0

_FORBIDDEN: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)
"""Tables of RFC 4013 section 2.3: other spaces, control, private use, surrogates, display characters, tags."""


def prepared(text: str) -> str:
    """Return the normalized text: mapped, normalized and checked (RFC 4013 sections 2.1 to 2.4).

    It may be empty. Code points that Unicode 3.2 does not assign pass unchanged, as in a query of RFC 3454 section
    7, so that names with newer characters have one spelling too. Raises ``ValueError`` for forbidden characters;
    the message names the character but not the text.
    """
    mapped = "".join(" " if stringprep.in_table_c12(sign) else sign for sign in text if not _is_left_out(sign))
    # With Unicode 3.2, as RFC 3454 requires, so that the result does not depend on the version of Python.
    normalized = ucd_3_2_0.normalize("NFKC", mapped)
    for sign in normalized:
        if any(is_in(sign) for is_in in _FORBIDDEN):
            raise ValueError(f"it contains U+{ord(sign):04X}, which SASLprep forbids")
    _check_directions(normalized)
    return normalized


def _is_left_out(sign: str) -> bool:
    """Tell whether a character is mapped to nothing: soft hyphens, joiners, variation selectors."""
    return stringprep.in_table_b1(sign)


def _check_directions(text: str) -> None:
    """Raise ``ValueError`` for a text that is only partly right-to-left (RFC 3454 section 6)."""
    if not any(map(stringprep.in_table_d1, text)):
        return
    if any(map(stringprep.in_table_d2, text)):
        raise ValueError("it mixes right-to-left and left-to-right letters, which SASLprep forbids")
    if not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
        raise ValueError("it is right-to-left, but begins or ends with another character")
