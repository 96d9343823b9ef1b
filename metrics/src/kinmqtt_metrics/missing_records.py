"""Records that were not read: a broker numbers them without gaps, so a gap in the numbers shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from kinmqtt_metrics.intervals import Intervals
from kinmqtt_metrics.tables import STATE

Life: TypeAlias = tuple[str, str]
"""A broker from its start to its end: node and boot."""


def sentences(seen: Mapping[Life, Intervals], most: int = 5) -> Iterator[str]:
    """Yields a sentence for each life of which records are missing: for ``most`` lives, with ``most`` gaps each.

    Nobody knows what follows the highest number.
    """
    lives = [(life, gaps) for life, numbers in sorted(seen.items()) if (gaps := numbers.gaps())]
    for (node, boot), gaps in lives[:most]:
        shown = str(gaps).split(",")
        more = f" and {len(shown) - most} more gaps" if len(shown) > most else ""
        yield f"{gaps.count:,} records of {node} {boot} were not read: seq {', '.join(shown[:most])}{more}"
    if len(lives) > most:
        yield f"of {len(lives) - most} more lives of brokers records were not read, too"


def committed(tables: Path) -> dict[Life, Intervals] | None:
    """Returns the records that the pipeline has read, from its last commit; ``None`` if that is not there."""
    try:
        folder = max(path for path in (tables / STATE / "steps").iterdir() if path.name[0] != ".")
        return from_json(json.loads((folder / "step.json").read_text("utf-8"))["seen"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def to_json(seen: Mapping[Life, Intervals]) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """Returns what JSON can hold."""
    return [(*life, list(numbers)) for life, numbers in seen.items()]


def from_json(written: list[tuple[str, str, list[tuple[int, int]]]]) -> dict[Life, Intervals]:
    """Returns what :func:`to_json` took. Raises ``ValueError`` or ``TypeError`` for anything else."""
    return {(node, boot): Intervals((first, last) for first, last in pairs) for node, boot, pairs in written}
