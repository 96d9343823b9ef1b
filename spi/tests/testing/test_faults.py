"""Faults in front of a service go wrong as they were told to, and in no other way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.memory.subscription import NaiveIndex
from kinmqtt_spi.services.queue import Append, QueueStore
from kinmqtt_spi.services.retain import RetainStore
from kinmqtt_spi.services.session import SessionStore
from kinmqtt_spi.services.subscription import SubscriptionIndex
from kinmqtt_spi.testing import faults as faults_module
from kinmqtt_spi.testing.build import HERE, entry, subscription
from kinmqtt_spi.testing.driving import TurningDriver
from kinmqtt_spi.testing.faults import Faults
from spi_harness.turning import Gate

drive = TurningDriver()
faulty: Any = faults_module.faulty
"""Untyped, because mypy takes no abstract class for its interface."""


class SlowStore(MemoryQueueStore):
    """Does everything when its answer is waited for."""

    async def apply(self, writes: Sequence[Any]) -> None:  # type: ignore[override]
        super().apply(writes)


def appends(*sequences: int) -> list[Any]:
    return [Append("a", 1, entry(sequence)) for sequence in sequences]


def held(store: Any) -> list[int]:
    return [each.sequence for each in MemoryQueueStore.read(store, "a", 0, 100)]


@pytest.fixture(params=[MemoryQueueStore, SlowStore], ids=["at once", "later"])
def behind(request: pytest.FixtureRequest) -> Any:
    """The store behind the faults."""
    return request.param()


def test_without_a_fault_all_goes_through(behind: Any) -> None:
    """A call for which nothing was said is made once, answers what it answers, and is noted by its name."""
    faults = Faults()
    store = faulty(behind, QueueStore, faults)

    drive(store.apply(appends(1)))

    assert isinstance(store, QueueStore)
    assert [each.sequence for each in drive(store.read("a", 0, 10))] == [1]
    assert drive(store.load("a")) == MemoryQueueStore.load(behind, "a")
    assert (faults.calls, store.totals(), store.transaction) == (["apply", "read", "load"], behind.totals(), behind)


def test_a_failing_call_is_not_made(behind: Any) -> None:
    """``fail`` fails so many calls without making them, with the error it is given; the next goes through."""
    faults = Faults()
    store = faulty(behind, QueueStore, faults)
    faults.fail()
    faults.fail(2, KeyError("mine"))

    for error in (ServiceUnavailable, KeyError, KeyError):
        with pytest.raises(error):
            drive(store.apply(appends(1)))
    drive(store.apply(appends(2)))

    assert held(behind) == [2]


def test_a_call_may_fail_when_it_is_done(behind: Any) -> None:
    """``fail(done=True)`` makes the call, and its answer is lost."""
    faults = Faults()
    store = faulty(behind, QueueStore, faults)
    faults.fail(done=True)

    with pytest.raises(ServiceUnavailable):
        drive(store.apply(appends(1)))

    assert held(behind) == [1]


@pytest.mark.parametrize("named", [False, True])
def test_a_batch_may_be_halved(behind: Any, named: bool) -> None:
    """``halve`` does the first half of a batch, however it is handed over, and fails."""
    faults = Faults()
    store = faulty(behind, QueueStore, faults)
    faults.halve()

    with pytest.raises(ServiceUnavailable, match="by half"):
        drive(store.apply(writes=appends(1, 2, 3, 4)) if named else store.apply(appends(1, 2, 3, 4)))

    assert held(behind) == [1, 2]


def test_what_is_no_batch_is_not_halved() -> None:
    """Under ``halve`` a call without a batch is not made, and fails; so does a batch of one."""
    behind = MemorySessionStore()
    store = faulty(behind, SessionStore, faults := Faults())
    faults.halve()
    faults.halve()

    with pytest.raises(ServiceUnavailable):
        drive(store.claim("a", HERE))
    with pytest.raises(ServiceUnavailable):
        drive(store.apply([]))

    assert behind.claim("a", HERE).epoch == 1


def test_a_call_may_be_made_twice(behind: Any) -> None:
    """``repeat`` makes a call twice, and answers what the second answers."""
    sessions = MemorySessionStore()
    faults = Faults()
    store, other = faulty(behind, QueueStore, faults), faulty(sessions, SessionStore, faults)
    faults.repeat()
    faults.repeat()

    drive(store.apply(appends(1)))
    claim = drive(other.claim("a", HERE))

    assert held(behind) == [1]
    assert (claim.epoch, claim.previous_owner) == (2, HERE)


def test_held_calls_are_made_in_their_order(behind: Any) -> None:
    """Held calls are made when they are let go, the oldest first, and answer then; later ones are not held."""
    faults = Faults()
    store = faulty(behind, QueueStore, faults)
    faults.hold()
    faults.hold()
    answers: list[Any] = [store.apply(appends(1)), store.apply(appends(2)), store.read("a", 0, 10)]
    assert (held(behind), [each.done() for each in answers]) == ([], [False] * 3)

    faults.go(1)
    drive(answers[0])
    assert (held(behind), [each.done() for each in answers]) == ([1], [True, False, False])
    faults.go()
    drive(answers[1])

    assert [each.sequence for each in drive(answers[2])] in ([1], [1, 2])
    drive(store.apply(appends(3)))
    assert held(behind) == [1, 2, 3]


def test_a_held_call_may_fail() -> None:
    """What was to go wrong with a call when it was made goes wrong when it is let go."""
    behind = MemoryQueueStore()
    store = faulty(behind, QueueStore, faults := Faults())
    faults.hold()
    faults.fail(done=True)
    answers: list[Any] = [store.apply(appends(1)), store.apply(appends(2))]

    faults.go()

    with pytest.raises(ServiceUnavailable):
        drive(answers[0])
    drive(answers[1])
    assert held(behind) == [1, 2]


def test_more_than_is_held_cannot_go() -> None:
    """A test that lets more calls go than were made is told; to let all go is fine where none is held."""
    faults = Faults()
    faults.go()
    faults.hold()
    faulty(MemoryQueueStore(), QueueStore, faults).load("a")

    with pytest.raises(ValueError, match="1 are held"):
        faults.go(2)


def test_calls_of_who_is_answered_come_behind() -> None:
    """While all are let go, a call that one of the answers leads to is held and let go like the others."""
    behind = MemoryQueueStore()
    faults = Faults()
    store = faulty(behind, QueueStore, faults)
    later: list[Any] = []

    class Calling(MemoryQueueStore):
        def load(self, client_id: str) -> Any:
            later.append(store.apply(appends(2)))
            return super().load(client_id)

    faults.hold()
    answers: list[Any] = [faulty(Calling(), QueueStore, faults).load("a"), store.apply(appends(1))]
    faults.go()

    for answer in answers + later:
        drive(answer)
    assert held(behind) == [1, 2]


def test_what_answers_at_once_is_never_held() -> None:
    """``count`` and its like are not held, even where they are named; then they fail as others do."""
    behind = MemoryRetainStore()
    faults = Faults()
    plain, named = faulty(behind, RetainStore, faults), faulty(behind, RetainStore, faults, "count", "put")
    faults.hold()

    assert (plain.count(), plain.size_bytes(), named.count()) == (0, 0, 0)
    faults.fail()
    assert plain.count() == 0
    with pytest.raises(ServiceUnavailable):
        named.count()
    assert not isinstance(named.match("a"), type(named.put([])))


def test_committing_goes_wrong_where_it_is_named() -> None:
    """``commit`` goes through unless it is named: what a turn hands over counts as one call."""
    faults = Faults()
    plain, named = (
        faulty(MemoryQueueStore(), QueueStore, faults),
        faulty(MemoryQueueStore(), QueueStore, faults, "commit"),
    )
    faults.fail()

    plain.commit()
    with pytest.raises(ServiceUnavailable):
        named.commit()


def test_an_index_needs_names() -> None:
    """Of an interface that is never waited for the methods must be named; its values are the service's."""
    index = NaiveIndex()
    with pytest.raises(ValueError, match="name the methods"):
        faulty(index, SubscriptionIndex, Faults())
    store = faulty(index, SubscriptionIndex, faults := Faults(), "add")
    faults.fail()

    with pytest.raises(ServiceUnavailable):
        store.add("c", subscription("a"))
    assert store.add("c", subscription("a"))
    assert (store.generation, store.count()) == (index.generation, 1)


def test_unknown_methods_are_refused() -> None:
    """A method that the interface does not have is a slip of the test's author."""
    with pytest.raises(ValueError, match="QueueStore has no method aply, put"):
        faulty(MemoryQueueStore(), QueueStore, Faults(), "put", "aply", "apply")


def test_who_waits_may_choose_for_what() -> None:
    """A program that waits for things of its own sort only is given them: the gate opens when the call is let go."""
    gates: list[Gate] = []

    def wait() -> tuple[Gate, Callable[[], object]]:
        gates.append(Gate())
        return gates[-1], gates[-1].go

    store = faulty(MemoryQueueStore(), QueueStore, faults := Faults(wait))
    faults.hold()
    answer: Any = store.load("a")
    yielded = next(answer.__await__())

    faults.go()

    assert yielded is gates[0] and gates[0].done()
    assert drive(answer) == MemoryQueueStore().load("a")
