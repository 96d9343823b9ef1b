"""Locks that are taken in the order in which they were asked for, one by client id."""

from __future__ import annotations

from collections import deque
from types import TracebackType

from twisted.internet.defer import Deferred


class Lock:
    """A lock, first come, first served, like Twisted's ``DeferredLock``.

    Who gets the lock may release it at once, and then the next one gets it. Twisted's lock does that in nested calls:
    some hundred that wait for one client's claim would exceed the recursion limit. Here it is a loop.
    """

    __slots__ = ("_is_passing", "_waiting", "is_held")

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: deque[Deferred[None]] = deque()
        self._is_passing = False

    @property
    def is_idle(self) -> bool:
        """Whether nobody has the lock, or waits for it."""
        return not self.is_held and not self._waiting

    def acquire(self) -> Deferred[None]:
        """Return what fires when the caller has the lock; it may be cancelled before."""
        mine: Deferred[None] = Deferred(self._give_up)
        if self.is_held or self._waiting:
            self._waiting.append(mine)
        else:
            self.is_held = True
            mine.callback(None)
        return mine

    def release(self) -> None:
        """Let the next one have the lock."""
        self.is_held = False
        if self._is_passing:
            return  # The loop that has passed it on sees that it is free.
        self._is_passing = True
        try:
            while self._waiting and not self.is_held:
                self.is_held = True
                self._waiting.popleft().callback(None)
        finally:
            self._is_passing = False

    def _give_up(self, waiting: Deferred[None]) -> None:
        self._waiting.remove(waiting)


class ClientIdLocks:
    """Locks by client id; an unlocked one takes no memory."""

    def __init__(self) -> None:
        self._locks: dict[str, Lock] = {}

    def __contains__(self, client_id: object) -> bool:
        """Return whether the lock of a client id is held."""
        return client_id in self._locks

    def of(self, client_id: str) -> HeldLock:
        """Return the lock of a client id, for ``async with``."""
        return HeldLock(self, client_id)

    def acquire(self, client_id: str) -> Deferred[None]:
        """Return what fires when the caller has the lock of a client id."""
        return self._locks.setdefault(client_id, Lock()).acquire()

    def release(self, client_id: str) -> None:
        """Release the lock of a client id."""
        lock = self._locks[client_id]
        lock.release()
        if lock.is_idle and self._locks.get(client_id) is lock:
            del self._locks[client_id]


class HeldLock:
    """The lock of one client id, held within ``async with``."""

    __slots__ = ("_client_id", "_locks")

    def __init__(self, locks: ClientIdLocks, client_id: str) -> None:
        self._locks = locks
        self._client_id = client_id

    async def __aenter__(self) -> None:
        await self._locks.acquire(self._client_id)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._locks.release(self._client_id)
