"""How long one packet may take to arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt.broker.connection.packet_deadline import ENOUGH_BYTES, PacketDeadline

LIMIT_S = 10


def test_a_packet_has_its_time_in_full() -> None:
    """Looked at earlier, because an earlier packet began earlier, it goes on."""
    deadline = PacketDeadline(0, LIMIT_S)
    deadline.more_arrived(8, anew=True)

    assert deadline.may_continue(deadline.due, 100, True)
    assert deadline.due == 8 + LIMIT_S + 1


def test_what_does_not_come_in_time_is_ended() -> None:
    """However much of it was there early."""
    deadline = PacketDeadline(0, LIMIT_S)

    assert deadline.may_continue(deadline.due, 8 << 20, True)
    assert not deadline.may_continue(deadline.due, (8 << 20) + ENOUGH_BYTES - 1, True)


def test_enough_in_each_time_is_enough() -> None:
    """A packet that keeps coming has as much time again, each time."""
    deadline = PacketDeadline(0, LIMIT_S)

    assert all(deadline.may_continue(deadline.due, times * ENOUGH_BYTES, True) for times in range(1, 100))


def test_a_broker_that_does_not_listen_waits() -> None:
    """And the packet has its time in full afterwards."""
    deadline = PacketDeadline(0, LIMIT_S)

    assert deadline.may_continue(deadline.due, 10, False)
    assert deadline.due == 2 * (LIMIT_S + 1)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4 * ENOUGH_BYTES)), min_size=1))
def test_no_packet_that_stalls_is_waited_for_longer_than_twice_its_time(reads: list[tuple[int, int]]) -> None:
    """Whenever its bytes come: a packet that goes on has grown in the last two times, or has just begun."""
    deadline = PacketDeadline(0, LIMIT_S)
    now = there = 0
    grown = [(0, 0)]
    for after, size in reads:
        end = now + after
        while deadline.due <= end:
            now = deadline.due
            if not deadline.may_continue(now, there, True):
                before = max(seen for at, seen in grown if at <= max(0, now - LIMIT_S - 1))
                assert there - before < ENOUGH_BYTES
                return
        now = end
        there += size
        grown.append((now, there))
        deadline.more_arrived(now, anew=False)
    assert deadline.due <= now + LIMIT_S + 1
