"""Virtual time: one list of timers for the whole world, and a clock for each node."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

EPOCH = 1_700_000_000.0


class ScheduledCall:
    """A call that can be cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Make it do nothing."""
        self.call = None


class Schedule:
    """The time of the world, in seconds since it began; a :class:`~kinmqtt_spi.services.plugin.Clock`."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.calls = 0
        """The number of calls that were made."""
        self._serial = 0
        self._heap: list[tuple[float, int, ScheduledCall]] = []

    def now(self) -> float:
        """Seconds since the epoch."""
        return EPOCH + self.time_s

    def monotonic(self) -> float:
        """Seconds since the world began."""
        return self.time_s

    def later(self, delay_s: float, call: Callable[[], object]) -> ScheduledCall:
        """Make a call after a time; calls for the same moment are made in the order in which they were scheduled."""
        scheduled = ScheduledCall(call)
        self._serial += 1
        heappush(self._heap, (self.time_s + max(0.0, delay_s), self._serial, scheduled))
        return scheduled

    def run_until(self, end_s: float, after_each: Callable[[], object]) -> None:
        """Make all calls up to a time, and one to ``after_each`` behind each of them."""
        heap = self._heap
        while heap and heap[0][0] <= end_s:
            due_s, _, scheduled = heappop(heap)
            self.time_s = max(self.time_s, due_s)
            call, scheduled.call = scheduled.call, None
            if call is not None:
                self.calls += 1
                call()
                after_each()
        self.time_s = end_s


class NodeCall:
    """A call of one node that can be cancelled, also when it is due and the node stands still."""

    __slots__ = ("_clock", "call", "scheduled")

    scheduled: ScheduledCall

    def __init__(self, clock: NodeClock, call: Callable[[], object]) -> None:
        self._clock = clock
        self.call: Callable[[], object] | None = call

    def due(self) -> None:
        """Let the node make the call."""
        self._clock.run(self._make)

    def cancel(self) -> None:
        """Make it do nothing."""
        self.call = None
        self.scheduled.cancel()

    def _make(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            call()


class NodeClock:
    """The clock of one node: its wall clock may be wrong, and nothing happens while it is frozen, or when it is dead.

    Everything that the node's process does begins with :meth:`run`, or in a turn of its broker.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.wrong_by_s = 0.0
        """How far the wall clock is ahead."""
        self.is_dead = False
        self.is_frozen = False
        """Whether the process stands still: :meth:`freeze`."""
        self.around: Callable[[Callable[[], object]], None] = _make
        """Makes a call in the surroundings of the node's process."""
        self._waiting: deque[Callable[[], object]] = deque()

    def now(self) -> float:
        """Seconds since the epoch, as this node sees them."""
        return self._schedule.now() + self.wrong_by_s

    def monotonic(self) -> float:
        """Seconds of a clock that is never set."""
        return self._schedule.monotonic()

    def later(self, delay_s: float, call: Callable[[], object]) -> NodeCall:
        """Make a call after a time, unless the node is dead by then."""
        made = NodeCall(self, call)
        made.scheduled = self._schedule.later(delay_s, made.due)
        return made

    def run(self, call: Callable[[], object]) -> None:
        """Let the node's process do something: at once, when it is frozen no more, or never if it is dead."""
        if self.is_frozen:
            self._waiting.append(call)
        elif not self.is_dead:
            self.around(call)

    def freeze(self) -> None:
        """Let the process stand still."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Let it do what has come meanwhile, and go on."""
        self.is_frozen = False
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self.run(call)


def _make(call: Callable[[], object]) -> None:
    call()
