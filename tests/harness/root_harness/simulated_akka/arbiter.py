"""The arbiter of splits as one simulated node reaches it: behind a network, and away with its stores."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from twisted.internet.defer import Deferred

from kinmqtt.testing.world.schedule import NodeClock, Schedule
from kinmqtt.testing.world.stores import StoreAccess
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.cluster_arbiter import MemoryClusterArbiter
from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter

WAY_S: Final = (0.0005, 0.02)
"""How long a question and an answer are on their way: at least, at most."""
AWAY_S: Final = 1.0
"""How long it takes until a node knows that it reaches no store."""


class NodeArbiter(ClusterArbiter):
    """One node's view of an arbiter that all share; it is the plugin that provides it, too."""

    def __init__(
        self, arbiter: MemoryClusterArbiter, schedule: Schedule, clock: NodeClock, access: StoreAccess, random: Random
    ) -> None:
        self._arbiter = arbiter
        self._schedule = schedule
        self._clock = clock
        self._access = access
        self._random = random

    @hookimpl
    def cluster_arbiter(self) -> ClusterArbiter:
        """Return the node's view."""
        return self

    def term(self) -> Deferred[int]:
        return self._asked(self._arbiter.term)

    def decide(self, term: int, side: int) -> Deferred[bool]:
        return self._asked(lambda: self._arbiter.decide(term, side))

    def members(self) -> Deferred[Any]:
        return self._asked(self._arbiter.members)

    def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Deferred[bool]:
        return self._asked(lambda: self._arbiter.note_member(address, limit_s, only_first=only_first))

    def forget_member(self, address: str) -> Deferred[None]:
        return self._asked(lambda: self._arbiter.forget_member(address))

    def _asked(self, question: Callable[[], Any]) -> Deferred[Any]:
        result: Deferred[Any] = Deferred()

        def fail() -> None:
            if not result.called:
                result.errback(ServiceUnavailable("the arbiter is out of reach"))

        def answer(value: Any) -> None:
            if not result.called:
                result.callback(value)

        def arrive() -> None:
            # What has arrived is decided, whatever becomes of the answer.
            if not self._access.is_away:
                value = question()
                self._clock.later(self._random.uniform(*WAY_S), lambda: answer(value))
                timer.cancel()

        timer = self._clock.later(AWAY_S, fail)
        self._schedule.later(self._random.uniform(*WAY_S), arrive)
        return result
