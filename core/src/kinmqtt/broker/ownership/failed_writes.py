"""Handles writes of a session that a store refused or failed to commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from twisted.logger import Logger

from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.session.outbox_session import OutboxSession
from kinmqtt.broker.turn.recovery import ELSEWHERE
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import Append, QueueWrite
from kinmqtt_spi.values import NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.ownership.reload import Reload
    from kinmqtt.broker.ownership.subscription_removal import SubscriptionRemoval
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.sessions")


class FailedWrites:
    """Makes sessions consistent with the stores again after a write was not committed."""

    def __init__(
        self, runtime: Runtime, registry: Registry, router: Router, removal: SubscriptionRemoval, reload: Reload
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._router = router
        self._removal = removal
        self._reload = reload
        self._dropped: Callable[[Session], object] = lambda session: None

    def when_dropped(self, call: Callable[[Session], object]) -> None:
        """Call ``call`` with each session that has a newer owner, before its copy here is dropped."""
        self._dropped = call

    def fenced(self, client_id: str, epoch: int, owner: NodeIdentity | None = None) -> None:
        """A newer owner than that of ``epoch`` holds the session: drop this node's copy and its connection.

        ``owner`` is the node that has claimed it with an announcement, as each normal move is.
        """
        session = self._registry.get(client_id)
        if session is None or session.epoch > epoch:
            return  # The newer owner is this node.
        if isinstance(session, OutboxSession) and session.is_lost:
            return  # It stands for what the newer owner has.
        if owner is None:
            log.warn("session {client_id!r} has a newer owner", client_id=client_id)
        else:
            log.info("session {client_id!r} moves to node {node}", client_id=client_id, node=owner.name)
        self._dropped(session)
        self._registry.drop_copy(session)

    def unopened(self, client_id: str, epoch: int, reason: ReasonCode) -> None:
        """The session store did not commit a new session: disconnect its client and remove it."""
        session = self._registry.get(client_id)
        if session is None or session.epoch != epoch:
            return
        if session.connection is not None:
            session.connection.fail(reason, "the session could not be stored")
        if self._registry.get(client_id) is session:
            self._registry.remove(session)
            session.end()
            self._removal.remove(session)

    def on_commit_failed(
        self, client_id: str, writes: Sequence[QueueWrite], reason: ReasonCode, certain: bool
    ) -> None:
        """The queue store did not commit the ``writes`` of a client.

        New messages are dropped: their publishers get no acknowledgement. If there are other writes, or it is not
        ``certain`` that the store committed none of them, the session is reloaded from the store and its client is
        disconnected with the ``reason``.
        """
        session = self._registry.get(client_id)
        new = [write for write in writes if isinstance(write, Append)]
        if certain:
            for write in new:
                if reason is not ELSEWHERE or not self._deliver_to_another_member(client_id, write):
                    self._runtime.drop(client_id, write.entry.message, "store_failed")
        if session is None or not session.persistent:
            return
        if certain and len(new) == len(writes):
            for write in new:
                session.drop_uncommitted(write)
            return
        if session.connection is not None:
            session.connection.fail(reason, "the state of inflight messages could not be stored")
        self._reload.start(session)

    def _deliver_to_another_member(self, client_id: str, write: Append) -> bool:
        """Route a message of a shared subscription, refused because of a newer owner's epoch, to another member."""
        entry = write.entry
        if entry.shared_filter is None:
            return False
        self._runtime.turn.touch()
        publication = Publication.of(entry.message)
        return self._router.deliver_to_another_member(
            client_id, entry.shared_filter, publication, connected=False, gone=True
        )
