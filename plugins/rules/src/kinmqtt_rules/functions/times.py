"""Functions on times. The moment is the same for all calls about one message."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

from kinmqtt_rules.functions._registry import Kind, function

_UNITS: Final = {"second": 1, "millisecond": 1000, "microsecond": 1_000_000, "nanosecond": 1_000_000_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET: Final = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})(?::?([0-9]{2}))?")
_FORMAT: Final = re.compile(r"%(?:[36]N|:?z|[YmdHMSN%])")
_RFC3339: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def check_unit(unit: Any) -> str:
    """Raise ``ValueError`` for an unknown unit."""
    if unit not in _UNITS:
        raise ValueError(f"{unit!r} is no unit; use {', '.join(_UNITS)}")
    return str(unit)


@function("time", Kind.TEXT, gives=Kind.INTEGER, required=0, timed=True, prepare={0: check_unit},
          example=("now_timestamp()", 1_700_000_000))  # fmt: skip
def now_timestamp(now: float, unit: str = "second") -> int:
    """The time since 1970 in `'second'`, `'millisecond'`, `'microsecond'` or `'nanosecond'`."""
    return int(now * _UNITS[unit])


@function("time", Kind.TEXT, gives=Kind.TEXT, required=0, timed=True, prepare={0: check_unit},
          example=("now_rfc3339()", "2023-11-14T22:13:20Z"))  # fmt: skip
def now_rfc3339(now: float, unit: str = "second") -> str:
    """The time as RFC 3339 writes it, in UTC."""
    return _rfc3339(int(now * _UNITS[unit]), unit)


@function("time", Kind.INTEGER, Kind.TEXT, gives=Kind.TEXT, required=1, prepare={1: check_unit},
          example=("unix_ts_to_rfc3339(1700000000)", "2023-11-14T22:13:20Z"))  # fmt: skip
def unix_ts_to_rfc3339(number: int, unit: str = "second") -> str:
    """A time since 1970 as RFC 3339 writes it, in UTC."""
    return _rfc3339(number, unit)


def _rfc3339(number: int, unit: str) -> str:
    seconds, fraction = divmod(number, _UNITS[unit])
    digits = len(str(_UNITS[unit])) - 1
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{_four(text)}{f'.{fraction:0{digits}}' if digits else ''}Z"


def _four(text: str) -> str:
    """Return a time with four digits for the year, of which strftime leaves out zeros."""
    return text.rjust(19, "0")


@function("time", Kind.TEXT, Kind.TEXT, gives=Kind.INTEGER, required=1, prepare={1: check_unit},
          example=("rfc3339_to_unix_ts('2023-11-14T22:13:20Z')", 1_700_000_000))  # fmt: skip
def rfc3339_to_unix_ts(text: str, unit: str = "second") -> int:
    """The time since 1970 of a time of RFC 3339."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError("it is no time of RFC 3339")
    zone = "+00:00" if found[4] in "Zz" else found[4]
    seconds = round((datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}") - _EPOCH).total_seconds())
    return seconds * _UNITS[unit] + int((found[3] or "0").ljust(9, "0")) * _UNITS[unit] // 1_000_000_000


def check_offset(text: Any) -> timezone:
    """Return the time zone of an offset such as ``+0800``; raises ``ValueError``."""
    if text in ("Z", "z"):
        return UTC
    found = _OFFSET.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{text!r} is no offset; use Z, +08:00 or +0800")
    offset = timedelta(hours=int(found[2]), minutes=int(found[3]), seconds=int(found[4] or 0))
    return timezone(offset if found[1] == "+" else -offset)


def check_format(text: Any) -> str:
    """Raise ``ValueError`` for a format with what is unknown."""
    if not isinstance(text, str):
        raise ValueError("a format is a text")
    left = _FORMAT.sub("", text)
    if "%" in left:
        place = left.index("%")
        raise ValueError(f"{left[place : place + 2]!r} is unknown: use %Y %m %d %H %M %S %N %3N %6N %z %:z")
    return text


@function(
    "time",
    Kind.TEXT,
    Kind.TEXT,
    Kind.TEXT,
    Kind.INTEGER,
    gives=Kind.TEXT,
    prepare={0: check_unit, 1: check_offset, 2: check_format},
    example=("format_date('second', '+0800', '%Y-%m-%d %H:%M:%S%:z', 1653561612)", "2022-05-26 18:40:12+08:00"),
)
def format_date(unit: str, zone: timezone, format: str, number: int) -> str:
    """A time since 1970 in a time zone, with `%Y %m %d %H %M %S`, fractions `%N %3N %6N`, and `%z` or `%:z`."""
    seconds, fraction = divmod(number, _UNITS[unit])
    nanoseconds = fraction * (1_000_000_000 // _UNITS[unit])
    time = (_EPOCH + timedelta(seconds=seconds)).astimezone(zone)
    offset = time.strftime("%z")
    parts = {
        "%Y": f"{time.year:04}",
        "%m": f"{time.month:02}",
        "%d": f"{time.day:02}",
        "%H": f"{time.hour:02}",
        "%M": f"{time.minute:02}",
        "%S": f"{time.second:02}",
        "%3N": f"{nanoseconds // 1_000_000:03}",
        "%6N": f"{nanoseconds // 1000:06}",
        "%N": f"{nanoseconds:09}",
        "%z": offset,
        "%:z": f"{offset[:3]}:{offset[3:]}",
        "%%": "%",
    }
    return _FORMAT.sub(lambda found: parts[found[0]], format)
