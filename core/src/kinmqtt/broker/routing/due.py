"""Publishes what is due later, wills and delayed messages, after checking the client's rights again.

After a client has left a will or a delayed message, it may lose the right to publish it: its user may be removed, or
the rules may change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt.broker.locks import ClientIdLocks
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

LOG_INTERVAL_S: Final = 60.0
"""The least time between two log lines on denials of one client: it may have left ten thousand messages."""

MAX_LOGGED_CLIENTS: Final = 1000
"""The most clients whose last log line is remembered."""


class DuePublisher:
    """Publishes due messages that their clients may still publish; those of one client are published in order."""

    def __init__(
        self, runtime: Runtime, publisher: MessagePublisher, session_of: Callable[[str], Session | None]
    ) -> None:
        self._runtime = runtime
        self._publisher = publisher
        self._session_of = session_of
        self._locks = ClientIdLocks()
        self._logged_at: dict[str, float] = {}

    async def is_still_allowed(self, client: Client, action: Action, message: Message) -> bool:
        """Return whether a client may publish a message or its will now; a denied message is dropped."""
        request = AuthorizationRequest(client, action, message.topic, message.qos, message.retain)
        verdict = await resolve(self._runtime.rights.ask(request))
        if verdict.decision.allowed and action is Action.PUBLISH:
            verdict = self._claimed_by_plugin(message.topic) or verdict
        if verdict.decision.allowed:
            return True
        self._runtime.rights.report_denial(request, verdict)
        self._log_once(client, message.topic, verdict)
        self._runtime.drop(client.client_id, message, "not_authorized")
        return False

    async def publish(
        self,
        client: Client,
        message: Message,
        along: Callable[[], None],
        pending: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        """Publish for a client in one transaction with ``along``; without the message if it may not publish it now.

        See :meth:`~kinmqtt.broker.routing.publisher.MessagePublisher.publish_until_committed`.
        """
        async with self._locks.of(client.client_id):
            message = self._publisher.completed(message)
            allowed = await self.is_still_allowed(self._current_client(client), Action.PUBLISH, message)
            # Start publishing inside the lock, for the order, but await it outside: a slow store delays no others.
            work: Deferred[None] = run(
                self._publisher.publish_until_committed(message, along, pending)
                if allowed
                else self._publisher.write_until_committed(along, pending)
            )
        await work

    def _current_client(self, client: Client) -> Client:
        """Return the client as last authenticated, or ``client`` if its id has another user now, or no session."""
        session = self._session_of(client.client_id)
        # A session restored after a restart knows less of its client than was stored with the message.
        if session is None or session.client.username != client.username or not session.client.listener:
            return client
        return session.client

    def _claimed_by_plugin(self, topic: str) -> HookVerdict | None:
        """Return a denial if a plugin has claimed the topic: it would not see this message."""
        try:
            self._runtime.rights.spaces.check(topic, "")
        except ValueError as error:
            return HookVerdict(deny(text=str(error)), "")
        return None

    def _log_once(self, client: Client, topic: str, verdict: HookVerdict) -> None:
        now = self._runtime.clock.monotonic()
        logged_at = self._logged_at.get(client.client_id)
        if logged_at is not None and now - logged_at < LOG_INTERVAL_S:
            return
        if len(self._logged_at) >= MAX_LOGGED_CLIENTS:
            self._logged_at.clear()
        self._logged_at[client.client_id] = now
        log.info(
            "a due message of client {client}, {user}, to {topic} is dropped: the client may no longer publish it: "
            "{text} (0x{code:02X} {reason}, {by}); further drops for this client are not logged for {quiet:g} s",
            client=shown(client.client_id),
            user=user(client.username),
            topic=shown(topic),
            text=verdict.decision.text or "denied",
            code=verdict.decision.reason,
            reason=verdict.decision.reason.name,
            by=verdict.by or "the broker itself",
            quiet=LOG_INTERVAL_S,
        )
