"""Functions on texts, regular expressions included."""

from __future__ import annotations

from typing import Any

from kinmqtt_rules.functions._registry import MAX_TEXT, Kind, function
from kinmqtt_rules.functions.patterns import MAX_SUBJECT, SafePattern
from kinmqtt_rules.functions.printing import Format

_TEXT = (Kind.TEXT,)
_BLANKS = " \t\n\r\v\f"


def _trim(ends: str) -> str:
    """Return the call in Spark, which by itself takes away spaces only."""
    return f"trim({ends} ' \\t\\n\\r\\u000b\\u000c' FROM {{0}})"


@function("text", *_TEXT, gives=Kind.TEXT, example=("lower('aB')", "ab"), spark="lower({0})")
def lower(text: str) -> str:
    """In small letters."""
    return text.lower()


@function("text", *_TEXT, gives=Kind.TEXT, example=("upper('aB')", "AB"), spark="upper({0})")
def upper(text: str) -> str:
    """In capital letters."""
    return text.upper()


@function("text", *_TEXT, gives=Kind.TEXT, example=("trim(' a ')", "a"), spark=_trim("BOTH"))
def trim(text: str) -> str:
    """Without blanks and line breaks at both ends."""
    return text.strip(_BLANKS)


@function("text", *_TEXT, gives=Kind.TEXT, example=("ltrim(' a ')", "a "), spark=_trim("LEADING"))
def ltrim(text: str) -> str:
    """Without blanks and line breaks at the beginning."""
    return text.lstrip(_BLANKS)


@function("text", *_TEXT, gives=Kind.TEXT, example=("rtrim(' a ')", " a"), spark=_trim("TRAILING"))
def rtrim(text: str) -> str:
    """Without blanks and line breaks at the end."""
    return text.rstrip(_BLANKS)


@function("text", *_TEXT, gives=Kind.INTEGER, example=("strlen('abc')", 3), spark="char_length({0})")
def strlen(text: str) -> int:
    """The number of characters."""
    return len(text)


@function("text", Kind.TEXT, Kind.INTEGER, Kind.INTEGER, gives=Kind.TEXT, required=2,
          example=("substr('abcdef', 2, 3)", "cde"))  # fmt: skip
def substr(text: str, start: int, length: int | None = None) -> str:
    """What begins at a place, from 0, up to a length."""
    if start < 0 or (length is not None and length < 0):
        raise ValueError("places and lengths are not negative")
    return text[start:] if length is None else text[start : start + length]


_SPLITS = ("leading", "trailing", "notrim", "leading_notrim", "trailing_notrim")


@function("text", Kind.TEXT, Kind.TEXT, Kind.TEXT, gives=Kind.ARRAY, required=2,
          example=("split('a;b;', ';')", ["a", "b"]))  # fmt: skip
def split(text: str, separator: str, how: str = "") -> list[str]:
    """The parts between separators without empty ones; `'notrim'` has them too, `'leading'` splits at the first separator only, `'trailing'` at the last, and both take `_notrim`."""  # noqa: E501
    if how and how not in _SPLITS:
        raise ValueError("unknown way to split")
    if how.startswith("leading"):
        parts = text.split(separator, 1)
    elif how.startswith("trailing"):
        parts = text.rsplit(separator, 1)
    else:
        parts = text.split(separator)
    return parts if how.endswith("notrim") else [part for part in parts if part]


@function("text", Kind.TEXT, Kind.TEXT, Kind.TEXT, gives=Kind.ARRAY, required=2,
          example=("tokens('a,b;c', ',;')", ["a", "b", "c"]))  # fmt: skip
def tokens(text: str, separators: str, how: str = "") -> list[str]:
    """The parts between any of the separators' characters; with `'nocrlf'` line breaks separate, too."""
    if how not in ("", "nocrlf"):
        raise ValueError("unknown way to split")
    signs = set(separators) | ({"\r", "\n"} if how else set())
    parts: list[str] = []
    part = ""
    for sign in text:
        if sign in signs:
            parts.append(part)
            part = ""
        else:
            part += sign
    return [each for each in (*parts, part) if each]


@function("text", Kind.TEXT, gives=Kind.TEXT, variadic=True, example=("concat('a', 'b')", "ab"),
          spark="concat({all})")  # fmt: skip
