"""Time slices for long work: a part in each turn of the event loop, in the order of requests.

No packet may block the event loop for long. Long work checks :meth:`Slices.is_over` as it runs. When its slice is
over it awaits :meth:`Slices.turn`, and other connections are read in between. Waiting work is served first come,
first served, by one call in each turn, which stops when the slice is over: a turn does one slice of it, however many
clients wait.

The results of a slice are committed and sent when the turn ends, before other work is served. This time is measured,
and slices shrink so that both together stay within :data:`LONGEST_TURN_S`. Sending has a slice of its own: output
without time left is sent in the next turns, and no other slice begins before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

log = Logger("kinmqtt.slices")

LONGEST_TURN_S: Final = 0.010
"""The target for a slice with its commit and sending, while other work waits for a turn."""

LONGEST_UNCONTENDED_TURN_S: Final = 0.016
"""The target while no other work waits: fewer, longer slices cost less."""

LONGEST_HURRIED_TURN_S: Final = 0.007
"""The target for work known to take more than one slice, or arriving in bulk."""

_MAX_SHARE: Final = 0.5
"""The largest share of a turn that a slice may take."""

SLICE_S: Final = LONGEST_TURN_S * _MAX_SHARE
"""The longest slice while other work waits."""
FIRST_SLICE_S: Final = LONGEST_UNCONTENDED_TURN_S * _MAX_SHARE
"""The longest slice while no other work waits."""
HURRIED_SLICE_S: Final = LONGEST_HURRIED_TURN_S * _MAX_SHARE
"""The longest slice of work known to be long."""

SHORTEST_SLICE_S: Final = 0.0005
"""The shortest slice; a shorter one would not be worth a turn."""

READ_S: Final = 0.0002
"""The approximate time to read 256 KB, which may have arrived meanwhile."""

_DECAY: Final = 0.2
"""The weight of a new, lower cost in the moving average."""

_NOT_ASKED: Final = -1.0


class Slices:
    """Decides when a slice is over, and schedules waiting work for later slices."""

    __slots__ = (
        "_began",
        "_call_soon",
        "_cost",
        "_gathered_s",
        "_idle",
        "_is_behind",
        "_is_running",
        "_is_scheduled",
        "_is_sending",
        "_limit_s",
        "_longest_s",
        "_monotonic",
        "_share",
        "_waiting",
        "is_flooded",
        "is_heavy",
    )

    def __init__(self, call_soon: Callable[[Callable[[], object]], object], monotonic: Callable[[], float]) -> None:
        """``call_soon`` makes a call in the next turn of the event loop, ``monotonic`` is a clock in seconds."""
        self._call_soon = call_soon
        self._monotonic = monotonic
        self._began = _NOT_ASKED
        self._waiting: deque[Callable[[], object]] = deque()
        self._share = _MAX_SHARE
        """The share of a turn that the slice may take."""
        self._limit_s = FIRST_SLICE_S
        self._longest_s = LONGEST_UNCONTENDED_TURN_S
        self._gathered_s = 0.0
        """How long the slice took whose results are being committed and sent."""
        self._cost = 0.0
        """The time to commit and send, as a multiple of the slice."""
        self._is_behind = False
        """Whether output of earlier slices is still to be sent."""
        self._is_sending = False
        """Whether the turn is committing and sending, so that :meth:`is_over` applies to that."""
        self._is_scheduled = False
        self._is_running = False
        self._idle: list[Deferred[None]] = []
        self.is_flooded = False
        """Whether small output is late: input then waits until it is sent."""
        self.is_heavy = False
        """Set by work much larger than one packet: loops that count packets then check the slice at once."""

    def begin(self) -> None:
        """Begin a turn; its slice begins with the first check of the clock."""
        if not self._is_running:
            self._began = _NOT_ASKED
            self._limit(alone=not (self._waiting or self._is_behind))

    def _limit(self, alone: bool) -> None:
        self._limit_to(LONGEST_UNCONTENDED_TURN_S if alone else LONGEST_TURN_S)

    def _limit_to(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._limit_s = max(SHORTEST_SLICE_S, longest_s * self._share)

    def begin_sending(self) -> None:
        """Begin the slice for committing and sending, in the time that is left of the turn.

        The caller then calls :meth:`end_sending`.
        """
        self._is_sending = True
        self._limit_s = FIRST_SLICE_S
        self._gathered_s = _NOT_ASKED
        if self._began == _NOT_ASKED:
            return  # There was no slice.
        now = self._monotonic()
        self._gathered_s = now - self._began
        self._limit_s = min(max(self._longest_s - self._gathered_s, HURRIED_SLICE_S), FIRST_SLICE_S)
        self._began = now

    def end_sending(self, behind: bool, flooded: bool = False) -> bool:
        """End the turn's committing and sending, and adapt the length of slices to the time they took.

        ``behind`` says that output is still to be sent: no slice begins before that. ``flooded`` says that small
        output is among it: no packet is handled before it is sent. Returns whether the turn had a slice, that is,
        whether the clock was checked.
        """
        self._is_sending = False
        self.is_flooded = flooded
        was_behind, self._is_behind = self._is_behind, behind
        if was_behind and not behind and self._waiting:
            self._schedule()
        gathered_s = self._gathered_s
        was_asked = gathered_s != _NOT_ASKED
        if was_asked:
            self._learn(gathered_s, self._monotonic() - self._began)
        self._began = _NOT_ASKED
        return was_asked

    def _learn(self, gathered_s: float, took_s: float) -> None:
        """Adapt the share of slices to how long a turn's slice and its committing and sending took."""
        cost = took_s / max(gathered_s, SHORTEST_SLICE_S)
        if cost < self._cost:
            self._cost += _DECAY * (cost - self._cost)
        elif gathered_s + took_s > self._longest_s:
            self._cost = cost
        self._share = min(_MAX_SHARE, 1.0 / (1.0 + self._cost))

    def hurry(self) -> None:
        """Begin work known to be long: start the slice now, if it has not begun, and shorten it."""
        if self._began == _NOT_ASKED:
            self._began = self._monotonic()
        if self._longest_s > LONGEST_HURRIED_TURN_S:
            self._limit_to(LONGEST_HURRIED_TURN_S)

    def is_over(self) -> bool:
        """Whether the slice is over and remaining work must wait for a later one."""
        self.is_heavy = False
        if self._is_behind and not self._is_sending:
            return True
        now = self._monotonic()
        if self._began == _NOT_ASKED:
            self._began = now
            return False
        return now - self._began >= self._limit_s

    def count_resumed_read(self) -> None:
        """Count the time for reading a connection that was paused against the current slice."""
        if self._began != _NOT_ASKED:
            self._began -= READ_S

    def turn(self) -> Deferred[None]:
        """Fires in a later turn of the event loop, after all earlier requests were served."""
        waits: Deferred[None] = Deferred()
        self.later(partial(self._resume, waits))
        return waits

    def _resume(self, waits: Deferred[None]) -> None:
        self.hurry()
        waits.callback(None)

    def later(self, call: Callable[[], object]) -> None:
        """Schedule a call for a later turn; cheaper than :meth:`turn`, for many calls in one turn."""
        self._waiting.append(call)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run)

    def drained(self) -> Deferred[None]:
        """Fires when no work waits for a turn; used for an orderly stop."""
        done: Deferred[None] = Deferred()
        if self._waiting or self._is_scheduled:
            self._idle.append(done)
        else:
            done.callback(None)
        return done

    def _run(self) -> None:
        """Run one slice of the waiting work."""
        self._is_scheduled = False
        if self._is_behind:
            return
        self._is_running = True
        self._began = self._monotonic()
        waiting = self._waiting
        self._limit(alone=len(waiting) == 1)
        # Only the work waiting now: its results are committed and sent before its next slice.
        for _ in range(len(waiting)):
            try:
                waiting.popleft()()
            except Exception:
                # The other work still runs.
                log.failure("work in slices failed")
            if self.is_over():
                break
        self._is_running = False
        if not waiting:
            idle, self._idle = self._idle, []
            for done in idle:
                done.callback(None)
        else:
            self._schedule()
