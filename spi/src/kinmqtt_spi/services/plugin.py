"""A plugin's own life: what it is handed, what it declares, how it reports its health."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from attrs import field, frozen

from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest, Scope
from kinmqtt_spi.services.metric import Metrics
from kinmqtt_spi.values import Client, Decision, Maybe, Message, NodeIdentity

T = TypeVar("T")


class Timer(Protocol):
    """A call that will be made later."""

    def cancel(self) -> None:
        """Forget the call; harmless once it was made."""


class Clock(Protocol):
    """The time, handed in so that tests can turn it."""

    def now(self) -> float:
        """Seconds since the epoch, UTC: for times that are stored or shown."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, never going back: for measuring and for limits."""

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Make ``call`` on the reactor thread after ``delay_s`` seconds."""


class Log(Protocol):
    """The part of ``twisted.logger.Logger`` a plugin may count on: PEP 3101 formats, values by name.

    Payloads, passwords and authentication data never go into a log.
    """

    def debug(self, format: str, **values: object) -> None:
        """Details for whoever debugs."""

    def info(self, format: str, **values: object) -> None:
        """What an operator may want to know."""

    def warn(self, format: str, **values: object) -> None:
        """What an operator should look at."""

    def error(self, format: str, **values: object) -> None:
        """What failed and needs mending."""


class Delivery(Enum):
    """What became of a message for one client: the answer of :meth:`Context.deliver`."""

    TAKEN = "taken"
    """It was sent, or waits in the session's queue."""
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


UNCLAIMABLE: Final = frozenset({"$SYS", "$share", "$plugin"})
"""First levels that no plugin can claim."""


@frozen(slots=True)
class TopicClaim:
    """Topics below ``$`` that one plugin has for itself: what clients may do there, where they have the right to.

    Raises ``ValueError`` for anything but a topic and all below it, as ``$CONTROL/example/#``.
    """

    filter: str = field(validator=_check_claimed_filter)
    actions: frozenset[Action] = field(default=frozenset(), converter=_frozen, validator=_check_claimed_actions)
    """PUBLISH, SUBSCRIBE, WILL; nobody may do there what is not among them."""

    def covers(self, name: str) -> bool:
        """Whether all that a topic or filter matches is claimed."""
        space = self.filter[:-2]
        return name == space or name.startswith(f"{space}/")

    def lies_within(self, filter: str) -> bool:
        """Whether a filter matches some of what is claimed."""
        claimed, levels = self.filter.split("/")[:-1], filter.split("/")
        for level, other in zip(claimed, levels, strict=False):
            if other == "#":
                return True
            if other not in ("+", level):
                return False
        return len(levels) >= len(claimed)


