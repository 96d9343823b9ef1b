"""The part of a session that its queue uses: client, inflight window, and whether it can send."""

from __future__ import annotations

from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.account_holder import AccountHolder
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

    def assign(self, delivery: Delivery) -> int:
        """Put a delivery in flight; returns its packet identifier."""
        raise NotImplementedError
