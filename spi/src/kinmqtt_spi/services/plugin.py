"""A plugin's life cycle: its context, its requirements and its health."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from attrs import field, frozen

from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest, Scope
from kinmqtt_spi.services.event import EventFeed
from kinmqtt_spi.services.metric import Metrics
from kinmqtt_spi.services.outbox import DEFAULT_OUTBOX, Accepted, Outbox, OutboxSettings
from kinmqtt_spi.services.retain import RetainPage
from kinmqtt_spi.services.tap import PayloadTest, Tap, TapHandler
from kinmqtt_spi.values import Client, Decision, Maybe, Message, NodeIdentity

T = TypeVar("T")


class Timer(Protocol):
    """A call that will be made later."""

    def cancel(self) -> None:
        """Cancel the call. Does nothing after the call was made."""


class Clock(Protocol):
    """The time. It is passed in, so that tests can control it."""

    def now(self) -> float:
        """Seconds since the epoch, UTC: for times that are stored or shown."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, never going back: for measuring and for limits."""

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Make ``call`` on the reactor thread after ``delay_s`` seconds."""


class Log(Protocol):
    """The part of ``twisted.logger.Logger`` that plugins may use: PEP 3101 formats, values by name.

    Never log payloads, passwords or authentication data.
    """

    def debug(self, format: str, **values: object) -> None:
        """Log details for debugging."""

    def info(self, format: str, **values: object) -> None:
        """Log what an operator may want to know."""

    def warn(self, format: str, **values: object) -> None:
        """Log what an operator should look at."""

    def error(self, format: str, **values: object) -> None:
        """Log a failure that needs fixing."""


class DeliveryResult(Enum):
    """The result of :meth:`Context.deliver`."""

    TAKEN = "taken"
    """The message was sent, or is in the session's queue."""
    NO_SESSION = "no session"
    """No session has the client id."""
    REFUSED = "refused"
    """The session's queue is full and refuses by its policy."""


def _frozen(actions: Iterable[Action]) -> frozenset[Action]:
    return frozenset(actions)


def _check_claimed_filter(claim: TopicClaim, attribute: object, filter: str) -> None:
    levels = filter.split("/")
    if len(levels) < 2 or levels[-1] != "#" or any(sign in filter[:-1] for sign in "+#\0"):
        raise ValueError(f"{filter!r} can't be claimed: a claim is a topic and all below it, as $CONTROL/example/#")
    if not levels[0].startswith("$") or levels[0] == "$":
        raise ValueError(f"{filter!r} can't be claimed: only topics that begin with $ and a name can")
    if levels[0] in UNCLAIMABLE:
        raise ValueError(f"{filter!r} can't be claimed: {levels[0]} is the broker's own")


def _check_claimed_actions(claim: TopicClaim, attribute: object, actions: frozenset[Action]) -> None:
    if Action.RECEIVE in actions:
        raise ValueError("a claim does not say who may RECEIVE: authorize_receive does")


MAX_TOLD_BYTES: Final = 64 << 10
"""The most bytes that :meth:`Context.tell_others` tells at once."""

UNCLAIMABLE: Final = frozenset({"$SYS", "$share", "$plugin"})
"""First levels that no plugin can claim."""


@frozen(slots=True)
class TopicClaim:
    """Topics below ``$`` that belong to one plugin, and what clients may do there.

    Raises ``ValueError`` for a filter that is not a topic and all below it, such as ``$CONTROL/example/#``.
    """

    filter: str = field(validator=_check_claimed_filter)
    actions: frozenset[Action] = field(default=frozenset(), converter=_frozen, validator=_check_claimed_actions)
    """PUBLISH, SUBSCRIBE, WILL. Other actions are denied there."""

    def covers(self, name: str) -> bool:
        """Tell whether everything that a topic or filter matches is claimed."""
        space = self.filter[:-2]
        return name == space or name.startswith(f"{space}/")

    def lies_within(self, filter: str) -> bool:
        """Tell whether a filter matches any claimed topic."""
        claimed, levels = self.filter.split("/")[:-1], filter.split("/")
        for level, other in zip(claimed, levels, strict=False):
            if other == "#":
                return True
            if other not in ("+", level):
                return False
        return len(levels) >= len(claimed)


