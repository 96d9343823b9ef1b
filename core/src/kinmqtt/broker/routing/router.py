"""From a message to everybody who wants it: the subscription index, the cache in front of it, shared groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from twisted.internet.defer import Deferred

from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.deliver import deliver, deliver_after_commit
from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.fanouts import Fanouts
from kinmqtt.broker.routing.groups import Group, GroupKey
from kinmqtt.broker.routing.sliced_delivery import SlicedDelivery
from kinmqtt.broker.routing.target import Target
from kinmqtt.broker.session.receive_rights import is_allowed
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt_spi.services.cluster import ClusterBackend, RouteChange
from kinmqtt_spi.services.subscription import Subscriber, SubscriptionIndex
from kinmqtt_spi.values import Maybe, NodeIdentity, Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt.broker.turn.ports import Peer

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


_DELIVERED: Final = Routed.DELIVERED


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
        self._groups: dict[GroupKey, Group] = {}
        self._groups_of: dict[str, set[GroupKey]] = {}
        """By client id: who comes and goes is told to the groups it is a member of."""
        self.fanouts = Fanouts(runtime, index, session_of, self._groups)
        self._under_way: dict[str, deque[Deferred[None]]] = {}
        """By topic, where a message is on its way to very many: for each that came since, what fires at its turn."""
        self._routes_version = 0
        self._interest: dict[RouteChange, int] = {}
        """How many of this node's clients want a route: the other nodes hear of the first and the last."""

    def subscribe(self, client_id: str, subscription: Subscription) -> bool:
        """Add or replace a subscription; ``True`` if it is new.

        Raises :class:`~kinmqtt_spi.errors.SubscriptionRefused`.
        """
        new = self.index.add(client_id, subscription)
        if subscription.share_group is None:
            self.fanouts.subscribed(client_id, subscription)
        else:
            self._join((subscription.share_group, subscription.filter), Subscriber(client_id, subscription))
        if new:
            route = RouteChange(subscription.filter, subscription.share_group)
            self._interest[route] = self._interest.get(route, 0) + 1
            if self._interest[route] == 1:
                self._update_cluster(added=[route])
        return new

    def unsubscribe(self, client_id: str, subscription: Subscription) -> None:
        """Remove a subscription."""
        group = subscription.share_group
        if self.index.remove(client_id, subscription.filter, group):
            if group is None:
                self.fanouts.unsubscribed(client_id, subscription.filter)
            else:
                self._leave((group, subscription.filter), client_id)
            route = RouteChange(subscription.filter, group)
            self._interest[route] -= 1
            if not self._interest[route]:
                del self._interest[route]
                self._update_cluster(removed=[route])

    def _join(self, key: GroupKey, member: Subscriber) -> None:
        client_id = member.client_id
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(*key)
            self.fanouts.group_began(key, group)
        group.put(member, self._is_connected(client_id))
        self._groups_of.setdefault(client_id, set()).add(key)

    def _leave(self, key: GroupKey, client_id: str) -> None:
        group = self._groups.get(key)
        if group is None:
            return
        group.remove(client_id)
        if not group.members:
            del self._groups[key]
            self.fanouts.group_ended(key)
        keys = self._groups_of[client_id]
        keys.discard(key)
        if not keys:
            del self._groups_of[client_id]

    def routes_known(self) -> Maybe[Sequence[NodeIdentity]]:
        """Wait until the other nodes know the last subscription; answers those that do not yet."""
        return self._cluster.route_barrier(self._routes_version, BARRIER_LIMIT_S)

    def invalidate(self) -> None:
        """What connections remember of topics may be wrong."""
        self.fanouts.clear()

    def connected(self, session: Session) -> None:
        """A session has a connection; its version or limits may have changed: fan-outs sort it differently."""
        for key in self._groups_of.get(session.client_id, ()):
            self._groups[key].came(session.client_id)
        if self._runtime.hooks.authorize_receive.active:
            # Who uses the session now may have other rights than who did before.
            self.changed(session)
        self._sort_anew(session)

    def disconnected(self, session: Session) -> None:
        """A session has lost its connection."""
        for key in self._groups_of.get(session.client_id, ()):
            self._groups[key].went(session.client_id)
        self._sort_anew(session)

    def changed(self, session: Session) -> None:
        """What a session may receive is another, or the session is gone."""
        if session.subscriptions:
            self.fanouts.changed(session.client_id)

    def gone(self, session: Session) -> None:
        """A session is over: nothing comes for it any more, though its subscriptions are still to be removed."""
        for key in self._groups_of.get(session.client_id, ()):
            self._groups[key].went(session.client_id)
        self.changed(session)

    def back(self, session: Session) -> None:
        """A session that was gone is there after all, without a connection."""
        self.changed(session)

    def _sort_anew(self, session: Session) -> None:
        sort_key = session.sort_key
        if sort_key != session.sorted_by:
            session.sorted_by = sort_key
            self.changed(session)

    def fanout(self, topic: str) -> Fanout:
        """Everybody who gets the messages of a topic, from what is remembered where it is fresh."""
        return self.fanouts.get(topic)

    def route(
        self,
        publication: Publication,
        fanout: Fanout | None = None,
        *,
        after_commit: bool = False,
        connection: Peer | None = None,
    ) -> Maybe[Routed]:
        """Deliver a message to everybody who wants it: to very many in slices, the later ones in later turns.

        With ``after_commit`` nobody gets it unless this turn's writes are committed: otherwise it comes again.
        ``connection`` is the publisher's, where the message is to be acknowledged.
        """
        publish = publication.publish
        runtime = self._runtime
        if fanout is None or fanout.generation != self.fanouts.generation:
            fanout = self.fanouts.get(publish.topic)
        if runtime.notifies_published:
            runtime.hooks.published.about(publish.topic, publication.message)
        if fanout.is_large and not after_commit:
            return run(self._route_in_slices(publication, fanout, connection))
        return self._route_at_once(publication, fanout, after_commit)

    def must_wait(self, topic: str) -> bool:
        """Whether a message of a topic is on its way to very many, which others of it must not overtake."""
        return bool(self._under_way) and topic in self._under_way

    async def when_free(self, publication: Publication, begin: Callable[[], Maybe[Routed]]) -> Routed:
        """Make a call when it is a message's turn among those of its topic; only where it :meth:`must_wait`.

        Whoever published it, the order stays the one in which it came (MQTT-4.6.0-6). One that expires until then is
        dropped: its delivery had not begun (MQTT-3.3.2-5).
        """
        topic = publication.publish.topic
        runtime = self._runtime
        free: Deferred[None] = Deferred()
        self._under_way[topic].append(free)
        await free
        runtime.turn.touch()
        try:
            if publication.has_expired(runtime.clock.now()):
                runtime.drop(publication.publisher.client_id, publication.message, "expired")
                return _DELIVERED
            return await resolve(begin())
        finally:
            self._let_next_begin(topic)

    def _route_at_once(self, publication: Publication, fanout: Fanout, after_commit: bool) -> Routed:
        runtime = self._runtime
        if fanout.is_empty:
            runtime.statistics.unrouted.value += 1
            if runtime.hooks.message_unrouted.active:
                runtime.hooks.message_unrouted(publication.message)
            return Routed.UNROUTED
        accepted = True
        groups = fanout.groups  # A plugin that is asked below may make the fan-out stale.
        if after_commit:
            for target in fanout.targets:
                accepted &= deliver_after_commit(self._runtime, target, publication)
        elif publication.publish.qos:
            accepted = fanout.assured(publication)
        else:
            fanout.best_effort(publication)
        return self._to_groups(publication, groups, after_commit, accepted)

    def _to_groups(
        self, publication: Publication, groups: tuple[Group, ...], after_commit: bool, accepted: bool
    ) -> Routed:
        for group in groups:
            accepted &= self._to_member(group, publication, after_commit)
        return _DELIVERED if accepted else Routed.REFUSED

    async def _route_in_slices(self, publication: Publication, fanout: Fanout, connection: Peer | None) -> Routed:
        topic = publication.publish.topic
        # One whose turn has come holds the topic already, and lets it go itself.
        holds = topic not in self._under_way
        if holds:
            self._under_way[topic] = deque()
            self.fanouts.is_busy = True
        runtime = self._runtime
        runtime.slices.hurry()
        try:
            sliced = SlicedDelivery(runtime, self.fanouts, self._session_of, publication, fanout, connection)
            while not sliced.deliver_slice():
                await runtime.slices.turn()
                runtime.turn.touch()
            return self._to_groups(publication, sliced.groups, False, sliced.accepted)
        finally:
            if holds:
                self._let_next_begin(topic)

    def _let_next_begin(self, topic: str) -> None:
        waiting = self._under_way[topic]
        if waiting:
            self._runtime.slices.later(partial(waiting.popleft().callback, None))
        else:
            del self._under_way[topic]
            self.fanouts.is_busy = bool(self._under_way)

    def to_another_member(
        self, client_id: str, shared_filter: str, publication: Publication, *, connected: bool, gone: bool = False
    ) -> bool:
        """Give what a member of a shared subscription held to another; ``False`` if there is none to take it.

        Only members that may receive the message count, and with ``connected`` those that are connected. One that is
        no member any more gives nothing, unless it is ``gone`` since. It is given when this turn's writes are kept.
        """
        _, name, filter = shared_filter.split("/", 2)
        group = self._groups.get((name, filter))
        if group is None or not (gone or client_id in group.members):
            return False

        def is_fit(other: str) -> bool:
            return other != client_id and not self._is_ending(other) and (not connected or self._is_connected(other))

        rights: Rights = {} if self._runtime.hooks.authorize_receive.active else None
        if self._runtime.hooks.choose_member.active:
            others = tuple(member for member in group.members.values() if is_fit(member.client_id))
            return self._to_chosen(group, others, publication, True, rights) is True
        return self._to_first(group, is_fit, publication, True, rights) is True

    def _to_member(self, group: Group, publication: Publication, after_commit: bool) -> bool:
        """Deliver to the member whose turn it is; where its queue is full or refuses, or it may not, to another.

        ``False`` if a queue refused. If none of them may receive the message, that is one drop, of the member whose
        turn it was.
        """
        hooks = self._runtime.hooks
        rights: Rights = {} if hooks.authorize_receive.active else None
        if hooks.choose_member.active:
            taken = self._to_chosen(group, tuple(group.members.values()), publication, after_commit, rights)
            refused = False
        else:
            candidates = group.candidates
            if not candidates:
                return True
            member = candidates[group.turn % len(candidates)]
            refused = False
            session = self._session_of(member.client_id)
            if session is not None and (rights is None or self._may_receive(session, publication, rights)):
                alone = len(group.members) == 1
                if alone or not (session.ending or (publication.publish.qos and session.has_no_capacity)):
                    if self._give(group.target(member, session), publication, after_commit):
                        group.turn += 1
                        return True
                    refused = True

            def is_fit(client_id: str) -> bool:
                return not refused or client_id != member.client_id

            taken = self._to_first(group, is_fit, publication, after_commit, rights)
        if taken is not None:
            return taken
        if refused:
            return False
        denied = next((client_id for client_id, right in (rights or {}).items() if not right), None)
        if denied is not None:
            self._runtime.drop(denied, publication.message, "not_authorized")
        return True

    def _to_first(
        self,
        group: Group,
        is_fit: Callable[[str], bool],
        publication: Publication,
        after_commit: bool,
        rights: Rights,
    ) -> bool | None:
        """Deliver to the first fit member that has room; whether one took it, or ``None`` where none is fit."""
        turn = group.turn
        group.turn = turn + 1
        taken: bool | None = None
        full: Target | None = None
        for number, member in enumerate(group.in_turn(turn)):
            session = self._session_of(member.client_id)
            if session is None or not is_fit(member.client_id):
                continue
            if rights is not None and not self._may_receive(session, publication, rights):
                continue
            target = group.target(member, session)
            if session.ending or (publication.publish.qos and session.has_no_capacity):
                full = target
            elif self._give(target, publication, after_commit):
                # Those that were passed over had their turn: who comes after them has not two for each of theirs.
                group.turn = turn + number + 1
                return True
            taken = False
        if full is not None:
            # The last one's queue decides what becomes of a message that nobody has room for.
            taken = self._give(full, publication, after_commit)
        return taken

    def _to_chosen(
        self,
        group: Group,
        members: tuple[Subscriber, ...],
        publication: Publication,
        after_commit: bool,
        rights: Rights,
    ) -> bool | None:
        """Deliver to the one of some members that plugins choose; where its queue is full or refuses, ask again.

        Whether one took it, or ``None`` where none is fit.
        """
        taken: bool | None = None
        full: Target | None = None
        while members:
            member = self._choose(group, members, publication, rights)
            if member is None:
                break
            session = self._session_of(member.client_id)
            if session is not None:
                target = group.target(member, session)
                if session.ending or (publication.publish.qos and session.has_no_capacity):
                    full = target
                elif self._give(target, publication, after_commit):
                    return True
                taken = False
            members = tuple(other for other in members if other.client_id != member.client_id)
        if full is not None:
            taken = self._give(full, publication, after_commit)
        return taken

    def _choose(
        self, group: Group, members: tuple[Subscriber, ...], publication: Publication, rights: Rights
    ) -> Subscriber | None:
        """The member that plugins choose among those that are connected, or where none is, among all.

        Where there are ``rights``, of those who may receive the message: nobody else is shown to a plugin, or has a
        turn; ``None`` if none of them may.
        """
        if len(members) == len(group.members):
            candidates = group.candidates
        else:
            candidates = tuple(m for m in members if self._is_connected(m.client_id)) or members
        if rights is not None:
            permitted = self._permitted(candidates, publication, rights)
            if not permitted and len(candidates) < len(members):
                permitted = self._permitted(members, publication, rights)
            if not permitted:
                return None
            candidates = permitted
        chosen = self._runtime.hooks.choose_member(group.name, group.filter, candidates, publication.message)
        if chosen is not None:
            return chosen
        turn = group.turn
        group.turn = turn + 1
        return candidates[turn % len(candidates)]

    def _permitted(
        self, members: tuple[Subscriber, ...], publication: Publication, rights: dict[str, bool]
    ) -> tuple[Subscriber, ...]:
        """Those members that may receive a message; who has no session here is not asked about."""
        permitted = []
        for member in members:
            session = self._session_of(member.client_id)
            if session is None or self._may_receive(session, publication, rights):
                permitted.append(member)
        return tuple(permitted)

    def _may_receive(self, session: Session, publication: Publication, rights: dict[str, bool]) -> bool:
        """Whether a member may have a message; asked once for each message, and kept in ``rights``."""
        right = rights.get(session.client_id)
        if right is None:
            right = rights[session.client_id] = is_allowed(self._runtime, session, publication.stored)
        return right

    def _give(self, target: Target, publication: Publication, after_commit: bool) -> bool:
        """Deliver to a member that may have the message; ``False`` if its queue refused."""
        if after_commit:
            return deliver_after_commit(self._runtime, target, publication, True)
        return deliver(self._runtime, target, publication, False, True)

    def _is_ending(self, client_id: str) -> bool:
        session = self._session_of(client_id)
        return session is not None and session.ending

    def _is_connected(self, client_id: str) -> bool:
        session = self._session_of(client_id)
        return session is not None and session.connection is not None

    def _update_cluster(self, added: Sequence[RouteChange] = (), removed: Sequence[RouteChange] = ()) -> None:
        self._routes_version += 1
        self._cluster.routes_update(self._routes_version, added, removed)
