"""SASLprep (RFC 4013): one spelling for each name and password, and none for what must not be in one."""

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
"""The tables of RFC 4013 section 2.3: other spaces, control, private use, surrogates, display signs, tags."""


def prepared(text: str) -> str:
    """The one spelling of a text: mapped, normalized and checked (RFC 4013 sections 2.1 to 2.4).

    It may be empty. Code points that Unicode 3.2 does not assign pass as they are, as in a query of RFC 3454
    section 7, so that names with newer signs have one spelling too. Raises ``ValueError`` for what is forbidden; it
    names the sign and not the text.
    """
    mapped = "".join(" " if stringprep.in_table_c12(sign) else sign for sign in text if not _is_left_out(sign))
    # By Unicode 3.2, which RFC 3454 names: no version of Python makes another name of it.
    normalized = ucd_3_2_0.normalize("NFKC", mapped)
    for sign in normalized:
        if any(is_in(sign) for is_in in _FORBIDDEN):
            raise ValueError(f"it has U+{ord(sign):04X} in it, which SASLprep forbids")
    _check_directions(normalized)
    return normalized


def _is_left_out(sign: str) -> bool:
    """Whether a sign is commonly mapped to nothing: soft hyphens, joiners, variation selectors."""
    return stringprep.in_table_b1(sign)


def _check_directions(text: str) -> None:
    """Raise ``ValueError`` for a text that is read from right to left in one part only (RFC 3454 section 6)."""
    if not any(map(stringprep.in_table_d1, text)):
        return
    if any(map(stringprep.in_table_d2, text)):
        raise ValueError("it has letters of both directions of writing in it, which SASLprep forbids")
    if not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
        raise ValueError("its letters are read from right to left, and it begins or ends with another sign")
