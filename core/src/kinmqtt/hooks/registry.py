"""The hooks that the core calls, by name, each bound to its typed dispatcher.

A misspelt hook does not type-check. A test fails if the SPI declares a hook that the core never calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from kinmqtt.hooks.calls import Call, CallFactory
from kinmqtt.hooks.dispatch import Collect, Decide, Intercept, Poll, failure_outcome
from kinmqtt.hooks.manager import Implementation, PluginManager
from kinmqtt.hooks.notify import Mailbox, NoticeLimit, Notify
from kinmqtt_spi.markers import HookTraits, Kind
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest, ExchangeStep, Redirect
from kinmqtt_spi.services.authorization import AuthorizationRequest
from kinmqtt_spi.services.bridge import SinkPlan, SinkState, Source
from kinmqtt_spi.services.cluster import Member, NodeCandidate
from kinmqtt_spi.services.limiter import LimitDecision, Resource
from kinmqtt_spi.services.metric import Metrics, Snapshot, SysTopic, TrafficSnapshot
from kinmqtt_spi.services.plugin import Clock, Health
from kinmqtt_spi.services.queue import OverflowPolicy, QueueFull
from kinmqtt_spi.services.subscription import Subscriber
from kinmqtt_spi.services.tap import TapHandler
from kinmqtt_spi.values import ALLOW, Address, Client, Message, NodeIdentity, Subscription, deny

NOBODY_ANSWERED = deny(ReasonCode.NOT_AUTHORIZED, "no authenticator accepted the client")
UNKNOWN_METHOD = deny(ReasonCode.BAD_AUTHENTICATION_METHOD, "no plugin knows the authentication method")

_TAP = HookTraits(Kind.NOTIFY, synchronous=True)


class Hooks:
    """The bound hooks. Built after the plugins are configured, when the active ones are known."""

    def __init__(self, manager: PluginManager, clock: Clock, metrics: Metrics) -> None:
        """Raises :class:`~kinmqtt_spi.errors.AssemblyError` if a plugin's ``guard_calls`` fails."""
        self._manager = manager
        guards = manager.implementations("guard_calls")
        self._factory = CallFactory(clock, metrics, guards)
        self._clock = clock
        self._metrics = metrics
        self._notice_limit = NoticeLimit()
        self._mailboxes: dict[str, Mailbox] = {}
        self._bind_deciding()
        self._bind_intercepting()
        self._bind_collecting()
        self._bind_telling()

    def _calls(self, hook: str) -> Any:
        return self._factory.bind(hook, self._manager.traits(hook), self._manager.implementations(hook))

    def bind_tap(self, plugin: str, handler: TapHandler) -> Call:
        """Return the calls of a plugin's tap, counted as those of a hook ``tap``."""
        return self._factory.bind("tap", _TAP, [Implementation(plugin, handler)])[0]

    def _intercept(self, hook: str, reason: ReasonCode = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR) -> Any:
        traits = self._manager.traits(hook)
        parameters = self._manager.parameters(hook)
        return Intercept(self._calls(hook), parameters.index(traits.folds), failure_outcome(traits, reason))

    def _notify(self, hook: str) -> Any:
        # The mailbox enforces the time limit of notices, because it waits until a cancelled notice has ended.
        traits = evolve(self._manager.traits(hook), time_limit_s=None)
        calls = self._factory.bind(hook, traits, self._manager.implementations(hook))
        return Notify(calls, self._mailbox_of, self._metrics)

    def _mailbox_of(self, plugin: str) -> Mailbox:
        return self._mailboxes.setdefault(plugin, Mailbox(self._clock, self._notice_limit))

    def limit_notices(self, limit_s: float) -> None:
        """Set the time limit of notices, beginning with the next one."""
        self._notice_limit.limit_s = limit_s

    async def drained(self) -> None:
        """Wait until every plugin has handled the notices sent so far."""
        for mailbox in tuple(self._mailboxes.values()):
            await mailbox.drained()

    def give_up_notices(self) -> None:
        """Cancel unfinished notices; each is logged."""
        for mailbox in self._mailboxes.values():
            mailbox.give_up()

    def overdue_notices(self) -> Mapping[str, str]:
        """Return by plugin the last notice that exceeded its time limit, if no later one has finished in time."""
        return {plugin: box.overdue for plugin, box in self._mailboxes.items() if box.overdue is not None}

    def _bind_deciding(self) -> None:
        unavailable = ReasonCode.SERVER_UNAVAILABLE
        forbidden = ReasonCode.NOT_AUTHORIZED
        self.connection_opened: Decide[[Address, str]] = Decide(self._calls("connection_opened"), ALLOW, unavailable)
        self.authenticate: Decide[[ConnectRequest]] = Decide(
            self._calls("authenticate"), NOBODY_ANSWERED, unavailable
        )
        self.exchange: Decide[[ExchangeStep]] = Decide(self._calls("exchange"), UNKNOWN_METHOD, unavailable)
        self.authorize: Decide[[AuthorizationRequest]] = Decide(self._calls("authorize"), ALLOW, forbidden)
        self.authorize_receive: Decide[[AuthorizationRequest]] = Decide(
            self._calls("authorize_receive"), ALLOW, forbidden
        )
        self.choose_member: Poll[[str, str, Sequence[Subscriber], Message], Subscriber] = Poll(
            self._calls("choose_member"), lambda answer, group, filter, candidates, message: answer in candidates
        )
        self.choose_node: Poll[[str, str, Sequence[NodeCandidate]], NodeIdentity] = Poll(
            self._calls("choose_node"),
            lambda answer, group, filter, candidates: any(answer == each.node for each in candidates),
        )
        self.queue_full: Poll[[QueueFull], OverflowPolicy] = Poll(self._calls("queue_full"))

    def _bind_intercepting(self) -> None:
        unavailable = ReasonCode.SERVER_UNAVAILABLE
        self.connect_received: Intercept[[ConnectRequest], ConnectRequest] = self._intercept(
            "connect_received", unavailable
        )
        self.choose_server: Intercept[[Client, Redirect | None], Redirect | None] = self._intercept(
            "choose_server", unavailable
        )
        self.connack_sending: Intercept[[Client, Properties], Properties] = self._intercept("connack_sending")
        self.subscribing: Intercept[[Client, Subscription], Subscription] = self._intercept("subscribing")
        self.unsubscribing: Intercept[[Client, str], str] = self._intercept("unsubscribing")
        self.publish_received: Intercept[[Client, Message], Message] = self._intercept("publish_received")
        self.delivering: Intercept[[Client, Message, Subscription], Message] = self._intercept("delivering")
        self.will_publishing: Intercept[[Client, Message], Message] = self._intercept("will_publishing")
        self.retaining: Intercept[[Message], Message] = self._intercept("retaining")

    def _bind_collecting(self) -> None:
        self.start: Collect[[Any], None] = Collect(self._calls("start"))
        self.ready: Collect[[], None] = Collect(self._calls("ready"))
        self.values_adopted: Collect[[Mapping[str, bytes]], None] = Collect(self._calls("values_adopted"))
        self.reload: Collect[[Any], Sequence[str]] = Collect(self._calls("reload"))
        self.drain: Collect[[float], None] = Collect(self._calls("drain"))
        self.stop: Collect[[], None] = Collect(self._calls("stop"))
        self.health: Collect[[], Health] = Collect(self._calls("health"))
        self.initial_subscriptions: Collect[[Client], Sequence[Subscription]] = Collect(
            self._calls("initial_subscriptions")
        )
        self.acquire: Collect[[Resource, int], LimitDecision | None] = Collect(self._calls("acquire"))
        self.release: Collect[[Resource, int], None] = Collect(self._calls("release"))
        self.sinks: Collect[[Any], Mapping[str, SinkPlan]] = Collect(self._calls("sinks"))
        self.sources: Collect[[Any], Mapping[str, Source]] = Collect(self._calls("sources"))
        self.sys_topics: Collect[[], Sequence[SysTopic]] = Collect(self._calls("sys_topics"))

    def _bind_telling(self) -> None:
        self.authenticated: Notify[[Client]] = self._notify("authenticated")
        self.authentication_refused: Notify[[ConnectRequest, str, ReasonCode]] = self._notify(
            "authentication_refused"
        )
        self.authorization_refused: Notify[[AuthorizationRequest, str]] = self._notify("authorization_refused")
        self.subscribed: Notify[[Client, Subscription]] = self._notify("subscribed")
        self.unsubscribed: Notify[[Client, str]] = self._notify("unsubscribed")
        self.message_unrouted: Notify[[Message]] = self._notify("message_unrouted")
        self.published: Notify[[Message]] = self._notify("published")
        self.delivered: Notify[[Client, Message]] = self._notify("delivered")
        self.acknowledged: Notify[[Client, Message, ReasonCode]] = self._notify("acknowledged")
        self.dropped: Notify[[str, Message, str]] = self._notify("dropped")
        self.connected: Notify[[Client, bool]] = self._notify("connected")
        self.disconnected: Notify[[Client, bool, ReasonCode]] = self._notify("disconnected")
        self.connection_lost: Notify[[Client, str]] = self._notify("connection_lost")
        self.message_queued: Notify[[str, Message]] = self._notify("message_queued")
        self.message_expired: Notify[[str, Message]] = self._notify("message_expired")
        self.retained: Notify[[Message]] = self._notify("retained")
        self.retain_cleared: Notify[[str]] = self._notify("retain_cleared")
        self.session_created: Notify[[Client]] = self._notify("session_created")
        self.session_resumed: Notify[[Client]] = self._notify("session_resumed")
        self.session_taken_over: Notify[[Client, Address]] = self._notify("session_taken_over")
        self.session_expired: Notify[[str]] = self._notify("session_expired")
        self.session_discarded: Notify[[str]] = self._notify("session_discarded")
        self.cluster_member: Notify[[Member]] = self._notify("cluster_member")
        self.session_moved: Notify[[str, NodeIdentity]] = self._notify("session_moved")
        self.told: Notify[[NodeIdentity, bytes]] = self._notify("told")
        self.sampled: Notify[[Snapshot]] = self._notify("sampled")
        self.traffic_sampled: Notify[[TrafficSnapshot]] = self._notify("traffic_sampled")
        self.limited: Notify[[Resource, LimitDecision]] = self._notify("limited")
        self.sink_state: Notify[[str, SinkState, str]] = self._notify("sink_state")
        self.poisoned: Notify[[str, Message, str]] = self._notify("poisoned")
