"""A session, as its queue knows it: the client, the window, and what may be sent now."""

from __future__ import annotations

from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.holder import Holder
from kinmqtt.broker.session.window import Window
from kinmqtt.broker.turn.ports import Peer
from kinmqtt_spi.services.queue import QueueSizes
from kinmqtt_spi.values import Client


class QueueOwner(Holder):
    """Native base class of :class:`~kinmqtt.broker.session.session.Session`, which is above the queues."""

    __slots__ = ("client", "connection", "epoch", "outgoing", "receive_rights", "sequence")

    def __init__(self, runtime: Runtime, client: Client, epoch: int, persistent: bool) -> None:
        super().__init__(runtime, client.quota_key, persistent)
        self.client = client
        self.epoch = epoch
        self.connection: Peer | None = None
        limits = runtime.limits
        self.outgoing = Window(runtime.buffers, limits.max_inflight, limits.max_queued_bytes)
        self.sequence = 0
        """The number of the latest message that went to the queue store."""
        self.receive_rights: dict[str, bool] | None = None
        """By topic: whether the client may receive it, where the only authorizer of deliveries said so for good."""

    @property
    def client_id(self) -> str:
        """The client id the session belongs to."""
        return self.client.client_id

    @property
    def can_send(self) -> bool:
        """Whether the next message may go out now."""
        raise NotImplementedError

    @property
    def sizes(self) -> QueueSizes:
        """What waits and what is in flight."""
        raise NotImplementedError

    def assign(self, delivery: Delivery) -> int:
        """Put a delivery in flight; answers its packet identifier."""
        raise NotImplementedError
