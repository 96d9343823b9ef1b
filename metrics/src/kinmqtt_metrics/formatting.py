"""Numbers, times and foreign strings as a person reads them."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Final

LONGEST_NAME: Final = 44
"""Characters of a client id or topic that are shown; the others are counted."""

_THIN: Final = "\u202f"
_CONTROL: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def whole(value: float) -> str:
    """A whole number, with a narrow space between thousands: ``1 234 567``."""
    return f"{round(value):,}".replace(",", _THIN)


def short(value: float) -> str:
    """As in a plot: two digits at least, and a letter from a thousand on: ``4.6 k``, ``345 k``."""
    if value < 0:
        return f"\u2212{short(-value)}"
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5 or unit == "T":
            break
        value /= 1000.0
    return f"{_digits(value)}{_THIN if unit else ''}{unit}"


def size(value: float) -> str:
    """Bytes: ``1.2 MB``, by powers of 1000."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 999.5 or unit == "PB":
            break
        value /= 1000.0
    return f"{_digits(value)} {unit}"


def duration(value_s: float) -> str:
    """How long: ``350 µs``, ``1.2 ms``, ``4.5 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    if value_s <= 0:
        return "0 s"
    if value_s < 0.0009995:
        return f"{_digits(value_s * 1e6)} µs"
    if value_s < 0.9995:
        return f"{_digits(value_s * 1e3)} ms"
    if value_s < 99.5:
        return f"{_digits(value_s)} s"
    for large, small, large_s, small_s in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        rounded = round(value_s / small_s) * small_s
        if large == "d" or rounded < large_s * (60 if large == "min" else 48):
            first, rest = divmod(rounded, large_s)
            return f"{first} {large}" + (f" {rest // small_s} {small}" if rest else "")
    raise AssertionError


def _digits(value: float) -> str:
    if value == int(value) and value < 1000:
        return str(int(value))
    if value < 0.995:
        # Two digits, wherever they stand; below what anybody counts it is nothing.
        return f"{value:.2g}" if value >= 0.0001 else f"{value:.0e}"
    if value < 9.995:
        return f"{value:.1f}"
    return f"{value:.0f}"


def moment(at_s: float) -> str:
    """A moment in UTC, to the minute, or to the second where it is not at a full minute."""
    when = datetime.fromtimestamp(at_s, UTC)
    return when.strftime("%Y-%m-%d %H:%M:%S" if when.second else "%Y-%m-%d %H:%M")


def name(text: str | None, longest: int = LONGEST_NAME) -> str:
    """A string that anybody may have chosen: what can't be seen is shown as ``\\u{7}``, what is too long is cut.

    It is cut in its middle: generated names differ at their ends. The cut is visible, and says how many characters
    there were. It is not escaped for HTML.
    """
    if text is None:
        return "\u2013"
    kept = longest - 10
    shown = _visible(text if len(text) <= longest else text[: kept - kept // 3])
    end = "" if len(text) <= longest else _visible(text[len(text) - kept // 3 :])
    if len(shown) + len(end) > 2 * longest:
        shown, end = shown[: 2 * longest], ""
    elif not end:
        return shown or "(empty)"
    return f"{shown}…{end} ({len(text)} characters)"


def _visible(text: str) -> str:
    return "".join(f"\\u{{{ord(c):x}}}" if unicodedata.category(c) in _CONTROL else c for c in text)


def spaced(reason: str | None) -> str:
    """A word of the broker's, as in a text: ``queue_full`` → ``queue full``."""
    return name(reason).replace("_", " ") if reason else "no reason said"


def some(number: int, one: str, many: str = "") -> str:
    """So many of them: ``1 node``, ``3 nodes``."""
    return f"{whole(number)} {one if number == 1 else many or one + 's'}"


def share(part: float, of: float) -> str:
    """``12 %``; small ones as ``< 0.1 %``."""
    if not of or not part:
        return "0 %"
    percent = 100.0 * part / of
    if percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"


def listed(names: list[str], most: int = 6) -> str:
    """``a, b and c``; of too many the first, and how many more."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"
