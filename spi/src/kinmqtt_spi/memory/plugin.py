"""Test doubles for a plugin's context: a log and a context that record, and a clock that tests control."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from attrs import evolve, frozen

from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.event_feed import LocalFeed
from kinmqtt_spi.memory.outbox import MemoryOutbox
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.tap import MemoryTap
from kinmqtt_spi.metrics import MetricRegistry, Namespaced
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest, Scope
from kinmqtt_spi.services.outbox import DEFAULT_OUTBOX, Accepted, OutboxSettings
from kinmqtt_spi.services.plugin import MAX_TOLD_BYTES, Context, DeliveryResult, Timer, TopicClaim
from kinmqtt_spi.services.retain import RetainPage
from kinmqtt_spi.services.tap import MAX_NESTED, PayloadTest, TapHandler
from kinmqtt_spi.values import ALLOW, Client, Decision, Message, MessageId, NodeIdentity

T = TypeVar("T")

NODE: Final = NodeIdentity("node-1", 1)
"""The default node of a context."""

NO_ID: Final = MessageId(0, 0)
"""What stands for a missing id."""

_RUNAWAY: Final = 1_000_000
"""The number of calls in one :meth:`TurnableClock.advance` that indicates timers arming each other without delay."""


@frozen(slots=True)
class Logged:
    """One line of a log, as it was logged."""

    level: str
    format: str
    values: dict[str, object]

    def __str__(self) -> str:
        return self.format.format(**self.values)


class RecordingLog:
    """A :class:`~kinmqtt_spi.services.plugin.Log` that collects its lines in ``lines``, in order."""

    def __init__(self) -> None:
        self.lines: list[Logged] = []

    def debug(self, format: str, **values: object) -> None:
        """Collect a line of level ``debug``."""
        self.lines.append(Logged("debug", format, values))

    def info(self, format: str, **values: object) -> None:
        """Collect a line of level ``info``."""
        self.lines.append(Logged("info", format, values))

    def warn(self, format: str, **values: object) -> None:
        """Collect a line of level ``warn``."""
        self.lines.append(Logged("warn", format, values))

    def error(self, format: str, **values: object) -> None:
        """Collect a line of level ``error``."""
        self.lines.append(Logged("error", format, values))

    def texts(self, level: str | None = None) -> list[str]:
        """Return the formatted lines of one level, or of all."""
        return [str(line) for line in self.lines if level in (None, line.level)]


class TurnableTimer:
    """A timer of :class:`TurnableClock`. ``call`` is ``None`` after it was made or cancelled."""

    __slots__ = ("call", "due")

    def __init__(self, due: float, call: Callable[[], object]) -> None:
        self.due = due
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Cancel the call. Does nothing after the call was made."""
        self.call = None


