"""Where the marks of an axis stand, and what stands at them: evenly, at round values, each written exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, TypeAlias

from kinmqtt_metrics import formatting

Marks: TypeAlias = list[tuple[float, str]]
"""Values, rising, and their labels."""

_MOST_TIMES: Final = 8
_MOST_VALUES: Final = 4
_MOST_POWERS: Final = 5
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_TIMES_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE_S * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR_S * n for n in (1, 2, 3, 6, 12)),
    *(_DAY_S * n for n in (1, 2, 7, 14, 28)),
)
_MONTHS: Final = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600)
_MONDAY_S: Final = 4 * _DAY_S
"""The first one since the epoch: weeks begin there."""
_LENGTHS_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(_MINUTE_S * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR_S * n for n in (1, 2, 3, 6, 12)),
)
_LENGTHS_FROM_S: Final = 10.0
"""From here on durations are minutes and hours, whose parts are none of ten."""
_LEAST: Final = 1e-12
LOGARITHMIC_FROM: Final = 100.0
"""Where values differ so many times and more, marks are tenfold of each other; else they are as far apart."""


def times(start_s: float, end_s: float) -> Marks:
    """Of a span: as many as fit, in UTC. A day's first moment has its date; in a span of a day and more all have."""
    length_s = end_s - start_s
    step_s = next((step for step in _TIMES_S if length_s <= step * _MOST_TIMES), None)
    if step_s is None:
        return list(_months(start_s, end_s))
    from_s = _MONDAY_S if step_s % (7 * _DAY_S) == 0 else 0
    first = math.ceil((start_s - from_s) / step_s)
    last = math.floor((end_s - from_s) / step_s)
    marks = (from_s + step_s * n for n in range(first, last + 1))
    return [(at_s, _time(at_s, step_s, length_s >= _DAY_S)) for at_s in marks]


def _time(at_s: int, step_s: int, with_day: bool) -> str:
    when = datetime.fromtimestamp(at_s, UTC)
    day = f"{when.day} {when:%b}"
    if at_s % _DAY_S == 0:
        return f"{day} {when:%Y}" if when.timetuple().tm_yday == 1 else day
    time = when.strftime("%H:%M:%S" if step_s < _MINUTE_S else "%H:%M")
    return f"{day} {time}" if with_day else time


def _months(start_s: float, end_s: float) -> Iterator[tuple[float, str]]:
    first, last = (datetime.fromtimestamp(at_s, UTC) for at_s in (start_s, end_s))
    months = (last.year - first.year) * 12 + last.month - first.month
    step = next((step for step in _MONTHS if months <= step * _MOST_TIMES), _MONTHS[-1])
    number = first.year * 12 + first.month - 1
    for month in range(-(-number // step) * step, last.year * 12 + last.month, step):
        when = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
        if start_s <= when.timestamp() <= end_s:
            yield when.timestamp(), when.strftime("%Y" if step % 12 == 0 else "%b %Y")


def values(highest: float, write: Callable[[float], str], whole: bool = False) -> Marks:
    """From 0 up to a value, as far apart as each other."""
    if highest < _LEAST:
        return [(0.0, "0")]
    if write is formatting.duration and highest >= _LENGTHS_FROM_S:
        step = next((float(step) for step in _LENGTHS_S if highest <= step * _MOST_VALUES), 0.0)
        step = step or _nice(highest / _DAY_S) * _DAY_S
    else:
        step = max(1.0, _nice(highest)) if whole else _nice(highest)
    number = math.floor(highest / step * (1 + 1e-9))
    return [(step * n, write(step * n) if n else "0") for n in range(number + 1)]


def _nice(highest: float) -> float:
    """The least of 1, 2, 5, 10 and so on of which few reach that far."""
    power = math.floor(math.log10(highest / _MOST_VALUES))
    while True:
        for digit in (1, 2, 5):
            step = digit * 10.0**power if power >= 0 else digit / 10.0**-power
            if highest <= step * _MOST_VALUES * (1 + 1e-9):
                return step
        power += 1


def lengths(least_s: float, most_s: float) -> Marks:
    """Of durations that differ much: each mark is ten, or a hundred and so on, times the one below."""
    unit_s, unit = next(
        (of for of in ((_HOUR_S, "h"), (_MINUTE_S, "min")) if least_s >= of[0]),
        (1, "s"),
    )
    low = math.floor(math.log10(least_s / unit_s) + 1e-9)
    high = math.ceil(math.log10(most_s / unit_s * 1.05) - 1e-9)
    step = max(1, -(-(high - low) // _MOST_POWERS))
    high = low + max(1, -(-(high - low) // step)) * step
    return [(unit_s * 10.0**power, _length(power, unit)) for power in range(low, high + 1, step)]


def _length(power: int, unit: str) -> str:
    if power >= 0:
        return f"{formatting.whole(10**power)} {unit}"
    prefix, shift = next((of for of in (("m", 3), ("µ", 6), ("n", 9), ("p", 12)) if power + of[1] >= 0), ("p", 12))
    return f"{formatting.whole(10 ** (power + shift))} {prefix}{unit}" if power + shift >= 0 else f"1e{power} {unit}"
