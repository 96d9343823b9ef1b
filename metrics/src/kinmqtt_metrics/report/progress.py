"""How far long work has come, told to whoever waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TextIO

PATIENCE_S: Final = 2.0
"""Work that takes no longer says nothing."""
_TERMINAL_EVERY_S: Final = 0.2
_FILE_EVERY_S: Final = 5.0


class Progress:
    """One line, written over on a terminal; elsewhere a line now and then."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._terminal = out.isatty()
        self._due = clock() + PATIENCE_S
        self._width = 0

    def update(self, what: str, done: int, whole: int) -> None:
        """So many of so many are done."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + (_TERMINAL_EVERY_S if self._terminal else _FILE_EVERY_S)
        line = f"{what}: {done} of {whole}"
        if self._terminal:
            self._out.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._out.write(line + "\n")
        self._out.flush()

    def end(self) -> None:
        """Leave the line clean."""
        if self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()
            self._width = 0
