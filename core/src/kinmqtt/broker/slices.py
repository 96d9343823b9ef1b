"""Long work, done in slices: some of it in each turn of the event loop, and everybody's in order.

No packet may hold the event loop for long. Work that can be long asks :meth:`Slices.is_over` as it goes; once its
slice is over it awaits :meth:`Slices.turn`, and packets of others are read in between. All that waits is served first
come, first served, by one call a turn of the event loop, which ends when the slice is over: however many clients have
long work waiting, a turn of the event loop does one slice of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

log = Logger("kinmqtt.slices")

SLICE_S: Final = 0.004
"""How long a slice is. What it led to is committed and sent after it, which may take as long again."""

FIRST_SLICE_S: Final = 0.008
"""The same in a turn of the event loop before which nothing waited: what is done in one go costs less."""

_NOT_ASKED: Final = -1.0


class Slices:
    """Says when a slice is over, and when the next one begins."""

    __slots__ = (
        "_began",
        "_call_soon",
        "_idle",
        "_is_running",
        "_is_scheduled",
        "_limit_s",
        "_monotonic",
        "_waiting",
        "is_heavy",
    )

    def __init__(self, call_soon: Callable[[Callable[[], object]], object], monotonic: Callable[[], float]) -> None:
        """``call_soon`` makes a call in the next turn of the event loop, ``monotonic`` is a clock in seconds."""
        self._call_soon = call_soon
        self._monotonic = monotonic
        self._began = _NOT_ASKED
        self._waiting: deque[Callable[[], object]] = deque()
        self._limit_s = FIRST_SLICE_S
        self._is_scheduled = False
        self._is_running = False
        self._idle: list[Deferred[None]] = []
        self.is_heavy = False
        """Set by work that is much more than that of one packet: whoever counts packets asks the clock at once."""

    def begin(self) -> None:
        """A turn of the event loop begins, and a slice when the clock is first asked in it."""
        if not self._is_running:
            self._began = _NOT_ASKED
            self._limit_s = FIRST_SLICE_S

    def start(self) -> None:
        """What comes is known to take long: the clock is looked at now, where it was not in this slice."""
        if self._began == _NOT_ASKED:
            self._began = self._monotonic()

    def is_over(self) -> bool:
        """Whether the slice is over: who has more to do does it in a later one."""
        self.is_heavy = False
        now = self._monotonic()
        if self._began == _NOT_ASKED:
            self._began = now
            return False
        return now - self._began >= self._limit_s

    def turn(self) -> Deferred[None]:
        """Fires in a later turn of the event loop, when everybody has had a turn who asked for one before."""
        waits: Deferred[None] = Deferred()
        self.later(partial(waits.callback, None))
        return waits

    def later(self, call: Callable[[], object]) -> None:
        """The same for a call, which costs less: many may be made in one turn."""
        self._waiting.append(call)
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
        self._is_running = True
        self._began = self._monotonic()
        self._limit_s = SLICE_S
        waiting = self._waiting
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
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._run)
