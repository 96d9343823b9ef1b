"""Pipes in memory."""

from __future__ import annotations

from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.mesh.pipes import Pipe, PipeEnd


class Reader:
    """Collects what arrives at an end."""

    def __init__(self, end: PipeEnd) -> None:
        self.data: list[bytes] = []
        self.losses = 0
        end.attach(self.data.append, self.lost)

    def lost(self) -> None:
        self.losses += 1


def made(delay_s: float = 0.5) -> tuple[TurnableClock, Pipe, Reader, Reader]:
    clock = TurnableClock()
    pipe = Pipe(clock, delay_s)
    return clock, pipe, Reader(pipe.left), Reader(pipe.right)


def test_bytes_arrive_in_order_after_the_delay() -> None:
    """Bytes take the delay, and none arrives before earlier ones, also when the delay becomes shorter."""
    clock, pipe, _, right = made()
    pipe.left.write(b"one")
    clock.advance(0.25)
    pipe.right.delay_s = 0.0
    pipe.left.write(b"two")
    clock.advance(0.2)
    before = list(right.data)
    clock.advance(0.1)

    assert before == []
    assert right.data == [b"one", b"two"]


def test_a_reader_is_called_by_the_clock_only() -> None:
    """Nothing is read while it is written, however short the pipe is."""
    clock, pipe, _, right = made(0.0)
    pipe.left.write(b"one")
    before = list(right.data)
    clock.advance()

    assert before == []
    assert right.data == [b"one"]


def test_a_stalled_end_gets_nothing() -> None:
    """Bytes for a stalled end wait, those in the other direction do not."""
    clock, pipe, left, right = made()
    pipe.right.stall()
    pipe.left.write(b"right")
    pipe.right.write(b"left")
    clock.advance(10.0)
    waiting = pipe.right.coming_bytes
    stalled = list(right.data)
    pipe.right.resume()
    clock.advance(0.0)

    assert (waiting, stalled, left.data) == (5, [], [b"left"])
    assert right.data == [b"right"]


def test_a_closed_pipe_delivers_what_was_written() -> None:
    """The other end gets what was written before the close, then the loss; each end learns of it once."""
    clock, pipe, left, right = made()
    pipe.left.write(b"last")
    pipe.right.write(b"unread")
    pipe.left.close()
    pipe.left.close()
    pipe.left.write(b"late")
    clock.advance(10.0)
    pipe.right.write(b"late")
    clock.advance(10.0)

    assert (left.data, right.data) == ([], [b"last"])
    assert (left.losses, right.losses) == (1, 1)
    assert not pipe.is_open


def test_a_cut_loses_the_rest() -> None:
    """A cut delivers as many bytes as it is told to each end, in the middle of a write too, and ends the pipe."""
    clock, pipe, left, right = made()
    for data in (b"one", b"two"):
        pipe.left.write(data)
        pipe.right.write(data)
    pipe.cut(left_bytes=0, right_bytes=4)
    clock.advance(10.0)

    assert (left.data, right.data) == ([], [b"one", b"t"])
    assert (left.losses, right.losses) == (1, 1)


def test_bytes_are_chopped() -> None:
    """An end may cut what arrives into pieces."""
    clock, pipe, _, right = made()
    pipe.right.chop = lambda data: (data[:1], data[1:])
    pipe.left.write(b"one")
    clock.advance(1.0)

    assert right.data == [b"o", b"ne"]


def test_bytes_wait_for_a_reader() -> None:
    """What arrives before there is a reader is read when there is one."""
    clock = TurnableClock()
    pipe = Pipe(clock)
    pipe.left.write(b"early")
    clock.advance(1.0)
    right = Reader(pipe.right)
    clock.advance()

    assert right.data == [b"early"]
