"""From a message to everybody who wants it: the subscription index, the cache in front of it, shared groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from kinmqtt.broker.fanout import Fanout, Group, Target, deliver, deliver_when_kept, merge
from kinmqtt.broker.publication import Publication
from kinmqtt.broker.receiving import is_allowed
from kinmqtt_spi.properties import text_bytes
from kinmqtt_spi.services.cluster import ClusterBackend, RouteChange
from kinmqtt_spi.services.subscription import Subscriber, SubscriptionIndex
from kinmqtt_spi.values import Maybe, NodeIdentity, Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session import Session

CACHED_TOPICS: Final = 100_000
CACHED_TARGETS: Final = 200_000
"""Of all cached topics together, their names counted with them: 20 MB."""

TARGET_BYTES: Final = 100
"""What a cached target takes, about."""

BARRIER_LIMIT_S: Final = 1.0

Rights: TypeAlias = dict[str, bool] | None
"""By client id, whether members may receive the message in hand; ``None`` where no authorizer wants to be asked."""


class Routed(Enum):
    """What became of a message."""

    DELIVERED = "delivered"
    UNROUTED = "unrouted"
    """Nobody wants it."""
    REFUSED = "refused"
    """A full queue refuses it by policy."""
    NOT_RETAINED = "not retained"
    """It was to be retained, and there are too many; nobody got it."""


class Router:
    """Knows who wants a topic; the only one who changes the index."""

    def __init__(
        self,
        runtime: Runtime,
        index: SubscriptionIndex,
        cluster: ClusterBackend,
        session_of: Callable[[str], Session | None],
    ) -> None:
        self._runtime = runtime
        self.index = index
        self._cluster = cluster
        self._session_of = session_of
        self._fanouts: dict[str, Fanout] = {}
        self._cached_targets = 0
        self._rotation: dict[tuple[str, str], int] = {}
        self._routes_version = 0
        self._interest: dict[RouteChange, int] = {}
        """How many of this node's clients want a route: the other nodes hear of the first and the last."""
        self.presence = 0
        """Goes up when a client that has subscribed connects, or is gone."""
        self.generation = 0
        """Goes up when cached fan-outs may be wrong: the index changed, or what a session can take did."""
        self._cached_generation = 0

    def subscribe(self, client_id: str, subscription: Subscription) -> bool:
        """Add or replace a subscription; ``True`` if it is new.

        Raises :class:`~kinmqtt_spi.errors.SubscriptionRefused`.
        """
        new = self.index.add(client_id, subscription)
        self.generation += 1
        if new:
            route = RouteChange(subscription.filter, subscription.share_group)
            self._interest[route] = self._interest.get(route, 0) + 1
            if self._interest[route] == 1:
                self._tell_cluster(added=[route])
        return new

    def unsubscribe(self, client_id: str, subscription: Subscription) -> None:
        """Remove a subscription."""
        group = subscription.share_group
        if self.index.remove(client_id, subscription.filter, group):
            self.generation += 1
            route = RouteChange(subscription.filter, group)
            self._interest[route] -= 1
            if not self._interest[route]:
                del self._interest[route]
                self._rotation.pop((group or "", subscription.filter), None)
                self._tell_cluster(removed=[route])

    def routes_known(self) -> Maybe[Sequence[NodeIdentity]]:
        """Wait until the other nodes know the last subscription; answers those that do not yet."""
        return self._cluster.route_barrier(self._routes_version, BARRIER_LIMIT_S)

    def invalidate(self) -> None:
        """What connections remember of topics may be wrong."""
        self.generation += 1

    def connected(self, session: Session) -> None:
        """A session has a connection; its version or limits may have changed: fan-outs sort it differently."""
        if session.subscriptions:
            self.generation += 1
            self.presence += 1

    def disconnected(self, session: Session) -> None:
        """A session has lost its connection."""
        if session.subscriptions:
            self.presence += 1

    def fanout(self, topic: str) -> Fanout:
        """Everybody who gets the messages of a topic, from the cache where it is fresh."""
        fanout = self._fanouts.get(topic)
        if fanout is not None and fanout.generation == self.generation:
            return fanout
        is_stale = self._cached_generation != self.generation
        if is_stale or len(self._fanouts) >= CACHED_TOPICS or self._cached_targets >= CACHED_TARGETS:
            # None of the stale ones is of use, and they hold sessions that may have ended.
            self._fanouts.clear()
            self._cached_targets = 0
            self._cached_generation = self.generation
        matches = self.index.match(topic)
        groups = [Group(name, filter, members) for (name, filter), members in matches.groups.items()]
        hooks = self._runtime.hooks
        watched = (
            self._runtime.tells_delivered or hooks.dropped.active or hooks.delivering.for_topic(topic) is not None
        )
        targets = merge(matches.subscribers, self._session_of)
        fanout = Fanout(self._runtime, self.generation, topic, targets, groups, watched)
        self._fanouts[topic] = fanout
        # A long topic takes as much as many targets.
        self._cached_targets += len(targets) + text_bytes(topic) // TARGET_BYTES
        return fanout

    def route(self, publication: Publication, fanout: Fanout | None = None, *, when_kept: bool = False) -> Routed:
        """Deliver a message to everybody who wants it.

        With ``when_kept`` nobody gets it unless this turn's writes are kept: it would come again where they are not.
        """
        publish = publication.publish
        if fanout is None or fanout.generation != self.generation:
            fanout = self.fanout(publish.topic)
        runtime = self._runtime
        if runtime.tells_published:
            runtime.hooks.published.about(publish.topic, publication.message)
        if fanout.is_empty:
            runtime.statistics.unrouted.value += 1
            if runtime.hooks.message_unrouted.active:
                runtime.hooks.message_unrouted(publication.message)
            return Routed.UNROUTED
        accepted = True
        if when_kept:
            for target in fanout.targets:
                accepted &= deliver_when_kept(self._runtime, target, publication)
        elif publish.qos:
            accepted = fanout.assured(publication)
        else:
            fanout.best_effort(publication)
        for group in fanout.groups:
            accepted &= self._to_member(group, group.members, publication, when_kept, True)
        return Routed.DELIVERED if accepted else Routed.REFUSED

    def to_another_member(
        self, client_id: str, shared_filter: str, publication: Publication, *, connected: bool, gone: bool = False
    ) -> bool:
        """Give what a member of a shared subscription held to another; ``False`` if there is none to take it.

        Only members that may receive the message count, and with ``connected`` those that are connected. One that is
        no member any more gives nothing, unless it is ``gone`` since. It is given when this turn's writes are kept.
        """
        for group in self.fanout(publication.publish.topic).groups:
            is_it = f"$share/{group.name}/{group.filter}" == shared_filter
            if not is_it or not (gone or any(member.client_id == client_id for member in group.members)):
                continue
            others = tuple(
                member
                for member in group.members
                if member.client_id != client_id
                and not self._is_ending(member.client_id)
                and (not connected or self._is_connected(member.client_id))
            )
            return self._to_member(group, others, publication, True, False) if others else False
        return False

    def _to_member(
        self, group: Group, members: tuple[Subscriber, ...], publication: Publication, when_kept: bool, ours: bool
    ) -> bool:
        """Deliver to one of some members; where its queue is full or refuses, another is asked.

        ``False`` if a queue refused. If none of them may receive the message and it is ``ours`` to drop, that is one
        drop, of the member whose turn it was; if it is not ours, ``False``, too.
        """
        rights: Rights = {} if self._runtime.hooks.authorize_receive.active else None
        refused = False
        passed_over: Target | None = None
        while members:
            member = self._choose(group, members, publication, rights)
            if member is None:
                break
            session = self._session_of(member.client_id)
            if session is not None:
                target = group.target(member, session)
                if session.ending or (publication.publish.qos and session.has_no_room):
                    passed_over = target
                elif self._give(target, publication, when_kept):
                    return True
                else:
                    refused = True
            members = tuple(other for other in members if other.client_id != member.client_id)
        if passed_over is not None:
            # The last one's queue decides what becomes of a message that nobody has room for.
            return self._give(passed_over, publication, when_kept)
        if refused or not rights or False not in rights.values():
            return not refused
        if ours:
            denied = next(client_id for client_id, right in rights.items() if not right)
            self._runtime.drop(denied, publication.message, "not_authorized")
        return ours

    def _give(self, target: Target, publication: Publication, when_kept: bool) -> bool:
        """Deliver to a member that may have the message; ``False`` if its queue refused."""
        if when_kept:
            return deliver_when_kept(self._runtime, target, publication, True)
        return deliver(self._runtime, target, publication, False, True)

    def _choose(
        self, group: Group, members: tuple[Subscriber, ...], publication: Publication, rights: Rights
    ) -> Subscriber | None:
        """The member whose turn it is among those that are connected, or where none is, among all.

        Of those who may receive the message, where there are ``rights``: ``None`` if none of them may.
        """
        if members is group.members:
            candidates = group.connected(self.presence, self._is_connected) or members
        else:
            candidates = tuple(m for m in members if self._is_connected(m.client_id)) or members
        if rights is not None:
            member = self._choose_permitted(group, candidates, publication, rights)
            if member is None and len(candidates) < len(members):
                away = tuple(m for m in members if not self._is_connected(m.client_id))
                member = self._choose_permitted(group, away, publication, rights)
            return member
        choose_member = self._runtime.hooks.choose_member
        if choose_member.active:
            chosen = choose_member(group.name, group.filter, candidates, publication.message)
            if chosen is not None:
                return chosen
        key = (group.name, group.filter)
        turn = self._rotation.get(key, 0)
        self._rotation[key] = turn + 1
        return candidates[turn % len(candidates)]

    def _choose_permitted(
        self, group: Group, candidates: tuple[Subscriber, ...], publication: Publication, rights: dict[str, bool]
    ) -> Subscriber | None:
        """The same among those that may receive the message: nobody else is shown to a plugin, or has a turn."""
        choose_member = self._runtime.hooks.choose_member
        if choose_member.active:
            candidates = tuple(m for m in candidates if self._may_receive(m, publication, rights))
            if not candidates:
                return None
            chosen = choose_member(group.name, group.filter, candidates, publication.message)
            if chosen is not None:
                return chosen
        key = (group.name, group.filter)
        turn = self._rotation.get(key, 0)
        for _ in candidates:
            member = candidates[turn % len(candidates)]
            turn += 1
            if self._may_receive(member, publication, rights):
                self._rotation[key] = turn
                return member
        return None

    def _may_receive(self, member: Subscriber, publication: Publication, rights: dict[str, bool]) -> bool:
        """Whether a member may have a message; asked once for each message, and kept in ``rights``."""
        client_id = member.client_id
        right = rights.get(client_id)
        if right is None:
            session = self._session_of(client_id)
            right = rights[client_id] = session is None or is_allowed(self._runtime, session, publication.stored)
        return right

    def _is_ending(self, client_id: str) -> bool:
        session = self._session_of(client_id)
        return session is not None and session.ending

    def _is_connected(self, client_id: str) -> bool:
        session = self._session_of(client_id)
        return session is not None and session.connection is not None

    def _tell_cluster(self, added: Sequence[RouteChange] = (), removed: Sequence[RouteChange] = ()) -> None:
        self._routes_version += 1
        self._cluster.routes_update(self._routes_version, added, removed)
