"""Store doubles for the tests of a whole broker: memory stores that answer, or fail, when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.reasons import ReasonCode

FULL = ServiceUnavailable("the disk is full", ReasonCode.QUOTA_EXCEEDED)


class Later:
    """Answers that wait for :meth:`answer`; at once while ``slow`` is false."""

    def __init__(self) -> None:
        self.slow = False
        self.pending: deque[tuple[Callable[[], Any], Deferred[Any]]] = deque()

    def __call__(self, work: Callable[[], Any]) -> Any:
        """Do the work now, or when it is this one's turn."""
        if not self.slow:
            return work()
        deferred: Deferred[Any] = Deferred()
        self.pending.append((work, deferred))
        return deferred

    def answer(self, error: BaseException | None = None) -> None:
        """Let the oldest waiting call answer, or fail with ``error``."""
        work, deferred = self.pending.popleft()
        if error is not None:
            deferred.errback(error)
        else:
            maybeDeferred(work).addCallbacks(deferred.callback, deferred.errback)

    def answer_all(self) -> None:
        """Let everything that waits answer, and what comes from now on at once."""
        self.slow = False
        while self.pending:
            self.answer()


class SlowQueues(MemoryQueueStore):
    """A queue store whose writes (``writes``) and reads (``reads``) may be made to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = Later()
        self.reads = Later()

    def apply(self, writes: Sequence[Any]) -> Any:
        return self.writes(lambda: MemoryQueueStore.apply(self, writes))

    def read(self, client_id: str, after: int, limit: int) -> Any:
        return self.reads(lambda: MemoryQueueStore.read(self, client_id, after, limit))

    @hookimpl
    def queue_store(self) -> SlowQueues:
        return self


class SlowSessions(MemorySessionStore):
    """A session store whose claims (``claims``) and writes (``writes``) may be made to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = Later()
        self.writes = Later()

    def claim(self, client_id: str, node: Any) -> Any:
        return self.claims(lambda: MemorySessionStore.claim(self, client_id, node))

    def apply(self, writes: Sequence[Any]) -> Any:
        return self.writes(lambda: MemorySessionStore.apply(self, writes))

    @hookimpl
    def session_store(self) -> SlowSessions:
        return self


class Retaineds(MemoryRetainStore):
    """A retain store that can be handed to more than one broker, and counts the pages it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = 0

    def match(self, filter: str, cursor: object = None, limit: int = 100) -> Any:
        self.pages += 1
        return super().match(filter, cursor, limit)

    @hookimpl
    def retain_store(self) -> Retaineds:
        return self


class Failing(MemoryQueueStore):
    """A queue store of which the test says what fails."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: Callable[[Any], bool] = lambda write: False
        """Whether a batch with that write is not kept."""
        self.read_error: Exception | None = None
        self.batches: list[Sequence[Any]] = []

    def apply(self, writes: Sequence[Any]) -> None:
        if any(self.refuses(write) for write in writes):
            raise FULL
        self.batches.append(list(writes))
        super().apply(writes)

    def read(self, client_id: str, after: int, limit: int) -> Any:
        if self.read_error is not None:
            raise self.read_error
        return super().read(client_id, after, limit)

    @hookimpl
    def queue_store(self) -> Failing:
        return self


class FailingSessions(MemorySessionStore):
    """A session store of which the test says what it does not keep."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: Callable[[Any], bool] = lambda write: False
        self.batches: list[Sequence[Any]] = []

    def apply(self, writes: Sequence[Any]) -> None:
        if any(self.refuses(write) for write in writes):
            raise FULL
        self.batches.append(list(writes))
        super().apply(writes)

    @hookimpl
    def session_store(self) -> FailingSessions:
        return self


class FailingRetaineds(MemoryRetainStore):
    """A retain store of which the test says what it does not keep."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: Callable[[Any], bool] = lambda write: False

    def put(self, writes: Sequence[Any]) -> None:
        if any(self.refuses(write) for write in writes):
            raise FULL
        super().put(writes)

    @hookimpl
    def retain_store(self) -> FailingRetaineds:
        return self
