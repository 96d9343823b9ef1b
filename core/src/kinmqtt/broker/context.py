"""A plugin's narrow face to the broker, as the SPI promises it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kinmqtt.broker.awaiting import run
from kinmqtt_spi.metrics import Namespaced
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest, Scope
from kinmqtt_spi.services.metric import Metrics
from kinmqtt_spi.services.plugin import Clock, Context, DeliveryResult, Log, TopicClaim
from kinmqtt_spi.values import Client, Decision, Maybe, Message, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.broker import Broker

T = TypeVar("T")


class PluginContext(Context):
    """What one plugin is handed. It exists before the broker does, and learns of it when that is assembled."""

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
    ) -> None:
        """``leave_out`` takes one of the plugin's hooks out, ``claim`` some topics for it.

        Both are forgotten when the broker is assembled.
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
        self._broker: Broker | None = None

    def attach(self, broker: Broker) -> None:
        """The broker is assembled."""
        self._broker = broker
        self._leave_out = None
        self._claim = None

    def leave_out(self, *hooks: str) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.leave_out`."""
        if self._leave_out is None:
            raise RuntimeError(f"plugin {self.name!r} leaves hooks out when the broker is assembled already")
        for hook in hooks:
            self._leave_out(hook)

    def claim_topics(self, filter: str, *actions: Action) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.claim_topics`."""
        if self._claim is None:
            raise RuntimeError(f"plugin {self.name!r} claims topics when the broker is assembled already")
        self._claim(TopicClaim(filter, actions))

    def publish(
        self, message: Message, *, in_place_of: str | None = None, on_behalf_of: Client | None = None
    ) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.publish`."""
        broker = self._assembled
        if in_place_of is not None:
            key = in_place_of
            _check_key(key)
            broker.publish_until_kept(
                message,
                lambda: broker.retained.keep_value(self.name, key, None),
                lambda: broker.retained.has_value(self.name, key),
                on_behalf_of,
            )
        elif on_behalf_of is not None:
            broker.publish_until_kept(message, lambda: None, None, on_behalf_of)
        else:
            broker.publish(message)

    def deliver(self, client_id: str, message: Message) -> DeliveryResult:
        """See :meth:`kinmqtt_spi.services.plugin.Context.deliver`."""
        return self._assembled.deliver(client_id, message)

    def persist(
        self,
        key: str,
        value: bytes | None,
        *,
        after_commit: Callable[[], None] | None = None,
        on_commit_failed: Callable[[], None] | None = None,
    ) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.persist`."""
        _check_key(key)
        if value is not None and not value:
            raise ValueError(f"the value of {key!r} must be bytes, one at least")
        broker = self._assembled
        broker.retained.keep_value(self.name, key, value)
        batch = broker.runtime.turn.batch
        if after_commit is not None:
            batch.afterwards.append(after_commit)
        if after_commit is not None or on_commit_failed is not None:
            batch.otherwise.append(
                lambda reason: run(self._look(key, value is not None, after_commit, on_commit_failed))
            )

    async def _look(
        self,
        key: str,
        wanted: bool,
        after_commit: Callable[[], None] | None,
        on_commit_failed: Callable[[], None] | None,
    ) -> None:
        """A store that failed may have kept a value all the same."""
        try:
            found = await self._assembled.retained.has_value(self.name, key)
        except Exception:
            found = not wanted
        call = after_commit if found is wanted else on_commit_failed
        if call is not None:
            call()

    def persisted(self) -> Awaitable[Mapping[str, bytes]]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.persisted`."""
        return run(self._assembled.retained.kept_values(self.name))

    def authorize(self, request: AuthorizationRequest) -> Maybe[Decision]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.authorize`."""
        return self._assembled.authorize(request)

    def client(self, client_id: str) -> Client | None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.client`."""
        return self._assembled.client(client_id)

    def disconnect(self, client_id: str, reason: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION) -> bool:
        """See :meth:`kinmqtt_spi.services.plugin.Context.disconnect`."""
        return self._assembled.disconnect(client_id, reason, f"plugin {self.name}")

    def authorization_changed(self, scope: Scope) -> None:
        """See :meth:`kinmqtt_spi.services.plugin.Context.authorization_changed`."""
        self._assembled.authorization_changed(scope)

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        """See :meth:`kinmqtt_spi.services.plugin.Context.in_thread`."""
        return self._in_thread(call)

    @property
    def _assembled(self) -> Broker:
        if self._broker is None:
            raise RuntimeError(f"plugin {self.name!r} used its context before the broker was assembled")
        return self._broker


def _check_key(key: str) -> None:
    if not key or any(character in key for character in "+#\0"):
        raise ValueError(f"{key!r} is no key: it must be a part of a topic name")
