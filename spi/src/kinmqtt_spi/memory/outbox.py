"""An outbox in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from attrs import define

from kinmqtt_spi.services.outbox import (
    MAX_WINDOW,
    Accepted,
    AtMostOnce,
    EntryHandler,
    Outbox,
    OutboxEntry,
    OutboxFigures,
    OutboxSettings,
    WhenFull,
)
from kinmqtt_spi.services.plugin import Clock
from kinmqtt_spi.topics import check_filters, matches
from kinmqtt_spi.values import Maybe, Message

PAUSE_SHARE: Final = 1.1
"""How far above its bounds an outbox is filled while publishers pause."""


@define(slots=True)
class StoredEntry:
    """A message that an outbox has stored."""

    message: Message
    handed_out: bool = False


class MemoryOutbox(Outbox):
    """An outbox whose commits happen in the clock's next turn.

    ``stored`` is what an earlier outbox has committed, by number: another outbox over the same dict is what a restart
    leaves. The messages that wait for their commit are lost then, as are those of QoS 0 that are only passed.
    """

    def __init__(
        self,
        name: str,
        settings: OutboxSettings,
        clock: Clock,
        stored: dict[int, StoredEntry] | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.filters: tuple[str, ...] = ()
        self.fails = False
        """Set it to let commits fail: what was put in is lost then, what was acknowledged is removed later."""
        self.is_gone = False
        """Set it when another outbox continues this one: it does nothing any more."""
        self.dropped = 0
        """The messages that were dropped, expired ones included."""
        self.stored = {} if stored is None else stored
        self._clock = clock
        self._next = max(self.stored, default=0) + 1
        self._waiting: deque[tuple[int, Message]] = deque((n, each.message) for n, each in self.stored.items())
        self._waiting_bytes = sum(message.size_bytes for _, message in self._waiting)
        self._new: list[tuple[int, Message]] = []
        """What waits for its commit."""
        self._passing: set[int] = set()
        """Messages that are not stored."""
        self._inflight: dict[int, Message] = {}
        self._held: set[int] = set()
        self._removed: list[int] = []
        self._after: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._handler: EntryHandler | None = None
        self._is_due = False

    def subscribe(self, filters: Sequence[str]) -> None:
        check_filters(filters)
        self.filters = tuple(filters)

    def publish(self, message: Message) -> Accepted | None:
        """Put a message in if a filter matches; ``None`` if none does."""
        return self.put(message) if any(matches(each, message.topic) for each in self.filters) else None

    def put(self, message: Message) -> Accepted:
        if not message.topic or any(sign in message.topic for sign in "+#\0"):
            raise ValueError(f"{message.topic!r} is not a topic name")
        if message.has_expired(self._clock.now()):
            return self._dropped()
        if message.qos == 0 and self.settings.qos_0 is not AtMostOnce.STORE:
            return self._pass(message)
        when_full = self.settings.when_full
        fullness = self.figures().fullness
        if fullness >= 1:
            if when_full is WhenFull.REFUSE or (when_full is WhenFull.PAUSE and fullness >= PAUSE_SHARE):
                return Accepted.REFUSED
            if when_full is WhenFull.DROP_NEWEST:
                return self._dropped()
        self._append(message)
        if when_full is WhenFull.DROP_OLDEST:
            self._make_room()
        return Accepted.ACCEPTED

    def consume(self, handler: EntryHandler) -> None:
        if self._handler is not None:
            raise RuntimeError(f"outbox {self.name} is consumed already")
        self._handler = handler
        self._schedule()

    def acknowledge(self, numbers: Sequence[int]) -> None:
        self._held.difference_update(numbers)
        for number in numbers:
            if self._inflight.pop(number, None) is not None:
                self._removed.append(number)
        self._schedule()

    def hold(self, numbers: Sequence[int]) -> None:
        self._held.update(each for each in numbers if each in self._inflight)
        self._schedule()

    @property
    def _window(self) -> int:
        return min(self.settings.window + len(self._held), MAX_WINDOW)

    def figures(self) -> OutboxFigures:
        queued = len(self._waiting) + len(self._new)
        oldest = next(iter(self._inflight.values()), None)
        return OutboxFigures(
            queued,
            self._waiting_bytes,
            len(self._inflight),
            None if oldest is None else oldest.received_at,
            max(queued / self.settings.max_messages, self._waiting_bytes / self.settings.max_bytes),
        )

    def discard(self) -> Maybe[None]:
        self.stored.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._new.clear()
        self._passing.clear()
        self._inflight.clear()
        self._held.clear()
        self.filters = ()
        return None

    def after_commit(self, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Call ``done`` after this turn's commit, or ``failed`` if it fails."""
        self._after.append((done, failed))
        self._schedule()

    def _append(self, message: Message) -> None:
        self._new.append((self._next, message))
        self._next += 1
        self._waiting_bytes += message.size_bytes
        self._schedule()

    def _pass(self, message: Message) -> Accepted:
        used = len(self._inflight) + len(self._waiting) + len(self._new)
        if self.settings.qos_0 is AtMostOnce.IGNORE or self._handler is None or used >= self._window:
            return self._dropped()
        self._passing.add(self._next)
        self._append(message)
        return Accepted.ACCEPTED

    def _make_room(self) -> None:
        """Drop the oldest messages while the bounds are exceeded; the newest stays, whatever its size."""
        while (queued := len(self._waiting) + len(self._new)) > 1 and (
            queued > self.settings.max_messages or self._waiting_bytes > self.settings.max_bytes
        ):
            number, message = self._waiting.popleft() if self._waiting else self._new.pop(0)
            self._forget(number, message)
            self._dropped()

    def _forget(self, number: int, message: Message) -> None:
        self._waiting_bytes -= message.size_bytes
        self.stored.pop(number, None)
        self._passing.discard(number)

    def _dropped(self) -> Accepted:
        self.dropped += 1
        return Accepted.DROPPED

    def _schedule(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._clock.later(0.0, self._turn)

    def _turn(self) -> None:
        self._is_due = False
        if self.is_gone:
            return
        new, self._new = self._new, []
        after, self._after = self._after, []
        if self.fails:
            for _, message in new:
                self._waiting_bytes -= message.size_bytes
            self._passing.difference_update(number for number, _ in new)
        else:
            for number, message in new:
                if number not in self._passing:
                    self.stored[number] = StoredEntry(message)
            self._waiting += new
            for number in self._removed:
                self.stored.pop(number, None)
            self._removed.clear()
        for done, failed in after:
            (failed if self.fails else done)()
        self._hand_out()

    def _hand_out(self) -> None:
        if self._handler is None:
            return
        now = self._clock.now()
        entries: list[OutboxEntry] = []
        while self._waiting and len(self._inflight) < self._window:
            number, message = self._waiting.popleft()
            if message.has_expired(now):
                self._forget(number, message)
                self._dropped()
                continue
            self._waiting_bytes -= message.size_bytes
            self._inflight[number] = message
            stored = self.stored.get(number)
            entries.append(OutboxEntry(number, message, stored is not None and stored.handed_out))
            if stored is not None:
                stored.handed_out = True
            self._passing.discard(number)
        if entries:
            self._handler(entries)
