"""Locks by client id."""

from __future__ import annotations

from types import TracebackType

from twisted.internet.defer import DeferredLock


class ClientIdLocks:
    """Locks by client id, first come, first served; an unlocked one takes no memory."""

    def __init__(self) -> None:
        self._locks: dict[str, DeferredLock] = {}

    def __contains__(self, client_id: object) -> bool:
        """Return whether the lock of a client id is held."""
        return client_id in self._locks

    def of(self, client_id: str) -> _Held:
        """Return the lock of a client id, for ``async with``."""
        return _Held(self._locks, client_id)


class _Held:
    """The lock of one client id, held within ``async with``."""

    __slots__ = ("_client_id", "_lock", "_locks")

    def __init__(self, locks: dict[str, DeferredLock], client_id: str) -> None:
        self._locks = locks
        self._client_id = client_id
        self._lock = locks.setdefault(client_id, DeferredLock())

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lock = self._lock
        lock.release()
        if not lock.locked and not lock.waiting and self._locks.get(self._client_id) is lock:
            del self._locks[self._client_id]
