"""Sends an outbox's entries in batches, and does with them what the sink answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final
from zlib import crc32

from kinmqtt_spi.bridging.answers import WrongAnswer, checked
from kinmqtt_spi.bridging.calls import Call, Overdue
from kinmqtt_spi.bridging.disposal import Disposal, PoisonHandler
from kinmqtt_spi.bridging.environment import Environment, SinkCounters
from kinmqtt_spi.bridging.failures import FailureLog, text_of
from kinmqtt_spi.bridging.keys import Keys
from kinmqtt_spi.bridging.lanes import Lane, Parcel, items
from kinmqtt_spi.bridging.parking import Parking
from kinmqtt_spi.bridging.pauses import Breaker, Pauses
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import Answer, Poison, Retry, SinkPlan
from kinmqtt_spi.services.outbox import Outbox, OutboxEntry

LONGEST_RETRY_S: Final = 3600.0
"""The longest pause that a sink can ask for with ``Retry.after_s``, in seconds."""


class Sender:
    """The lanes of one sink. ``ended`` is called after each batch, with the error that it raised or ``None``."""

    def __init__(
        self,
        plan: SinkPlan,
        outbox: Outbox,
        parking: Parking | None,
        environment: Environment,
        counters: SinkCounters,
        failures: FailureLog,
        on_poisoned: PoisonHandler,
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self._outbox = outbox
        self._environment = environment
        self._clock = environment.clock
        self._counters = counters
        self._failures = failures
        self._ended = ended
        self._arrivals = 0
        self._first_lane = 0
        self._pumps = False
        self._pump_again = False
        self._disposal = Disposal(outbox, environment, counters, failures, on_poisoned, self._send_again)
        self.is_open = False
        """Whether batches may begin."""
        self.under_way = 0
        """The number of batches that the sink has."""
        self.lanes: list[Lane] = []
        self._set(plan, parking)

    def _set(self, plan: SinkPlan, parking: Parking | None) -> None:
        sending = plan.sending
        self._disposal.set_plan(plan, parking)
        self.plan = plan
        self._keys = Keys(plan.key, self._failures)
        self.breaker = Breaker(sending.break_after)
        first_s, longest_s, random = sending.first_pause_s, sending.longest_pause_s, self._environment.random
        self.lanes = [Lane(Pauses(first_s, longest_s, random)) for _ in range(sending.parallel)]

    def replace(self, plan: SinkPlan, parking: Parking | None) -> None:
        """Go on with another plan: everything that waits is put into its lanes in the order of arrival."""
        waiting = sorted(
            chain.from_iterable((*lane.again, *lane.waiting) for lane in self.lanes), key=lambda each: each.arrival
        )
        self.rest()
        self._set(plan, parking)
        for parcel in waiting:
            parcel.failures = 0
            parcel.key = self._keys.of(parcel.message)
            self._lane_of(parcel.key).add(parcel)
        self._disposal.resume()

    # Entries come in

    def arrive(self, entries: Sequence[OutboxEntry]) -> None:
        """Take entries from the outbox."""
        now = self._clock.monotonic()
        arrival = self._arrivals
        key_of, lane_of = self._keys.of, self._lane_of
        only = self.lanes[0] if len(self.lanes) == 1 else None
        halted: list[int] = []
        for entry in entries:
            arrival += 1
            key = key_of(entry.message)
            lane = only or lane_of(key)
            lane.add(Parcel(entry, key, arrival, now))
            if lane.halted:
                halted.append(entry.number)
        self._arrivals = arrival
        if halted:
            self._outbox.hold(halted)
        self.pump()

    def _lane_of(self, key: bytes) -> Lane:
        lanes = self.lanes
        return lanes[0] if len(lanes) == 1 else lanes[crc32(key) % len(lanes)]

    # Batches go out

    def pump(self) -> None:
        """Send what is due, as far as lanes and breaker allow."""
        self._pump_again = True
        if self._pumps:
            return
        self._pumps = True
        try:
            while self._pump_again:
                self._pump_again = False
                self._pump_lanes()
        finally:
            self._pumps = False

    def _pump_lanes(self) -> None:
        lanes = self.lanes
        count = len(lanes)
        first = self._first_lane
        for place in range(first, first + count):
            if not self.is_open or not self.breaker.allows(self.under_way):
                return
            lane = lanes[place % count]
            if not lane.is_idle():
                continue
            linger_s = lane.linger_s(self.plan.sending, self._clock.monotonic())
            if linger_s is None:
                continue
            if linger_s == 0.0:
                self._first_lane = (place + 1) % count
                self._send(lane)
            elif lane.linger is None:
                lane.linger = self._clock.later(linger_s, lambda lane=lane: self._lingered(lane))  # type: ignore[misc]

    def _lingered(self, lane: Lane) -> None:
        lane.linger = None
        self.pump()

    def _send(self, lane: Lane) -> None:
        if lane.linger is not None:
            lane.linger.cancel()
            lane.linger = None
        batch = self._unexpired(lane.take(self.plan.sending))
        if not batch:
            self._pump_again = True
            return
        lane.under_way = batch
        self.under_way += 1
        self._counters.batches.value += 1
        self._counters.again.value += sum(each.attempt > 1 for each in batch)
        began = self._clock.monotonic()
        sink = self.plan.sink
        call = lane.call = Call(
            lambda answer: self._answered(lane, began, answer), lambda error: self._raised(lane, began, error)
        )
        send = items(batch)
        call.start(lambda: sink.send(send), self._clock, self._environment.run, self.plan.sending.time_limit_s)

    def _unexpired(self, batch: Sequence[Parcel]) -> Sequence[Parcel]:
        now = self._clock.now()
        expired = [each.number for each in batch if each.message.has_expired(now)]
        if not expired:
            return batch
        self._counters.expired.value += len(expired)
        self._outbox.acknowledge(expired)
        return [each for each in batch if not each.message.has_expired(now)]

    def _take_back(self, lane: Lane, began: float) -> Sequence[Parcel]:
        """Return the batch of a call that has ended."""
        batch, lane.under_way, lane.call = lane.under_way, (), None
        self.under_way -= 1
        self._counters.seconds.observe(self._clock.monotonic() - began)
        return batch

    # Answers come back

    def _answered(self, lane: Lane, began: float, answer: Any) -> None:
        batch = self._take_back(lane, began)
        try:
            answers = checked(answer, len(batch))
        except WrongAnswer as error:
            self._failed(lane, batch, error)
            return
        if answers is None:
            self._took([each.number for each in batch])
            self._succeeded(lane)
        else:
            self._follow(lane, batch, answers)
        self._ended(None)

    def _raised(self, lane: Lane, began: float, error: BaseException) -> None:
        self._failed(lane, self._take_back(lane, began), error)

    def _failed(self, lane: Lane, batch: Sequence[Parcel], error: BaseException) -> None:
        """Do what follows an error that holds for a whole batch."""
        self.breaker.failed()
        limit = self.plan.sending.attempts
        if not isinstance(error, ServiceUnavailable | SinkRefused | Overdue):
            for each in batch:
                each.failures += 1
        if limit and len(batch) == 1 and batch[0].failures >= limit:
            self._disposal.dispose(lane, batch[0], f"{text_of(error)} (after {batch[0].attempt} attempts)")
            batch = batch if lane.halted else ()
        if batch:
            self._put_back(lane, batch)
        self._ended(error)

    def _follow(self, lane: Lane, batch: Sequence[Parcel], answers: Sequence[Answer]) -> None:
        """Do what the sink says of each message, up to the first that has to come again."""
        taken: list[int] = []
        done = 0
        retry: Retry | None = None
        for parcel, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Retry):
                parcel.failures += 1
                if not 0 < self.plan.sending.attempts <= parcel.failures:
                    retry = answer
                    break
                answer = Poison(f"{answer.text} (after {parcel.attempt} attempts)")
            if answer is None:
                taken.append(parcel.number)
            else:
                self._disposal.dispose(lane, parcel, answer.text)
                if lane.halted:
                    break
            done += 1
        if taken:
            self._took(taken)
        if done:
            self._succeeded(lane)
        if done < len(batch):
            self._put_back(lane, batch[done:])
        if retry is not None:
            self._pause(lane, retry)

    def _put_back(self, lane: Lane, batch: Sequence[Parcel]) -> None:
        """Let a batch be sent again; what a halted lane has takes no place that the other lanes need."""
        lane.send_again(batch)
        if lane.halted:
            self._outbox.hold([each.number for each in (*lane.again, *lane.waiting)])

    def _send_again(self, parcels: Sequence[Parcel]) -> None:
        """Put messages that could not be parked back into their lanes, before all others."""
        for parcel in reversed(parcels):
            parcel.failures = 0
            parcel.key = self._keys.of(parcel.message)
            self._put_back(self._lane_of(parcel.key), (parcel,))
        self.pump()

    def _took(self, numbers: Sequence[int]) -> None:
        self._counters.sent.value += len(numbers)
        self._outbox.acknowledge(numbers)

    def _succeeded(self, lane: Lane) -> None:
        lane.pauses.reset()
        self.breaker.succeeded()

    def _pause(self, lane: Lane, retry: Retry) -> None:
        self.breaker.failed()
        pause_s = lane.pauses.next_s()
        if retry.after_s is not None:
            pause_s = min(retry.after_s, LONGEST_RETRY_S)
        lane.why = retry.text
        self._failures.retried(retry.text, pause_s)
        lane.pause = self._clock.later(pause_s, lambda: self._paused(lane))

    def _paused(self, lane: Lane) -> None:
        lane.pause = None
        self.pump()

    # The end

    def resume(self) -> None:
        """Try again to park what could not be parked before a stop."""
        self._disposal.resume()

    def rest(self) -> None:
        """Cancel all timers."""
        for lane in self.lanes:
            lane.rest()
        self._disposal.rest()

    def abandon(self) -> None:
        """Cancel the batches under way; they are sent again, if ever."""
        for lane in self.lanes:
            if lane.call is not None:
                lane.call.abandon()
                lane.send_again(lane.under_way)
                lane.under_way, lane.call = (), None
        self.under_way = 0
