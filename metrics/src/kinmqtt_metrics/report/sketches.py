"""Percentiles over windows and nodes: from the KLL sketches that the tables hold, put together.

Percentiles of windows say nothing of the percentile of all: neither their mean nor their highest is one. What
sketches hold can be put together: a percentile of it is off by no more than some ranks, as in each of them. With
Spark's k of 200 that is 1.33 % of the values (https://datasketches.apache.org/docs/KLL/KLLAccuracyAndSize.html), and
nothing while there are fewer than 200. The library's own merge throws dice, and pages of the same tables would
differ: here the values of all sketches are put together with their weights, and thinned out at even ranks where they
are too many.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import define, field

from kinmqtt_metrics.validity import MOST_MEASURED

QUANTILES: Final = (0.5, 0.95, 0.99)

_BLOCK: Final = 8192
"""So many values, with their weights, are held as they are; then they are thinned out to :data:`_KEPT`."""
_KEPT: Final = 2048
"""Each time that costs half a 2048th of the ranks; of n blocks no value is thinned out more than log2 n times."""

_FAMILY: Final = 15
_EMPTY, _SINGLE = 1, 4
_HEAD: Final = struct.Struct("<BBBBHBx")
_FULL: Final = struct.Struct("<QHBx")
_ITEMS_OF_LEAST_K: Final = 8


@define(slots=True, eq=False)
class Sketches:
    """What sketches of the same key hold, put together."""

    unread: int = 0
    """How many were none, or not of as many values as their row says."""
    _held: dict[Hashable, _Held] = field(factory=dict)

    def add(self, content: object, number: int, *keys: Hashable) -> bool:
        """Put a sketch of so many values to those of each key; whether it is one."""
        values = _values(content, number)
        if values is None:
            self.unread += 1
            return False
        for key in keys:
            self._held.setdefault(key, _Held()).add(values)
        return True

    def join(self, into: Hashable, keys: Iterable[Hashable]) -> None:
        """Put what these keys have to another one."""
        for key in keys:
            if key in self._held:
                self._held.setdefault(into, _Held()).add(self._held[key].all())

    def known(self) -> list[Any]:
        """The keys of everything that was put together."""
        return list(self._held)

    def quantiles(self, key: Hashable) -> tuple[float, float, float] | None:
        """The values at :data:`QUANTILES`; nothing for a key of which nothing is known."""
        if key not in self._held:
            return None
        values, weights = _in_order(self._held[key].all())
        up_to = np.cumsum(weights)
        # As Spark reads them: the value itself counts as not exceeding it. A sum of fractions may miss by a hair.
        places = np.searchsorted(up_to, np.array(QUANTILES) * up_to[-1] * (1 - 1e-12))
        p50, p95, p99 = values[places].tolist()
        return p50, p95, p99


_Weighted: TypeAlias = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
"""Values, and how many each stands for."""


@define(slots=True, eq=False)
class _Held:
    """Values of one key. Blocks that were thinned out as often as each other are put together first."""

    _fresh: list[_Weighted] = field(factory=list)
    _size: int = 0
    _thinned: list[_Weighted | None] = field(factory=list)
    """By how often, at most one of each."""

    def add(self, values: _Weighted) -> None:
        """Put some more to it."""
        self._fresh.append(values)
        self._size += len(values[0])
        if self._size <= _BLOCK:
            return
        block = _thin(_together(self._fresh))
        self._fresh, self._size = [], 0
        for level, before in enumerate(self._thinned):
            if before is None:
                self._thinned[level] = block
                return
            self._thinned[level] = None
            block = _thin(_together([before, block]))
        self._thinned.append(block)

    def all(self) -> _Weighted:
        """Everything that is held."""
        return _together([*self._fresh, *(block for block in self._thinned if block is not None)])


def _together(parts: Sequence[_Weighted]) -> _Weighted:
    return np.concatenate([values for values, _ in parts]), np.concatenate([weights for _, weights in parts])


def _in_order(of: _Weighted) -> _Weighted:
    order = np.argsort(of[0], kind="stable")
    return of[0][order], of[1][order]


def _thin(of: _Weighted) -> _Weighted:
    """Those in the middle of each of so many equal parts, which stand for these."""
    values, weights = _in_order(of)
    if len(values) <= _KEPT:
        return values, weights
    up_to = np.cumsum(weights)
    middles = (np.arange(_KEPT) + 0.5) * (up_to[-1] / _KEPT)
    return values[np.searchsorted(up_to, middles)], np.full(_KEPT, up_to[-1] / _KEPT)


def _values(content: object, number: int) -> _Weighted | None:
    """What a sketch of so many values holds; nothing where it is none."""
    from datasketches import kll_doubles_sketch

    if not _is_sound(content, number):
        return None
    try:
        found = np.array(list(kll_doubles_sketch.deserialize(content)), np.float64)
    except (ValueError, IndexError, RuntimeError):
        return None
    return found[:, 0], found[:, 1]


def _is_sound(content: object, number: int) -> bool:
    """Whether these bytes are a sketch of doubles. The library believes what they say, and reads beyond its memory.

    The form is that of KLL, serial version 1, and 2 for a single value
    (https://github.com/apache/datasketches-java, ``KllPreambleUtil``).
    """
    if not isinstance(content, bytes) or len(content) < _HEAD.size or number < 1:
        return False
    ints, version, family, flags, k, m = _HEAD.unpack_from(content)
    if family != _FAMILY or flags & _EMPTY or m != 8 or k < _ITEMS_OF_LEAST_K:
        return False
    if flags & _SINGLE:
        return (ints, version, number) == (2, 2, 1) and len(content) == _HEAD.size + 8 and _can_be(content[8:])
    if (ints, version) != (5, 1) or len(content) < _HEAD.size + _FULL.size:
        return False
    values, least_k, levels = _FULL.unpack_from(content, _HEAD.size)
    begin = _HEAD.size + _FULL.size
    end = begin + 4 * levels
    if values != number or not _ITEMS_OF_LEAST_K <= least_k <= k or not 1 <= levels <= 60 or len(content) % 4:
        return False
    # The least and the highest value stand before the items.
    items, rest = divmod(len(content) - end - 16, 8)
    if rest or items < 1:
        return False
    starts = struct.unpack_from(f"<{levels}I", content, begin)
    bounds = (*starts, starts[0] + items)
    sizes = [after - before for before, after in pairwise(bounds)]
    if min(sizes) < 0 or sum(size << level for level, size in enumerate(sizes)) != number:
        return False
    return _can_be(content[end:])


def _can_be(content: bytes) -> bool:
    return bool((np.abs(np.frombuffer(content, "<f8")) <= MOST_MEASURED).all())
