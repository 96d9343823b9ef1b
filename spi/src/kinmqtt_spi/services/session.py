"""Session store: who owns a client id, and the sessions that outlive their connections (section 4.1).

A session is claimed before it is used. The claim's epoch goes with every later write, and a store refuses an
older one: after a takeover the former owner can still talk, and can't do harm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
    """Whose session it is: the user that an authenticator has verified, ``None`` for nobody."""
    protocol_version: int = 4
    expires_at: float | None = None
    """Seconds since the epoch, UTC; ``None`` while a connection is open, or where it never expires."""
    will_due_at: float | None = None
    """Seconds since the epoch, UTC, at which the will must be published; ``None`` while a connection is open."""
    username_unverified: bool = False
    """Whether the user name is what CONNECT said: so are sessions stored before the broker dropped such names."""


@frozen(slots=True)
class Claimant:
    """Who wants a client id: a client that was authenticated."""

    username: str | None
    """The user that was verified, ``None`` for nobody: all anonymous clients are the same nobody."""
    said: str | None = None
    """The user name that CONNECT gave, verified or not."""

    def may_use(self, session: StoredSession) -> bool:
        """Whether a session is this user's. One with an unverified name is whoever's that CONNECT names so too."""
        return self.is_user(session.username, session.username_unverified)

    def is_user(self, username: str | None, unverified: bool = False) -> bool:
        """Whether this is the user of that name."""
        return username == (self.said if unverified and self.username is None else self.username)


@frozen(slots=True)
class Claim:
    """The answer to a claim."""

    epoch: int
    """Above any epoch this client id ever had."""
    previous_owner: NodeIdentity | None = None
    """Who held it until now, this node included; ``None`` if nobody did."""
    session: StoredSession | None = None
    """What is stored, expired or not: one that has expired can't be resumed, and still owes its will."""
    previous_epoch: int | None = None
    """The epoch of the claim before this one; ``None`` for one below ``epoch``."""


@frozen(slots=True)
class OpenSession:
    """A session that is to be kept begins: forget what was stored under this client id, store this."""

    epoch: int
    session: StoredSession

    @property
    def client_id(self) -> str:
        """The session's client id."""
        return self.session.client_id


@frozen(slots=True)
class ResumeSession:
    """A stored session has a connection again: it does not expire, its old will is forgotten."""

    client_id: str
    epoch: int
    expiry_s: int
    will: Will | None = None
    username: str | None = None
    protocol_version: int = 4
    username_unverified: bool = False
    """As in :class:`StoredSession`; only where a store reads what it wrote before there was this field."""


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
    """The will was published, or must not be any more."""

    client_id: str
    epoch: int


@frozen(slots=True)
class ReleaseSession:
    """The connection is gone and nobody uses the session: it waits for its client, its expiry, or its will."""

    client_id: str
    epoch: int
    expires_at: float | None
    will_due_at: float | None = None


@frozen(slots=True)
class DiscardSession:
    """The session has ended: forget everything but the epoch's height."""

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
    """Some of the stored sessions, and where to go on; ``cursor`` is ``None`` at the end."""

    sessions: tuple[tuple[int, StoredSession], ...]
    """Each with the epoch it is held under."""
    cursor: object = None
    elsewhere: frozenset[str] = frozenset()
    """Client ids among them that another node holds which lives, or of which that is not known: a session is held by
    the node that claimed it last, whether its client is connected or not. A node that starts leaves them alone."""


class SessionStore(Store, ABC):
    """Sessions by client id."""

    @abstractmethod
    def claim(self, client_id: str, node: NodeIdentity) -> Maybe[Claim]:
        """Make ``node`` the owner of a client id, in one atomic step.

        Every client is claimed, those whose session ends with the connection too: the epoch also decides which
        of two connections holds the client id.
        """

    def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant) -> Maybe[Claim | None]:
        """Claim a client id for a user; ``None``, and nothing was done, where it is another user's.

        It is the user's of whom a session is stored (:meth:`Claimant.may_use`). Where none is stored it is the user's
        for whom it was claimed last, until that claim is released, or its node is gone; after a claim for nobody in
        particular (:meth:`claim`) it is free. Looking and claiming are one atomic step.

        The broker asks so for every CONNECT, unless clients may use each other's sessions. It has looked at the
        sessions of its own before, and looks at what the claim answers: so a store that no two nodes share may claim
        in any case, as here.
        """
        return self.claim(client_id, node)

    def release(self, client_id: str, epoch: int) -> None:
        """Nobody uses a client id any more that was claimed under ``epoch`` and of which nothing is stored.

        What is remembered of it is its epoch, if a store that can't remember all of them does so at all. Nobody waits
        for it. A store that keeps no record of such claims does nothing, as here.
        """

    @abstractmethod
    def apply(self, writes: Sequence[SessionWrite]) -> Commit:
        """Keep a batch of writes in order.

        A write whose epoch is older than the claim's is refused: the rest of the batch is kept and
        :class:`~kinmqtt_spi.errors.Fenced` names the refused.
        """

    @abstractmethod
    def expired(self, now: float, limit: int) -> Maybe[Sequence[tuple[int, StoredSession]]]:
        """At most ``limit`` released sessions (with their epochs) whose time is over at ``now``; removes nothing."""

    @abstractmethod
    def due_wills(self, now: float, limit: int) -> Maybe[Sequence[tuple[int, StoredSession]]]:
        """At most ``limit`` released sessions (with their epochs) whose will is due at ``now``; removes nothing."""

    @abstractmethod
    def iterate(self, cursor: object = None, limit: int = 1000) -> Maybe[SessionPage]:
        """A page of all stored sessions, for restarts and for people. ``cursor`` is that of the page before."""

    @abstractmethod
    def orphans(self, node: NodeIdentity, limit: int) -> Maybe[Sequence[str]]:
        """At most ``limit`` client ids whose sessions a dead node owned, for adoption by a claim."""

    def left_behind(self, node: NodeIdentity, limit: int) -> Maybe[Sequence[str]]:
        """At most ``limit`` client ids of stored sessions that nobody holds any more, because their node is gone.

        Being named hands a session to ``node``, in one atomic step: of several nodes that ask each is told of others.
        It is named again until it was claimed; where ``node`` is gone before that, it is left behind once more. The
        broker asks at its start, and once a second. A store that no two nodes share has nothing to say, as here.
        """
        return ()

    def adopt(self, client_id: str, node: NodeIdentity) -> Maybe[Claim | None]:
        """Claim a client id that :meth:`left_behind` has named to ``node``; ``None`` where somebody, this node
        included, has claimed it since, and nothing was done.
        """
        return self.claim(client_id, node)

    def when_taken(self, call: Callable[[str, int], object]) -> None:
        """Have ``call`` told the client id of each session of this node's that another node has claimed since, and
        the epoch under which it was held here, as soon as the store notices.

        Writes are fenced in any case; this is for those of whom nothing is written. It is made in the broker's
        thread. A store that no two nodes share has nothing to tell, as here.
        """

    @abstractmethod
    def count(self) -> int:
        """How many sessions are stored, without waiting."""
