"""The heaviest values of a parameter, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappush, heapreplace

from kinmqtt_sentinel_limiter._base_rule import BaseRule
from kinmqtt_sentinel_limiter._cells import Cell


class _HotValue:
    """One value: its cell, and an upper bound of its weight."""

    __slots__ = ("cell", "weight")

    def __init__(self, cell: Cell, weight: float) -> None:
        self.cell = cell
        self.weight = weight


class HotValues:
    """Cells of at most ``max_values`` values, and of the ``pinned`` ones in addition.

    Weights follow the space-saving algorithm: an unknown value replaces the lightest one and adds that weight to its
    own. So after ``n`` requests every value with more than ``n / max_values`` of them is present, and in a flood of
    new values these only replace each other. Weights are halved at each :meth:`sweep`, so that formerly heavy values
    go.
    """

    def __init__(self, max_values: int, make: Callable[[], Cell], pinned: Mapping[str, Cell]) -> None:
        self.max_values = max_values
        self._make = make
        self._pinned = dict(pinned)
        self._hot: dict[str, _HotValue] = {}
        self._heap: list[tuple[float, str]] = []
        """Each value once, with a weight that is at most its current one."""

    def cell(self, value: str, amount: int) -> Cell:
        """The value's cell; adds ``amount`` to its weight."""
        hot = self._hot.get(value)
        if hot is not None:
            hot.weight += amount
            return hot.cell
        pinned = self._pinned.get(value)
        return self._add(value, amount) if pinned is None else pinned

    def known(self, value: str) -> Cell | None:
        """The value's cell; ``None`` if it has none."""
        hot = self._hot.get(value)
        return self._pinned.get(value) if hot is None else hot.cell

    def sweep(self, now: float) -> None:
        """Halve all weights, and drop light values whose cells are unused."""
        for value, hot in list(self._hot.items()):
            hot.weight /= 2.0
            if hot.weight < 1.0 and hot.cell.spent(now) <= 0.0:
                del self._hot[value]
        self._heap = [(hot.weight, value) for value, hot in self._hot.items()]
        heapify(self._heap)

    def __len__(self) -> int:
        """The number of remembered values, without the pinned ones."""
        return len(self._hot)

    def __contains__(self, value: str) -> bool:
        return value in self._hot

    def _add(self, value: str, amount: int) -> Cell:
        hot = _HotValue(self._make(), amount)
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
        """The lightest value; moves values whose weight has grown to their place in the heap."""
        while True:
            weight, value = self._heap[0]
            current = self._hot[value].weight
            if current <= weight:
                return weight, value
            heapreplace(self._heap, (current, value))


class HotCell(Cell):
    """One value's view of a rule: looks up the cell each time, because another value may have replaced it."""

    __slots__ = ("_value", "_values")

    def __init__(self, rule: BaseRule, values: HotValues, value: str) -> None:
        super().__init__(rule)
        self._values = values
        self._value = value

    def take(self, amount: int, now: float) -> float:
        return self._values.cell(self._value, amount).take(amount, now)

    def undo(self, amount: int) -> None:
        cell = self._values.known(self._value)
        if cell is not None:
            cell.undo(amount)
