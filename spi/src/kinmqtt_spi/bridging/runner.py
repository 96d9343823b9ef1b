"""Runs a sink: opens it, sends it what its outbox has, and opens it again after failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kinmqtt_spi.bridging.calls import Call
from kinmqtt_spi.bridging.disposal import PoisonHandler
from kinmqtt_spi.bridging.environment import Environment, SinkCounters, label
from kinmqtt_spi.bridging.failures import FailureLog, text_of
from kinmqtt_spi.bridging.parking import Parking
from kinmqtt_spi.bridging.pauses import Pauses
from kinmqtt_spi.bridging.sending import Sender
from kinmqtt_spi.bridging.states import Phase, StateHandler, state_of
from kinmqtt_spi.errors import SinkRefused
from kinmqtt_spi.services.bridge import REFUSED_PAUSE_S, SinkPlan, SinkState
from kinmqtt_spi.services.outbox import Outbox
from kinmqtt_spi.services.plugin import Timer

SENDING_SHARE: Final = 0.8
"""The share of the deadline of a stop in which batches may end; the rest is for ``Sink.close``."""


class SinkRunner:
    """Runs one sink over one outbox. ``name`` is `plugin:name`.

    What the sink has taken is acknowledged to the outbox. A failed batch is sent again before all later messages of
    its lane, so that the order holds for each key. ``on_state`` and ``on_poisoned`` must not raise.

    Raises ``ValueError`` if the plan parks and ``parking`` is ``None``.
    """

    def __init__(
        self,
        name: str,
        plan: SinkPlan,
        outbox: Outbox,
        parking: Parking | None,
        environment: Environment,
        on_state: StateHandler = lambda state, why: None,
        on_poisoned: PoisonHandler = lambda message, why: None,
    ) -> None:
        self.name = name
        self.outbox = outbox
        self.parking = parking
        self._environment = environment
        self._clock = environment.clock
        self._on_state = on_state
        self._failures = FailureLog(f"sink {name}", environment.clock, environment.log)
        counters = SinkCounters(environment.metrics, name)
        self._sender = Sender(
            plan, outbox, parking, environment, counters, self._failures, on_poisoned, self._batch_ended
        )
        environment.metrics.gauge("bridge.state", "state", self._state_number, {"name": label(name)})
        self._phase = Phase.STOPPED
        self._pauses = self._new_pauses(plan)
        self._consumes = False
        self._is_opened = False
        """Whether ``Sink.open`` was called since ``Sink.close``."""
        self._pause_s: float | None = None
        """Set after a failure: how long to wait before the sink is opened again."""
        self._pause: Timer | None = None
        self._error: BaseException | None = None
        """The last failure, until something succeeds."""
        self._new_plan: tuple[SinkPlan, Parking | None] | None = None
        self._call: Call | None = None
        self._deadline: Timer | None = None
        self._closes_by: float | None = None
        """The end of a stop's deadline, by the clock's ``monotonic``."""
        self._stopped: list[Callable[[], None]] = []
        self._reported: tuple[SinkState, str] = (SinkState.STOPPED, "")

    @property
    def plan(self) -> SinkPlan:
        """The plan that it follows, or will follow after a reload that is under way."""
        return self._sender.plan if self._new_plan is None else self._new_plan[0]

    @property
    def state(self) -> SinkState:
        """The state that was reported last."""
        return self._reported[0]

    @property
    def why(self) -> str:
        """The reason of the state; empty if it is open."""
        return self._reported[1]

    def start(self) -> None:
        """Open the sink and send what is in the outbox. Call it once, or again after a stop."""
        if self._phase is not Phase.STOPPED:
            raise RuntimeError(f"sink {self.name} runs already")
        if not self._consumes:
            self._consumes = True
            self.outbox.consume(self._sender.arrive)
        self._open()
        self._sender.resume()

    def reload(self, plan: SinkPlan, parking: Parking | None) -> None:
        """Follow another plan, or the same one again: batches under way end, then the sink is closed and opened.

        A refused sink is tried at once, and halted lanes go on. Raises ``ValueError`` as the constructor does.
        """
        if plan.sending.poison == "park" and parking is None:
            raise ValueError("poison = 'park' needs an outbox of parked messages")
        self._new_plan = (plan, parking)
        self._pause_s = None
        if self._phase is Phase.PAUSING:
            self._open()
        elif self._phase is Phase.RUNNING:
            self._end()

    def stop(self, deadline_s: float, stopped: Callable[[], None] = lambda: None) -> None:
        """Stop within ``deadline_s`` seconds; ``stopped`` is called then.

        Batches under way may end in 80 % of that time. The rest stays unacknowledged in the outbox.
        """
        if self._phase is Phase.STOPPED:
            stopped()
            return
        self._stopped.append(stopped)
        if len(self._stopped) > 1:
            return
        self._closes_by = self._clock.monotonic() + deadline_s
        if self._phase is Phase.PAUSING:
            self._stop_pausing()
            self._close()
        elif self._phase is Phase.RUNNING:
            self._end()
        if self._phase in (Phase.ENDING, Phase.OPENING):
            self._deadline = self._clock.later(deadline_s * SENDING_SHARE, self._give_up)
        elif self._phase is Phase.CLOSING:
            self._deadline = self._clock.later(deadline_s, self._give_up)

    # Opening

    def _open(self) -> None:
        self._stop_pausing()
        if self._new_plan is not None:
            plan, self.parking = self._new_plan
            self._new_plan = None
            self._pauses = self._new_pauses(plan)
            self._sender.replace(plan, self.parking)
        self._phase = Phase.OPENING
        self._is_opened = True
        sending = self.plan.sending
        self._start(self.plan.sink.open, self._opened, self._not_opened, sending.time_limit_s)

    def _opened(self, answer: object) -> None:
        self._call = None
        self._phase = Phase.RUNNING
        if not any(lane.again for lane in self._sender.lanes):
            self._error = None
        if self._stopped or self._new_plan is not None:
            self._end()
            return
        self._sender.is_open = True
        self._sender.pump()
        self._report()

    def _not_opened(self, error: BaseException) -> None:
        self._call = None
        self._phase = Phase.ENDING
        self._failed(error, "open")
        self._close()

    # Batches

    def _batch_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._failed(error, "send")
            if self._phase is Phase.RUNNING:
                self._phase = Phase.ENDING
                self._sender.is_open = False
        elif self._pause_s is None and self._sender.breaker.failures == 0:
            self._error = None
            self._pauses.reset()
        if self._phase is Phase.RUNNING:
            self._sender.pump()
            self._report()
        else:
            self._report()
            self._end()

    def _failed(self, error: BaseException, during: str) -> None:
        self._error = error
        if isinstance(error, SinkRefused):
            self._pause_s = REFUSED_PAUSE_S
            self._sender.breaker.trip()
        elif self._pause_s is None:
            self._pause_s = self._pauses.next_s()
        self._failures.failed(error, during, self._pause_s)

    # Closing

    def _end(self) -> None:
        """Begin no further batch, and close the sink when none is under way."""
        self._sender.is_open = False
        if self._phase is Phase.RUNNING:
            self._phase = Phase.ENDING
        if self._phase is Phase.ENDING and not self._sender.under_way:
            self._close()

    def _close(self) -> None:
        self._phase = Phase.CLOSING
        self._forget_deadline()
        if not self._is_opened:
            self._closed()
            return
        self._is_opened = False
        limit_s = self._sender.plan.sending.time_limit_s
        if self._closes_by is not None:
            limit_s = min(limit_s, max(self._closes_by - self._clock.monotonic(), 0.0))
        self._start(self._sender.plan.sink.close, lambda answer: self._closed(), self._not_closed, limit_s)

    def _not_closed(self, error: BaseException) -> None:
        self._failures.problem("close", f"failed in close: {text_of(error)}")
        self._closed()

    def _closed(self) -> None:
        self._call = None
        if self._stopped:
            self._finish()
            return
        pause_s, self._pause_s = self._pause_s, None
        if pause_s is None or self._new_plan is not None:
            self._open()
            return
        self._phase = Phase.PAUSING
        self._pause = self._clock.later(pause_s, self._open)
        self._report()

    def _give_up(self) -> None:
        """End a stop whose deadline is over."""
        self._deadline = None
        if self._call is not None:
            self._call.abandon()
            self._call = None
        self._sender.abandon()
        if self._phase is Phase.CLOSING:
            self._finish()
        else:
            self._close()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _finish(self) -> None:
        self._forget_deadline()
        self._phase = Phase.STOPPED
        self._closes_by = self._pause_s = None
        self._sender.rest()
        self._report()
        stopped, self._stopped = self._stopped, []
        for call in stopped:
            call()

    def _stop_pausing(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _start(
        self,
        make: Callable[[], object],
        done: Callable[[object], None],
        failed: Callable[[BaseException], None],
        limit_s: float,
    ) -> None:
        self._call = Call(done, failed)
        self._call.start(make, self._clock, self._environment.run, limit_s)

    def _new_pauses(self, plan: SinkPlan) -> Pauses:
        return Pauses(plan.sending.first_pause_s, plan.sending.longest_pause_s, self._environment.random)

    # State

    def _report(self) -> None:
        state, why = state_of(self._phase, self._sender.lanes, self._error)
        before = self._reported[0]
        self._reported = (state, why)
        if state is not before:
            if state is SinkState.OPEN:
                self._failures.recovered()
            self._on_state(state, why)

    def _state_number(self) -> float:
        return float(list(SinkState).index(self.state))
