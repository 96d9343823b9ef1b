"""Which records were read already, by their ``seq``: a few ranges for each life of a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kinmqtt_metrics.tables import STATE

Life: TypeAlias = tuple[str, str]
"""Node and boot."""

Ranges: TypeAlias = list[tuple[int, int]]
"""First and last, rising, none touching the next."""

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def ranges_of(numbers: Numbers) -> Ranges:
    """Ranges of numbers in any order, of which some may be there several times."""
    if not len(numbers):
        return []
    if not (np.diff(numbers) > 0).all():
        numbers = np.unique(numbers)
    ends = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.concatenate([[0], ends + 1])]
    lasts = numbers[np.concatenate([ends, [len(numbers) - 1]])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def union(one: Ranges, other: Ranges) -> Ranges:
    """What is in either."""
    merged: Ranges = []
    for first, last in sorted(one + other):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def missing(seen: Ranges) -> Ranges:
    """What lies between, from 1 on: ``seq`` has no gaps. What follows the last one nobody knows."""
    between = []
    before = 0
    for first, last in seen:
        if first > before + 1:
            between.append((before + 1, first - 1))
        before = last
    return between


def gaps(seen: Mapping[Life, Ranges], most: int = 5) -> Iterator[str]:
    """Of lives of which records are missing which ones; at most so many lives, with so many gaps each."""
    lives = [(life, between) for life, ranges in sorted(seen.items()) if (between := missing(ranges))]
    for (node, boot), between in lives[:most]:
        told = [f"{first}-{last}" if first < last else str(first) for first, last in between[:most]]
        more = f" and {len(between) - most} more gaps" if len(between) > most else ""
        number = sum(last - first + 1 for first, last in between)
        yield f"{number:,} records of {node} {boot} were not read: seq {', '.join(told)}{more}"
    if len(lives) > most:
        yield f"of {len(lives) - most} more lives of brokers records were not read, too"


def common(one: Ranges, other: Ranges) -> Ranges:
    """What is in both."""
    both: Ranges = []
    i = j = 0
    while i < len(one) and j < len(other):
        first, last = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if first <= last:
            both.append((first, last))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return both


def written_down(tables: Path) -> dict[Life, Ranges] | None:
    """By the pipeline in its last step, beside the tables; nothing where they were copied without that."""
    try:
        folder = max(path for path in (tables / STATE / "steps").iterdir() if path.name[0] != ".")
        said = json.loads((folder / "step.json").read_text("utf-8"))["seen"]
        return {(node, boot): [(first, last) for first, last in ranges] for node, boot, ranges in said}
    except (OSError, ValueError, LookupError, TypeError):
        return None
