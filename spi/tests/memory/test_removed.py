"""What is remembered of removed messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.memory._removed import RemovedMessages
from kinmqtt_spi.services.queue import KNOWN_S
from kinmqtt_spi.values import MessageId

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("ab"), st.integers(1, 5)),
        st.tuples(st.just("turn"), st.floats(0, 2 * KNOWN_S), st.just(0)),
        st.tuples(st.just("forget"), st.sampled_from("ab"), st.just(0)),
    ),
    max_size=40,
)


@given(steps)
def test_a_message_is_known_as_long_as_it_must_be(steps: list[tuple[str, str | float, int]]) -> None:
    """As a list of removals says; what came before the first turn counts as removed then."""
    removed, now = RemovedMessages(), 1_700_000_000.0
    model: dict[tuple[str, MessageId], float] = {}
    begun = False
    for what, value, number in steps:
        if what == "turn":
            assert isinstance(value, float)
            now += value if begun else 0.0
            begun = True
            removed.turn(now)
            model = {key: at for key, at in model.items() if now - at < KNOWN_S}
        elif what == "add":
            removed.add(str(value), MessageId(1, number))
            model[str(value), MessageId(1, number)] = now
        else:
            removed.forget(str(value))
            model = {key: at for key, at in model.items() if key[0] != value}
        ids = {MessageId(1, each) for each in range(6)}
        for name in "ab":
            assert removed.known(name, ids) == {id for its, id in model if its == name}
    assert len(removed) == len(model)


def test_a_clock_that_is_set_back_forgets_nothing_too_early() -> None:
    """Nor does it keep more than the limit."""
    removed = RemovedMessages()
    removed.turn(1000.0)
    removed.add("a", MessageId(1, 1))
    removed.turn(500.0)
    removed.add("a", MessageId(1, 2))
    removed.turn(500.0 + KNOWN_S - 1)

    assert removed.known("a", {MessageId(1, 1), MessageId(1, 2)}) == {MessageId(1, 1), MessageId(1, 2)}
