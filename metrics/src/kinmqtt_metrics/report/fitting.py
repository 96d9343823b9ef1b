"""Which rows of a table can be, whoever wrote them (:mod:`.validity`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.validity import LATEST_S, LONGEST_S, MOST_COUNTED, MOST_MEASURED


def fitting(table: t.Table, piece: pa.Table) -> pa.Array:
    """Whether each row can be; times in whole microseconds. Of what is not told only a window's start is wrong."""
    fits = np.ones(piece.num_rows, bool)
    for name in piece.column_names:
        kind = table.columns[name]
        if name == "window_start":
            fits &= _flags(_between(piece[name], 0, LATEST_S * 1_000_000), False)
        elif name == "window_s":
            fits &= _flags(_between(piece[name], 1, LONGEST_S), True)
        elif kind == "bigint" and ("window_start" in table.columns or table is t.LATE) and name != "batch":
            fits &= _flags(_between(piece[name], 0, MOST_COUNTED), True)
        elif kind == "double":
            fits &= _flags(pc.less_equal(pc.abs(piece[name]), MOST_MEASURED), True)
    if "bounds" in piece.column_names and "counts" in piece.column_names:
        bounds, counts = (_whole(piece[name]) for name in ("bounds", "counts"))
        lengths = pc.equal(pc.list_value_length(counts), pc.add(pc.list_value_length(bounds), 1))
        fits &= _flags(lengths, False)
        flat = pc.list_flatten(bounds)
        fits[_odd_parents(bounds, _flags(pc.less_equal(pc.abs(flat), MOST_MEASURED), False))] = False
        fits[_odd_parents(counts, _flags(_between(pc.list_flatten(counts), 0, MOST_COUNTED), False))] = False
        values = flat.to_numpy(zero_copy_only=False).astype(float)
        parents = pc.list_parent_indices(bounds).to_numpy(zero_copy_only=False)
        fits[parents[1:][(parents[1:] == parents[:-1]) & ~(np.diff(values) > 0)]] = False
    return pa.array(fits)


def _between(values: Any, least: int, most: int) -> Any:
    return pc.and_(pc.greater_equal(values, least), pc.less_equal(values, most))


def _flags(values: Any, untold: bool) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = pc.fill_null(values, untold).to_numpy(zero_copy_only=False).astype(bool)
    return flags


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _odd_parents(lists: pa.Array, fine: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    parents: npt.NDArray[np.int64] = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    return parents[~fine]
