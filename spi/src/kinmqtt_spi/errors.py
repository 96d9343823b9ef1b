"""The errors a service may raise, each with what the core does about it."""

from __future__ import annotations

from collections.abc import Iterable

from kinmqtt_spi.reasons import ReasonCode


class SpiError(Exception):
    """Base of every error that is part of the SPI."""


class NotConfigured(SpiError):
    """Raised by ``configure``: installed, but its section lacks what it needs to act.

    The plugin abstains from then on and the broker says so once; where the settings name the plugin, the broker
    refuses to start instead, because a guard must not vanish quietly.
    """


class NotWanted(NotConfigured):
    """Raised by ``configure``: another setting has chosen to do without what the plugin does.

    Its section may stay in the settings: it says how, where it is wanted again. A service that names it is refused.
    """


class AssemblyError(SpiError):
    """The broker can't be put together as asked: one sentence that names who, what and how to mend it."""


class SettingsError(SpiError):
    """One or more mistakes in the settings; ``problems`` holds one line each, already located."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class ServiceUnavailable(SpiError):
    """A store or an engine behind a service can't be reached or refuses to write.

    Nothing is acknowledged that depended on the call; where a client must be told, it is told ``reason``.
    """

    def __init__(self, text: str, reason: ReasonCode = ReasonCode.SERVER_UNAVAILABLE) -> None:
        super().__init__(text)
        self.reason = reason


class Fenced(SpiError):
    """Some writes of a batch carried an older epoch than the store knows.

    The writes of all other clients in the batch *are* kept. The core drops its own copy of the fenced sessions
    and disconnects their clients with 0x8E (session taken over).
    """

    def __init__(self, client_ids: Iterable[str]) -> None:
        self.client_ids = frozenset(client_ids)
        super().__init__(f"a newer owner holds {', '.join(sorted(self.client_ids))}")


class SubscriptionRefused(SpiError):
    """A subscription index does not take this filter; the client gets ``reason`` in its SUBACK."""

    def __init__(self, text: str, reason: ReasonCode) -> None:
        super().__init__(text)
        self.reason = reason


class CallStopped(SpiError):
    """A guard of another plugin did not let a call in: it was not made, and counts as failed."""


class CallAbandoned(CallStopped):
    """Nobody waits for a call's answer any more, because its client has gone: the call was cancelled.

    It says nothing of the plugin that was called, and does not count as a failure.
    """


class OffsetOutOfRange(SpiError):
    """A consumer asked for events that the log no longer has; ``oldest`` is the first offset it can still give."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"events before offset {oldest} are gone")
        self.oldest = oldest
