"""The part of a session that its queue uses: client, inflight window, and whether it can send."""

from __future__ import annotations

from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.account_holder import AccountHolder
from kinmqtt.broker.session.overflow_action import OverflowAction
from kinmqtt.broker.session.window import Window
from kinmqtt.broker.turn.ports import Peer
from kinmqtt_spi.services.queue import QueueSizes
from kinmqtt_spi.values import Client


class QueueOwner(AccountHolder):
    """Native base class of :class:`~kinmqtt.broker.session.session.Session`, so that queues need not import it."""

    __slots__ = ("client", "connection", "epoch", "outgoing", "receive_rights", "sequence")

    def __init__(self, runtime: Runtime, client: Client, epoch: int, persistent: bool) -> None:
        super().__init__(runtime, client.quota_key, persistent)
        self.client = client
        self.epoch = epoch
        self.connection: Peer | None = None
        limits = runtime.limits
        self.outgoing = Window(runtime.buffers, limits.max_inflight, limits.max_queued_bytes)
        self.sequence = 0
        """The sequence number of the latest message written to the queue store."""
        self.receive_rights: dict[str, bool] | None = None
        """By topic: the cached answer of the only authorizer of deliveries, where it does not expire."""

    @property
    def client_id(self) -> str:
        """The client id the session belongs to."""
        return self.client.client_id

    @property
    def can_send(self) -> bool:
        """Whether the next message may be sent now."""
        raise NotImplementedError

    @property
    def sizes(self) -> QueueSizes:
        """The numbers of queued and inflight messages."""
        raise NotImplementedError

    @property
    def is_outbox(self) -> bool:
        """Whether a program of the broker gets the messages, for which no rules and hooks on deliveries hold."""
        return False

    # The bounds of its queue

    def queue_is_full(self, count: int, size_bytes: int) -> bool:
        """Whether a queue of this size must drop a message before the next can be queued."""
        limits = self._runtime.limits
        return count >= limits.max_queued_messages or size_bytes >= limits.max_queued_bytes or self.total_is_full()

    def queue_exceeds_limits(self, count: int, size_bytes: int) -> bool:
        """Whether a queue of this size exceeds a limit; the newest message stays, whatever its size."""
        limits = self._runtime.limits
        too_large = size_bytes > limits.max_queued_bytes or self.total_exceeds_limit()
        return (too_large and count > 1) or count > limits.max_queued_messages

    def total_is_full(self) -> bool:
        """Return whether the queues of all clients, or those of this user, have reached their limit."""
        limits = self._runtime.limits
        most = limits.max_all_queued_bytes
        if self._runtime.queued.size_bytes >= most:
            return True
        # LimitSettings.share_of, inlined: this runs more than once for each queued message.
        return self.account.queued_bytes >= most * limits.user_share

    def total_exceeds_limit(self) -> bool:
        """Return whether the queues of all clients, or those of this user, exceed their limit."""
        limits = self._runtime.limits
        most = limits.max_all_queued_bytes
        if self._runtime.queued.size_bytes > most:
            return True
        return self.account.queued_bytes > most * limits.user_share

    def message_dropped(self) -> None:
        """A message was dropped because the queue is full."""

    def overflow_action(self, publication: Publication, is_empty: bool) -> OverflowAction | None:
        """Choose the action for a new message when the queue is full; ``None`` to queue it all the same.

        ``is_empty``: the queue has no messages.
        """
        raise NotImplementedError

    def assign(self, delivery: Delivery) -> int:
        """Put a delivery in flight; returns its packet identifier."""
        raise NotImplementedError