class Context(ABC):
    """A plugin's interface to the broker. Each plugin has its own."""

    name: str
    """The plugin's name: that of its entry point, its settings section and its log field."""
    settings: Any
    """The parsed section: an instance of the plugin's settings class, or ``None`` if it declares none."""
    node: NodeIdentity
    """This broker's name, and the uid of this process."""
    clock: Clock
    """``now()``, ``monotonic()`` and ``later(delay_s, call)``. Use no other clock: tests control this one."""
    log: Log
    """``debug``, ``info``, ``warn`` and ``error``, with values by name: ``log.info("{n} users", n=3)``."""
    metrics: Metrics
    """Makes the plugin's counters, gauges and histograms, labelled with its name."""
    data: Path | None
    """The broker's data directory, which no other broker uses; ``None`` if nothing is stored on disk. A plugin may
    store files in ``plugins/<its name>/`` below it. It makes that folder itself."""

    @abstractmethod
    def leave_out(self, *hooks: str) -> None:
        """Disable hooks that the plugin does not need with its settings, as if it did not implement them.

        Call it in ``configure`` only; it can't be undone. A disabled hook costs nothing. Raises ``ValueError`` for a
        hook that the plugin does not implement, and ``RuntimeError`` after ``configure``.
        """

    @abstractmethod
    def claim_topics(self, filter: str, *actions: Action) -> None:
        """Reserve a topic that begins with ``$``, and all below it, for this plugin: ``$CONTROL/example/#``.

        Call it in ``configure`` only. Clients may do there what ``actions`` list (PUBLISH, SUBSCRIBE, WILL) if the
        authorizers allow it, and nothing else. The plugin must handle what clients send: its ``publish_received``,
        and with WILL its ``will_publishing``, must answer for each message, or the message goes to the subscribers.
        Raises ``ValueError`` for ``$SYS``, ``$share``, ``$plugin`` and for a filter of another form, and
        ``RuntimeError`` after ``configure``. If another plugin claims the same topics, the broker does not start.
        """

    @abstractmethod
    def publish(
        self, message: Message, *, in_place_of: str | None = None, on_behalf_of: Client | None = None
    ) -> None:
        """Publish a message as the broker itself: no limiter, authorizer or intercept is called.

        With ``on_behalf_of`` the message is published for a client, and :meth:`authorize` is called first: after all
        plugins have started, with the client's current properties if it is still connected under that user name, and
        in the order of the calls for one client. A denied message is dropped (``not_authorized``) and logged, and the
        value of ``in_place_of`` is deleted.

        Missing ``publisher``, ``id`` and ``received_at`` are filled in. While a store fails, persistent sessions may
        miss the message. ``in_place_of`` is the key of a value that this plugin has persisted: the message is
        published and the value deleted in one transaction, which is retried until it is committed. So the message is
        neither lost nor delivered twice if the broker restarts. Raises ``ValueError`` for a message that no PUBLISH
        can carry, and for control characters in its topics if ``limits.control_characters`` forbids them.
        """

    @abstractmethod
    def deliver(self, client_id: str, message: Message) -> Maybe[DeliveryResult]:
        """Deliver a message to one session, whatever its subscriptions; it is queued while the client is offline.

        In a cluster the session may be another node's: then the answer comes later. It is TAKEN when that node has
        committed the message. The call fails with :class:`~kinmqtt_spi.errors.ServiceUnavailable` if a node that may
        have the session does not answer; it may have taken the message.

        No limiter is called and nothing is retained; the hooks on deliveries are called. Missing ``id`` and
        ``received_at`` are filled in. A QoS 0 message to an offline client is dropped. Raises ``ValueError`` as
        :meth:`publish` does.
        """

    @abstractmethod
    def persist(
        self,
        key: str,
        value: bytes | None,
        *,
        after_commit: Callable[[], None] | None = None,
        on_commit_failed: Callable[[], None] | None = None,
        on_behalf_of: Client | None = None,
    ) -> None:
        """Persist a small value over restarts, under this plugin's name; ``None`` deletes it.

        The value is committed with this turn's writes to the retain store, and this turn's answers to clients wait
        for that commit. Then ``after_commit`` is called. If a store fails, clients are told so and come again; the
        store is asked whether it has the value all the same, and ``on_commit_failed`` is called if it has not.

        ``on_behalf_of`` is the client that has published what the value is about. If its session turns out to have
        moved to another node, to which the client publishes again, the value is removed, and ``on_commit_failed`` is
        called.

        Raises ``ValueError`` for an empty value, and for a key that is empty or contains ``+``, ``#`` or U+0000.
        """

    @abstractmethod
    def persisted(self) -> Awaitable[Mapping[str, bytes]]:
        """All values that this plugin has persisted on this node, by key. Available from ``start`` on.

        Where nodes share a retain store, those of other nodes that are alive are left out, and those of nodes that
        are gone become this node's. The hook ``values_adopted`` brings what is left behind later.
        """

    @abstractmethod
    def retained(self, filter: str, cursor: object = None) -> Maybe[RetainPage]:
        """Return a page of the retained messages that match a topic or filter, for whatever purpose: nobody is asked.

        ``cursor`` is that of the page before. Topics that begin with ``$`` need a filter that does, and the values of
        plugins are left out, as is what has expired. A page may be short or empty although its cursor is not
        ``None``; for a topic the first page has the answer. Available from ``ready`` on. Raises ``ValueError`` for an
        invalid filter; fails with :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the store does not answer.
        """

    @abstractmethod
    def publish_acknowledged(self, messages: Sequence[Message]) -> Awaitable[None]:
        """Publish messages in their order; completes when each could be acknowledged to a client.

        For messages from elsewhere, which are acknowledged there only then. No limiter, authorizer or intercept is
        called. Fails with ``ValueError`` for an invalid message, before any is published; with
        :class:`~kinmqtt_spi.errors.NotCommitted` if a store or a node did not commit them: publish them again; and
        with :class:`~kinmqtt_spi.errors.PublishRefused` if a full queue or outbox refused some.
        """

    @abstractmethod
    def outbox(self, name: str, settings: OutboxSettings = DEFAULT_OUTBOX, filters: Sequence[str] = ()) -> Outbox:
        """Return a new outbox of this plugin: messages that match ``filters``, committed before PUBACK.

        Available from ``start`` on. The outbox opens when the broker has restored its sessions, before a listener
        opens, and its consumer is called from then on; until then ``put`` answers REFUSED. Messages of an earlier
        process are there if ``name`` is the same: 1 to 64 of a-z, A-Z, 0-9, ``-``, ``_`` and ``.``. Raises
        ``ValueError`` for an invalid name, setting or filter, for a name that is in use, and for one that ends with
        ``.parked``, as the outboxes of sinks' parked messages do.
        """

    @abstractmethod
    def tap(self, filters: Sequence[str], call: TapHandler, wants: PayloadTest | None = None) -> Tap:
        """Call ``call`` with each message that matches a filter, while it is routed.

        ``wants`` is asked with the payload before, and leaves out those that it does not want.

        What it publishes with :meth:`publish`, puts in with :meth:`put` or an outbox's ``put``, delivers or persists
        is committed with the message, and the publisher is acknowledged after that: where an outbox pauses or
        refuses, or a queue refuses what it publishes, the message's publisher is paused or refused. That holds for
        calls of this plugin, and not for those of other plugins' hooks meanwhile. Messages published within a tap
        nest at most :data:`~kinmqtt_spi.services.tap.MAX_NESTED` deep. A tap counts as a subscriber. Within its call
        :meth:`publish_acknowledged`, and :meth:`publish` with ``in_place_of`` or ``on_behalf_of``, raise
        ``RuntimeError``.

        Available from ``start`` on. Raises ``ValueError`` for an invalid filter, a shared one, and for none.
        """

    @abstractmethod
    def put(self, sink: str, message: Message) -> Accepted:
        """Put a message into the outbox of a sink, which is named `plugin:name`; it is committed with this turn.

        Missing ``id`` and ``received_at`` are filled in. Available from ``start`` on. Raises ``ValueError`` for a
        sink that does not exist, and for a message that no PUBLISH can carry.
        """

    @abstractmethod
    def sink_names(self) -> Sequence[str]:
        """Return the names of the sinks that :meth:`put` knows. Available from ``start`` on."""

    @abstractmethod
    def authorize(self, request: AuthorizationRequest) -> Maybe[Decision]:
        """Authorize an action as the broker does, for a plugin that acts for a client under another topic.

        The broker's rule for topics that begin with ``$`` is applied first, then the authorizers are called.
        """

    @abstractmethod
    def client(self, client_id: str) -> Client | None:
        """Return the client with that id that is connected to this node, or ``None``."""

    @abstractmethod
    def disconnect(self, client_id: str, reason: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION) -> Maybe[bool]:
        """Close a client's connection. Returns ``False`` if it is not connected.

        In a cluster it may be connected to another node: then the answer comes later. The call fails with
        :class:`~kinmqtt_spi.errors.ServiceUnavailable` if it was not found and a node did not answer.
        """

    @abstractmethod
    def authorization_changed(self, scope: Scope) -> None:
        """Discard this node's cached authorization answers within ``scope``: the plugin's rules have changed.

        Rules that changed on one node only are told to the others with :meth:`tell_others`.
        """

    @abstractmethod
    def tell_others(self, data: bytes) -> None:
        """Tell this plugin's instances on the other nodes something: each gets it by the hook ``told``.

        They are told in the order of the calls. A node that can't be reached is not told: the loss is logged and
        counted (``cluster.untold``). On a single broker there is nobody to tell. Raises ``ValueError`` for more than
        :data:`MAX_TOLD_BYTES`.
        """

    @property
    @abstractmethod
    def events(self) -> EventFeed:
        """The feed of client events. Available from ``start`` on."""

    @abstractmethod
    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """Run blocking work in the broker's thread pool; the result arrives on the reactor thread."""


