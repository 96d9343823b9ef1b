"""The writes and pending work of one turn, and the stores that it commits to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import evolve

from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.event import Event, EventLog
from kinmqtt_spi.services.queue import Append, QueueStore, QueueWrite
from kinmqtt_spi.services.retain import RetainStore, RetainWrite
from kinmqtt_spi.services.session import SessionStore, SessionWrite
from kinmqtt_spi.values import MessageId

if TYPE_CHECKING:
    from kinmqtt.broker.message.delivery import Delivery
    from kinmqtt.broker.turn.ports import Peer, Recipient


class Stores:
    """The services a turn commits to."""

    __slots__ = ("event", "queue", "retain", "session")

    def __init__(self, queue: QueueStore, session: SessionStore, retain: RetainStore, event: EventLog) -> None:
        self.queue = queue
        self.session = session
        self.retain = retain
        self.event = event

    @property
    def shared(self) -> tuple[bool, bool, bool]:
        """Whether the nodes of a cluster use one session store, one queue store and one retain store."""
        return self.session.is_shared, self.queue.is_shared, self.retain.is_shared

    @property
    def are_shared(self) -> bool:
        """Whether the nodes of a cluster share all their stores; if not, none of them where sessions may move."""
        return all(self.shared)


class RetryWrites:
    """Writes of one client that await a retry."""

    __slots__ = ("queue", "sessions")

    def __init__(self) -> None:
        self.queue: list[QueueWrite] = []
        self.sessions: list[SessionWrite] = []


class Batch:
    """The writes of one turn, and the work that waits for their commit."""

    __slots__ = (
        "acknowledgements",
        "after_commit",
        "ahead",
        "began_at",
        "drops",
        "events",
        "failed",
        "failure",
        "fenced",
        "followed",
        "late",
        "lost_events",
        "on_commit_failed",
        "opened",
        "pending_commits",
        "promises",
        "queue",
        "queued",
        "refused",
        "retain",
        "retain_bytes",
        "retain_users",
        "retried_clients",
        "retries_scheduled",
        "sends",
        "sessions",
        "tied",
        "unfinished_publishers",
    )

    def __init__(self) -> None:
        self.queue: list[QueueWrite] = []
        self.followed: set[MessageId] | None = None
        """Messages that are sent after a session which has moved by those who have written them here."""
        self.sessions: list[SessionWrite] = []
        self.opened = 0
        """The number of new sessions in ``sessions``; counting them at each CONNECT would take quadratic time."""
        self.retain: list[RetainWrite] = []
        self.retain_bytes = 0
        """The size of ``retain``, for the limit check of each retained message."""
        self.retain_users: dict[str, tuple[int, int]] = {}
        """Number and size of the messages in ``retain``, by user."""
        self.events: list[Event] = []
        self.began_at = 0.0
        """When the commit began, in seconds of a monotonic clock."""
        self.drops: dict[str, dict[str, Any]] = {}
        """By client id: the data of the event about messages that its queue dropped in this turn."""
        self.acknowledgements: list[tuple[Peer, bytes, bool]] = []
        self.unfinished_publishers: list[Peer] = []
        """Publishers of a message delivered partly in this turn and acknowledged in a later one."""
        self.sends: list[tuple[Recipient, int, Delivery]] = []
        self.queued: list[Recipient] = []
        """Persistent sessions with more messages in their queue."""
        self.after_commit: list[Callable[[], object]] = []
        """Called when everything is committed."""
        self.on_commit_failed: list[Callable[[ReasonCode], object]] = []
        """Called when something failed to commit."""
        self.pending_commits = 0
        """The number of commits that have not fired."""
        self.late = False
        """Whether a commit was asynchronous: until it fired, reads did not return the queued messages."""
        self.failure: BaseException | None = None
        self.ahead: BaseException | None = None
        """The failure of an earlier batch: then this batch must fail too."""
        self.retries_scheduled = False
        """Whether its mandatory writes are scheduled for a retry."""
        self.promises = False
        """Whether it has writes that clients rely on: other than events and retries."""
        self.refused = False
        """Whether the queue store certainly committed nothing of it."""
        self.fenced: set[str] = set()
        self.retried_clients: set[str] = set()
        """Clients with retried writes in this batch."""
        self.lost_events = False
        self.failed: list[object] = []
        """The transactions that failed."""
        self.tied: set[QueueWrite | SessionWrite] = set()
        """Writes valid only together with this turn's others: on a failure their origin repeats all of them."""

    def note_followed(self, message: MessageId) -> None:
        """Note that whoever writes a message here sends it after sessions that have moved."""
        if self.followed is None:
            self.followed = set()
        self.followed.add(message)

    def fenced_appends(self, message: MessageId) -> list[tuple[str, str | None]]:
        """Return for whom a message was refused, as newer owners hold their sessions: client ids, shared filters."""
        if not self.fenced:
            return []
        return [
            (write.client_id, write.entry.shared_filter)
            for write in self.queue
            if isinstance(write, Append) and write.client_id in self.fenced and write.entry.message.id == message
        ]

    def restamp(self, client_id: str, old: int, new: int) -> None:
        """Move a client's writes from its owner's old epoch to the new one."""
        for number, write in enumerate(self.queue):
            if write.client_id == client_id and write.epoch == old:
                self.queue[number] = self._restamped(write, write._replace(epoch=new))
        for number, change in enumerate(self.sessions):
            if change.client_id == client_id and change.epoch == old:
                self.sessions[number] = self._restamped(change, evolve(change, epoch=new))

    def _restamped(self, old: Any, new: Any) -> Any:
        if old in self.tied:
            self.tied.discard(old)
            self.tied.add(new)
        return new

    def forget_calls(self) -> None:
        """Forget what was called: much of it refers to the batch, and would wait for the garbage collector."""
        self.after_commit.clear()
        self.on_commit_failed.clear()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit, send or call."""
        return not (
            self.acknowledgements
            or self.queue
            or self.sends
            or self.after_commit
            or self.on_commit_failed
            or self.sessions
            or self.retain
            or self.events
        )
