"""Where pika's log lines go: several come with each attempt to reconnect."""

from __future__ import annotations

import logging

from kinmqtt_spi.services.plugin import Log


class PikaLog(logging.Handler):
    """Takes pika's warnings into the broker's log for debugging.

    What is below a warning is left out: pika logs whole frames when it debugs. pika runs in the broker's thread only.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._logger = logging.getLogger("pika")

    def begin(self) -> None:
        """Take the lines, which nobody outside kinmqtt gets any more."""
        self._logger.addHandler(self)
        self._logger.propagate = False

    def end(self) -> None:
        """Take no more lines."""
        self._logger.removeHandler(self)
        self._logger.propagate = not any(isinstance(each, PikaLog) for each in self._logger.handlers)

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line, unless another plugin has it already."""
        first = next((each for each in self._logger.handlers if isinstance(each, PikaLog)), None)
        if first is self:
            self._log.debug("pika: {text}", text=record.getMessage())
