"""How long an address waits after wrong passwords."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_auth_file.backoff import FORGET_AFTER_S, FREE_FAILURES, Backoff
from kinmqtt_spi.memory.plugin import TurnableClock


def pauses(backoff: Backoff, failures: int) -> list[float]:
    """The pauses after each of so many failures."""
    found = []
    for _ in range(failures):
        backoff.failed("a")
        found.append(backoff.pause_s("a"))
    return found


def test_the_pause_doubles_up_to_its_bound() -> None:
    """The first few cost no time: people mistype, and share addresses."""
    backoff = Backoff(TurnableClock(), 2.0)

    assert pauses(backoff, FREE_FAILURES + 6) == [0.0] * FREE_FAILURES + [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    assert not backoff.has_failed("b")


def test_no_number_of_failures_locks_anybody_out() -> None:
    """After thousands the pause is what it was after ten."""
    backoff = Backoff(TurnableClock(), 2.0)

    assert pauses(backoff, 5000)[-1] == 2.0


def test_the_pause_begins_with_the_last_failure() -> None:
    """It is over when its time has come."""
    clock = TurnableClock(0.0)
    backoff = Backoff(clock, 2.0)
    pauses(backoff, FREE_FAILURES + 1)
    clock.advance(100)
    backoff.failed("a")

    assert backoff.ready_at("a") == clock.monotonic() + 0.5
    assert backoff.ready_at("b") <= clock.monotonic()


def test_a_right_password_heals() -> None:
    """At once, and wholly."""
    backoff = Backoff(TurnableClock(), 2.0)
    pauses(backoff, 20)

    backoff.succeeded("a")

    assert not backoff.has_failed("a")
    assert len(backoff) == 0
    assert backoff.failed("a") == 1


def test_time_heals() -> None:
    """Ten minutes after the last failure there is nothing left; before, all of it."""
    clock = TurnableClock()
    backoff = Backoff(clock, 2.0)
    pauses(backoff, 20)

    clock.advance(FORGET_AFTER_S - 1)
    before = backoff.pause_s("a")
    clock.advance(1)

    assert (before, backoff.pause_s("a"), backoff.has_failed("a"), len(backoff)) == (2.0, 0.0, False, 0)
    assert backoff.failed("a") == 1


def test_without_a_pause_there_is_none() -> None:
    """Failures are remembered all the same: others go first."""
    backoff = Backoff(TurnableClock(), 0.0)

    assert pauses(backoff, 20) == [0.0] * 20
    assert backoff.has_failed("a")


def test_another_bound_holds_at_once() -> None:
    """For failures that were before it, too."""
    backoff = Backoff(TurnableClock(), 2.0)
    pauses(backoff, 20)

    backoff.set_limits(0.5)

    assert backoff.pause_s("a") == 0.5


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from(["fail", "heal"]), st.floats(0, 2 * FORGET_AFTER_S)),
        max_size=100,
    )
)
def test_the_table_is_bounded_and_says_what_a_plain_one_would(steps: list[tuple[int, str, float]]) -> None:
    """In number, by forgetting the oldest, and in time."""
    clock = TurnableClock()
    backoff = Backoff(clock, 2.0, most=5)
    plain: dict[str, tuple[int, float]] = {}
    for address, step, wait_s in steps:
        clock.advance(wait_s)
        name, now = str(address), clock.monotonic()
        plain = {each: known for each, known in plain.items() if now - known[1] < FORGET_AFTER_S}
        if step == "heal":
            backoff.succeeded(name)
            plain.pop(name, None)
        else:
            backoff.failed(name)
            plain[name] = (plain.pop(name, (0, now))[0] + 1, now)
        while len(plain) > 5:
            del plain[next(iter(plain))]

        assert len(backoff) <= 5
        assert {str(n) for n in range(31) if backoff.has_failed(str(n))} == set(plain)
