"""The errors a service may raise, each with what the core does about it."""

from __future__ import annotations

from collections.abc import Iterable

from kinmqtt_spi.reasons import ReasonCode


class SpiError(Exception):
    """Base of every error that is part of the SPI."""


class NotConfigured(SpiError):
    """Raised by ``configure``: the plugin is installed, but its settings lack what it needs.

    The plugin is then inactive, and the broker logs that once. If the settings name the plugin, the broker does not
    start, because a guard must not disappear silently.
    """


class NotWanted(NotConfigured):
    """Raised by ``configure``: another setting switches off what the plugin does.

    The plugin's section may stay in the settings, for later use. Settings that name it for a service are refused.
    """


class AssemblyError(SpiError):
    """The broker can't be assembled. The text names the plugin, the problem and the fix in one sentence."""


class SettingsError(SpiError):
    """One or more errors in the settings. ``problems`` has one line for each, with its location."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class ServiceUnavailable(SpiError):
    """A store or an engine behind a service can't be reached, or refuses to write.

    Nothing that depended on the call is acknowledged. If a client must be answered, it gets ``reason``.
    """

    def __init__(self, text: str, reason: ReasonCode = ReasonCode.SERVER_UNAVAILABLE) -> None:
        super().__init__(text)
        self.reason = reason


class SinkRefused(SpiError):
    """A sink's target refuses this broker, or the sink's settings are wrong: an operator must act."""


class NotCommitted(ServiceUnavailable):
    """A message was not committed: publish it again. Subscribers without a queue may have it already."""


class PublishRefused(SpiError):
    """A full queue or outbox refused a message: publish it again later."""


class NodeGone(ServiceUnavailable):
    """A node of the cluster is DOWN, REMOVED or no member: it answers nothing that was sent to it, now or later.

    What it has not answered may or may not have been committed there. The core sends it to whoever adopts the node's
    sessions.
    """


class MalformedBatch(SpiError):
    """Another node sent a batch or an answer that can't be read. The backend closes the link and counts it."""


class Fenced(SpiError):
    """Some writes of a batch have an older epoch than the store knows.

    The writes of all other clients in the batch *are* committed. The core drops its own copy of the fenced sessions
    and disconnects their clients with 0x8E (session taken over).
    """

    def __init__(self, client_ids: Iterable[str]) -> None:
        self.client_ids = frozenset(client_ids)
        super().__init__(f"a newer owner holds {', '.join(sorted(self.client_ids))}")


class SubscriptionRefused(SpiError):
    """A subscription index rejects this filter. The client gets ``reason`` in its SUBACK."""

    def __init__(self, text: str, reason: ReasonCode) -> None:
        super().__init__(text)
        self.reason = reason


class CallStopped(SpiError):
    """A guard of another plugin rejected a call. The call was not made, and counts as failed."""


class CallAbandoned(CallStopped):
    """A call was cancelled because its client has disconnected.

    It does not count as a failure of the plugin that was called.
    """


class OffsetOutOfRange(SpiError):
    """A consumer asked for events that the log no longer has. ``oldest`` is the first available offset."""

    def __init__(self, oldest: int) -> None:
        super().__init__(f"events before offset {oldest} are gone")
        self.oldest = oldest
