"""Landing folders for tests of the source."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kinmqtt_metrics.landing import SegmentName, published_path
from kinmqtt_metrics.record import Record

BOOT = "00000000c0ffee01"
DATE = "2026-11-21"


def event(seq: int, node: str = "broker-1", boot: str = BOOT, **more: Any) -> Record:
    """A record that has labels."""
    said = {"kind": "event", "name": "connected", "client": f"c{seq}", "labels": {"protocol": "5.0"}}
    return {"v": 1, "t": 1_760_000_000_000_000 + seq, "node": node, "boot": boot, "seq": seq} | said | more


def line(record: Record) -> bytes:
    """As the sink writes it."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def write(landing: Path, name: SegmentName, lines: Iterable[bytes], date: str = DATE) -> Path:
    """Publish a segment, as the sink does: by a rename."""
    path = published_path(landing, name, date)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = landing / f".open-{path.name}"
    beside.write_bytes(b"".join(lines))
    return beside.rename(path)


def publish(
    landing: Path, number: int, records: int = 10, node: str = "broker-1", boot: str = BOOT, date: str = DATE
) -> Path:
    """Publish a segment of so many events; those of segment n follow those of segment n - 1."""
    first = (number - 1) * records + 1
    lines = (line(event(seq, node, boot)) for seq in range(first, first + records))
    return write(landing, SegmentName(node, boot, number), lines, date)
