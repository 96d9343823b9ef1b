"""Bridge: sinks take messages out of the broker, sources bring messages in.

The broker runs sinks: it gives each its own :class:`~kinmqtt_spi.services.outbox.Outbox`, forms batches, keeps the
order by key, retries, stops calling a sink that fails (a circuit breaker), and parks messages that a sink will never
take. So all sinks make the same promises, and a sink only sends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Final, Literal, NamedTuple, TypeAlias

from attrs import frozen

from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.services.plugin import Health
from kinmqtt_spi.settings import setting
from kinmqtt_spi.values import Maybe, Message

CLIENT_ID_PREFIX: Final = "$bridge/"
"""What the client ids of publishers begin with that a source makes up, as of ``$bridge/NAME``.

The broker refuses clients with such an id, so a sink can tell by it where a message has come from.
"""


class Item(NamedTuple):
    """A message for a sink."""

    message: Message
    key: bytes
    """Messages of one key reach the sink in their order."""
    attempt: int
    """1 for the first time, and above 1 if an earlier attempt may have reached the sink's target."""


class Retry(NamedTuple):
    """A sink's answer for an item: send it again, with all later items of its lane."""

    text: str
    """Why, for the log: without payloads and passwords."""
    after_s: float | None = None
    """How long to wait; ``None`` for the pause of the settings."""


class Poison(NamedTuple):
    """A sink's answer for an item that it will never be able to take."""

    text: str
    """Why, for the log and the parked message."""


Answer: TypeAlias = "Retry | Poison | None"
"""``None``: the target has it."""


class Sink(ABC):
    """Where messages go."""

    def open(self) -> Maybe[None]:
        """Connect. Raises :class:`~kinmqtt_spi.errors.SinkRefused` or ``ServiceUnavailable`` as :meth:`send` does.

        Called before the first :meth:`send`, again after each failure of either, and after a reload.
        """
        return None

    @abstractmethod
    def send(self, items: Sequence[Item]) -> Maybe[Sequence[Answer] | None]:
        """Send a batch; the answer says for each item whether the target has it, ``None`` if it has all of them.

        Called with one batch of a lane at a time, and for up to ``SendSettings.parallel`` lanes at once. What is
        raised holds for all items of the batch, which are then sent again:

        - :class:`~kinmqtt_spi.errors.SinkRefused`: the target refuses this client, or the settings are wrong. It is
          tried again every 60 s, and after a reload.
        - :class:`~kinmqtt_spi.errors.ServiceUnavailable`: the target can't be reached.
        - anything else is logged with its traceback.
        """

    def close(self) -> Maybe[None]:
        """Disconnect. Called when the broker stops, before each new :meth:`open`, and after a reload."""
        return None

    def check(self) -> Maybe[Health]:
        """Return what the sink knows of its target's health; asked for the broker's health."""
        return None  # type: ignore[return-value]  # nothing beyond what the broker knows


Publish: TypeAlias = Callable[[Sequence[Message]], Awaitable[None]]
"""Publishes messages; completes when they are committed as those of a client would be before PUBACK.

Raises :class:`~kinmqtt_spi.errors.NotCommitted` if a store failed, and
:class:`~kinmqtt_spi.errors.PublishRefused` if a full queue or outbox refused one of them.
"""


class Source(ABC):
    """Where messages come from."""

    @abstractmethod
    def run(self, publish: Publish) -> Awaitable[None]:
        """Bring messages in until cancelled; acknowledges to the origin only what ``publish`` has completed.

        If it raises or returns, it is called again after a pause, as :meth:`Sink.open` is.
        """


@frozen(slots=True)
class SendSettings:
    """How a sink's messages are sent."""

    batch: int = setting(500, help="messages in one batch, at most", minimum=1, maximum=65_535)
    batch_bytes: int = setting(1 << 20, help="their payloads' size, at most", unit="bytes", minimum=1)
    linger_s: float = setting(0.005, help="how long a batch may wait for more messages", unit="s", minimum=0)
    parallel: int = setting(1, help="batches sent at a time, for different keys", minimum=1, maximum=256)
    time_limit_s: float = setting(30.0, help="the time limit of one batch", unit="s", minimum=0.01)
    first_pause_s: float = setting(
        0.1, help="the pause after a failure; doubled after each further one", unit="s", minimum=0.001
    )
    longest_pause_s: float = setting(30.0, help="the longest pause after a failure", unit="s", minimum=0.001)
    break_after: int = setting(5, help="failures in a row after which only one batch at a time is tried", minimum=1)
    poison: Literal["park", "drop", "stop"] = setting(
        "park",
        help="what is done with a message that the sink will never take: park stores it apart, drop deletes it, stop "
        "halts its lane",
    )
    attempts: int = setting(0, help="attempts after which a message counts as such; 0 for no limit", minimum=0)


def publisher_key(message: Message) -> bytes:
    """Return the key of messages that have no other: the client id of the publisher."""
    return message.publisher.client_id.encode("utf-8", "surrogatepass")


@frozen(slots=True)
class SinkPlan:
    """A sink, and how the broker runs it."""

    sink: Sink
    filters: tuple[str, ...]
    """The topic filters of its messages; empty for a sink that only rules of other plugins feed."""
    outbox: OutboxSettings = OutboxSettings()
    sending: SendSettings = SendSettings()
    key: Callable[[Message], bytes] = publisher_key
    """Returns a message's key."""


class SinkState(Enum):
    """What a sink does now."""

    OPEN = "open"
    """It takes messages."""
    WAITING = "waiting"
    """Its target can't be reached; it is tried again after pauses."""
    REFUSED = "refused"
    """Its target refuses, or its settings are wrong; it is tried again every 60 s."""
    STOPPED = "stopped"
    """A poison message halts it, or the broker stops."""


PARKED_MESSAGES = 10_000
"""The most poison messages that are parked for a sink; beyond, the oldest is dropped and counted."""

REFUSED_PAUSE_S = 60.0
"""The pause after :class:`~kinmqtt_spi.errors.SinkRefused`."""
