"""Lanes: the messages of some keys, in their order, sent one batch at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from kinmqtt_spi.bridging.calls import Call
from kinmqtt_spi.bridging.pauses import Pauses
from kinmqtt_spi.services.bridge import Item, SendSettings
from kinmqtt_spi.services.outbox import OutboxEntry
from kinmqtt_spi.services.plugin import Timer
from kinmqtt_spi.values import Message

_make_item: Final = tuple.__new__
"""Makes an :class:`Item` of a tuple with all its fields, faster than the class does."""


class Parcel:
    """A message on its way to the sink."""

    __slots__ = ("arrival", "arrived_at", "attempt", "failures", "key", "message", "number")

    def __init__(self, entry: OutboxEntry, key: bytes, arrival: int, arrived_at: float) -> None:
        self.number = entry.number
        self.message: Message = entry.message
        self.key = key
        self.arrival = arrival
        """Its place among all messages of the sink."""
        self.arrived_at = arrived_at
        """When the outbox handed it out, by the clock's ``monotonic``."""
        self.attempt = 2 if entry.is_repeated else 1
        self.failures = 0
        """The failures that may be due to the message itself."""


class Lane:
    """Messages that wait, and the batch that is under way or is sent again."""

    __slots__ = (
        "again",
        "call",
        "halted",
        "linger",
        "pause",
        "pauses",
        "under_way",
        "waiting",
        "waiting_bytes",
        "why",
    )

    def __init__(self, pauses: Pauses) -> None:
        self.waiting: deque[Parcel] = deque()
        self.waiting_bytes = 0
        """The size of their payloads."""
        self.again: Sequence[Parcel] = ()
        """What is sent again, whole, before anything that waits."""
        self.under_way: Sequence[Parcel] = ()
        """The batch that the sink has; empty if it has none."""
        self.call: Call | None = None
        self.pauses = pauses
        self.pause: Timer | None = None
        """Set while the lane waits after an answer ``Retry``."""
        self.linger: Timer | None = None
        """Set while the lane waits for more messages."""
        self.halted = False
        """Whether a poison message halts it."""
        self.why = ""
        """Why it is halted or paused."""

    def add(self, parcel: Parcel) -> None:
        """Add a message at the end."""
        self.waiting.append(parcel)
        self.waiting_bytes += len(parcel.message.payload)

    def is_idle(self) -> bool:
        """Tell whether a batch could be sent, if there was one."""
        return not (self.under_way or self.halted or self.pause is not None)

    def is_failing(self) -> bool:
        """Tell whether its last batch has failed."""
        return bool(self.again) or self.pause is not None

    def linger_s(self, settings: SendSettings, now: float) -> float | None:
        """Return for how many seconds the next batch may wait for more; 0 if it is due, ``None`` without messages."""
        if self.again:
            return 0.0
        if not self.waiting:
            return None
        if len(self.waiting) >= settings.batch or self.waiting_bytes >= settings.batch_bytes:
            return 0.0
        return max(self.waiting[0].arrived_at + settings.linger_s - now, 0.0)

    def take(self, settings: SendSettings) -> Sequence[Parcel]:
        """Take the next batch: what is sent again, else what waits, up to the bounds of a batch.

        After a message of a failed batch has used up its attempts, the batch is sent one by one: the failure of one
        message must not make poison of the others.
        """
        again = self.again
        if again:
            if settings.attempts and len(again) > 1 and max(each.failures for each in again) >= settings.attempts:
                self.again = again[1:]
                return again[:1]
            self.again = ()
            return again
        waiting = self.waiting
        if len(waiting) <= settings.batch and self.waiting_bytes <= settings.batch_bytes:
            self.waiting = deque()
            self.waiting_bytes = 0
            return tuple(waiting)
        batch = [waiting.popleft()]
        size_bytes = len(batch[0].message.payload)
        while waiting and len(batch) < settings.batch:
            size_bytes += len(waiting[0].message.payload)
            if size_bytes > settings.batch_bytes:
                size_bytes -= len(waiting[0].message.payload)
                break
            batch.append(waiting.popleft())
        self.waiting_bytes -= size_bytes
        return batch

    def send_again(self, batch: Sequence[Parcel]) -> None:
        """Put a batch in front of everything else, with one more attempt."""
        for each in batch:
            each.attempt += 1
        self.again = (*batch, *self.again)

    def rest(self) -> None:
        """Cancel the lane's timers."""
        for timer in (self.pause, self.linger):
            if timer is not None:
                timer.cancel()
        self.pause = self.linger = None


def items(batch: Sequence[Parcel]) -> list[Item]:
    """Return what the sink gets."""
    return [_make_item(Item, (each.message, each.key, each.attempt)) for each in batch]
