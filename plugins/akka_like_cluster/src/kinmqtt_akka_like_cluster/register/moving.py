"""Hands sessions off to other members: those that others own, and all of a member that leaves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

from kinmqtt_akka_like_cluster.pure.registrars import View, registrar_of
from kinmqtt_akka_like_cluster.results import settled
from kinmqtt_akka_like_cluster.tasks import Tasks
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.pace import Pace
from kinmqtt_spi.services.cluster import ClusterListener, Located
from kinmqtt_spi.services.plugin import Clock, Log
from kinmqtt_spi.values import NodeIdentity

RESOLVE_RETRY_S: Final = 5.0
"""The pause before it is tried again to hand an outdated session off, in seconds."""

HANDED_AT_ONCE: Final = 8
"""How many sessions are handed off at the same time."""

LOG_S: Final = 60.0


class Claiming(Protocol):
    """Claims of this member; see :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""

    async def claim(self, client_id: str) -> tuple[int, Located]:
        """Begin a claim; returns its number for :meth:`end`, which must follow. Raises ServiceUnavailable."""

    def end(self, number: int) -> None:
        """End a claim."""

    def register(self, client_id: str, epoch: int) -> None:
        """Announce that this node owns a client id."""

    def announce_moved(self, client_id: str, epoch: int, owner: NodeIdentity) -> None:
        """Announce the new owner of a session that was handed off, before the end of the claim is."""


class Moving:
    """Hands sessions off, each within a claim of its own."""

    def __init__(
        self, node: NodeIdentity, claims: Claiming, listener: ClusterListener, clock: Clock, log: Log, tasks: Tasks
    ) -> None:
        self._node = node
        self._claims = claims
        self._listener = listener
        self._clock = clock
        self._log = log
        self._tasks = tasks
        self._pace = Pace(clock, LOG_S)
        self._outdated: set[str] = set()
        """The client ids of outdated sessions that are still to be handed off."""
        self._line: deque[str] = deque()
        """Those of them that nobody works at, and that don't wait to be tried again."""
        self._workers = 0
        self._has_stopped = False
        self.moved = 0
        """How many outdated sessions were handed off to those that own them."""

    def stop(self) -> None:
        """Begin nothing any more."""
        self._has_stopped = True

    # Outdated sessions

    def outdated(self, client_id: str) -> None:
        """Take note that another node owns a session that this one may have: it is handed off, when there is time."""
        if client_id not in self._outdated and self._listener.epoch_of(client_id) is not None:
            self._outdated.add(client_id)
            self._enqueue(client_id)

    def _enqueue(self, client_id: str) -> None:
        if self._has_stopped:
            return
        self._line.append(client_id)
        if self._workers < HANDED_AT_ONCE:
            self._workers += 1
            self._tasks.spawn(self._work(), "handing outdated sessions off")

    async def _work(self) -> None:
        try:
            while self._line:
                client_id = self._line.popleft()
                if await self._is_resolved(client_id):
                    self._outdated.discard(client_id)
                else:
                    self._clock.later(RESOLVE_RETRY_S, partial(self._enqueue, client_id))
        finally:
            self._workers -= 1

    async def _is_resolved(self, client_id: str) -> bool:
        """Hand an outdated session off, if it is still here; ``False``: it is to be tried again."""
        if self._listener.epoch_of(client_id) is None:
            return True
        try:
            number, located = await self._claims.claim(client_id)
            try:
                return await self._hand_to_owner(client_id, located)
            finally:
                self._claims.end(number)
        except Exception as error:
            held_back = self._pace.due()
            if held_back is not None:
                text = "an outdated session of {client_id!r} stays for now: {error}; {more} more such lines before"
                self._log.warn(text, client_id=client_id, error=_text(error), more=held_back)
            return False

    async def _hand_to_owner(self, client_id: str, located: Located) -> bool:
        owner, epoch = located.owner, self._listener.epoch_of(client_id)
        if epoch is None or owner == self._node:
            return True
        if owner is None:
            # The newer session is gone with its node: this one is the newest that is left.
            self._claims.register(client_id, epoch)
            return True
        await self._hand_off(client_id, located.epoch + 1, owner)
        self.moved += 1
        return self._listener.epoch_of(client_id) is None

    async def _hand_off(self, client_id: str, epoch: int, owner: NodeIdentity) -> None:
        await settled(self._listener.session_claimed(client_id, epoch, owner))
        if self._listener.epoch_of(client_id) is None:
            # The owner says so too, but that may come after the end of this claim.
            self._claims.announce_moved(client_id, epoch, owner)

    # A member that leaves

    async def hand_all_over(self, targets: Mapping[int, NodeIdentity], deadline_s: float) -> None:
        """Hand this node's sessions off to the members that stay, by uid: as many as time allows, in seconds."""
        names = [client_id for client_id, _ in self._listener.owned()]
        if not targets or not names:
            return
        view: View = tuple(sorted(targets))
        waiting = iter(names)

        async def work() -> None:
            for client_id in waiting:
                await self._hand_over(client_id, targets[registrar_of(client_id, view) or view[0]])

        tasks = [asyncio.ensure_future(work()) for _ in range(HANDED_AT_ONCE)]
        _, late = await asyncio.wait(tasks, timeout=deadline_s)
        for task in late:
            task.cancel()
        left = sum(self._listener.epoch_of(client_id) is not None for client_id in names)
        self._log.info("handed {count} sessions off", count=len(names) - left)
        if left:
            text = "{left} sessions stay on this broker: until it is back their clients begin anew elsewhere"
            self._log.warn(text, left=left)

    async def _hand_over(self, client_id: str, target: NodeIdentity) -> None:
        try:
            number, located = await self._claims.claim(client_id)
            try:
                if located.owner == self._node and self._listener.epoch_of(client_id) is not None:
                    await self._hand_off(client_id, located.epoch + 1, target)
            finally:
                self._claims.end(number)
        except Exception as error:
            held_back = self._pace.due()
            if held_back is not None:
                text = "the session of {client_id!r} can't be handed off: {error}; {more} more such lines before"
                self._log.warn(text, client_id=client_id, error=_text(error), more=held_back)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, ServiceUnavailable) else f"{type(error).__name__}: {error}"
