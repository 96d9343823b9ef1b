"""Connections in memory: ordered pipes with a delay, which can be stalled, cut at any byte, and chopped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from kinmqtt_spi.services.plugin import Clock, Timer

_EPSILON_S: Final = 1e-9


class PipeEnd:
    """One end of a pipe: a transport. Its reader is called from timers of the clock only."""

    __slots__ = (
        "_clock",
        "_due",
        "_feed",
        "_inbox",
        "_lost",
        "_stalled",
        "_timer",
        "chop",
        "delay_s",
        "is_open",
        "other",
    )

    other: PipeEnd

    def __init__(self, clock: Clock, delay_s: float) -> None:
        self._clock = clock
        self.delay_s = delay_s
        """How long bytes are on their way to this end, in seconds."""
        self.chop: Callable[[bytes], Iterable[bytes]] | None = None
        """Cuts what arrives here into pieces."""
        self.is_open = True
        self._inbox: deque[tuple[float, bytes | None]] = deque()
        self._due = 0.0
        self._stalled = False
        self._timer: Timer | None = None
        self._feed: Callable[[bytes], object] | None = None
        self._lost: Callable[[], object] | None = None

    def attach(self, feed: Callable[[bytes], object], lost: Callable[[], object]) -> None:
        """Set the reader: ``feed`` gets bytes, ``lost`` is called once at the end."""
        self._feed = feed
        self._lost = lost
        self._arm()

    @property
    def coming_bytes(self) -> int:
        """The bytes on their way to this end."""
        return sum(len(data) for _, data in self._inbox if data is not None)

    def write(self, data: bytes) -> None:
        """Send bytes to the other end. Does nothing after the pipe was closed or cut."""
        if self.is_open:
            self.other._arrive(data)

    def close(self) -> None:
        """Close the pipe: what was written before arrives, and nothing is read here any more."""
        if self.is_open:
            self.is_open = False
            self._inbox.clear()
            self.other._arrive(None)
            self._clock.later(0.0, self._end)

    def stall(self) -> None:
        """Stop the bytes on their way to this end."""
        self._stalled = True

    def resume(self) -> None:
        """Let them arrive again."""
        self._stalled = False
        self._arm()

    def drain(self, limit_bytes: int) -> None:
        """Let at most that many of the bytes on their way arrive now, and lose the rest."""
        while self._inbox and limit_bytes > 0 and self.is_open:
            data = self._inbox.popleft()[1]
            if data is not None:
                self._read(data[:limit_bytes])
                limit_bytes -= len(data)
        self._inbox.clear()

    def break_off(self) -> None:
        """End this side of a pipe that was cut."""
        if self.is_open:
            self.is_open = False
            self._inbox.clear()
            self._clock.later(0.0, self._end)

    def _arrive(self, data: bytes | None) -> None:
        if self.is_open:
            self._due = max(self._due, self._clock.monotonic() + self.delay_s)
            self._inbox.append((self._due, data))
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._inbox and not self._stalled and self._feed is not None:
            delay_s = self._inbox[0][0] - self._clock.monotonic()
            self._timer = self._clock.later(max(0.0, delay_s), self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = self._clock.monotonic() + _EPSILON_S
        while self._inbox and self._inbox[0][0] <= now and not self._stalled and self.is_open:
            data = self._inbox.popleft()[1]
            if data is None:
                self.is_open = False
                self._end()
            else:
                self._read(data)
        self._arm()

    def _read(self, data: bytes) -> None:
        for piece in (data,) if self.chop is None else self.chop(data):
            if self._feed is not None and self.is_open:
                self._feed(piece)

    def _end(self) -> None:
        lost, self._feed, self._lost = self._lost, None, None
        if lost is not None:
            lost()


class Pipe:
    """A connection between two ends, ``left`` and ``right``."""

    __slots__ = ("left", "right")

    def __init__(self, clock: Clock, delay_s: float = 0.001) -> None:
        self.left = PipeEnd(clock, delay_s)
        self.right = PipeEnd(clock, delay_s)
        self.left.other, self.right.other = self.right, self.left

    @property
    def is_open(self) -> bool:
        """Whether both ends are open."""
        return self.left.is_open and self.right.is_open

    def cut(self, left_bytes: int = 0, right_bytes: int = 0) -> None:
        """Break the connection. Of what is on its way, that many bytes still arrive at each end."""
        self.left.drain(left_bytes)
        self.right.drain(right_bytes)
        for end in (self.left, self.right):
            end.break_off()

    def stall(self) -> None:
        """Stop both directions, undetected."""
        self.left.stall()
        self.right.stall()

    def resume(self) -> None:
        """Let both directions go on."""
        self.left.resume()
        self.right.resume()
