"""Removes the subscriptions of ended sessions, in slices if there are many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred

from kinmqtt.broker.ownership.background import in_background

if TYPE_CHECKING:
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

MAX_AT_ONCE: Final = 64
"""The most subscriptions of a session that are removed at once; more are removed in slices."""


def needs_slices(session: Session) -> bool:
    """Return whether a session has too many subscriptions to remove them at once."""
    return len(session.subscriptions) > MAX_AT_ONCE


class SubscriptionRemoval:
    """Removes the subscriptions of ended sessions."""

    def __init__(self, runtime: Runtime, router: Router) -> None:
        self._runtime = runtime
        self._router = router
        self._running: dict[str, list[Deferred[None]]] = {}
        """Clients whose subscriptions are being removed in the background, with those who await the end."""

    def remove(self, session: Session) -> None:
        """Remove the subscriptions at once or, where there are many, in the background.

        Until the background work is done a new session of the client id waits in :meth:`wait_until_done`.
        """
        if needs_slices(session):
            self._router.withdraw(session)
            in_background(self._remove_in_background(session), session.client_id)
            return
        for subscription in session.subscriptions.values():
            self._router.unsubscribe(session.client_id, subscription)

    async def remove_in_slices(self, session: Session) -> None:
        """Remove the subscriptions in slices, which leave time for other clients."""
        slices = self._runtime.slices
        if needs_slices(session):
            await slices.turn()  # The current slice already frees the session's queue.
        for subscription in tuple(session.subscriptions.values()):
            self._router.unsubscribe(session.client_id, subscription)
            if slices.is_over():
                await slices.turn()

    async def wait_until_done(self, client_id: str) -> None:
        """Wait for the removal for an earlier session: a new one may subscribe to the same filters."""
        while client_id in self._running:
            over: Deferred[None] = Deferred()
            self._running[client_id].append(over)
            await over

    async def _remove_in_background(self, session: Session) -> None:
        client_id = session.client_id
        await self.wait_until_done(client_id)
        self._running[client_id] = []
        try:
            await self.remove_in_slices(session)
        finally:
            for waiting in self._running.pop(client_id):
                waiting.callback(None)
