"""Where aiokafka's log lines go: one comes with each attempt to reconnect."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from typing import Final

from kinmqtt_spi.services.plugin import Log

MAX_WAITING: Final = 100
"""The most lines of other threads that wait for the thread of the log; the oldest are dropped."""


class AiokafkaLog:
    """Takes aiokafka's warnings into the broker's log for debugging.

    aiokafka has one log for all of its clients. Where several plugins take it, the first one has each line.
    What is below a warning is left out: aiokafka logs keys and values when it debugs.

    Only the thread that called :meth:`begin` calls the log. Lines of other threads wait for it: for its event loop,
    or without one for :meth:`flush`.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._thread: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[str] = deque(maxlen=MAX_WAITING)

    def begin(self) -> None:
        """Take the lines, which nobody outside kinmqtt gets any more."""
        self._thread = threading.get_ident()
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        _HANDLER.add(self)

    def end(self) -> None:
        """Take no more lines."""
        _HANDLER.discard(self)
        self.flush()

    def take(self, text: str) -> None:
        """Log a line, or have it wait; from any thread."""
        if threading.get_ident() == self._thread:
            self._log.debug("aiokafka: {text}", text=text)
            return
        self._waiting.append(text)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.flush)

    def flush(self) -> None:
        """Log the lines that wait."""
        while self._waiting:
            self._log.debug("aiokafka: {text}", text=self._waiting.popleft())


class _Handler(logging.Handler):
    """The handler that all share."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._takers: list[AiokafkaLog] = []

    def add(self, taker: AiokafkaLog) -> None:
        """Add one who takes lines."""
        self._takers.append(taker)
        logger = logging.getLogger("aiokafka")
        logger.addHandler(self)
        logger.propagate = False

    def discard(self, taker: AiokafkaLog) -> None:
        """Remove one; with the last one aiokafka's log is as it was."""
        self._takers = [each for each in self._takers if each is not taker]
        if not self._takers:
            logger = logging.getLogger("aiokafka")
            logger.removeHandler(self)
            logger.propagate = not logger.handlers

    def emit(self, record: logging.LogRecord) -> None:
        """Give a line to the first one."""
        for taker in self._takers[:1]:
            taker.take(record.getMessage())


_HANDLER: Final = _Handler()
