"""Session store: the owner of each client id, and persistent sessions (section 4.1).

A session is claimed before it is used. Every later write carries the epoch of the claim, and a store refuses writes
with an older epoch. So a former owner can do no harm after a takeover.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from typing import TypeAlias

from attrs import frozen

from kinmqtt_spi.services.store import Store
from kinmqtt_spi.values import Commit, Maybe, NodeIdentity, Subscription, Will


@frozen(slots=True)
class StoredSession:
    """A session as the store holds it. Queue and inflight state live in the queue store, under the same epoch."""

    client_id: str
    expiry_s: int
    """The session expiry interval (section 3.1.2.11.2); 0xFFFFFFFF never expires."""
    subscriptions: tuple[Subscription, ...] = ()
    will: Will | None = None
    created_at: float = 0.0
    """Seconds since the epoch, UTC."""
    username: str | None = None
    """The user who owns the session, as verified by an authenticator; ``None`` for an anonymous client."""
    protocol_version: int = 4
    expires_at: float | None = None
    """Seconds since the epoch, UTC; ``None`` while a connection is open, or if the session never expires."""
    will_due_at: float | None = None
    """Seconds since the epoch, UTC, at which the will must be published; ``None`` while a connection is open."""
    username_unverified: bool = False
    """Whether the user name is the unverified one of CONNECT, in sessions that earlier versions stored."""


@frozen(slots=True)
class Claimant:
    """The authenticated client that claims a client id."""

    username: str | None
    """The verified user; ``None`` for an anonymous client. All anonymous clients count as the same user."""
    said: str | None = None
    """The user name in CONNECT, verified or not."""

    def may_use(self, session: StoredSession) -> bool:
        """Tell whether the session belongs to this user. An unverified name also matches the name in CONNECT."""
        return self.is_user(session.username, session.username_unverified)

    def is_user(self, username: str | None, unverified: bool = False) -> bool:
        """Tell whether this is the user with that name."""
        return username == (self.said if unverified and self.username is None else self.username)


@frozen(slots=True)
class Claim:
    """The answer to a claim."""

    epoch: int
    """Higher than every earlier epoch of this client id."""
    previous_owner: NodeIdentity | None = None
    """The node that owned the client id until now, possibly this one; ``None`` if none did."""
    session: StoredSession | None = None
    """The stored session, expired or not. An expired one can't be resumed, but its will must still be published."""
    previous_epoch: int | None = None
    """The epoch of the claim before this one; ``None`` for one below ``epoch``."""
    home_uid: int | None = None
    """The uid of the node that claimed the client id last, its client connected or not: that node may still hold the
    session. ``None`` if there is none, or if nodes do not share the store."""


@frozen(slots=True)
class OpenSession:
    """Start a persistent session: replace what is stored under this client id."""

    epoch: int
    session: StoredSession

    @property
    def client_id(self) -> str:
        """The session's client id."""
        return self.session.client_id


@frozen(slots=True)
class ResumeSession:
    """Resume a stored session: it has a connection again, does not expire, and gets a new will or none."""

    client_id: str
    epoch: int
    expiry_s: int
    will: Will | None = None
    username: str | None = None
    protocol_version: int = 4
    username_unverified: bool = False
    """As in :class:`StoredSession`; only for a store that reads its own records of an earlier version."""


@frozen(slots=True)
class SaveSubscriptions:
    """Add or replace subscriptions."""

    client_id: str
    epoch: int
    subscriptions: tuple[Subscription, ...]


@frozen(slots=True)
class RemoveSubscriptions:
    """Remove subscriptions, named by their full filters."""

    client_id: str
    epoch: int
    filters: tuple[str, ...]


@frozen(slots=True)
class ClearWill:
    """Delete the will: it was published, or must not be published any more."""

    client_id: str
    epoch: int


@frozen(slots=True)
class ReleaseSession:
    """Release the session: its connection is closed. It may be resumed or expire, and its will becomes due."""

    client_id: str
    epoch: int
    expires_at: float | None
    will_due_at: float | None = None


@frozen(slots=True)
class DiscardSession:
    """End the session: delete everything but the highest epoch."""

    client_id: str
    epoch: int


SessionWrite: TypeAlias = (
    OpenSession
    | ResumeSession
    | SaveSubscriptions
    | RemoveSubscriptions
    | ClearWill
    | ReleaseSession
    | DiscardSession
)


@frozen(slots=True)
class SessionPage:
    """A page of stored sessions. ``cursor`` continues after it, and is ``None`` at the end."""

    sessions: tuple[tuple[int, StoredSession], ...]
    """Each with the epoch it is held under."""
    cursor: object = None
    elsewhere: frozenset[str] = frozenset()
    """Client ids of this page that another live node owns, or may own. The owner is the node that claimed the session
    last, whether its client is connected or not. A node that starts does not claim these."""


