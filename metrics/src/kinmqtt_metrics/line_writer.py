"""The thread that takes records from the spool and has them written, wherever that is."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kinmqtt_metrics.record import FORMAT
from kinmqtt_metrics.spool import QUEUE_FULL, STOPPED, UNFIT, WRITE_FAILED, Spool

if TYPE_CHECKING:
    from kinmqtt_metrics.settings import MetricsSettings

BREATH_S: Final = 0.0005
"""Between two slices."""
IDLE_S: Final = 0.2
"""How often the thread looks whether something waits."""
RETRY_S: Final = 1.0
"""How soon it tries again what failed."""
STUCK_S: Final = 5.0
"""A turn that takes longer waits for something that does not answer: a slice is written in milliseconds."""


class Batch:
    """Records as lines, ready to be written."""

    __slots__ = ("data", "number", "size_bytes")

    def __init__(self, data: bytes, number: int, size_bytes: int) -> None:
        self.data = data
        self.number = number
        """How many lines."""
        self.size_bytes = size_bytes
        """What they took in memory."""


class Unwritten(Exception):
    """Something could not be written; the text says why. It is tried again."""


class LineWriter(ABC):
    """What the thread does, one step at a time: encode, and write. It has no thread of its own."""

    stuck_s = STUCK_S
    """How long a turn may take."""

    def __init__(self, spool: Spool, node: str, boot: str, monotonic: Callable[[], float]) -> None:
        """``monotonic`` in seconds, from any thread."""
        self.spool = spool
        self._monotonic = monotonic
        self._middle = f',"node":{json.dumps(node)},"boot":{json.dumps(boot)},"seq":'
        self._batch: Batch | None = None
        """What was encoded and could not be written yet."""
        self._figures = spool.figures
        self._in_hand = 0
        """Records that were taken and are not in a batch yet."""
        self._seq = 0
        """Of the last record that was encoded."""
        self.trouble = ""
        """Why nothing is written at the moment; empty where all is well."""
        self._began_at: float | None = None
        """The turn that is under way."""
        self.unlocked = ""
        """Why the place is not ours alone; empty where it is."""
        self.ends_at: float | None = None
        """When it must be over, by the same clock, once it is to end."""

    # What the thread calls

    def turn(self) -> float:
        """Do one step; answers how long to wait for the next one, in seconds. What is tried again is not raised."""
        self._began_at = self._monotonic()
        try:
            return self._turn()
        finally:
            self._began_at = None

    @property
    def is_stuck(self) -> bool:
        """Whether nothing has answered for long; asked from any thread."""
        began_at = self._began_at
        return began_at is not None and self._monotonic() - began_at > self.stuck_s

    @property
    @abstractmethod
    def stuck(self) -> str:
        """What to tell where it :attr:`is_stuck`."""

    @abstractmethod
    def go_by(self, settings: MetricsSettings) -> None:
        """Take settings that may change while it runs."""

    @abstractmethod
    def _turn(self) -> float:
        """A step, and what to do about its failure; how long to wait for the next one, in seconds."""

    @abstractmethod
    def step(self) -> bool:
        """Write the next records; whether there are more. Raises ``OSError`` and :class:`Unwritten`."""

    @abstractmethod
    def publish(self) -> None:
        """Let readers have what was written so far; raises as :meth:`step`, and can be called again."""

    @abstractmethod
    def let_go(self) -> None:
        """Give up what is held; nothing is written any more."""

    def _well(self) -> None:
        self.trouble = ""
        self.spool.refusing = QUEUE_FULL

    def _failed(self, reason: str, text: str) -> None:
        self.spool.refusing = reason
        self.trouble = text

    def _written(self, number: int, line_bytes: int, size_bytes: int) -> None:
        """Count lines that were written, and give back the memory that their records took."""
        self._figures.written.value += number
        self._figures.bytes.value += line_bytes
        self.spool.done(size_bytes)

    def _encoded(self) -> Batch | None:
        lines = []
        size_bytes = 0
        seq = self._seq
        taken = self.spool.take()
        self._in_hand = len(taken)
        for t, record, record_bytes in taken:
            size_bytes += record_bytes
            try:
                body = _ENCODE(record)
            except (TypeError, ValueError, RecursionError):
                self._figures.dropped[UNFIT].value += 1
                self._in_hand -= 1
                continue
            seq += 1
            lines.append(f'{{"v":{FORMAT},"t":{t}{self._middle}{seq},{body[1:]}\n')
        if not lines:
            self.spool.done(size_bytes)
            return None
        self._seq = seq
        batch = Batch("".join(lines).encode("ascii"), len(lines), size_bytes)
        self._in_hand = 0
        return batch

    def give_up(self, reason: str = STOPPED) -> None:
        """Count what was not written, as dropped; by whoever offers, once nobody calls :meth:`step` any more."""
        left = self.spool.forget() + self._in_hand + (0 if self._batch is None else self._batch.number)
        self._figures.dropped[reason].value += left
        self.spool.done(self.spool.waiting_bytes)
        self._batch = None
        self._in_hand = 0


def _plain(value: Any) -> str:
    # Base64 takes longer than handing a payload over: it is for the thread.
    return b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


# All that is not ASCII is written as \uXXXX: no reader takes a sign within a topic for the end of a line.
_ENCODE: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain, check_circular=False).encode


class WriterThread:
    """Runs a writer until it is told to end."""

    def __init__(self, writer: LineWriter, monotonic: Callable[[], float]) -> None:
        """``monotonic`` in seconds: how long the end may take is measured by it."""
        self._writer = writer
        self._monotonic = monotonic
        self._ends_at: float | None = None
        self.error = ""
        """What has ended the thread before its time."""
        self._thread = threading.Thread(target=self._run, name="kinmqtt-metrics", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def end(self, limit_s: float) -> None:
        """Have it write and publish what waits, within so many seconds, and come to its end; does not wait for it."""
        self._ends_at = self._writer.ends_at = self._monotonic() + limit_s
        self._writer.spool.close()

    def join(self) -> bool:
        """Wait until it has ended, as it was told to; ``False`` where it did not in its time. Blocks."""
        assert self._ends_at is not None
        # A little longer than the thread takes to see that it is over.
        self._thread.join(max(0.0, self._ends_at + RETRY_S - self._monotonic()))
        return not self._thread.is_alive()

    def count_left(self) -> None:
        """Where the thread is gone, count what it has left; by whoever offers, again where more may have come.

        Not by the thread: it would count at once with who offers, and miss a record that is being offered.
        """
        if not self._thread.is_alive():
            self._writer.give_up(WRITE_FAILED if self.error else STOPPED)

    def _run(self) -> None:
        writer, news = self._writer, self._writer.spool.news
        try:
            while self._ends_at is None:
                pause_s = writer.turn()
                # Between two slices too: whoever only yields would get the interpreter back at once.
                news.wait(pause_s)
                news.clear()
            self._finish()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            # Nobody takes any more: what comes is dropped, and told as what it is.
            writer.spool.refusing = WRITE_FAILED
            writer.spool.close()
        finally:
            writer.let_go()

    def _finish(self) -> None:
        writer = self._writer
        assert self._ends_at is not None
        while True:
            trouble = ""
            for last_steps in (self._write_all, writer.publish):
                # What was written is published, too, where the rest can't be.
                try:
                    last_steps()
                except (OSError, Unwritten) as error:
                    trouble = trouble or str(error)
            writer.trouble = trouble
            left_s = self._ends_at - self._monotonic()
            if not trouble or left_s <= 0:
                return
            threading.Event().wait(min(left_s, RETRY_S / 4))

    def _write_all(self) -> None:
        assert self._ends_at is not None
        while self._writer.step():
            if self._monotonic() >= self._ends_at:
                return
