"""What waits for one client: the base class of the queues, with the bounds of ``[limits]``.

A session that ends with its connection has a queue in memory, a persistent one has its queue in the queue store; both
feed the session's window in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, final

from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session import overflow
from kinmqtt.broker.session.overflow import OverflowAction
from kinmqtt.broker.session.owner import QueueOwner
from kinmqtt_spi.values import Message

RETRY_S: Final = 1.0
"""How long a store that failed is left alone by a session."""


class SessionQueue(ABC):
    """Messages of QoS 1 and 2 for which the window has no room yet."""

    __slots__ = ("_runtime", "_session", "count", "retrying", "size_bytes")

    def __init__(self, runtime: Runtime, session: QueueOwner) -> None:
        self._runtime = runtime
        self._session = session
        self.count = 0
        self.size_bytes = 0
        """What they count for."""
        self.retrying = False
        """Whether the store could not do something, and time is to pass before it is asked again."""

    @abstractmethod
    def pump(self) -> None:
        """Send what waits, as far as the window goes."""

    def overflow_action(self, publication: Publication) -> OverflowAction | None:
        """What becomes of a newcomer; ``None`` where there is room for it."""
        return overflow.decide(self._runtime, self._session, publication, not self.count) if self.is_full else None

    def leaves(self, size_bytes: int) -> None:
        """A message that counted for so much waits no longer."""
        self._hold(max(0, self.count - 1), max(0, self.size_bytes - size_bytes))

    def end(self) -> ClosedQueue:
        """The session ends, and what waited with it; answers what stands in its place."""
        self._hold(0, 0)
        return ClosedQueue(self._runtime)

    def _hold(self, count: int, size_bytes: int) -> None:
        self._runtime.queued.messages += count - self.count
        self._session.count_queued(size_bytes - self.size_bytes)
        self.count = count
        self.size_bytes = size_bytes

    @property
    def is_full(self) -> bool:
        """Whether something must give way for whatever comes next."""
        limits = self._runtime.limits
        return (
            self.count >= limits.max_queued_messages
            or self.size_bytes >= limits.max_queued_bytes
            or self.all_are_full()
        )

    def all_are_full(self) -> bool:
        """Whether the queues of all clients, or those of this one's user, hold as much as they may."""
        limits = self._runtime.limits
        most = limits.max_all_queued_bytes
        if self._runtime.queued.size_bytes >= most:
            return True
        # As LimitSettings.share_of has it, without the call: each message that waits comes here more than once.
        return self._session.account.queued_bytes >= most * limits.user_share

    def all_hold_too_much(self) -> bool:
        """Whether they hold more than that."""
        limits = self._runtime.limits
        most = limits.max_all_queued_bytes
        if self._runtime.queued.size_bytes > most:
            return True
        return self._session.account.queued_bytes > most * limits.user_share

    @property
    def _is_over(self) -> bool:
        """Whether more waits than may; the newest stays, however large it is."""
        limits = self._runtime.limits
        too_large = self.size_bytes > limits.max_queued_bytes or self.all_hold_too_much()
        return (too_large and self.count > 1) or self.count > limits.max_queued_messages

    def _comes(self, size_bytes: int) -> None:
        self._hold(self.count + 1, self.size_bytes + size_bytes)

    def _notify_queued(self, publication: Publication) -> None:
        if self._runtime.hooks.message_queued.active:
            self._runtime.hooks.message_queued(self._session.client_id, publication.message)

    def _expired(self, message: Message) -> None:
        client_id = self._session.client_id
        self._runtime.drop(client_id, message, "expired")
        if self._runtime.hooks.message_expired.active:
            self._runtime.hooks.message_expired(client_id, message)


@final
class ClosedQueue(SessionQueue):
    """Nothing waits, and nothing will: the session is over.

    It does not know its session, as the session knows it: a circle of references would stay in memory for long.
    """

    __slots__ = ()

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.count = 0
        self.size_bytes = 0
        self.retrying = False

    def pump(self) -> None:
        """See :meth:`SessionQueue.pump`."""

    def all_are_full(self) -> bool:
        """See :meth:`SessionQueue.all_are_full`."""
        return False

    def all_hold_too_much(self) -> bool:
        """See :meth:`SessionQueue.all_hold_too_much`."""
        return False

    def overflow_action(self, publication: Publication) -> OverflowAction:
        """See :meth:`SessionQueue.overflow_action`: whatever is meant for the session comes too late."""
        return OverflowAction.DROPPED

    def leaves(self, size_bytes: int) -> None:
        """See :meth:`SessionQueue.leaves`."""

    def end(self) -> ClosedQueue:
        """See :meth:`SessionQueue.end`."""
        return self