class TurnableClock:
    """A :class:`~kinmqtt_spi.services.plugin.Clock` that stands still until :meth:`advance` is called."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._epoch = now
        self._elapsed = 0.0
        self._serial = 0
        self._timers: list[tuple[float, int, TurnableTimer]] = []

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return self._epoch + self._elapsed

    def monotonic(self) -> float:
        """Return the seconds since the clock was made."""
        return self._elapsed

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Make ``call`` when the clock has advanced by ``delay_s`` seconds; with 0, at the next :meth:`advance`."""
        timer = TurnableTimer(self._elapsed + max(delay_s, 0.0), call)
        self._serial += 1
        heappush(self._timers, (timer.due, self._serial, timer))
        return timer

    def advance(self, seconds: float = 0.0) -> None:
        """Advance the clock and make the calls that are due, in order, each at its own time.

        Calls that these schedule within the same span are made too. Raises ``RuntimeError`` if that never ends.
        """
        until = self._elapsed + seconds
        for _ in range(_RUNAWAY):
            if not self._timers or self._timers[0][0] > until:
                self._elapsed = until
                return
            due, _, timer = heappop(self._timers)
            self._elapsed = max(self._elapsed, due)
            call, timer.call = timer.call, None
            if call is not None:
                call()
        raise RuntimeError("timers arm each other without delay")

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a time server does. Timers are not affected."""
        self._epoch += seconds

    def pending(self) -> int:
        """Return the number of pending calls."""
        return sum(timer.call is not None for _, _, timer in self._timers)


class Completed(Awaitable[T], Generic[T]):
    """An awaitable that has its result or error already. It may be awaited several times."""

    __slots__ = ("_error", "_result")

    def __init__(self, call: Callable[[], T]) -> None:
        self._error: Exception | None = None
        try:
            self._result = call()
        except Exception as error:
            self._error = error

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()
        if self._error is not None:
            raise self._error
        return self._result


class BareContext(Context):
    """A context without a broker. It records the plugin's calls, in order.

    ``clients`` are the clients for :meth:`client` and :meth:`disconnect`; a test may add some.
    """

    clock: TurnableClock
    log: RecordingLog

    def __init__(
        self,
        name: str = "plugin",
        settings: Any = None,
        *,
        node: NodeIdentity = NODE,
        clock: TurnableClock | None = None,
        registry: MetricRegistry | None = None,
        data: Path | None = None,
    ) -> None:
        self.name = name
        self.data = data
        self.settings = settings
        self.node = node
        self.clock = TurnableClock() if clock is None else clock
        self.log = RecordingLog()
        self.registry = MetricRegistry() if registry is None else registry
        self.metrics = Namespaced(self.registry, name)
        self.left_out: set[str] = set()
        self.claims: list[TopicClaim] = []
        """The topics that the plugin has claimed."""
        self.clients: dict[str, Client] = {}
        self._minted = 0
        self.published: list[Message] = []
        self.denied: list[Message] = []
        """Messages on behalf of a client that :attr:`authorizers` denied."""
        self.values: dict[str, bytes] = {}
        """The values that the plugin has persisted."""
        self.fails_to_persist = False
        """Set it to let :meth:`persist` fail."""
        self.sessions: dict[str, list[Message]] = {}
        """The messages delivered to each session. Sessions that are not in it do not exist."""
        self.authorizers: list[Callable[[AuthorizationRequest], Decision | None]] = []
        """Answer :meth:`authorize`, in order; ``None`` abstains."""
        self.disconnected: list[tuple[str, ReasonCode]] = []
        self.authorization_changes: list[Scope] = []
        self.outboxes: dict[str, MemoryOutbox] = {}
        """The plugin's outboxes, by name; :meth:`MemoryOutbox.publish` puts in what a client publishes."""
        self.sinks: dict[str, MemoryOutbox] = {}
        """The outboxes of the sinks that :meth:`put` knows, by `plugin:name`; a test adds them."""
        self.taps: list[MemoryTap] = []
        """The plugin's open taps. :meth:`route` calls them."""
        self.too_deep: list[Message] = []
        """Messages that were dropped because taps nest too deep."""
        self._depth = 0
        self.retain_store = MemoryRetainStore()
        """What :meth:`retained` reads."""
        self.refuses_messages: Exception | None = None
        """Set it to let :meth:`publish_acknowledged` fail."""
        self.told: list[bytes] = []
        """What the plugin told its instances on other nodes."""
        self.event_log = MemoryEventLog(self.clock.later)
        """The log behind :attr:`events`; its consumers are called when the clock advances."""

    @property
    def events(self) -> LocalFeed:
        return LocalFeed(self.event_log, self.node.name)

    def leave_out(self, *hooks: str) -> None:
        self.left_out.update(hooks)

    def claim_topics(self, filter: str, *actions: Action) -> None:
        self.claims.append(TopicClaim(filter, actions))

    def publish(
        self, message: Message, *, in_place_of: str | None = None, on_behalf_of: Client | None = None
    ) -> None:
        if in_place_of is not None or on_behalf_of is not None:
            self._must_not_be_tapping("publish with in_place_of or on_behalf_of")
        if on_behalf_of is None or self.authorize(_publishing(on_behalf_of, message)).allowed:
            # As with a broker, what a tap publishes is another message.
            received = self._received(evolve(message, id=NO_ID) if self._depth else message)
            if self._depth > MAX_NESTED:
                self.too_deep.append(received)
                return
            self.published.append(received)
            self._call_taps(received)
        else:
            self.denied.append(message)
        if in_place_of is not None:
            self.values.pop(in_place_of, None)

    def deliver(self, client_id: str, message: Message) -> DeliveryResult:
        if client_id not in self.sessions:
            return DeliveryResult.NO_SESSION
        self.sessions[client_id].append(self._received(message))
        return DeliveryResult.TAKEN

    def persist(
        self,
        key: str,
        value: bytes | None,
        *,
        after_commit: Callable[[], None] | None = None,
        on_commit_failed: Callable[[], None] | None = None,
        on_behalf_of: Client | None = None,
    ) -> None:
        if self.fails_to_persist:
            if on_commit_failed is not None:
                on_commit_failed()
            return
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value
        if after_commit is not None:
            after_commit()

    def persisted(self) -> Awaitable[Mapping[str, bytes]]:
        return Completed(lambda: dict(self.values))

    def retained(self, filter: str, cursor: object = None) -> RetainPage:
        return self.retain_store.match(filter, cursor)

    def publish_acknowledged(self, messages: Sequence[Message]) -> Awaitable[None]:
        self._must_not_be_tapping("publish_acknowledged")

        def publish() -> None:
            if self.refuses_messages is not None:
                raise self.refuses_messages
            self.published += [self._received(message) for message in messages]

        return Completed(publish)

    def outbox(
        self, name: str, settings: OutboxSettings = DEFAULT_OUTBOX, filters: Sequence[str] = ()
    ) -> MemoryOutbox:
        if name in self.outboxes:
            raise ValueError(f"there is an outbox {name!r} already")
        made = MemoryOutbox(name, settings, self.clock)
        made.subscribe(filters)
        self.outboxes[name] = made
        return made

    def tap(self, filters: Sequence[str], call: TapHandler, wants: PayloadTest | None = None) -> MemoryTap:
        made = MemoryTap(filters, call, self.taps.remove, wants)
        self.taps.append(made)
        return made

    def put(self, sink: str, message: Message) -> Accepted:
        outbox = self.sinks.get(sink)
        if outbox is None:
            raise ValueError(f"there is no sink {sink!r}; there are: {', '.join(self.sinks) or 'none'}")
        return outbox.put(self._received(message))

    def sink_names(self) -> list[str]:
        return list(self.sinks)

    def route(self, message: Message) -> None:
        """Route a message as a client publishes it: the taps that match see it. What they raise is raised here."""
        self._call_taps(self._received(message))

    def _call_taps(self, message: Message) -> None:
        self._depth += 1
        try:
            for tap in tuple(self.taps):
                tap.see(message)
        finally:
            self._depth -= 1

    def _must_not_be_tapping(self, what: str) -> None:
        if self._depth:
            raise RuntimeError(f"a tap must answer at once: it can't {what}")

    def authorize(self, request: AuthorizationRequest) -> Decision:
        answers = (authorizer(request) for authorizer in self.authorizers)
        return next((answer for answer in answers if answer is not None), ALLOW)

    def _received(self, message: Message) -> Message:
        message_id = message.id
        if message_id == NO_ID:
            self._minted += 1
            message_id = MessageId(self.node.uid, self._minted)
        received_at = message.received_at or self.clock.now()
        return evolve(message, id=message_id, received_at=received_at)

    def client(self, client_id: str) -> Client | None:
        return self.clients.get(client_id)

    def disconnect(self, client_id: str, reason: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION) -> bool:
        if self.clients.pop(client_id, None) is None:
            return False
        self.disconnected.append((client_id, reason))
        return True

    def authorization_changed(self, scope: Scope) -> None:
        self.authorization_changes.append(scope)

    def tell_others(self, data: bytes) -> None:
        if len(data) > MAX_TOLD_BYTES:
            raise ValueError(f"{len(data)} bytes can't be told: at most {MAX_TOLD_BYTES} can")
        self.told.append(data)

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """Make the call at once, in this thread."""
        return Completed(call)


def _publishing(client: Client, message: Message) -> AuthorizationRequest:
    return AuthorizationRequest(client, Action.PUBLISH, message.topic, message.qos, message.retain)
