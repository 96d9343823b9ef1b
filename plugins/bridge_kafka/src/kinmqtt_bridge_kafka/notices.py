"""Log lines that would otherwise repeat with each attempt: each at most once a minute."""

from __future__ import annotations

from typing import Final

from kinmqtt_spi.services.plugin import Clock, Log

PAUSE_S: Final = 60.0
"""The shortest time between two lines about the same."""

MAX_SUBJECTS: Final = 1000
"""The most subjects whose last line is remembered."""


class Notices:
    """Writes warnings, each subject's at most once a minute."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warn(self, subject: str, text: str) -> None:
        """Write a warning, unless the subject had one within the last minute; later lines say how many were not."""
        now = self._clock.monotonic()
        last = self._last.get(subject)
        if last is not None and now - last < PAUSE_S:
            self._left_out[subject] = self._left_out.get(subject, 0) + 1
            return
        if last is None and len(self._last) >= MAX_SUBJECTS:
            oldest = min(self._last, key=self._last.__getitem__)
            del self._last[oldest]
            self._left_out.pop(oldest, None)
        self._last[subject] = now
        more = self._left_out.pop(subject, 0)
        self._log.warn("{text}{more}", text=text, more=f" ({more} more like this)" if more else "")
