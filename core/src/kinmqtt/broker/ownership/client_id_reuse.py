"""The rule of ``broker.client_id_reuse``: a user can't take over another user's connection or session.

The rule applies to clients, after authentication and before anything is claimed. It does not apply to what the broker
does on its own: a restart, the adoption of orphaned sessions, delivery to a client.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kinmqtt.broker.ownership.registry import has_ended
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
    def is_unrestricted(self) -> bool:
        """Whether users may use each other's client ids."""
        return self._runtime.settings.client_id_reuse == "anybody"

    def check(self, session: Session, claimant: Claimant) -> None:
        """Raise :class:`SessionOfAnotherUser` where a session of this node, connected or not, is another user's."""
        if has_ended(session):
            return
        self.check_user(session.client.username, session.username_unverified, claimant)

    def check_claimed(self, stored: StoredSession | None, claimant: Claimant) -> None:
        """Raise :class:`SessionOfAnotherUser` where a claim has found a session of another user.

        Some stores claim before they compare the users.
        """
        if stored is not None:
            self.check_user(stored.username, stored.username_unverified, claimant)

    def check_user(self, username: str | None, unverified: bool, claimant: Claimant) -> None:
        """Raise :class:`SessionOfAnotherUser` where the claimant is another user than the one with this name."""
        if not (self.is_unrestricted or claimant.is_user(username, unverified)):
            raise SessionOfAnotherUser.of(username)

    def claiming(self, claimant: Claimant, above: int) -> Callable[[str, NodeIdentity], Maybe[Claim | None]]:
        """The session store's method to claim a client id with, with an epoch above ``above``.

        It returns ``None``, and changes nothing, where the client id is another user's.
        """
        store = self._runtime.stores.session
        if self.is_unrestricted:
            return partial(store.claim, above=above)
        return partial(store.claim_for, claimant=claimant, above=above)