def concat(*texts: str) -> str:
    """All texts as one."""
    if sum(map(len, texts)) > MAX_TEXT:
        raise ValueError("the text is too long")
    return "".join(texts)


@function("text", Kind.TEXT, Kind.ANY, gives=Kind.TEXT, required=1, variadic=True, prepare={0: Format},
          example=("sprintf('~s: ~.1f', 'a', 1.25)", "a: 1.2"))  # fmt: skip
def sprintf(format: Format, *values: Any) -> str:
    """A constant format with `~s` (text), `~b` (whole number), `~f`, `~.2f` (number), `~p` (JSON), `~n` and `~~`."""
    return format.fill_in(values)


@function("text", Kind.TEXT, Kind.INTEGER, Kind.TEXT, Kind.TEXT, gives=Kind.TEXT, required=2,
          example=("pad('a', 3, 'leading', '*')", "**a"))  # fmt: skip
def pad(text: str, length: int, where: str = "trailing", sign: str = " ") -> str:
    """Filled up to a length: `'trailing'`, `'leading'` or `'both'`, with a character."""
    if not 0 <= length <= MAX_TEXT or len(sign) != 1:
        raise ValueError("there is no such text")
    missing = max(0, length - len(text))
    before = {"trailing": 0, "leading": missing, "both": missing // 2}[where]
    return sign * before + text + sign * (missing - before)


@function("text", Kind.TEXT, Kind.TEXT, Kind.TEXT, Kind.TEXT, gives=Kind.TEXT, required=3,
          example=("replace('ababef', 'ab', 'cd')", "cdcdef"))  # fmt: skip
def replace(text: str, old: str, new: str, which: str = "all") -> str:
    """With another text in place of `'all'`, the `'leading'` or the `'trailing'` ones."""
    if not old:
        return text
    if len(text) + text.count(old) * len(new) > MAX_TEXT:
        raise ValueError("the text is too long")
    if which == "trailing":
        return new.join(text.rsplit(old, 1))
    return text.replace(old, new, {"all": -1, "leading": 1}[which])


@function("text", Kind.TEXT, Kind.TEXT, Kind.TEXT, gives=Kind.TEXT, required=2,
          example=("find('eeabcabcee', 'abc', 'trailing')", "abcee"))  # fmt: skip
def find(text: str, part: str, where: str = "leading") -> str:
    """From the first (`'leading'`) or last (`'trailing'`) place of a part on; empty if it is not there."""
    place = {"leading": text.find, "trailing": text.rfind}[where](part)
    return "" if place < 0 else text[place:]


@function("text", *_TEXT, gives=Kind.INTEGER, name="ascii", example=("ascii('a')", 97), spark="nullif(ascii({0}), 0)")
def _ascii(text: str) -> int:
    """The number of the first character in Unicode."""
    return ord(text[0])


# Regular expressions

_SEARCHED = (Kind.TEXT, Kind.TEXT)


@function("regular expression", *_SEARCHED, gives=Kind.BOOL, prepare={1: SafePattern},
          example=("regex_match('a1', '[0-9]')", True))  # fmt: skip
def regex_match(text: str, pattern: SafePattern) -> bool:
    """Whether a constant pattern is found in a text of at most 4 kB."""
    return pattern.search(text) is not None


@function("regular expression", *_SEARCHED, gives=Kind.ARRAY, prepare={1: SafePattern},
          example=("regex_extract('n: 12', '([0-9]+)')", ["12"]))  # fmt: skip
def regex_extract(text: str, pattern: SafePattern) -> list[str | None]:
    """What the groups of a constant pattern found; an empty array if it is not found."""
    found = pattern.search(text)
    return [] if found is None else list(found.groups())


@function("regular expression", *_SEARCHED, Kind.TEXT, gives=Kind.TEXT, prepare={1: SafePattern},
          example=("regex_replace('a1b2', '[0-9]', '*')", "a*b*"))  # fmt: skip
def regex_replace(text: str, pattern: SafePattern, new: str) -> str:
    """With another text, which is taken as it is, wherever a constant pattern is found."""
    if len(new) * (min(len(text), MAX_SUBJECT) + 1) > MAX_TEXT:
        raise ValueError("the text is too long")
    return pattern.replace(text, new)
