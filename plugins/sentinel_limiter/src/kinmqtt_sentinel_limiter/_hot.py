"""The heaviest values of a parameter, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappush, heapreplace
from typing import TYPE_CHECKING

from kinmqtt_sentinel_limiter._cells import Cell

if TYPE_CHECKING:
    from kinmqtt_sentinel_limiter._rules import Rule


class _Hot:
    """One value: its cell, and how heavy it is at most."""

    __slots__ = ("cell", "weight")

    def __init__(self, cell: Cell, weight: float) -> None:
        self.cell = cell
        self.weight = weight


class HotValues:
    """Cells of at most ``max_values`` values, and of ``pinned`` ones beside.

    Weights are counted as the space-saving algorithm does: a value that is not known takes the place of the
    lightest, and its weight on top of its own. So with ``n`` counted, whatever came more than ``n / max_values``
    times is there, and a flood of new values only ever takes each other's place. Weights are halved at each
    :meth:`sweep`, or what was heavy once would stay for ever.
    """

    def __init__(self, max_values: int, make: Callable[[], Cell], pinned: Mapping[str, Cell]) -> None:
        self.max_values = max_values
        self._make = make
        self._pinned = dict(pinned)
        self._hot: dict[str, _Hot] = {}
        self._heap: list[tuple[float, str]] = []
        """Each value once, with a weight that is not above its own by now."""

    def cell(self, value: str, amount: int) -> Cell:
        """The value's cell, which gets heavier by ``amount``."""
        hot = self._hot.get(value)
        if hot is not None:
            hot.weight += amount
            return hot.cell
        pinned = self._pinned.get(value)
        return self._add(value, amount) if pinned is None else pinned

    def known(self, value: str) -> Cell | None:
        """The value's cell, if it has one."""
        hot = self._hot.get(value)
        return self._pinned.get(value) if hot is None else hot.cell

    def sweep(self, now: float) -> None:
        """Let all get lighter, and drop those that are light and as good as new."""
        for value, hot in list(self._hot.items()):
            hot.weight /= 2.0
            if hot.weight < 1.0 and hot.cell.spent(now) <= 0.0:
                del self._hot[value]
        self._heap = [(hot.weight, value) for value, hot in self._hot.items()]
        heapify(self._heap)

    def __len__(self) -> int:
        """How many values are remembered, the pinned ones left out."""
        return len(self._hot)

    def __contains__(self, value: str) -> bool:
        return value in self._hot

    def _add(self, value: str, amount: int) -> Cell:
        hot = _Hot(self._make(), amount)
        if len(self._hot) < self.max_values:
            heappush(self._heap, (hot.weight, value))
        else:
            weight, lightest = self._lightest()
            del self._hot[lightest]
            hot.weight += weight
            heapreplace(self._heap, (hot.weight, value))
        self._hot[value] = hot
        return hot.cell

    def _lightest(self) -> tuple[float, str]:
        """The head of the heap once it tells the truth; each value that got heavier sinks to its place."""
        while True:
            weight, value = self._heap[0]
            current = self._hot[value].weight
            if current <= weight:
                return weight, value
            heapreplace(self._heap, (current, value))


class HotCell(Cell):
    """One value's face to a rule: finds the cell anew each time, as another value may have taken its place."""

    __slots__ = ("_value", "_values")

    def __init__(self, rule: Rule, values: HotValues, value: str) -> None:
        super().__init__(rule)
        self._values = values
        self._value = value

    def take(self, amount: int, now: float) -> float:
        return self._values.cell(self._value, amount).take(amount, now)

    def undo(self, amount: int) -> None:
        cell = self._values.known(self._value)
        if cell is not None:
            cell.undo(amount)
