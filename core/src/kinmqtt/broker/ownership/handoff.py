"""Hands off sessions to other nodes, where each node has stores of its own.

A session is sent in the export format of ``kinmqtt store``, in pieces. The new owner commits all of it before the
former one deletes it. If a node dies in between, both have it: the cluster finds out when the dead one is back, and
the session with the lower epoch is handed off to the other, which takes the messages that it lacks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.logger import Logger

from kinmqtt.broker.ownership.arrivals import unavailable
from kinmqtt.broker.ownership.claims import release_of
from kinmqtt.broker.ownership.registry import has_ended
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import TimeLimitExceeded, as_deferred, limited, pause, resolve, run
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.export import (
    FORMAT,
    HEADER,
    completed_line,
    line_text,
    queue_lines,
    queued_lines,
    session_line,
)
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import Purge, QueueState
from kinmqtt_spi.services.session import Claim, DiscardSession
from kinmqtt_spi.values import Maybe, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.claims import Claims
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.ownership.reload import Reload
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt_spi.services.cluster import ClusterBackend, HandOff

log = Logger("kinmqtt.sessions")

T = TypeVar("T")

PIECE_BYTES: Final = 256 << 10
"""How much of a session is sent at once."""

MAX_AT_ONCE: Final = 64
"""How many sessions are handed off to one node at once; others wait."""

STEP_LIMIT_S: Final = 10.0
"""How long a node may take to accept the beginning of a session, or a piece of it."""

PAGE: Final = 200
"""How many queued messages are read at once."""

COMPLETED_AT_ONCE: Final = 1000
"""How many ids of messages that the session has got are in one line."""


class HandOffs:
    """Sessions that go to other nodes."""

    def __init__(
        self, runtime: Runtime, registry: Registry, cluster: ClusterBackend, claims: Claims, reload: Reload
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._cluster = cluster
        self._claims = claims
        self._reload = reload
        self._on_leaving: Callable[[Session], object] = lambda session: None
        self._on_returned: Callable[[str], object] = lambda client_id: None
        self._slots: dict[NodeIdentity, DeferredSemaphore] = {}
        """By node that sessions go to."""

    def when_leaving(self, leaving: Callable[[Session], object], returned: Callable[[str], object]) -> None:
        """Call ``leaving`` with each session that is about to leave, before its copy here is dropped.

        ``returned`` is called with the client id of one that could not be moved, and is here again.
        """
        self._on_leaving, self._on_returned = leaving, returned

    async def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> bool:
        """Hand off a session to the node that claims it under ``epoch``; returns whether there was one to move.

        A connection here is closed. A session that ends with it is not moved. Raises
        :class:`~kinmqtt_spi.errors.ServiceUnavailable` for a session that can't be moved: it stays.
        """
        async with self._registry.locks.of(client_id):
            session = self._registry.get(client_id)
            if session is None:
                return False
            if session.epoch >= epoch:
                raise ServiceUnavailable(f"the session of {client_id!r} was claimed later than that")
            try:
                await self._claims.take(client_id, None)
            except CommitFailed as error:
                raise unavailable(client_id, error) from error
            session = self._registry.get(client_id)
            if session is None or has_ended(session):
                return False
            await self._move(session, epoch, to)
            return True

    async def _move(self, session: Session, epoch: int, to: NodeIdentity) -> None:
        client_id = session.client_id
        runtime = self._runtime
        self._on_leaving(session)
        self._registry.drop_copy(session)
        try:
            await runtime.turn.drained()
            if runtime.turn.recovery.awaits_retry(client_id):
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)
            claim = await resolve(runtime.stores.session.claim(client_id, runtime.node))
            await self._send(client_id, claim, epoch, to)
        except BaseException as error:
            await self._take_back(client_id)
            if isinstance(error, CommitFailed | ServiceUnavailable):
                raise unavailable(client_id, error) from error
            raise
        await self._delete(client_id, claim.epoch)
        log.info("session {client_id!r} was handed off to node {node}", client_id=client_id, node=to.name)

    async def _send(self, client_id: str, claim: Claim, epoch: int, to: NodeIdentity) -> None:
        # A node refuses more at once, and each takes memory here and there.
        slots = self._slots.setdefault(to, DeferredSemaphore(MAX_AT_ONCE))
        await slots.acquire()
        try:
            hand_off: HandOff = await self._in_time(self._cluster.hand_off(client_id, epoch, to), to)
            try:
                async for piece in self._pieces(client_id, claim):
                    await self._in_time(hand_off.chunk(piece), to)
            except BaseException:
                run(self._abort(hand_off)).addErrback(partial(log.failure, "a hand-off is not aborted"))
                raise
        finally:
            slots.release()
            if slots.tokens == slots.limit:
                self._slots.pop(to, None)
        # Without its answer nobody knows whether the session is there: only the end of the node ends this wait.
        # Others need not wait for it.
        await resolve(hand_off.commit())

    async def _in_time(self, answer: Maybe[T], to: NodeIdentity) -> T:
        """Return another node's answer; raises ServiceUnavailable if there is none in time."""
        if not isinstance(answer, Awaitable):
            return answer
        deferred: Deferred[T] = as_deferred(answer)
        try:
            return await limited(deferred, self._runtime.clock, STEP_LIMIT_S)
        except TimeLimitExceeded:
            raise ServiceUnavailable(f"node {to.name} did not answer within {STEP_LIMIT_S:g} s") from None

    async def _abort(self, hand_off: HandOff) -> None:
        try:
            await resolve(hand_off.abort())
        except ServiceUnavailable:
            pass  # It is gone, with what it had of the session.

    async def _pieces(self, client_id: str, claim: Claim) -> AsyncIterator[bytes]:
        """Yield a session's export in pieces."""
        waiting = bytearray()
        number = 0
        async for line in self._lines(client_id, claim):
            number += 1
            waiting += line_text(line).encode() + b"\n"
            while len(waiting) >= PIECE_BYTES:
                yield bytes(waiting[:PIECE_BYTES])
                del waiting[:PIECE_BYTES]
        waiting += line_text({"kind": "end", "lines": number + 1}).encode() + b"\n"
        yield bytes(waiting)

    async def _lines(self, client_id: str, claim: Claim) -> AsyncIterator[dict[str, Any]]:
        queues = self._runtime.stores.queue
        yield {HEADER: FORMAT}
        if claim.session is None:
            raise ServiceUnavailable(f"the session store has no session of {client_id!r}")
        yield session_line(claim.epoch, claim.session)
        state: QueueState = await resolve(queues.load(client_id))
        for line in queue_lines(client_id, claim.epoch, state):
            yield line
        completed = await resolve(queues.completed(client_id))
        for start in range(0, len(completed), COMPLETED_AT_ONCE):
            yield completed_line(client_id, completed[start : start + COMPLETED_AT_ONCE])
        after = 0
        while page := await resolve(queues.read(client_id, after, PAGE)):
            for line in queued_lines(client_id, page):
                yield line
            after = page[-1].sequence

    async def _take_back(self, client_id: str) -> None:
        """Take a session back that could not be handed off; tried until the stores answer.

        Meanwhile nobody else opens it: the caller has the lock of the client id.
        """
        is_noted = False
        while True:
            try:
                await self._load_again(client_id)
                return
            except (CommitFailed, ServiceUnavailable) as error:
                if not is_noted:
                    is_noted = True
                    text = "session {client_id!r} can't be taken back yet, and gets no messages: {error}"
                    log.error(text, client_id=client_id, error=error)
            await pause(self._runtime.clock, RETRY_S)

    async def _load_again(self, client_id: str) -> None:
        """Own a session again that the stores have."""
        runtime = self._runtime
        claim = await resolve(runtime.stores.session.claim(client_id, runtime.node))
        if claim.session is None:
            self._claims.release(client_id, claim)
            return
        state = await self._reload.load(client_id, claim.epoch, patient=True)
        self._registry.adopt(claim, claim.session, state)
        self._cluster.register(client_id, claim.epoch)
        self._registry.write(release_of(claim.session, claim.epoch, runtime.clock.now()))
        self._on_returned(client_id)

    async def _delete(self, client_id: str, epoch: int) -> None:
        """Delete a session that another node has committed."""
        batch = self._runtime.turn.batch
        purge, discard = Purge(client_id, epoch), DiscardSession(client_id, epoch)
        batch.queue.append(purge)
        batch.sessions.append(discard)
        batch.tied |= {purge, discard}
        try:
            await self._runtime.turn.committed()
        except CommitFailed as error:
            # At the next start the cluster finds that another node has a later one.
            log.warn("session {client_id!r} has moved, and is not deleted: {error}", client_id=client_id, error=error)