class SessionStore(Store, ABC):
    """Sessions by client id."""

    @abstractmethod
    def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Maybe[Claim]:
        """Make ``node`` the owner of a client id, in one atomic step.

        Client ids of non-persistent sessions are claimed too: the epoch also decides which of two connections owns
        the client id. The new epoch is above ``above``, which another node's store may have reached
        (:class:`~kinmqtt_spi.services.cluster.Located`).
        """

    def claim_for(
        self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0
    ) -> Maybe[Claim | None]:
        """Claim a client id for a user. Returns ``None``, without effect, if it belongs to another user.

        A client id belongs to the user of its stored session (:meth:`Claimant.may_use`). Without a stored session it
        belongs to the user it was last claimed for, until that claim is released or its node is dead. After
        :meth:`claim`, which names no user, it belongs to nobody. The check and the claim are one atomic step.

        The broker calls this for every CONNECT, unless clients may use each other's sessions. It checks its own
        sessions before and the claim's session afterwards. So a store that nodes do not share may always claim, as
        this default does.
        """
        return self.claim(client_id, node, above)

    def release(self, client_id: str, epoch: int) -> None:
        """Release the claim ``epoch`` of a client id without a stored session.

        Only its epoch is remembered, and a store may limit how many of these it remembers. The caller does not wait.
        A store without a record of such claims does nothing, as this default.
        """

    @abstractmethod
    def apply(self, writes: Sequence[SessionWrite]) -> Commit:
        """Commit a batch of writes, in order.

        A write with an older epoch than the claim's is refused: the rest of the batch is committed, and
        :class:`~kinmqtt_spi.errors.Fenced` names the refused clients.
        """

    @abstractmethod
    def expired(self, now: float, limit: int) -> Maybe[Sequence[tuple[int, StoredSession]]]:
        """Return at most ``limit`` released sessions (with their epochs) that have expired; removes none."""

    @abstractmethod
    def due_wills(self, now: float, limit: int) -> Maybe[Sequence[tuple[int, StoredSession]]]:
        """Return at most ``limit`` released sessions (with their epochs) whose will is due at ``now``."""

    @abstractmethod
    def iterate(self, cursor: object = None, limit: int = 1000) -> Maybe[SessionPage]:
        """Return a page of all stored sessions. ``cursor`` is that of the page before."""

    @abstractmethod
    def owned_by(self, node: NodeIdentity, limit: int) -> Maybe[Sequence[str]]:
        """Return at most ``limit`` client ids whose stored sessions ``node`` owns."""

    def orphaned(self, node: NodeIdentity, limit: int) -> Maybe[Sequence[str]]:
        """Assign at most ``limit`` orphaned sessions to ``node`` and return their client ids.

        A stored session is orphaned if the node that owned it is dead. Each orphaned session is assigned to one node,
        in one atomic step, and returned again until it is claimed. If ``node`` dies before that, the session is
        orphaned again. The broker calls this at its start and once a second. A store that nodes do not share has no
        orphaned sessions, as in this default.
        """
        return ()

    def adopt(self, client_id: str, node: NodeIdentity) -> Maybe[Claim | None]:
        """Claim an orphaned session that :meth:`orphaned` has assigned to ``node``.

        Returns ``None``, without effect, if any node has claimed it since, this one included.
        """
        return self.claim(client_id, node)

    def bury(self, node: NodeIdentity) -> Maybe[None]:
        """Declare a node dead: its sessions are orphaned now, without waiting until the store itself notices.

        The cluster calls it when the node is DOWN. Such a node may still run, and reach the store: its claims fail
        from now on with :class:`~kinmqtt_spi.errors.ServiceUnavailable`, or nobody would adopt what it takes. A node
        that is buried by mistake loses nothing: whoever adopts its sessions has later epochs. A store that nodes do
        not share does nothing, as in this default.
        """

    def is_stored(self, client_id: str) -> Maybe[bool]:
        """Tell whether a client id has a stored session, whichever node owns it.

        Where no node has a session, it has ended only if this says so. A store that nodes do not share returns False.
        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` while the store can't be reached.
        """
        return False

    def living(self, uids: Set[int]) -> Maybe[Set[int]]:
        """Return those of these nodes that are alive or may be; this node is not asked about.

        A store that nodes do not share knows no other nodes, as in this default.
        """
        return frozenset()

    def on_taken_over(self, call: Callable[[str, int], object]) -> None:
        """Register ``call(client_id, epoch)`` for sessions of this node that another node has claimed.

        ``epoch`` is the one under which this node owned the session. Writes are fenced in any case; this call also
        covers sessions without writes. It is made on the reactor thread, as soon as the store notices the claim. A
        store that nodes do not share never makes it, as in this default.
        """

    @abstractmethod
    def count(self) -> int:
        """Return the number of stored sessions, without waiting."""
