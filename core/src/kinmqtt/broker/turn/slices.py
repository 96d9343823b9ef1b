"""Long work, done in slices: some of it in each turn of the event loop, and everybody's in order.

No packet may hold the event loop for long. Work that can be long asks :meth:`Slices.is_over` as it goes; once its
slice is over it awaits :meth:`Slices.turn`, and packets of others are read in between. All that waits is served first
come, first served, by one call a turn of the event loop, which ends when the slice is over: however many clients have
long work waiting, a turn of the event loop does one slice of it.

What a slice led to is committed and sent when the turn ends, and nobody else is served until that is done. How long
it takes, beside the slice, is measured, and slices shrink so that both stay within :data:`LONGEST_TURN_S`. Sending
has a slice of its own: what there is no time for goes out in the next turns, and no other slice begins before that.
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
"""How long a slice and what it leads to may take together while somebody waits for a turn."""

LONGEST_UNCONTENDED_TURN_S: Final = 0.016
"""The same where nobody waits: what is done in one go costs less."""

LONGEST_HURRIED_TURN_S: Final = 0.007
"""The same of work that is known to take more than one slice, or of which much comes at once."""

_MAX_SHARE: Final = 0.5
"""How much of a turn a slice takes at most, however little it leads to."""

SLICE_S: Final = LONGEST_TURN_S * _MAX_SHARE
"""How long a slice is at most while somebody waits,"""
FIRST_SLICE_S: Final = LONGEST_UNCONTENDED_TURN_S * _MAX_SHARE
"""where nobody does,"""
HURRIED_SLICE_S: Final = LONGEST_HURRIED_TURN_S * _MAX_SHARE
"""and of work that is known to be long."""

SHORTEST_SLICE_S: Final = 0.0005
"""How long a slice is at least, however long what it leads to takes: less would not be worth its turn."""

READ_S: Final = 0.0002
"""How long the event loop takes, about, to read the 256 KB that may have come meanwhile."""

_DECAY: Final = 0.2
"""How much of what was seen before is forgotten with each slice that leads to less."""

_NOT_ASKED: Final = -1.0


class Slices:
    """Says when a slice is over, and when the next one begins."""

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
        """How much of a turn the slice may take."""
        self._limit_s = FIRST_SLICE_S
        self._longest_s = LONGEST_UNCONTENDED_TURN_S
        self._gathered_s = 0.0
        """How long the slice took whose outcome is being committed and sent."""
        self._cost = 0.0
        """How long that takes, in slices."""
        self._is_behind = False
        """Whether what earlier slices led to has not all been sent."""
        self._is_sending = False
        """Whether that is being committed and sent, and the clock asked for its sake."""
        self._is_scheduled = False
        self._is_running = False
        self._idle: list[Deferred[None]] = []
        self.is_flooded = False
        """Whether those are late who are sent little: whoever sends anything waits until they have it."""
        self.is_heavy = False
        """Set by work that is much more than that of one packet: whoever counts packets asks the clock at once."""

    def begin(self) -> None:
        """A turn of the event loop begins, and a slice when the clock is first asked in it."""
        if not self._is_running:
            self._began = _NOT_ASKED
            self._limit(alone=not (self._waiting or self._is_behind))

    def _limit(self, alone: bool) -> None:
        self._limit_to(LONGEST_UNCONTENDED_TURN_S if alone else LONGEST_TURN_S)

    def _limit_to(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._limit_s = max(SHORTEST_SLICE_S, longest_s * self._share)

    def begin_sending(self) -> None:
        """The turn ends: what its slice led to is committed and sent now, for as long as leaves the turn its length.

        :meth:`end_sending` is to be called then.
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
        """What the slice led to is committed and sent: slices are as long from now on as leaves time for that.

        Where ``behind``, some of it is still to be sent: no slice begins before it is. Where ``flooded``, that is for
        some who get little: nothing is carried out before they have it. Answers whether there was a slice at all:
        whether the clock was asked in this turn.
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
        """A turn has gathered and then committed and sent for so long: slices shrink where that was too long."""
        cost = took_s / max(gathered_s, SHORTEST_SLICE_S)
        if cost < self._cost:
            self._cost += _DECAY * (cost - self._cost)
        elif gathered_s + took_s > self._longest_s:
            self._cost = cost
        self._share = min(_MAX_SHARE, 1.0 / (1.0 + self._cost))

    def hurry(self) -> None:
        """What begins is known to be long: others have their turn sooner, and the slice begins now at the latest."""
        if self._began == _NOT_ASKED:
            self._began = self._monotonic()
        if self._longest_s > LONGEST_HURRIED_TURN_S:
            self._limit_to(LONGEST_HURRIED_TURN_S)

    def is_over(self) -> bool:
        """Whether the slice is over: who has more to do does it in a later one."""
        self.is_heavy = False
        if self._is_behind and not self._is_sending:
            return True
        now = self._monotonic()
        if self._began == _NOT_ASKED:
            self._began = now
            return False
        return now - self._began >= self._limit_s

    def count_resumed_read(self) -> None:
        """A connection is read from again that was not, for what it sends: that takes time, and counts here."""
        if self._began != _NOT_ASKED:
            self._began -= READ_S

    def turn(self) -> Deferred[None]:
        """Fires in a later turn of the event loop, when everybody has had a turn who asked for one before."""
        waits: Deferred[None] = Deferred()
        self.later(partial(self._resume, waits))
        return waits

    def _resume(self, waits: Deferred[None]) -> None:
        self.hurry()
        waits.callback(None)

    def later(self, call: Callable[[], object]) -> None:
        """The same for a call, which costs less: many may be made in one turn."""
        self._waiting.append(call)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run)

    def drained(self) -> Deferred[None]:
        """Fires when nothing waits for a turn: for an orderly stop."""
        done: Deferred[None] = Deferred()
        if self._waiting or self._is_scheduled:
            self._idle.append(done)
        else:
            done.callback(None)
        return done

    def _run(self) -> None:
        """One slice of all that waits."""
        self._is_scheduled = False
        if self._is_behind:
            return
        self._is_running = True
        self._began = self._monotonic()
        waiting = self._waiting
        self._limit(alone=len(waiting) == 1)
        # Only those who wait now: what they do is committed and sent before it is their turn again.
        for _ in range(len(waiting)):
            try:
                waiting.popleft()()
            except Exception:
                # Whatever went wrong, the others have their turn.
                log.failure("work that was done in slices failed")
            if self.is_over():
                break
        self._is_running = False
        if not waiting:
            idle, self._idle = self._idle, []
            for done in idle:
                done.callback(None)
        else:
            self._schedule()
