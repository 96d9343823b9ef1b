"""How far a query has read the landing folder: which segments it has taken, each once, in any order.

An offset is small: of each life of a broker the numbers of its segments, as ranges. In JSON:

.. code-block:: text

    {"form": 1, "segments": {"broker-1": {"00000000c0ffee01": "1-500,503"}}, "foreign": {"date=2026-11-21/x": 1}}

``foreign`` are files that are no segments; a query that drops what it can't read does not count them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

FORM: Final = 1

Key: TypeAlias = tuple[str, str, int]
"""Node, boot and number of a segment. Of a foreign file ``("", path, 0)``: no node has an empty name."""


class Ranges:
    """A set of numbers as ranges without gaps, rising, that touch nowhere."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, firsts: list[int] | None = None, lasts: list[int] | None = None) -> None:
        self._firsts = firsts if firsts is not None else []
        self._lasts = lasts if lasts is not None else []

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def copy(self) -> Ranges:
        """The same numbers, apart."""
        return Ranges(self._firsts.copy(), self._lasts.copy())

    def add(self, number: int) -> None:
        """Take one more."""
        after = bisect_right(self._firsts, number)
        at = after - 1
        if at >= 0 and number <= self._lasts[at]:
            return
        joins_before = at >= 0 and self._lasts[at] == number - 1
        joins_after = after < len(self._firsts) and self._firsts[after] == number + 1
        if joins_before and joins_after:
            self._lasts[at] = self._lasts.pop(after)
            self._firsts.pop(after)
        elif joins_before:
            self._lasts[at] = number
        elif joins_after:
            self._firsts[after] = number
        else:
            self._firsts.insert(after, number)
            self._lasts.insert(after, number)

    def beyond(self, others: Ranges) -> Iterator[int]:
        """The numbers that are here and not in ``others``, rising."""
        for first, last in self:
            at = max(bisect_right(others._firsts, first) - 1, 0)
            number = first
            while number <= last:
                while at < len(others._firsts) and others._lasts[at] < number:
                    at += 1
                if at < len(others._firsts) and others._firsts[at] <= number:
                    number = others._lasts[at] + 1
                    continue
                yield number
                number += 1

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self)

    @classmethod
    def parse(cls, text: str) -> Ranges:
        """Raises ``ValueError`` for what ``str`` would not have written."""
        ranges = cls()
        end = -1
        for part in text.split(","):
            first, dash, last = part.partition("-")
            low = int(first)
            high = int(last) if dash else low
            if low <= end + 1 or high < low:
                raise ValueError(f"{text!r} is no rising list of ranges")
            ranges._firsts.append(low)
            ranges._lasts.append(high)
            end = high
        return ranges


class Taken:
    """Segments, and files that are none, that have been taken."""

    def __init__(self) -> None:
        self._segments: dict[tuple[str, str], Ranges] = {}
        self._foreign: set[str] = set()

    def __contains__(self, key: Key) -> bool:
        node, boot, number = key
        if not node:
            return boot in self._foreign
        ranges = self._segments.get((node, boot))
        return ranges is not None and number in ranges

    def and_also(self, keys: Iterable[Key]) -> Taken:
        """These, and more."""
        more = Taken()
        more._segments = {life: ranges.copy() for life, ranges in self._segments.items()}
        more._foreign = self._foreign.copy()
        for node, boot, number in keys:
            if node:
                more._segments.setdefault((node, boot), Ranges()).add(number)
            else:
                more._foreign.add(boot)
        return more

    def beyond(self, others: Taken) -> Iterator[Key]:
        """What is here and not in ``others``, in order."""
        for path in sorted(self._foreign - others._foreign):
            yield "", path, 0
        nothing = Ranges()
        for (node, boot), ranges in sorted(self._segments.items()):
            for number in ranges.beyond(others._segments.get((node, boot), nothing)):
                yield node, boot, number

    def to_json(self) -> dict[str, Any]:
        """The offset; equal sets give equal texts, as Spark compares these."""
        segments: dict[str, dict[str, str]] = {}
        for (node, boot), ranges in sorted(self._segments.items()):
            segments.setdefault(node, {})[boot] = str(ranges)
        return {"form": FORM, "segments": segments, "foreign": dict.fromkeys(sorted(self._foreign), 1)}

    @classmethod
    def from_json(cls, offset: dict[str, Any]) -> Taken:
        """Raises ``ValueError`` for an offset that another source wrote, or a newer form of this one."""
        taken = cls()
        try:
            if offset["form"] != FORM:
                raise ValueError(f"its form is {offset['form']!r}, and this version of kinmqtt-metrics reads {FORM}")
            for node, boots in offset["segments"].items():
                for boot, text in boots.items():
                    taken._segments[node, boot] = Ranges.parse(text)
            taken._foreign.update(offset["foreign"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"the checkpoint's offset is none of format('kinmqtt'): {error!r} in {str(offset)[:200]}; "
                "take another checkpointLocation, or the version that wrote it"
            ) from error
        return taken
