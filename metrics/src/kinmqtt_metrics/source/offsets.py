"""How far a query has read the landing folder: which segments it has taken, each once, in any order.

An offset is small: of each life of a broker the numbers of its segments, as ranges. In JSON:

.. code-block:: text

    {"form": 1, "segments": {"broker-1": {"00000000c0ffee01": "1-500,503"}}, "foreign": {"date=2026-11-21/x": 1}}

``foreign`` are files that are no segments; a query that drops what it can't read does not count them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from kinmqtt_metrics.intervals import Intervals

FORM: Final = 1

Key: TypeAlias = tuple[str, str, int]
"""Node, boot and number of a segment. Of a foreign file ``("", path, 0)``: no node has an empty name."""


class Taken:
    """Segments, and files that are none, that have been taken."""

    def __init__(self) -> None:
        self._segments: dict[tuple[str, str], Intervals] = {}
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
                more._segments.setdefault((node, boot), Intervals()).add(number)
            else:
                more._foreign.add(boot)
        return more

    def beyond(self, others: Taken) -> Iterator[Key]:
        """What is here and not in ``others``, in order."""
        for path in sorted(self._foreign - others._foreign):
            yield "", path, 0
        nothing = Intervals()
        for (node, boot), ranges in sorted(self._segments.items()):
            for number in (ranges - others._segments.get((node, boot), nothing)).numbers():
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
                raise ValueError(f"its form is {offset['form']!r}, but this version of kinmqtt-metrics reads {FORM}")
            for node, boots in offset["segments"].items():
                for boot, text in boots.items():
                    taken._segments[node, boot] = Intervals.parse(text)
            taken._foreign.update(offset["foreign"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"the checkpoint's offset is not one of format('kinmqtt'): {error!r} in {str(offset)[:200]}; "
                "use another checkpointLocation, or the version that wrote it"
            ) from error
        return taken
