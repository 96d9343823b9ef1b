"""How long an address waits after wrong passwords."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_auth_file.backing_off import FREE, HEALED_AFTER_S, BackOff
from kinmqtt_spi.memory.plugin import TurnableClock


def pauses(back_off: BackOff, failures: int) -> list[float]:
    """The pauses after each of so many failures."""
    found = []
    for _ in range(failures):
        back_off.failed("a")
        found.append(back_off.pause_s("a"))
    return found


def test_the_pause_doubles_up_to_its_bound() -> None:
    """The first few cost no time: people mistype, and share addresses."""
    back_off = BackOff(TurnableClock(), 2.0)

    assert pauses(back_off, FREE + 6) == [0.0] * FREE + [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert not back_off.has_failed("b")


def test_no_number_of_failures_locks_anybody_out() -> None:
    """After thousands the pause is what it was after ten."""
    back_off = BackOff(TurnableClock(), 2.0)

    assert pauses(back_off, 5000)[-1] == 2.0


def test_the_pause_begins_with_the_last_failure() -> None:
    """It is over when its time has come."""
    clock = TurnableClock(0.0)
    back_off = BackOff(clock, 2.0)
    pauses(back_off, FREE + 1)
    clock.advance(100)
    back_off.failed("a")

    assert back_off.ready_at("a") == clock.monotonic() + 0.5
    assert back_off.ready_at("b") <= clock.monotonic()


def test_a_right_password_heals() -> None:
    """At once, and wholly."""
    back_off = BackOff(TurnableClock(), 2.0)
    pauses(back_off, 20)

    back_off.succeeded("a")

    assert not back_off.has_failed("a")
    assert len(back_off) == 0
    assert back_off.failed("a") == 1


def test_time_heals() -> None:
    """Ten minutes after the last failure there is nothing left; before, all of it."""
    clock = TurnableClock()
    back_off = BackOff(clock, 2.0)
    pauses(back_off, 20)

    clock.advance(HEALED_AFTER_S - 1)
    before = back_off.pause_s("a")
    clock.advance(1)

    assert (before, back_off.pause_s("a"), back_off.has_failed("a"), len(back_off)) == (2.0, 0.0, False, 0)
    assert back_off.failed("a") == 1


def test_without_a_pause_there_is_none() -> None:
    """Failures are remembered all the same: others go first."""
    back_off = BackOff(TurnableClock(), 0.0)

    assert pauses(back_off, 20) == [0.0] * 20
    assert back_off.has_failed("a")


def test_another_bound_holds_at_once() -> None:
    """For failures that were before it, too."""
    back_off = BackOff(TurnableClock(), 2.0)
    pauses(back_off, 20)

    back_off.bound(0.5)

    assert back_off.pause_s("a") == 0.5


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from(["fail", "heal"]), st.floats(0, 2 * HEALED_AFTER_S)),
        max_size=100,
    )
)
def test_the_table_is_bounded_and_says_what_a_plain_one_would(steps: list[tuple[int, str, float]]) -> None:
    """In number, by forgetting the oldest, and in time."""
    clock = TurnableClock()
    back_off = BackOff(clock, 2.0, most=5)
    plain: dict[str, tuple[int, float]] = {}
    for address, step, wait_s in steps:
        clock.advance(wait_s)
        name, now = str(address), clock.monotonic()
        plain = {each: known for each, known in plain.items() if now - known[1] < HEALED_AFTER_S}
        if step == "heal":
            back_off.succeeded(name)
            plain.pop(name, None)
        else:
            back_off.failed(name)
            plain[name] = (plain.pop(name, (0, now))[0] + 1, now)
        while len(plain) > 5:
            del plain[next(iter(plain))]

        assert len(back_off) <= 5
        assert {str(n) for n in range(31) if back_off.has_failed(str(n))} == set(plain)
