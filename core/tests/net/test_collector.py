"""The garbage collector looks between turns, and at nothing twice without need."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from kinmqtt.net import collector as module
from kinmqtt.net.collector import LOOKS_AT, Collector


class Circle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself: Circle | None = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    """One that has begun; the process is left as it was."""
    made = Collector()
    made.begin()
    yield made
    made.stop()


def fill() -> list[list[int]]:
    """As many new objects as are worth a look."""
    return [[number] for number in range(LOOKS_AT + 100)]


def test_it_looks_only_between_turns(collector: Collector) -> None:
    """However much is made in a turn."""
    gone = weakref.ref(Circle())
    kept = fill()
    within = gone() is not None
    del kept
    kept = fill()

    collector.look()

    assert within
    assert gone() is None
    assert len(kept) > LOOKS_AT


def test_few_new_objects_are_not_looked_at(collector: Collector) -> None:
    """A look costs time for each turn, however little there is."""
    collector.look()
    gone = weakref.ref(Circle())

    collector.look()

    assert gone() is not None


def test_what_was_looked_at_is_set_aside(collector: Collector) -> None:
    """The next look takes no longer for it."""
    kept = fill()
    before = gc.get_freeze_count()

    collector.look()

    assert gc.get_freeze_count() - before >= len(kept)
    assert gc.get_count()[0] < LOOKS_AT


@pytest.mark.parametrize(("is_short", "bound"), [(False, "MOST_SET_ASIDE"), (True, "SET_ASIDE_WHILE_SHORT")])
def test_circles_that_outlive_a_look_are_found_later(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, is_short: bool, bound: str
) -> None:
    """Where so much has been set aside that there may be many of them; sooner while memory is short."""
    monkeypatch.setattr(module, bound, LOOKS_AT)
    monkeypatch.setattr(module, "PART_SET_ASIDE", 1_000_000)
    circle = Circle()
    kept = fill()
    collector.look()
    gone = weakref.ref(circle)
    del circle

    collector.look_at_all(is_short)

    assert kept
    assert gone() is None


def test_it_is_not_all_looked_at_every_second(collector: Collector) -> None:
    """That takes half a second where there is much."""
    circle = Circle()
    kept = fill()
    collector.look()
    gone = weakref.ref(circle)
    del circle

    collector.look_at_all(is_short=False)

    assert kept
    assert gone() is not None


def test_the_process_gets_its_collector_back() -> None:
    """Other parts of a process go on when the broker in it has stopped; also where it never began."""
    collector = Collector()
    collector.stop()
    collector.begin()
    during = gc.isenabled()
    collector.stop()

    assert not during
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
