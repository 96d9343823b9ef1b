"""Records of Kafka, each a line of the landing folder's form: of many nodes, and some of them more than once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from kinmqtt_metrics.record import Record
from kinmqtt_metrics.source import blocks
from kinmqtt_metrics.source.lines import LineReader

_AT_ONCE_BYTES: Final = 1024 * 1024
"""So much is parsed at a time: it fits into a cache."""


class Value(NamedTuple):
    """The value of a record of Kafka."""

    partition: str
    """Topic and partition, as ``kinmqtt.metrics-3``."""
    offset: int
    line: bytes | None


class ValueReader(LineReader):
    """Reads values; those that say nothing become rows of the kind ``rejected``, with partition and offset."""

    def __init__(self, columns: list[str]) -> None:
        super().__init__("", columns, rejected=True)

    def values(self, values: Iterable[Value]) -> Iterator[pa.Table]:
        """Yields their rows, in order."""
        waiting: list[Value] = []
        size_bytes = 0
        for value in values:
            waiting.append(value)
            size_bytes += len(value.line or b"") + 1
            if size_bytes >= _AT_ONCE_BYTES:
                yield from self._some(waiting)
                waiting, size_bytes = [], 0
        if waiting:
            yield from self._some(waiting)

    def _some(self, values: list[Value]) -> Iterator[pa.Table]:
        table = self._together([value.line for value in values if value.line is not None], len(values))
        if table is not None:
            yield table
        else:
            yield from self._rows([self._one(value) for value in values])

    def _together(self, lines: list[bytes], number: int) -> pa.Table | None:
        """Their rows, or nothing where any may be bad: one without a value, say, or with a line's end in it."""
        if len(lines) != number:
            return None
        block = b"\n".join(lines) + b"\n"
        ends = blocks.line_ends(block)
        table = self._sound(block, ends) if len(ends) == number else None
        return None if table is None else self._rows_of(block, table)

    def _one(self, value: Value) -> Record:
        if value.line is None:
            return self._no_line(value.partition, value.offset, "a record without a value", b"")
        record = self.said(value.line)
        return self._no_line(value.partition, value.offset, record, value.line) if isinstance(record, str) else record
