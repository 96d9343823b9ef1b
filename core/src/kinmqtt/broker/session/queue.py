"""The base class of session queues, with the bounds of ``[limits]``.

A non-persistent session has its queue in memory, a persistent session in the queue store; both feed the session's
inflight window in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, final

from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.overflow_action import OverflowAction
from kinmqtt.broker.session.owner import QueueOwner
from kinmqtt_spi.values import Message

RETRY_S: Final = 1.0
"""The time from a store's failure to the session's next attempt."""


class SessionQueue(ABC):
    """Messages of QoS 1 and 2 that wait for capacity in the inflight window."""

    __slots__ = ("_runtime", "_session", "count", "retrying", "size_bytes")

    def __init__(self, runtime: Runtime, session: QueueOwner) -> None:
        self._runtime = runtime
        self._session = session
        self.count = 0
        self.size_bytes = 0
        """The size of all queued messages."""
        self.retrying = False
        """Whether the store has failed and a retry is scheduled."""

    @abstractmethod
    def pump(self) -> None:
        """Send queued messages while the inflight window has capacity."""

    def overflow_action(self, publication: Publication) -> OverflowAction | None:
        """Return what is done with a new message; ``None`` if the queue is not full."""
        return self._session.overflow_action(publication, not self.count) if self.is_full else None

    def removed(self, size_bytes: int) -> None:
        """Uncount a message of this size that has left the queue."""
        self._set_size(max(0, self.count - 1), max(0, self.size_bytes - size_bytes))

    def end(self) -> ClosedQueue:
        """Discard all messages because the session ends; returns the queue that replaces this one."""
        self._set_size(0, 0)
        return ClosedQueue(self._runtime)

    def _set_size(self, count: int, size_bytes: int) -> None:
        self._session.count_queued(size_bytes - self.size_bytes, count - self.count)
        self.count = count
        self.size_bytes = size_bytes

    @property
    def is_full(self) -> bool:
        """Whether a message must be dropped before the next can be queued."""
        return self._session.queue_is_full(self.count, self.size_bytes)

    def total_is_full(self) -> bool:
        """Return whether the queues of all clients, or those of this user, have reached their limit."""
        return self._session.total_is_full()

    def total_exceeds_limit(self) -> bool:
        """Return whether the queues of all clients, or those of this user, exceed their limit."""
        return self._session.total_exceeds_limit()

    @property
    def _exceeds_limits(self) -> bool:
        """Whether the queue exceeds a limit; the newest message stays, whatever its size."""
        return self._session.queue_exceeds_limits(self.count, self.size_bytes)

    def _added(self, size_bytes: int) -> None:
        self._set_size(self.count + 1, self.size_bytes + size_bytes)

    def _notify_queued(self, publication: Publication) -> None:
        if self._runtime.hooks.message_queued.active and not self._session.is_outbox:
            self._runtime.hooks.message_queued(self._session.client_id, publication.message)

    def _drop_expired(self, message: Message) -> None:
        client_id = self._session.client_id
        self._runtime.drop(client_id, message, "expired")
        if self._runtime.hooks.message_expired.active and not self._session.is_outbox:
            self._runtime.hooks.message_expired(client_id, message)


@final
class ClosedQueue(SessionQueue):
    """The empty queue of an ended session.

    It has no reference to its session: the reference cycle would delay the release of the memory.
    """

    __slots__ = ()

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.count = 0
        self.size_bytes = 0
        self.retrying = False

    def pump(self) -> None:
        """See :meth:`SessionQueue.pump`."""

    @property
    def is_full(self) -> bool:
        """See :meth:`SessionQueue.is_full`."""
        return False

    def total_is_full(self) -> bool:
        """See :meth:`SessionQueue.total_is_full`."""
        return False

    def total_exceeds_limit(self) -> bool:
        """See :meth:`SessionQueue.total_exceeds_limit`."""
        return False

    def overflow_action(self, publication: Publication) -> OverflowAction:
        """See :meth:`SessionQueue.overflow_action`; every message is dropped."""
        return OverflowAction.DROPPED

    def removed(self, size_bytes: int) -> None:
        """See :meth:`SessionQueue.removed`."""

    def end(self) -> ClosedQueue:
        """See :meth:`SessionQueue.end`."""
        return self
