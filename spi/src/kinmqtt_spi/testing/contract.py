"""The common base of all suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Literal, TypeVar

import pytest
from hypothesis import strategies as st

from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.store import Store
from kinmqtt_spi.testing.driving import AsyncioDriver, Driver, TurningDriver
from kinmqtt_spi.values import Maybe

X = TypeVar("X")


def many(steps: st.SearchStrategy[X]) -> st.SearchStrategy[list[X]]:
    """Lists of steps that are usually long: those of hypothesis have about five items, however many are allowed."""
    return st.lists(st.lists(steps, max_size=10), max_size=10).map(lambda runs: list(chain.from_iterable(runs)))


class Contract:
    """A suite. Override the fixture that its docstring names, and its flags."""

    reactor: Literal["asyncio"] | None = None
    """``"asyncio"`` where the implementation uses asyncio's libraries: an event loop runs while it is waited for."""

    @pytest.fixture
    def clock(self) -> TurnableClock:
        """The clock for the implementation. It stands still unless a test advances it."""
        return TurnableClock()

    @pytest.fixture
    def drive(self, clock: TurnableClock) -> Iterator[Driver]:
        """Waits for the implementation's answers. A fixture that opens the implementation requests it, too."""
        if self.reactor is None:
            yield TurningDriver(clock)
            return
        driver = AsyncioDriver()
        yield driver
        driver.close()


class StoreContract(Contract):
    """The common base of the suites for stores and the event log."""

    survives_restart = False
    """Whether what was kept is there again in another life of the store: override :meth:`reopened`."""
    can_fail = False
    """Whether the suite may make what is behind the store fail: override :meth:`failing`."""

    def reopened(self, store: Store, drive: Driver) -> Store:
        """Reopen the store over the same state; the old object is not used any more."""
        raise NotImplementedError(f"{type(self).__name__} sets survives_restart, and does not override reopened")

    def failing(self, store: Store) -> Callable[[], object]:
        """Make the store's backend fail from now on; return a call that repairs it."""
        raise NotImplementedError(f"{type(self).__name__} sets can_fail, and does not override failing")

    def persist(self, store: Store, write: Callable[[], Maybe[None]], drive: Driver) -> None:
        """Pass a store one turn's writes as the broker does, and wait until they are committed.

        Raises the store's errors; both of its answers are awaited.
        """
        errors: list[SpiError] = []
        answers: list[Maybe[None]] = []
        for step in (write, store.commit):
            try:
                answers.append(step())
            except SpiError as error:
                errors.append(error)
        for answer in answers:
            try:
                drive(answer)
            except SpiError as error:
                errors.append(error)
        if errors:
            raise errors[0]
