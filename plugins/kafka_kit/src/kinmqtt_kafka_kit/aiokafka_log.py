"""Where aiokafka's log lines go: one comes with each attempt to reconnect."""

from __future__ import annotations

import logging

from kinmqtt_spi.services.plugin import Log


class AiokafkaLog(logging.Handler):
    """Takes aiokafka's warnings into the broker's log for debugging.

    What is below a warning is left out: aiokafka logs keys and values when it debugs.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line."""
        self._log.debug("aiokafka: {text}", text=record.getMessage())

    def begin(self) -> None:
        """Take the lines, which nobody else gets any more."""
        logger = logging.getLogger("aiokafka")
        logger.addHandler(self)
        logger.propagate = False

    def end(self) -> None:
        """Take no more lines."""
        logger = logging.getLogger("aiokafka")
        logger.removeHandler(self)
        logger.propagate = not logger.handlers
