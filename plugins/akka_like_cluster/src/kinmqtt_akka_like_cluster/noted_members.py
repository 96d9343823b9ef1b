"""The members that the arbiter knows: newcomers ask them, and nobody forms a second cluster beside them.

A process of which no seed is a member could not find the cluster, and the first seed would form another one: after a
split, say, in which the side without the first seed went on. So each member notes its address in the store that all
brokers share, and does so again and again: a note ends, because a process may end without a word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from kinmqtt_akka_like_cluster.results import settled
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.cluster_arbiter import MAX_TERM, ClusterArbiter
from kinmqtt_spi.services.plugin import Clock, Log, Timer

NOTE_S: Final = 15.0
"""How long a note lasts: when all members have crashed, a new cluster is formed after this time."""
NOTE_AGAIN_S: Final = 3.0
"""How often a member notes its address: if the store has lost the notes, before another one forms a cluster."""
FORGET_LIMIT_S: Final = 1.0
"""How long the end of a process waits until its note is removed."""


def _nobody(noted: Sequence[str], term: int) -> None:
    """Take what nobody asks for."""


class NotedMembers:
    """What one process notes of itself, and reads of others. All calls work without an arbiter, too."""

    def __init__(
        self,
        arbiter: ClusterArbiter | None,
        address: str,
        side: int,
        clock: Clock,
        log: Log,
    ) -> None:
        """``address`` is where others dial this process; ``side`` is the name it takes a new cluster's term by."""
        self._arbiter = arbiter
        self._address = address
        self._side = side
        self._clock = clock
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: Timer | None = None
        self._reported: Sequence[str] = ()
        self._report: Callable[[Sequence[str], int], object] = _nobody

    async def others(self) -> Sequence[str]:
        """Return the addresses of other members; none if the arbiter can't say."""
        if self._arbiter is None:
            return ()
        try:
            return sorted(set(await settled(self._arbiter.members())) - {self._address})
        except ServiceUnavailable:
            return ()

    def ask_to_form(self, answered: Callable[[int | None], object]) -> None:
        """Ask whether this process may form a cluster, and note it as the first member; no answer: nobody can say.

        ``answered`` is called with the term that the new cluster has, or with ``None`` where it may not be formed.
        """
        self._spawn(self._ask_to_form(answered))

    async def _ask_to_form(self, answered: Callable[[int | None], object]) -> None:
        assert self._arbiter is not None
        try:
            granted = await settled(self._arbiter.note_member(self._address, NOTE_S, only_first=True))
            term = await self._take_a_term() if granted else None
        except ServiceUnavailable as error:
            self._log.error("the arbiter can't be asked, so this broker forms no cluster yet: {error}", error=error)
            return
        if not granted:
            others = await self.others()
            if others != self._reported:
                self._reported = others
                self._log.warn(
                    "no seed has answered, but members of the cluster are known at {others}: this broker forms no "
                    "second cluster, and asks them; one that has crashed is forgotten after {limit:.0f} s",
                    others=", ".join(others),
                    limit=NOTE_S,
                )
        answered(term)

    async def _take_a_term(self) -> int | None:
        """Take the next term for a new cluster, so that no member of an older one goes on after a stall.

        Returns ``None`` if somebody has taken it meanwhile.
        """
        assert self._arbiter is not None
        term = min(await settled(self._arbiter.term()) + 1, MAX_TERM)
        return term if await settled(self._arbiter.decide(term, self._side)) else None

    def begin(self, report: Callable[[Sequence[str], int], object] = _nobody) -> None:
        """Note this process as a member, from now until :meth:`end`.

        ``report`` gets the addresses that are noted, and the last term, each time.
        """
        if self._arbiter is not None and self._timer is None:
            self._report = report
            self._again()

    def _again(self) -> None:
        self._timer = self._clock.later(NOTE_AGAIN_S, self._again)
        self._spawn(self._note())

    async def _note(self) -> None:
        assert self._arbiter is not None
        try:
            await settled(self._arbiter.note_member(self._address, NOTE_S))
            noted, term = await settled(self._arbiter.members()), await settled(self._arbiter.term())
        except ServiceUnavailable as error:
            self._log.debug("this member could not be noted: {error}", error=error)
            return
        self._report(noted, term)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Remove the note: this process is a member no more."""
        for task in self._tasks:
            task.cancel()
        timer, self._timer = self._timer, None
        if timer is None or self._arbiter is None:
            return
        timer.cancel()
        try:
            await asyncio.wait_for(settled(self._arbiter.forget_member(self._address)), FORGET_LIMIT_S)
        except (ServiceUnavailable, TimeoutError):
            self._log.debug("the note about this member stays for {limit:.0f} s", limit=NOTE_S)
