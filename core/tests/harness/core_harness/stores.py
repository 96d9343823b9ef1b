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
from kinmqtt_spi.services.queue import InboundClose
from kinmqtt_spi.values import NodeIdentity

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

    def claim(self, client_id: str, node: Any, above: int = 0) -> Any:
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


class StaleQueues(SlowQueues):
    """A queue store that reads at once and answers later: its answer may be stale by then."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = Later()
        self.damaged: set[str] = set()
        """Clients whose queues can't be loaded."""

    def read(self, client_id: str, after: int, limit: int) -> Any:
        found = MemoryQueueStore.read(self, client_id, after, limit)
        return self.reads(lambda: found)

    def load(self, client_id: str) -> Any:
        if client_id in self.damaged:
            raise ServiceUnavailable("damaged")
        return self.loads(lambda: MemoryQueueStore.load(self, client_id))


class LateSessions(MemorySessionStore):
    """A session store that claims and looks for wills at once, and may answer later."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = Later()
        self.wills = Later()

    def claim(self, client_id: str, node: Any, above: int = 0) -> Any:
        claim = MemorySessionStore.claim(self, client_id, node)
        return self.claims(lambda: claim)

    def due_wills(self, now: float, limit: int) -> Any:
        found = MemorySessionStore.due_wills(self, now, limit)
        return self.wills(lambda: found) if found else found

    @hookimpl
    def session_store(self) -> LateSessions:
        return self


class Fencing(LateSessions):
    """A session store whose claims raise the epoch of the queue store too, as stores of one plugin may."""

    def __init__(self, queues: SlowQueues) -> None:
        super().__init__()
        self.queues = queues

    def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Any:
        claim = MemorySessionStore.claim(self, client_id, node)
        MemoryQueueStore.apply(self.queues, [InboundClose(client_id, claim.epoch, 1)])
        return self.claims(lambda: claim)


class SlowRetaineds(MemoryRetainStore):
    """A retain store whose writes may be made to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = Later()

    def put(self, writes: Sequence[Any]) -> Any:
        return self.writes(lambda: MemoryRetainStore.put(self, writes))

    @hookimpl
    def retain_store(self) -> SlowRetaineds:
        return self


def everything(write: Any) -> bool:
    """Refuse any write."""
    return True


def nothing(write: Any) -> bool:
    """Refuse no write."""
    return False
