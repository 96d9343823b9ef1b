"""What stands in for the spool: it takes a sample's records, or drops them."""

from __future__ import annotations

from kinmqtt_metrics.record import Record


class Taker:
    """Takes records, or drops them."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_full = False

    def __call__(self, t: int, record: Record, more_bytes: int = 0, /) -> bool:
        if not self.is_full:
            self.records.append({"t": t} | record)
        return not self.is_full
