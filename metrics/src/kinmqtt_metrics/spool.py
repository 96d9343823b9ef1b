"""Between the reactor and the thread that writes: what waits in memory, bounded.

The reactor hands over and goes on; it takes no lock, and wakes nobody but where much waits. Numbers that both look at
have one that writes them: which of the two is said beside them.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from kinmqtt_metrics.record import Record
from kinmqtt_spi.services.metric import Metrics

RECORD_BYTES: Final = 1000
"""What a record takes in memory, beside what is long in it; measured with six keys and four labels."""
SLICE: Final = 64
"""Records that are encoded at a time, in about 0.2 ms: the reactor must get the interpreter back soon."""
SLICE_BYTES: Final = 256 << 10
"""At which size a slice ends sooner: payloads take a millisecond for each megabyte."""

QUEUE_FULL: Final = "queue_full"
DISK_FULL: Final = "disk_full"
WRITE_FAILED: Final = "write_failed"
UNFIT: Final = "unfit"
STOPPED: Final = "stopped"
REASONS: Final = (QUEUE_FULL, DISK_FULL, WRITE_FAILED, UNFIT, STOPPED)
"""Why records are dropped: more came than could be written; or so it was because the disk was full, or failed; what
no line can say; what still waited when the broker had to end."""


class Figures:
    """What is told of the sink itself. Each counter has one that counts.

    The reactor counts what is dropped, also of what the writer has left when it is no more; the writer all else, and
    what is :data:`UNFIT`.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.written = metrics.counter("metrics.written", "records")
        self.bytes = metrics.counter("metrics.bytes", "bytes")
        self.segments = metrics.counter("metrics.segments", "segments")
        """Those that were published."""
        self.failures = metrics.counter("metrics.failures", "errors")
        """Of the disk, or of Kafka."""
        self.dropped = {
            reason: metrics.counter("metrics.dropped", "records", {"reason": reason}) for reason in REASONS
        }

    @property
    def all_dropped(self) -> int:
        """Dropped records, whyever."""
        return sum(counter.value for counter in self.dropped.values())


class Spool:
    """Records that wait. The reactor offers, and the writer takes."""

    def __init__(self, limit_bytes: int, figures: Figures) -> None:
        self.limit_bytes = limit_bytes
        self._is_closed = False
        self.figures = figures
        self._records: deque[tuple[int, Record, int]] = deque()
        self._offered_bytes = 0
        """Only the reactor writes this one,"""
        self._taken_bytes = 0
        """and only the writer this one."""
        self.refusing = QUEUE_FULL
        """Why what finds it full is dropped."""
        self.news = threading.Event()
        """Set where the writer should come before it would of itself."""

    @property
    def waiting_bytes(self) -> int:
        """What records take that are not written."""
        return self._offered_bytes - self._taken_bytes

    def offer(self, t: int, record: Record, more_bytes: int = 0, /) -> bool:
        """Take a record, of which ``node``, ``boot`` and ``seq`` are still missing; ``False`` where it was dropped.

        It must not be changed any more. ``t`` in microseconds; ``more_bytes`` is what is long in the record.
        """
        size_bytes = RECORD_BYTES + more_bytes
        before_bytes = self._offered_bytes - self._taken_bytes
        waiting_bytes = before_bytes + size_bytes
        if waiting_bytes > self.limit_bytes:
            self.figures.dropped[self.refusing].value += 1
            return False
        self._offered_bytes += size_bytes
        self._records.append((t, record, size_bytes))
        if before_bytes <= self.limit_bytes >> 1 < waiting_bytes:
            self.news.set()
        return True

    def limit(self, limit_bytes: int) -> None:
        """Hold so much from now on, unless it is closed."""
        self.limit_bytes = limit_bytes
        if self._is_closed:
            self.limit_bytes = 0

    def close(self) -> None:
        """Take nothing more."""
        self._is_closed = True
        self.limit_bytes = 0
        self.news.set()

    def __len__(self) -> int:
        return len(self._records)

    def take(self) -> list[tuple[int, Record, int]]:
        """The next slice of records, which go on taking memory until they are :meth:`done`."""
        records = self._records
        taken: list[tuple[int, Record, int]] = []
        size_bytes = 0
        while records and len(taken) < SLICE and size_bytes < SLICE_BYTES:
            taken.append(records.popleft())
            size_bytes += taken[-1][2]
        return taken

    def forget(self) -> int:
        """Give up what waits; answers how many records."""
        number = len(self._records)
        self._records.clear()
        return number

    def done(self, size_bytes: int) -> None:
        """So much memory is free again."""
        self._taken_bytes += size_bytes
