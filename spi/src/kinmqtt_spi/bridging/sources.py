"""Runs a source: calls it again after it has failed, and cancels it at the stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kinmqtt_spi.bridging.calls import Call
from kinmqtt_spi.bridging.environment import Environment, SourceCounters
from kinmqtt_spi.bridging.failures import FailureLog, message_of, text_of
from kinmqtt_spi.bridging.pauses import Pauses
from kinmqtt_spi.errors import NotCommitted, PublishRefused, ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import REFUSED_PAUSE_S, Publish, Source
from kinmqtt_spi.services.plugin import Timer
from kinmqtt_spi.values import Message

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
"""The pauses before a source is called again; they begin again after it has published something."""


class SourceRunner:
    """Runs one source. ``name`` is `plugin:name`; ``publish`` is what the source publishes with."""

    def __init__(self, name: str, source: Source, publish: Publish, environment: Environment) -> None:
        self.name = name
        self.source = source
        self._publish_to = publish
        self._environment = environment
        self._clock = environment.clock
        self._counters = SourceCounters(environment.metrics, name)
        self._failures = FailureLog(f"source {name}", environment.clock, environment.log)
        self._pauses = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, environment.random)
        self._runs = False
        self._call: Call | None = None
        self._timer: Timer | None = None
        """The end of a pause, or of a stop's deadline."""
        self._stopped: list[Callable[[], None]] = []
        self.error: str | None = None
        """Why it was called again, or could not publish; ``None`` after it has published something since."""

    def start(self) -> None:
        """Call the source. Call it once, or again after a stop."""
        if self._runs:
            raise RuntimeError(f"source {self.name} runs already")
        self._runs = True
        self._begin()

    def stop(self, deadline_s: float, stopped: Callable[[], None] = lambda: None) -> None:
        """Cancel the source; ``stopped`` is called when it has ended, or after ``deadline_s`` seconds."""
        if not self._runs:
            stopped()
            return
        self._stopped.append(stopped)
        if len(self._stopped) > 1:
            return
        self._forget_timer()
        if self._call is None:
            self._finish()
            return
        self._timer = self._clock.later(deadline_s, self._give_up)
        self._call.cancel()

    def _begin(self) -> None:
        self._timer = None
        self._call = Call(self._returned, self._failed)
        self._call.start(lambda: self.source.run(self._publish), self._clock, self._environment.run, None)

    async def _publish(self, messages: Sequence[Message]) -> None:
        """Publish for the source, and count."""
        self._counters.received.value += len(messages)
        try:
            await self._publish_to(messages)
        except (NotCommitted, PublishRefused) as error:
            self._counters.refused.value += len(messages)
            # A source may try again for as long as it likes: its health and the log say so meanwhile.
            self.error = message_of(error)
            self._failures.refused(self.error)
            raise
        self._counters.published.value += len(messages)
        self._pauses.reset()
        if self.error is not None:
            self.error = None
            self._failures.recovered()

    def _returned(self, answer: object) -> None:
        self._failed(ServiceUnavailable("it has ended, though nobody has cancelled it"))

    def _failed(self, error: BaseException) -> None:
        self._call = None
        if self._stopped:
            self._finish()
            return
        pause_s = REFUSED_PAUSE_S if isinstance(error, SinkRefused) else self._pauses.next_s()
        self.error = text_of(error)
        self._failures.failed(error, "run", pause_s)
        self._timer = self._clock.later(pause_s, self._begin)

    def _give_up(self) -> None:
        self._timer = None
        if self._call is not None:
            self._call.abandon()
            self._call = None
        self._failures.problem("stop", "it did not end in time after it was cancelled")
        self._finish()

    def _finish(self) -> None:
        self._forget_timer()
        self._runs = False
        stopped, self._stopped = self._stopped, []
        for call in stopped:
            call()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
