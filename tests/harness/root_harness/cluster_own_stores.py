"""A cluster whose brokers have stores of their own: what it promises is less, and what is less is counted.

The sessions of a broker that is gone wait on its disk. A client that comes back elsewhere meanwhile begins anew, so
that what is published until it has subscribed again may be lost, and what was under way may come twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from attrs import frozen

from root_harness.cluster_clients import STAY_S
from root_harness.cluster_run import ENOUGH, WILL_TOPIC, ClusterRun


@frozen
class Window:
    """The numbers, by topic, of what may have been under way while a broker was gone."""

    may_be_lost: dict[str, range]
    may_come_twice: dict[str, range]


class OwnStoresRun(ClusterRun):
    """A cluster without a Redis, and its clients."""

    def __init__(self, folder: Path, seed: int, *, stay_s: float = STAY_S) -> None:
        super().__init__(folder, None, seed, stay_s=stay_s)
        self.begun_anew: Counter[str] = Counter()
        """How often each client's session was not there."""
        self.notes.begun_anew = self.begun_anew
        self._windows: list[Window] = []

    @asynccontextmanager
    async def without_a_broker(self) -> AsyncIterator[None]:
        """Whatever a fault does to sessions in here is weaker; the cluster is whole before and afterwards."""
        await self.be_whole()
        settled = self._settled()
        await self.until(self.progress(ENOUGH))
        await self._is_served_again()
        before = {each.topic: min([each.next_number, *each.unacknowledged]) for each in self.publishers}
        before[WILL_TOPIC] = settled[WILL_TOPIC]
        yield
        await self.be_whole()
        await self._is_served_again()
        after = self._numbers()
        after[WILL_TOPIC] += 1
        self._windows.append(
            Window(
                {topic: range(first, after[topic]) for topic, first in before.items()},
                {topic: range(first, after[topic]) for topic, first in settled.items()},
            )
        )

    def _numbers(self) -> dict[str, int]:
        """Return, by topic, the number that is published next; of a will that of the client that lives."""
        numbers = {each.topic: each.next_number for each in self.publishers}
        return {**numbers, WILL_TOPIC: self.mortals.number}

    def _settled(self) -> dict[str, int]:
        """Return, by topic, the first number that may still come; of a will that of the client that lives."""
        numbers = self._numbers()
        for topic, following in numbers.items():
            if topic != WILL_TOPIC:
                known = set(self.notes.received.get(topic, ())).union(
                    *(window.may_be_lost[topic] for window in self._windows)
                )
                numbers[topic] = next(number for number in range(1, following + 1) if number not in known)
        return numbers

    async def _is_served_again(self) -> None:
        """Wait until the subscriber gets what is published from now on."""
        first = {each.topic: each.next_number for each in self.publishers}
        received = self.notes.received
        await self.until(lambda: all(received.get(topic, [0])[-1] >= number for topic, number in first.items()))

    def lost(self) -> dict[str, set[int]]:
        """Return, by topic, what was acknowledged and has not come."""
        due = dict(self.notes.promised)
        due[WILL_TOPIC] = {number for number, is_due in self.notes.wills.items() if is_due}
        return {topic: numbers - set(self.notes.received.get(topic, ())) for topic, numbers in due.items()}

    def twice(self) -> dict[str, set[int]]:
        """Return, by topic of QoS 2, what came more than once."""
        return {
            topic: {number for number, times in Counter(numbers).items() if times > 1}
            for topic, numbers in self.notes.received.items()
            if topic.endswith("2")
        }

    def broken_for_messages(self) -> Iterator[str]:
        """Return what was lost or came twice though no broker was gone."""
        yield from self.notes.problems
        for topic, numbers in self.lost().items():
            for window in self._windows:
                numbers -= set(window.may_be_lost.get(topic, ()))
            if numbers:
                yield f"{topic}: {len(numbers)} acknowledged messages never came: {sorted(numbers)[:5]}"
        for topic, numbers in self.twice().items():
            for window in self._windows:
                numbers -= set(window.may_come_twice.get(topic, ()))
            if numbers:
                yield f"{topic}: {len(numbers)} messages came twice: {sorted(numbers)[:5]}"

    def _has_come(self) -> bool:
        return not any("never came" in text for text in self.broken_for_messages())

    def summary(self) -> str:
        """Return what the run was, and what was weaker than with a store that all brokers share, in one line."""
        lost, twice = (sum(map(len, found.values())) for found in (self.lost(), self.twice()))
        return (
            f"{super().summary()}; sessions begun anew: {self.begun_anew.total()}, messages lost: {lost}, "
            f"messages of QoS 2 that came twice: {twice}"
        )
