"""Ends expired sessions, publishes wills whose delay is over, and removes expired queued messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kinmqtt.broker.ownership.background import in_background
from kinmqtt.broker.ownership.registry import SESSIONS_AT_ONCE
from kinmqtt.broker.session.outbox_session import PREFIX
from kinmqtt.hooks.awaitables import resolve

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.ending import Ending
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.ownership.wills import Wills
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

MESSAGES_AT_ONCE: Final = 200
"""The most expired messages that one request to the queue store returns."""

MAX_MESSAGE_REQUESTS: Final = 5
"""The most requests for expired messages in one round of the housekeeping."""


class Expiry:
    """Asks the stores what is due, and acts on it; the housekeeping calls it."""

    def __init__(self, runtime: Runtime, registry: Registry, wills: Wills, ending: Ending) -> None:
        self._runtime = runtime
        self._registry = registry
        self._wills = wills
        self._ending = ending
        self._being_ended: set[str] = set()
        """Clients whose sessions have expired and are being ended."""

    async def expire(self, now: float) -> None:
        """End the sessions that have expired at ``now``, and publish the wills whose delay is over."""
        await self._publish_wills(now)
        slices = self._runtime.slices
        expired = []
        for epoch, stored in await resolve(self._runtime.stores.session.expired(now, SESSIONS_AT_ONCE)):
            session = self._registry.offline(stored.client_id, epoch)
            if session is not None and stored.client_id not in self._being_ended:
                # Set for all of them first: none may get messages of another that ends with it.
                session.ending = True
                expired.append(session)
                self._being_ended.add(stored.client_id)
        # They end concurrently. If ending one fails, the store returns it again.
        for session in expired:
            if slices.is_over():
                await slices.turn()
            in_background(self._end(session), session.client_id)

    async def expire_messages(self, now: float) -> None:
        """Remove queued messages that have expired at ``now``, a bounded number in one round."""
        runtime = self._runtime
        for _ in range(MAX_MESSAGE_REQUESTS):
            expired = await resolve(runtime.stores.queue.expire(now, MESSAGES_AT_ONCE))
            for client_id, entry in expired:
                session = self._registry.get(client_id)
                if session is not None:
                    session.expired_in_store(entry)
                runtime.drop(client_id, entry.message, "expired")
                if runtime.hooks.message_expired.active and not client_id.startswith(PREFIX):
                    runtime.hooks.message_expired(client_id, entry.message)
            if len(expired) < MESSAGES_AT_ONCE:
                return
            await runtime.slices.turn()

    async def _publish_wills(self, now: float) -> None:
        slices = self._runtime.slices
        for epoch, stored in await resolve(self._runtime.stores.session.due_wills(now, SESSIONS_AT_ONCE)):
            if slices.is_over():
                await slices.turn()
            session = self._registry.offline(stored.client_id, epoch)
            # During a claim the client may still be back in time.
            if session is not None and session.will is not None and stored.client_id not in self._registry.locks:
                self._wills.publish(session)

    async def _end(self, session: Session) -> None:
        try:
            await self._ending.end_offline(session, expired=True)
        finally:
            session.ending = False
            self._being_ended.discard(session.client_id)
