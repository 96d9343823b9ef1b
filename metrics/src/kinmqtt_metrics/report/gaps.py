"""Which records are missing: they number themselves, so that a gap is seen."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.intervals import Life, Ranges, gaps, ranges_of, union, written_down
from kinmqtt_metrics.report.reading import Reader


def missing(reader: Reader) -> list[str]:
    """Sentences as the pipeline tells them at the end of a run, of these nodes; whatever the time."""
    seen = written_down(reader.folder)
    if seen is None:
        seen = _in_raw(reader)
    return list(gaps({life: of for life, of in seen.items() if not reader.nodes or life[0] in reader.nodes}))


def _in_raw(reader: Reader) -> dict[Life, Ranges]:
    seen: dict[Life, Ranges] = {}
    for piece in reader.pieces(t.RAW, ("node", "boot", "seq"), count=False):
        rows = piece.filter(pc.and_(pc.is_valid(piece["boot"]), pc.greater_equal(piece["seq"], 1)))
        lives = rows.group_by(["node", "boot"], use_threads=False).aggregate([("seq", "list")])
        for node, boot, numbers in zip(*(lives[name] for name in ("node", "boot", "seq_list")), strict=True):
            life = (node.as_py(), boot.as_py())
            assert isinstance(numbers, pa.ListScalar)
            seen[life] = union(seen.get(life, []), ranges_of(numbers.values.to_numpy()))
    return seen
