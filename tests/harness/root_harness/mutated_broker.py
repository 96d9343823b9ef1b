"""``kinmqtt run`` with one promise broken, which the checker must catch; or with a disk that fails, which is none."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from kinmqtt.builtins.embedded import records, segment, stores
from kinmqtt_spi.services.queue import InboundOpen, Release


def without(*sorts: type[Any]) -> None:
    """The log leaves writes of some sorts out."""
    pack = records.pack

    def forgetful(group: records.CommitGroup) -> bytes:
        group.queue = [write for write in group.queue if not isinstance(write, sorts)]
        return pack(group)

    stores.pack = forgetful  # type: ignore[attr-defined]


def acknowledge_before_commit() -> None:
    """Groups reach the log a little later than their acknowledgements the clients."""
    commit = stores.Ledger.commit

    def hasty(self: stores.Ledger, all: bool = False) -> Any:
        append, held = self.append, self.__dict__.setdefault("held", [])
        if append is None or getattr(append, "hasty", False):
            return commit(self, all)

        def keep(data: bytes) -> None:
            held.append(data)
            if len(held) >= 40:
                for each in held:
                    append(each)
                held.clear()

        keep.hasty = True  # type: ignore[attr-defined]
        self.append = keep
        return commit(self, all)

    stores.Ledger.commit = hasty  # type: ignore[method-assign]


def failing_writes() -> None:
    """One write to the disk in fifty fails."""
    append = segment.Segment.append
    number = count(1)

    def fails(self: segment.Segment, data: bytes) -> None:
        if next(number) % 50 == 0:
            raise sqlite3.OperationalError("disk I/O error")
        append(self, data)

    segment.Segment.append = fails  # type: ignore[method-assign]


def failing_fsync() -> None:
    """One request to the disk in twenty fails, once the broker has started."""
    sync = segment.Segment.sync
    number = count(1)

    def fails(self: segment.Segment) -> None:
        if next(number) % 20 == 0:
            raise OSError(5, "Input/output error")
        sync(self)

    segment.Segment.sync = fails  # type: ignore[method-assign]


def slow_fsync() -> None:
    """The disk takes its time."""
    sync = segment.Segment.sync

    def slow(self: segment.Segment) -> None:
        time.sleep(0.1)
        sync(self)

    segment.Segment.sync = slow  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "failing-writes": failing_writes,
    "failing-fsync": failing_fsync,
    "slow-fsync": slow_fsync,
    "acknowledge-before-commit": acknowledge_before_commit,
    "forget-the-pubrel-stage": lambda: without(Release),
    "drop-the-dedup-set": lambda: without(InboundOpen),
}

if __name__ == "__main__":
    MUTATIONS[sys.argv.pop(1)]()
    from kinmqtt.cli.main import main

    sys.exit(main(sys.argv[1:]))
