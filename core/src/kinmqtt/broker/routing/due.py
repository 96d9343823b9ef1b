"""What clients have left to be published later: when it is due, it is asked again whether they may.

A client that publishes is there, and its rights are those of the moment. Who has left a will, or a message for later,
may have lost them since: its user is removed, the rules have changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred, DeferredLock
from twisted.logger import Logger

from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt.hooks.denial_log import shown, user
from kinmqtt.hooks.dispatch import HookVerdict
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.values import Client, Message, deny

if TYPE_CHECKING:
    from kinmqtt.broker.routing.publisher import MessagePublisher
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.due")

QUIET_S: Final = 60.0
"""How long further denials of a client have no line in the log: it may have left ten thousand messages."""

CLIENTS_TOLD: Final = 1000
"""Of so many clients it is remembered that the log has told of them."""


class DuePublisher:
    """Publishes for clients what they have left, in the order of its time for each, where they still may."""

    def __init__(
        self, runtime: Runtime, publisher: MessagePublisher, session_of: Callable[[str], Session | None]
    ) -> None:
        self._runtime = runtime
        self._publisher = publisher
        self._session_of = session_of
        self._locks: dict[str, DeferredLock] = {}
        self._told: dict[str, float] = {}

    async def may_still(self, client: Client, action: Action, message: Message) -> bool:
        """Whether a client may publish a message, or have its will published, now; one that is denied is dropped."""
        request = AuthorizationRequest(client, action, message.topic, message.qos, message.retain)
        ruling = await resolve(self._runtime.rights.ask(request))
        if ruling.decision.allowed and action is Action.PUBLISH:
            ruling = self._past_nobody(message.topic) or ruling
        if ruling.decision.allowed:
            return True
        self._runtime.rights.report_denial(request, ruling)
        self._log_once(client, message.topic, ruling)
        self._runtime.drop(client.client_id, message, "not_authorized")
        return False

    async def publish(
        self,
        client: Client,
        message: Message,
        along: Callable[[], None],
        pending: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        """Publish for a client, with what ``along`` writes; what it may not publish any more is written without it.

        See :meth:`~kinmqtt.broker.routing.publisher.MessagePublisher.publish_until_committed`.
        """
        lock = self._locks.setdefault(client.client_id, DeferredLock())
        await lock.acquire()
        try:
            message = self._publisher.completed(message)
            allowed = await self.may_still(self._as_known(client), Action.PUBLISH, message)
            # It goes its way before the next one is asked about: one that waits for a store holds up nobody.
            work: Deferred[None] = run(
                self._publisher.publish_until_committed(message, along, pending)
                if allowed
                else self._publisher.write_until_committed(along, pending)
            )
        finally:
            lock.release()
            if not lock.locked and not lock.waiting:
                self._locks.pop(client.client_id, None)
        await work

    def _as_known(self, client: Client) -> Client:
        """The client as it has authenticated last; as it was, where another user has its client id, or nobody."""
        session = self._session_of(client.client_id)
        # A session from before a restart knows less of its client than was kept with the message.
        if session is None or session.client.username != client.username or not session.client.listener:
            return client
        return session.client

    def _past_nobody(self, topic: str) -> HookVerdict | None:
        """A denial where a plugin takes what clients publish to a topic: it would not see this."""
        try:
            self._runtime.rights.spaces.check(topic, "")
        except ValueError as error:
            return HookVerdict(deny(text=str(error)), "")
        return None

    def _log_once(self, client: Client, topic: str, ruling: HookVerdict) -> None:
        now = self._runtime.clock.monotonic()
        told_at = self._told.get(client.client_id)
        if told_at is not None and now - told_at < QUIET_S:
            return
        if len(self._told) >= CLIENTS_TOLD:
            self._told.clear()
        self._told[client.client_id] = now
        log.info(
            "what client {client}, {user}, has left for {topic} is due and dropped, for it may not publish it now: "
            "{text} (0x{code:02X} {reason}, {by}); more of this client's is dropped without a line for {quiet:g} s",
            client=shown(client.client_id),
            user=user(client.username),
            topic=shown(topic),
            text=ruling.decision.text or "denied",
            code=ruling.decision.reason,
            reason=ruling.decision.reason.name,
            by=ruling.by or "the broker itself",
            quiet=QUIET_S,
        )
