"""Whose a client id is: nobody takes over another user's connection, or its session that waits.

The rule holds for who connects, after authentication and before anything is claimed. What the broker does by itself
(starting again, adopting what another node has left behind, delivering to one client) is for no user, and not held to
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kinmqtt.hooks.denial_log import user
from kinmqtt_spi.services.session import Claim, Claimant, StoredSession
from kinmqtt_spi.values import Maybe, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session


class OthersSession(Exception):
    """The client id is another user's: that user is connected under it, or has a session that waits."""

    def __init__(self, owner: str = "") -> None:
        """``owner`` says whose it is, in words for the log; empty where that is not known here."""
        super().__init__("another user has a session under this client id")
        self.owner = owner

    @classmethod
    def of(cls, username: str | None) -> OthersSession:
        """The error about a session of that user's."""
        return cls(f"the session has {user(username)}")


class Ownership:
    """The rule of ``broker.client_id_reuse``."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def _is_anybodys(self) -> bool:
        return self._runtime.settings.client_id_reuse == "anybody"

    def check(self, session: Session, claimant: Claimant) -> None:
        """Raise :class:`OthersSession` where a session of this node's, connected or not, is another user's."""
        if session.connection is None and session.expiry_s == 0:
            return  # It has ended, and only waits for a store.
        username = session.client.username
        if not (self._is_anybodys or claimant.is_user(username, session.username_unverified)):
            raise OthersSession.of(username)

    def check_claimed(self, stored: StoredSession | None, claimant: Claimant) -> None:
        """The same of what a claim has found, for stores that claim before they look."""
        if not (stored is None or self._is_anybodys or claimant.may_use(stored)):
            raise OthersSession.of(stored.username)

    def claiming(self, claimant: Claimant) -> Callable[[str, NodeIdentity], Maybe[Claim | None]]:
        """How a client id is claimed: it answers ``None``, and has done nothing, where the id is another user's."""
        store = self._runtime.stores.session
        return store.claim if self._is_anybodys else partial(store.claim_for, claimant=claimant)
