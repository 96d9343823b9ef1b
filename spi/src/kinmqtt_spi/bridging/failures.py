"""Log lines about failures: at most one a minute for each kind, sink and source."""

from __future__ import annotations

from traceback import format_exception
from typing import Final

from kinmqtt_spi.bridging.answers import WrongAnswer
from kinmqtt_spi.bridging.calls import FAILURES, Overdue
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.pace import Pace
from kinmqtt_spi.services.plugin import Clock, Log

LINE_EVERY_S: Final = 60.0
"""The least time between two lines of one kind, in seconds."""


def text_of(error: BaseException) -> str:
    """Return an error as text for a line: its message, with its class if that is unknown."""
    text = message_of(error)
    if isinstance(error, ServiceUnavailable | SinkRefused | Overdue | WrongAnswer):
        return text or type(error).__name__
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def message_of(error: BaseException) -> str:
    """Return an error's message, also if its class fails to make one."""
    try:
        return str(error)
    except FAILURES as failure:
        return f"its text can't be read ({type(failure).__name__})"


class FailureLog:
    """Logs the failures of one sink or source; ``subject`` is as ``sink kafka:orders``."""

    __slots__ = ("_clock", "_failed", "_log", "_paces", "_subject")

    def __init__(self, subject: str, clock: Clock, log: Log) -> None:
        self._subject = subject
        self._clock = clock
        self._log = log
        self._paces: dict[str, Pace] = {}
        self._failed = False

    def failed(self, error: BaseException, during: str, pause_s: float) -> None:
        """Log a failure of a call, after which the next one comes in ``pause_s`` seconds."""
        more = self._due(_kind_of(error))
        if more is None:
            return
        self._failed = True
        line = "{subject} failed in {during}: {why}; tried again in {pause} s{more}"
        expected = isinstance(error, ServiceUnavailable | SinkRefused | Overdue | WrongAnswer)
        trace = "" if expected else "".join(format_exception(error))
        report = self._log.warn if isinstance(error, ServiceUnavailable | Overdue) else self._log.error
        report(
            f"{line}\n{{trace}}" if trace else line,
            subject=self._subject,
            during=during,
            why=text_of(error),
            pause=round(pause_s, 3),
            more=more,
            **({"trace": trace} if trace else {}),
        )

    def retried(self, why: str, pause_s: float) -> None:
        """Log that a sink wants a batch again in ``pause_s`` seconds."""
        more = self._due("retried")
        if more is not None:
            self._failed = True
            self._log.warn(
                "{subject} does not take a message: {why}; sent again in {pause} s{more}",
                subject=self._subject,
                why=why,
                pause=round(pause_s, 3),
                more=more,
            )

    def refused(self, why: str) -> None:
        """Log that the broker does not take what a source brings."""
        more = self._due("refused by the broker")
        if more is not None:
            self._failed = True
            self._log.warn(
                "{subject} can't publish: {why}; it keeps its messages and tries again{more}",
                subject=self._subject,
                why=why,
                more=more,
            )

    def poisoned(self, why: str, what: str) -> None:
        """Log that a sink will never take a message, and what is done with it."""
        more = self._due("poisoned")
        if more is not None:
            self._log.warn(
                "{subject} will never take a message: {why}; {what}{more}",
                subject=self._subject,
                why=why,
                what=what,
                more=more,
            )

    def problem(self, kind: str, text: str) -> None:
        """Log another problem; lines of one ``kind`` share their pace."""
        more = self._due(kind)
        if more is not None:
            self._log.error("{subject}: {text}{more}", subject=self._subject, text=text, more=more)

    def recovered(self) -> None:
        """Log that it works again, if a failure was logged."""
        if self._failed:
            self._failed = False
            self._log.info("{subject} works again", subject=self._subject)

    def _due(self, kind: str) -> str | None:
        """Return the end of a line that is due: how many of its kind were left out, if any."""
        more = self._paces.setdefault(kind, Pace(self._clock, LINE_EVERY_S)).due()
        return f" ({more} more since the last line)" if more else None if more is None else ""


def _kind_of(error: BaseException) -> str:
    """Return the kind of a failure: a defect has a line although the target is away, and the reverse."""
    if isinstance(error, SinkRefused):
        return "refused"
    if isinstance(error, ServiceUnavailable | Overdue):
        return "failed"
    return "wrong answer" if isinstance(error, WrongAnswer) else "unexpected"
