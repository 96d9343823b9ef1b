"""What others say on stderr: passed on until this process is asked to end, and nothing of it from then on.

A batch that is given up fails, in Java and in threads of this process, and each failure is told with its stack. Who
asked for the end knows why; what is worth reading is the one line that this package says.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from types import FrameType
from typing import Final, TextIO, cast

from attrs import define, field

GRACE_S: Final = 0.5
"""So long a signal may be behind what it was the reason of: a service manager signals Java as well."""

_PIECE_BYTES: Final = 65_536
_TROUBLE: Final = re.compile(rb"Exception|Error|Traceback|^\s+at ", re.MULTILINE)
"""What a stack has in each of its pieces. Everything else is passed on at once."""


@define(slots=True, eq=False)
class Passing:
    """Passes on what a child process writes to its stderr, until ``ending`` is set."""

    ending: threading.Event
    to: int = 2
    """The file descriptor that it goes to."""
    grace_s: float = GRACE_S
    thread: threading.Thread | None = field(init=False, default=None)
    """Which passes it on; it ends with the child."""
    _holding: threading.Lock = field(init=False, factory=threading.Lock)

    @contextmanager
    def pipe(self) -> Iterator[int]:
        """A file descriptor for the child's stderr; within the block the child is started."""
        source, sink = os.pipe()
        try:
            yield sink
        except BaseException:
            os.close(source)
            raise
        finally:
            # The child has its own: the end of the pipe is its end.
            os.close(sink)
        self.thread = threading.Thread(target=self._pass, args=(source,), name="stderr of Java", daemon=True)
        self.thread.start()

    def flush(self) -> None:
        """Wait for what is held back, as it may be the reason of an end: no longer than that is."""
        if self._holding.acquire(timeout=2 * self.grace_s):
            self._holding.release()

    def _pass(self, source: int) -> None:
        try:
            while said := os.read(source, _PIECE_BYTES):
                with self._holding:
                    if not (self.ending.is_set() or (_TROUBLE.search(said) and self.ending.wait(self.grace_s))):
                        self._write(said)
        finally:
            os.close(source)

    def _write(self, said: bytes) -> None:
        try:
            while said:
                said = said[os.write(self.to, said) :]
        except OSError:
            # Nobody reads this process's stderr any more. Java must not wait for that: the pipe is still emptied.
            return


class _UntilAsked(io.TextIOBase):
    """A stream that is deaf from the moment on at which an event is set."""

    def __init__(self, to: TextIO, ending: threading.Event) -> None:
        self._to = to
        self._ending = ending

    def write(self, text: str) -> int:
        """Pass it on, or not."""
        return len(text) if self._ending.is_set() else self._to.write(text)

    def flush(self) -> None:
        """Whatever was passed on."""
        self._to.flush()

    def fileno(self) -> int:
        """Of the stream behind it."""
        return self._to.fileno()


def quiet_after(ending: threading.Event) -> AbstractContextManager[TextIO]:
    """Within the block ``sys.stderr`` takes nothing once the event is set: Spark's threads print and log there."""
    return redirect_stderr(cast(TextIO, _UntilAsked(sys.stderr, ending)))


@contextmanager
def interrupts(ending: threading.Event) -> Iterator[None]:
    """Within the block ^C sets the event, then raises ``KeyboardInterrupt``; only in the thread that hears it."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        ending.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
