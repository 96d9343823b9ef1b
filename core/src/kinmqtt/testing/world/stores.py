"""The stores that all nodes share, and one node's way to them, which may be slow or fail.

As in Redis, a turn's writes to all of them are one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random

from twisted.internet.defer import Deferred

from kinmqtt.testing.world.schedule import NodeClock
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.shared_queue import NodeQueueStore
from kinmqtt_spi.memory.shared_session import NodeSessionStore, SharedSessionStore
from kinmqtt_spi.services.queue import QueueWrite
from kinmqtt_spi.services.retain import RetainContents, RetainPage, RetainStore, RetainWrite
from kinmqtt_spi.services.session import Claim, SessionWrite
from kinmqtt_spi.values import Commit, Maybe, Message, NodeIdentity

NOTICE_S = 0.001
"""How long it takes until a node hears that another one has claimed a session."""


class SharedStores:
    """What all nodes share."""

    def __init__(self) -> None:
        self.sessions = SharedSessionStore()
        self.queues = MemoryQueueStore(shared=True)
        self.retained = MemoryRetainStore(shared=True)


class Leases:
    """Lets the stores count nodes as gone that have been silent for long."""

    def __init__(self, stores: SharedStores, lease_s: float) -> None:
        self._sessions = stores.sessions
        self._lease_s = lease_s
        self._heard_s: dict[NodeIdentity, float] = {}
        self._expired: set[NodeIdentity] = set()

    def started(self, node: NodeIdentity, now: float) -> None:
        """Take a new process's first lease."""
        self._heard_s[node] = now

    def are_known(self, heard_of: Collection[NodeIdentity]) -> bool:
        """Tell whether each node that is silent now counts as gone. A node that starts waits for that, as with Redis:
        else it would leave alone what a dead one has left, and so might all others.
        """
        silent = {node.uid for node in self._heard_s if node not in heard_of}
        return not self._sessions.living(silent)

    def look(self, heard_of: Collection[NodeIdentity], now: float) -> None:
        """Renew the leases of the nodes that reach the stores now; call it once a second."""
        for node, heard_s in self._heard_s.items():
            if node in heard_of:
                self._heard_s[node] = now
                if node in self._expired:
                    self._expired.remove(node)
                    self._sessions.renew_lease(node)
            elif now - heard_s > self._lease_s and node not in self._expired:
                self._expired.add(node)
                self._sessions.expire_lease(node)


class StoreAccess:
    """How one node reaches the stores: what it commits is there at once, but it may learn of it later, or never."""

    def __init__(self, clock: NodeClock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self.slow_s = 0.0
        """How long a commit takes at most."""
        self.is_away = False
        """Whether all writes fail."""

    def check(self) -> None:
        """Raise if the stores can't be reached; a dead node writes nothing any more."""
        if self.is_away or self._clock.is_dead:
            raise ServiceUnavailable("the stores are out of reach")

    def commit(self) -> Commit:
        """Return when the node learns that its writes are committed."""
        if not self.slow_s:
            return None
        done: Deferred[None] = Deferred()
        self._clock.later(self._random.uniform(0.0, self.slow_s), lambda: done.callback(None))
        return done


class NodeSessions(NodeSessionStore):
    """One node's view of the sessions."""

    def __init__(self, stores: SharedStores, node: NodeIdentity, access: StoreAccess, clock: NodeClock) -> None:
        super().__init__(stores.sessions, node)
        self._access = access
        self._clock = clock

    def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
        self._access.check()
        return super().claim(client_id, node, above)

    def apply(self, writes: Sequence[SessionWrite]) -> None:
        self._access.check()
        super().apply(writes)

    def adopt(self, client_id: str, node: NodeIdentity) -> Claim | None:
        self._access.check()
        return super().adopt(client_id, node)

    @property
    def transaction(self) -> object:
        return self._access

    def on_taken_over(self, call: Callable[[str, int], object]) -> None:
        super().on_taken_over(lambda client_id, epoch: self._clock.later(NOTICE_S, lambda: call(client_id, epoch)))

    def commit(self) -> Commit:
        return self._access.commit()


class NodeRetained(RetainStore):
    """One node's view of the retained messages."""

    is_shared = True

    def __init__(self, stores: SharedStores, access: StoreAccess) -> None:
        self._shared = stores.retained
        self._sessions = stores.sessions
        self._access = access

    @property
    def transaction(self) -> object:
        return self._access

    def put(self, writes: Sequence[RetainWrite]) -> None:
        self._access.check()
        self._shared.put([write for write in writes if not self._is_fenced(write)])

    def _is_fenced(self, write: RetainWrite) -> bool:
        """Tell whether the publisher's session has moved on since the node had it, as one transaction can."""
        epoch = write.publisher_epoch
        return bool(epoch) and self._sessions.epoch_of(write.message.publisher.client_id) > epoch

    def match(self, filter: str, cursor: object = None, limit: int = 100) -> Maybe[RetainPage]:
        return self._shared.match(filter, cursor, limit)

    def iterate(self, cursor: object = None, limit: int = 1000) -> Maybe[RetainContents]:
        return self._shared.iterate(cursor, limit)

    def count(self) -> int:
        return self._shared.count()

    def size_bytes(self) -> int:
        return self._shared.size_bytes()

    def held_by(self, username: str) -> tuple[int, int] | None:
        return self._shared.held_by(username)

    def expire(self, now: float, limit: int) -> Maybe[Sequence[Message]]:
        return self._shared.expire(now, limit)

    def newest(self) -> float:
        return self._shared.newest()

    def commit(self) -> Commit:
        return self._access.commit()


class NodeQueues(NodeQueueStore):
    """One node's view of the queues."""

    def __init__(self, stores: SharedStores, sessions: NodeSessions, access: StoreAccess) -> None:
        super().__init__(stores.queues, sessions.is_home)
        self._access = access

    @property
    def transaction(self) -> object:
        return self._access

    def apply(self, writes: Sequence[QueueWrite]) -> None:
        self._access.check()
        super().apply(writes)

    def commit(self) -> Commit:
        return self._access.commit()