class CallGuard(ABC):
    """Guards the calls of one plugin's hook, for example as a circuit breaker."""

    @abstractmethod
    def enter(self) -> bool:
        """Return whether the next call may be made. A rejected call counts as failed, see the hook's page."""

    @abstractmethod
    def leave(self, duration_s: float, error: BaseException | None) -> None:
        """Report the end of an accepted call, after ``duration_s`` seconds, with its error if it failed.

        Called once for each accepted call, when its answer is available. An exceeded time limit is an error. If a
        later guard rejected the call, the error is :class:`~kinmqtt_spi.errors.CallStopped`, after 0 s. If the client
        disconnected meanwhile, it is the subclass :class:`~kinmqtt_spi.errors.CallAbandoned`.
        """


@frozen(slots=True)
class Requirements:
    """What a plugin needs of the broker. A plugin whose requirements are not met is refused at assembly."""

    spi_version: int
    """The SPI version the plugin was written for: ``kinmqtt_spi.SPI_VERSION`` at that time."""
    reactor: str | None = None
    """``"asyncio"`` where the plugin uses asyncio libraries."""
    plugins: tuple[str, ...] = ()
    """Other plugins that must be active."""


class HealthState(Enum):
    """A plugin's state of health."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"


@frozen(slots=True)
class Health:
    """A plugin's answer to ``health``."""

    state: HealthState
    text: str = ""
