"""What a turn gathers until it ends, and the stores that it then goes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import evolve

from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.event import Event, EventLog
from kinmqtt_spi.services.queue import QueueStore, QueueWrite
from kinmqtt_spi.services.retain import RetainStore, RetainWrite
from kinmqtt_spi.services.session import SessionStore, SessionWrite

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


class RetryWrites:
    """Writes of one client that await a retry."""

    __slots__ = ("queue", "sessions")

    def __init__(self) -> None:
        self.queue: list[QueueWrite] = []
        self.sessions: list[SessionWrite] = []


class Batch:
    """What one turn wants kept, and what waits for it."""

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
        self.sessions: list[SessionWrite] = []
        self.opened = 0
        """New sessions among ``sessions``: counting them for each CONNECT would take the square of their number."""
        self.retain: list[RetainWrite] = []
        self.retain_bytes = 0
        """What these count for: each that comes is asked whether there is room for it behind the others."""
        self.retain_users: dict[str, tuple[int, int]] = {}
        """How many of them are of each user, and what these count for."""
        self.events: list[Event] = []
        self.began_at = 0.0
        """When it was handed over to the stores, by a clock that never goes back."""
        self.drops: dict[str, dict[str, Any]] = {}
        """By client id: what the event says of what gave way in its queue in this turn."""
        self.acknowledgements: list[tuple[Peer, bytes]] = []
        self.unfinished_publishers: list[Peer] = []
        """Publishers of whose message a part was delivered in this turn; it is acknowledged in a later one."""
        self.sends: list[tuple[Recipient, int, Delivery]] = []
        self.queued: list[Recipient] = []
        """Kept sessions in whose queue something more waits."""
        self.after_commit: list[Callable[[], object]] = []
        """Called when everything is kept."""
        self.on_commit_failed: list[Callable[[ReasonCode], object]] = []
        """Called when something could not be kept."""
        self.pending_commits = 0
        """Commits that have not fired."""
        self.late = False
        """Whether any commit had to be waited for: until then a read did not show what was queued."""
        self.failure: BaseException | None = None
        self.ahead: BaseException | None = None
        """Why something ahead of it was not kept: then it must not be either."""
        self.retries_scheduled = False
        """Whether what must be kept of it has been put aside for another turn."""
        self.promises = False
        """Whether anything of it was promised to anybody: not events alone, nor what is handed over again."""
        self.refused = False
        """Whether it is certain that nothing was kept in the queue store."""
        self.fenced: set[str] = set()
        self.retried_clients: set[str] = set()
        """Clients of whom something is written that an earlier turn could not have kept."""
        self.lost_events = False
        self.failed: list[object] = []
        """The transactions that were not kept."""
        self.tied: set[QueueWrite | SessionWrite] = set()
        """Writes that may be kept with this turn's others only: who made them makes all of them again."""

    def restamp(self, client_id: str, old: int, new: int) -> None:
        """Have what is written of a client under its owner's old epoch be written under the new one."""
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

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep, and nobody to tell."""
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
