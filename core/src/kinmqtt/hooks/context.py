"""The interface that a plugin has to the broker, as the SPI defines it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kinmqtt.hooks.awaitables import run
from kinmqtt.hooks.event_feed import PluginFeed
from kinmqtt_spi.metrics import Namespaced
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest, Scope
from kinmqtt_spi.services.event import EventFeed
from kinmqtt_spi.services.metric import Metrics
from kinmqtt_spi.services.outbox import DEFAULT_OUTBOX, Accepted, Outbox, OutboxSettings
from kinmqtt_spi.services.plugin import Clock, Context, DeliveryResult, Log, TopicClaim
from kinmqtt_spi.services.retain import RetainPage
from kinmqtt_spi.services.tap import PayloadTest, Tap, TapHandler
from kinmqtt_spi.values import Client, Decision, Maybe, Message, NodeIdentity

T = TypeVar("T")


class BrokerApi(Protocol):
    """The part of the broker that plugin contexts use; a protocol, because the broker is a higher layer."""

    @property
    def events(self) -> EventFeed:
        """The feed of client events."""

    def publish(self, message: Message, by: str = "") -> None:
        """Publish a message of a plugin (``by``), or of the broker itself."""

    def publish_until_committed(
        self,
        message: Message,
        along: Callable[[], None],
        pending: Callable[[], Awaitable[bool]] | None,
        client: Client | None = None,
        by: str = "",
    ) -> None:
        """Publish in one transaction with the writes of ``along``; retry until it is committed."""

    def deliver(self, client_id: str, message: Message, by: str = "") -> Maybe[DeliveryResult]:
        """Deliver a message of a plugin to one session, whatever it has subscribed to."""

    def persist_value(self, plugin: str, key: str, value: bytes | None) -> None:
        """Persist a plugin's value, or remove it, with this turn's writes."""

    def has_value(self, plugin: str, key: str) -> Awaitable[bool]:
        """Tell whether a plugin's value is persisted."""

    def persisted_values(self, plugin: str) -> Awaitable[Mapping[str, bytes]]:
        """Return all persisted values of a plugin, by key."""

    def when_committed(
        self,
        done: Callable[[], object] | None,
        failed: Callable[[], object],
        fenced: tuple[str, Callable[[], object]] | None = None,
    ) -> None:
        """Call ``done`` when this turn's writes are committed, or ``failed`` if the commit fails.

        ``fenced``: a client id, and what is called in the place of ``done`` if that client's session has moved.
        """

    def retained_page(self, filter: str, cursor: object) -> Maybe[RetainPage]:
        """Return a page of the retained messages that match a filter."""

    def publish_acknowledged(self, messages: Sequence[Message], by: str = "") -> Awaitable[None]:
        """Publish messages as a client does that waits for PUBACK."""

    def outbox(self, plugin: str, name: str, settings: OutboxSettings, filters: Sequence[str]) -> Outbox:
        """Return a new outbox of a plugin."""

    def tap(self, plugin: str, filters: Sequence[str], handler: TapHandler, wants: PayloadTest | None) -> Tap:
        """Open a tap of a plugin."""

    def put(self, sink: str, message: Message, by: str = "") -> Accepted:
        """Put a message of a plugin into the outbox of a sink."""

    def sink_names(self) -> Sequence[str]:
        """Return the names of all sinks."""

    def authorize(self, request: AuthorizationRequest) -> Maybe[Decision]:
        """Ask whether a client is allowed to do something."""

    def client(self, client_id: str) -> Client | None:
        """Return the connected client with that id."""

    def disconnect(self, client_id: str, reason: ReasonCode, text: str) -> Maybe[bool]:
        """Close a client's connection; return ``False`` if it has none."""

    def authorization_changed(self, scope: Scope) -> None:
        """Drop the cached answers of authorizers within a scope."""

    def tell_others(self, plugin: str, data: bytes) -> None:
        """Tell a plugin's instances on the other nodes something."""


