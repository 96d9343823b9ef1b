"""The rule of ``broker.client_id_reuse``: a user can't take over another user's connection or session.

The rule applies to clients, after authentication and before anything is claimed. It does not apply to what the broker
does on its own: a restart, the adoption of orphaned sessions, delivery to a client.
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


class SessionOfAnotherUser(Exception):
    """Another user is connected under the client id, or has a session that waits for its client."""

    def __init__(self, owner: str = "") -> None:
        """``owner`` names the user for the log; empty if it is unknown."""
        super().__init__("another user has a session under this client id")
        self.owner = owner

    @classmethod
    def of(cls, username: str | None) -> SessionOfAnotherUser:
        """The error for a session of the user with this name."""
        return cls(f"the session has {user(username)}")


class ClientIdReuse:
    """Checks whether a client may use the session of its client id."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def _is_unrestricted(self) -> bool:
        return self._runtime.settings.client_id_reuse == "anybody"

    def check(self, session: Session, claimant: Claimant) -> None:
        """Raise :class:`SessionOfAnotherUser` where a session of this node, connected or not, is another user's."""
        if session.connection is None and session.expiry_s == 0:
            return  # It has ended, and only waits for a store to commit that.
        username = session.client.username
        if not (self._is_unrestricted or claimant.is_user(username, session.username_unverified)):
            raise SessionOfAnotherUser.of(username)

    def check_claimed(self, stored: StoredSession | None, claimant: Claimant) -> None:
        """Raise :class:`SessionOfAnotherUser` where a claim has found a session of another user.

        Some stores claim before they compare the users.
        """
        if not (stored is None or self._is_unrestricted or claimant.may_use(stored)):
            raise SessionOfAnotherUser.of(stored.username)

    def claiming(self, claimant: Claimant) -> Callable[[str, NodeIdentity], Maybe[Claim | None]]:
        """The session store's method to claim a client id with.

        It returns ``None``, and changes nothing, where the client id is another user's.
        """
        store = self._runtime.stores.session
        return store.claim if self._is_unrestricted else partial(store.claim_for, claimant=claimant)