class Context(ABC):
    """A plugin's narrow face to the broker; each plugin has one of its own."""

    name: str
    """The plugin's name: that of its entry point, its settings section and its log field."""
    settings: Any
    """The parsed section: an instance of the plugin's settings class, or ``None`` if it declares none."""
    node: NodeIdentity
    """This broker's name, and which life of it this is."""
    clock: Clock
    """``now()``, ``monotonic()`` and ``later(delay_s, call)``: tests turn it, and no other clock."""
    log: Log
    """``debug``, ``info``, ``warn`` and ``error``, with values by name: ``log.info("{n} users", n=3)``."""
    metrics: Metrics
    """Where the plugin makes its counters, gauges and histograms; they carry its name."""
    data: Path | None
    """The broker's data directory, which no other broker uses; ``None`` where nothing outlives the process. A plugin
    may keep files below ``plugins/<its name>/`` in it, which it makes itself."""

    @abstractmethod
    def leave_out(self, *hooks: str) -> None:
        """As this plugin is configured it has nothing to say in these hooks: they are as if it had none of them.

        Only in ``configure``, and for good: what is bound is settled when the broker is put together. Clients do not
        pay for what is left out. Raises ``ValueError`` for a hook that the plugin does not implement, and
        ``RuntimeError`` where it is too late.
        """

    @abstractmethod
    def claim_topics(self, filter: str, *actions: Action) -> None:
        """Have a topic that begins with ``$``, and all below it, for this plugin: ``$CONTROL/example/#``.

        Only in ``configure``. Clients may do there what ``actions`` say (PUBLISH, SUBSCRIBE, WILL), where the
        authorizers allow it, and nothing else. The plugin takes what they send: its ``publish_received``, and with
        WILL its ``will_publishing``, answers for every such message, or it would go to whoever has subscribed. Raises
        ``ValueError`` for anything but a topic and all below it, and for ``$SYS``, ``$share`` and ``$plugin``, and
        ``RuntimeError`` where it is too late. Where another plugin claims the same topics the broker does not start.
        """

    @abstractmethod
    def publish(
        self, message: Message, *, in_place_of: str | None = None, on_behalf_of: Client | None = None
    ) -> None:
        """Publish for the broker itself: no limiter, authorizer or intercept is asked.

        With ``on_behalf_of`` it is published for a client that has left it to this plugin, and the question of
        :meth:`authorize` comes first, whether the client may publish it now: when all plugins have started, with what
        is known of the client at present where it is still here under that user name, and in the order of the calls
        for one client. What is denied is dropped (``not_authorized``), logged, and the value forgotten.

        ``publisher``, ``id`` and ``received_at`` are filled in where they are absent. While a store fails, clients
        whose sessions are kept may miss the message. With ``in_place_of``, the key of a value that this plugin keeps,
        it is published, and the value forgotten, in one transaction, which is tried again until it is kept: nobody
        gets the message twice, and none is lost with the broker. Raises ``ValueError`` for a message that no PUBLISH
        can carry, and for control characters in its topics where ``limits.control_characters`` refuses them.
        """

    @abstractmethod
    def deliver(self, client_id: str, message: Message) -> Delivery:
        """Bring a message to one session, whatever it has subscribed to; kept for it while its client is offline.

        No limiter is asked and nothing is retained; the hooks on deliveries are asked. ``id`` and ``received_at`` are
        filled in where they are absent. A message of QoS 0 to a client that is offline is dropped. Raises
        ``ValueError`` as :meth:`publish` does.
        """

    @abstractmethod
    def keep(
        self,
        key: str,
        value: bytes | None,
        *,
        kept: Callable[[], None] | None = None,
        unkept: Callable[[], None] | None = None,
    ) -> None:
        """Keep a small value over restarts, under this plugin's name; ``None`` forgets it.

        It goes with this turn's writes to the retain store: what clients are told of this turn waits for it. Then
        ``kept`` is called, or ``unkept`` where a store failed (clients are told so, and come again) and, asked
        again, does not have it. Raises ``ValueError`` for an empty value, or a key that is empty or has ``+``, ``#``
        or U+0000 in it.
        """

    @abstractmethod
    def kept(self) -> Awaitable[Mapping[str, bytes]]:
        """All values that this plugin keeps, by key; from ``start`` on."""

    @abstractmethod
    def authorize(self, request: AuthorizationRequest) -> Maybe[Decision]:
        """Ask as the broker does: for a plugin that acts for a client under another topic.

        The broker's own rule about topics that begin with ``$`` comes first, then the authorizers.
        """

    @abstractmethod
    def client(self, client_id: str) -> Client | None:
        """The connected client of that id, if there is one."""

    @abstractmethod
    def disconnect(self, client_id: str, reason: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION) -> bool:
        """Close a client's connection; ``False`` if there is none."""

    @abstractmethod
    def authorization_changed(self, scope: Scope) -> None:
        """Forget cached authorization answers within ``scope``: the plugin's rules have changed."""

    @abstractmethod
    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """Run blocking work in the broker's thread pool; the result arrives on the reactor thread."""


class CallGuard(ABC):
    """Stands before the calls of one plugin's hook: a circuit breaker, or whatever else may have to stop them."""

    @abstractmethod
    def enter(self) -> bool:
        """Whether the next call may be made. One that may not counts as failed, as the hook's page says."""

    @abstractmethod
    def leave(self, duration_s: float, error: BaseException | None) -> None:
        """A call that was let in has ended, after so many seconds, with its answer or with this error.

        Told once for each call that was let in, when its answer is there; a time limit that was exceeded is an error.
        Where a guard behind this one stopped the call it is :class:`~kinmqtt_spi.errors.CallStopped`, after 0 s, and
        where its client has gone meanwhile :class:`~kinmqtt_spi.errors.CallAbandoned`, which is one of those.
        """


@frozen(slots=True)
class Requirements:
    """What a plugin needs of the broker it is installed in; what can't hold is refused before anything starts."""

    spi_version: int
    """The SPI version the plugin was written for: ``kinmqtt_spi.SPI_VERSION`` at that time."""
    reactor: str | None = None
    """``"asyncio"`` where the plugin uses asyncio libraries."""
    plugins: tuple[str, ...] = ()
    """Other plugins that must be active."""


class HealthState(Enum):
    """How well a plugin does."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"


@frozen(slots=True)
class Health:
    """A plugin's answer to ``health``."""

    state: HealthState
    text: str = ""