class PluginContext(Context):
    """The context of one plugin. It is created before the broker, which is attached at the end of assembly."""

    def __init__(
        self,
        name: str,
        settings: Any,
        node: NodeIdentity,
        clock: Clock,
        log: Log,
        metrics: Metrics,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        data: Path | None = None,
        leave_out: Callable[[str], None] | None = None,
        claim: Callable[[TopicClaim], None] | None = None,
        on_asyncio: bool = False,
    ) -> None:
        """``leave_out`` removes one of the plugin's hooks; ``claim`` claims topics for it.

        ``on_asyncio`` says that its coroutines are asyncio's. The first two are dropped when the broker is assembled.
        """
        self.name = name
        self.data = data
        self.settings = settings
        self.node = node
        self.clock = clock
        self.log = log
        self.metrics = Namespaced(metrics, name)
        self._in_thread = in_thread
        self._leave_out = leave_out
        self._claim = claim
        self._on_asyncio = on_asyncio
        self._broker: BrokerApi | None = None

    def attach(self, broker: BrokerApi) -> None:
        """Attach the assembled broker."""
        self._broker = broker
        self._leave_out = None
        self._claim = None

    def leave_out(self, *hooks: str) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.leave_out`."""
        if self._leave_out is None:
            raise RuntimeError(f"plugin {self.name!r} can leave hooks out only before the broker is assembled")
        for hook in hooks:
            self._leave_out(hook)

    def claim_topics(self, filter: str, *actions: Action) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.claim_topics`."""
        if self._claim is None:
            raise RuntimeError(f"plugin {self.name!r} can claim topics only before the broker is assembled")
        self._claim(TopicClaim(filter, actions))

    def publish(
        self, message: Message, *, in_place_of: str | None = None, on_behalf_of: Client | None = None
    ) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.publish`."""
        broker = self._assembled
        if in_place_of is not None:
            key = in_place_of
            _check_key(key)
            broker.publish_until_committed(
                message,
                lambda: broker.persist_value(self.name, key, None),
                lambda: broker.has_value(self.name, key),
                on_behalf_of,
                self.name,
            )
        elif on_behalf_of is not None:
            broker.publish_until_committed(message, lambda: None, None, on_behalf_of, self.name)
        else:
            broker.publish(message, self.name)

    def deliver(self, client_id: str, message: Message) -> Maybe[DeliveryResult]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.deliver`."""
        return self._assembled.deliver(client_id, message, self.name)

    def persist(
        self,
        key: str,
        value: bytes | None,
        *,
        after_commit: Callable[[], None] | None = None,
        on_commit_failed: Callable[[], None] | None = None,
        on_behalf_of: Client | None = None,
    ) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.persist`."""
        _check_key(key)
        if value is not None and not value:
            raise ValueError(f"the value of {key!r} must be one byte or more")
        broker = self._assembled
        broker.persist_value(self.name, key, value)
        if after_commit is None and on_commit_failed is None and on_behalf_of is None:
            return

        def fenced() -> None:
            broker.persist_value(self.name, key, None)
            if on_commit_failed is not None:
                on_commit_failed()

        broker.when_committed(
            after_commit,
            lambda: run(self._look(key, value is not None, after_commit, on_commit_failed)),
            None if on_behalf_of is None else (on_behalf_of.client_id, fenced),
        )

    async def _look(
        self,
        key: str,
        wanted: bool,
        after_commit: Callable[[], None] | None,
        on_commit_failed: Callable[[], None] | None,
    ) -> None:
        """Look whether the value is persisted, because a failed commit may have stored it all the same."""
        try:
            found = await self._assembled.has_value(self.name, key)
        except Exception:
            found = not wanted
        call = after_commit if found is wanted else on_commit_failed
        if call is not None:
            call()

    def persisted(self) -> Awaitable[Mapping[str, bytes]]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.persisted`."""
        return self._assembled.persisted_values(self.name)

    def retained(self, filter: str, cursor: object = None) -> Maybe[RetainPage]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.retained`."""
        return self._assembled.retained_page(filter, cursor)

    def publish_acknowledged(self, messages: Sequence[Message]) -> Awaitable[None]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.publish_acknowledged`."""
        return self._assembled.publish_acknowledged(messages, self.name)

    def outbox(self, name: str, settings: OutboxSettings = DEFAULT_OUTBOX, filters: Sequence[str] = ()) -> Outbox:
        """See :meth:`kinmqtt_spi.services.plugin.Context.outbox`."""
        return self._assembled.outbox(self.name, name, settings, filters)

    def tap(self, filters: Sequence[str], call: TapHandler, wants: PayloadTest | None = None) -> Tap:
        """See :meth:`kinmqtt_spi.services.plugin.Context.tap`."""
        return self._assembled.tap(self.name, filters, call, wants)

    def put(self, sink: str, message: Message) -> Accepted:
        """See :meth:`kinmqtt_spi.services.plugin.Context.put`."""
        return self._assembled.put(sink, message, self.name)

    def sink_names(self) -> Sequence[str]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.sink_names`."""
        return self._assembled.sink_names()

    def authorize(self, request: AuthorizationRequest) -> Maybe[Decision]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.authorize`."""
        return self._assembled.authorize(request)

    def client(self, client_id: str) -> Client | None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.client`."""
        return self._assembled.client(client_id)

    def disconnect(self, client_id: str, reason: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION) -> Maybe[bool]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.disconnect`."""
        return self._assembled.disconnect(client_id, reason, f"plugin {self.name}")

    def authorization_changed(self, scope: Scope) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.authorization_changed`."""
        self._assembled.authorization_changed(scope)

    def tell_others(self, data: bytes) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.tell_others`."""
        self._assembled.tell_others(self.name, data)

    @property
    def events(self) -> EventFeed:
        """See :attr:`kinmqtt_spi.services.plugin.Context.events`."""
        return PluginFeed(self._assembled.events, self._on_asyncio)

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.in_thread`."""
        return self._in_thread(call)

    @property
    def _assembled(self) -> BrokerApi:
        if self._broker is None:
            raise RuntimeError(f"plugin {self.name!r} used its context before the broker was assembled")
        return self._broker


def _check_key(key: str) -> None:
    if not key or any(character in key for character in "+#\0"):
        raise ValueError(f"{key!r} is not a valid key: it must be a non-empty part of a topic name")
