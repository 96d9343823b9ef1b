"""Accepts the sessions that other nodes hand off, where each node has stores of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from attrs import evolve

from kinmqtt.broker.ownership.claims import release_of
from kinmqtt.broker.ownership.registry import has_ended
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.export import MOST_COMPLETED, Contents, ExportedQueue, ExportError, ExportReader
from kinmqtt_spi.services.cluster import HandOff
from kinmqtt_spi.services.queue import Entry, Purge, QueueState
from kinmqtt_spi.services.session import Claim, OpenSession, StoredSession
from kinmqtt_spi.values import Maybe, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.claims import Claims
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt_spi.services.cluster import ClusterBackend

COMPLETED_BYTES: Final = 48
"""The id of a message that the session has got takes at most so many bytes, as text."""

OVERHEAD: Final = 4
"""An export takes at most so many times the bytes that its queue counts, as text."""

Merge = Callable[["Session", Sequence[Entry]], Awaitable[None]]


class Arrivals:
    """Sessions that come from other nodes."""

    def __init__(self, runtime: Runtime, registry: Registry, cluster: ClusterBackend, claims: Claims) -> None:
        self._runtime = runtime
        self._claims = claims
        self._registry = registry
        self._cluster = cluster
        self._merge: Merge = _drop_all
        self._arriving_bytes = 0
        """What has come of sessions that are not committed."""

    def merge_by(self, merge: Merge) -> None:
        """Set what gives a session the messages of an outdated copy that it lacks."""
        self._merge = merge

    def handing(self, client_id: str, epoch: int, origin: NodeIdentity) -> HandOff:
        """Accept a session; see :meth:`kinmqtt_spi.services.cluster.ClusterListener.handing`."""
        limits = self._runtime.limits
        most_bytes = OVERHEAD * (limits.max_queued_bytes + limits.max_will_bytes) + limits.max_packet_bytes
        most_bytes += COMPLETED_BYTES * MOST_COMPLETED
        return _Arrival(self, client_id, epoch, origin, most_bytes)

    def arrived(self, size_bytes: int) -> None:
        """Count bytes of sessions that arrive; less than 0 for those of one that is over.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` above ``limits.max_all_queued_bytes``.
        """
        most_bytes = self._runtime.limits.max_all_queued_bytes
        if size_bytes > 0 and self._arriving_bytes + size_bytes > most_bytes:
            raise ServiceUnavailable(
                f"{self._arriving_bytes} bytes of sessions arrive at node {self._runtime.node.name} already, and "
                "its limits.max_all_queued_bytes leaves no room for more"
            )
        self._arriving_bytes += size_bytes

    async def accept(self, client_id: str, epoch: int, origin: NodeIdentity, contents: Contents) -> None:
        """Commit a session that has arrived whole."""
        exported, queue = _only_session(client_id, contents)
        try:
            async with self._registry.locks.of(client_id):
                session = self._registry.get(client_id)
                if session is None or (session.connection is None and has_ended(session)):
                    await self._adopt(contents, max(epoch, exported.epoch), origin)
                elif session.persistent:
                    await self._merge(session, _entries(queue))
                # Else the client has begun anew, and only until it disconnects: what was kept has ended.
        except CommitFailed as error:
            raise unavailable(client_id, error) from error

    async def _adopt(self, contents: Contents, above: int, origin: NodeIdentity) -> None:
        runtime = self._runtime
        stored = contents.sessions[0].session
        client_id = stored.client_id
        limits = runtime.limits
        if runtime.stores.session.count() + runtime.turn.batch.opened >= limits.max_sessions:
            raise ServiceUnavailable(f"node {runtime.node.name} has limits.max_sessions already")
        claim = await resolve(runtime.stores.session.claim(client_id, runtime.node, above))
        try:
            state = await self._commit(contents, stored, claim)
        except BaseException:
            self._claims.release(client_id, claim)
            raise
        self._registry.adopt(evolve(claim, session=stored), stored, state)
        self._cluster.register(client_id, claim.epoch)
        # The other nodes must route to this one before the client may count on it (section 3.2.2.1.1).
        await resolve(self._registry.routes_known())
        if runtime.hooks.session_moved.active:
            runtime.hooks.session_moved(client_id, origin)

    async def _commit(self, contents: Contents, stored: StoredSession, claim: Claim) -> QueueState:
        """Commit what has arrived in place of what is stored here, and load its queue."""
        runtime = self._runtime
        client_id = stored.client_id
        batch = runtime.turn.batch
        for queue in contents.queues.values():
            queue.epoch = claim.epoch
        batch.queue.append(Purge(client_id, claim.epoch))
        for writes in contents.queue_writes():
            batch.queue += writes
        batch.sessions += (
            OpenSession(claim.epoch, stored),
            release_of(stored, claim.epoch, runtime.clock.now()),
        )
        batch.opened += 1
        await runtime.turn.committed()
        for queue in contents.queues.values():
            runtime.stores.queue.remember(client_id, queue.completed)
        state: QueueState = await resolve(runtime.stores.queue.load(client_id))
        return state


class _Arrival(HandOff):
    """A session that arrives in pieces."""

    def __init__(self, owner: Arrivals, client_id: str, epoch: int, origin: NodeIdentity, most_bytes: int) -> None:
        self._owner = owner
        self._client_id = client_id
        self._epoch = epoch
        self._origin = origin
        self._most_bytes = most_bytes
        self._reader = ExportReader()
        self._rest = b""
        self._size_bytes = 0

    def chunk(self, data: bytes) -> None:
        self._owner.arrived(len(data))
        self._size_bytes += len(data)
        if self._size_bytes > self._most_bytes:
            raise ServiceUnavailable(
                f"the session of {self._client_id!r} takes more than limits.max_queued_bytes allows here"
            )
        *whole, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in whole:
                self._reader.take(line)
        except ExportError as error:
            raise _unreadable(self._client_id, error) from error

    def commit(self) -> Maybe[None]:
        return run(self._commit())

    async def _commit(self) -> None:
        try:
            contents = self._reader.contents()
            await self._owner.accept(self._client_id, self._epoch, self._origin, contents)
        except ExportError as error:
            raise _unreadable(self._client_id, error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        self._owner.arrived(-self._size_bytes)
        self._size_bytes = 0
        self._rest = b""
        self._reader = ExportReader()


def _only_session(client_id: str, contents: Contents) -> tuple[OpenSession, ExportedQueue]:
    """Return the one session that is handed off, and its queue. Raises ServiceUnavailable for anything else."""
    names = [each.client_id for each in contents.sessions]
    if names != [client_id] or list(contents.queues) != [client_id]:
        raise _unreadable(client_id, ExportError(f"it has sessions of {names} and queues of {list(contents.queues)}"))
    return contents.sessions[0], contents.queues[client_id]


def _entries(queue: ExportedQueue) -> list[Entry]:
    """Return the messages of a queue that its client has not acknowledged, in their order."""
    return [entry for _, entry in sorted(queue.entries.items()) if entry is not None]


async def _drop_all(session: Session, entries: Sequence[Entry]) -> None:
    """Give a session nothing."""


def _unreadable(client_id: str, error: ExportError) -> ServiceUnavailable:
    return ServiceUnavailable(f"the session of {client_id!r} can't be read: {error}")


def unavailable(client_id: str, error: CommitFailed | ServiceUnavailable) -> ServiceUnavailable:
    """Return what another node is told of a session that can't be moved."""
    return ServiceUnavailable(f"the session of {client_id!r} could not be moved: {error}", error.reason)
