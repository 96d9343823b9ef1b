"""Routes messages to subscribers: the subscription index, the cache of fan-outs, shared subscriptions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred

from kinmqtt.broker.forwarding.announcer import Announcer
from kinmqtt.broker.forwarding.forwarder import Forwarder
from kinmqtt.broker.forwarding.node_link import LinkRoute, NodeLink
from kinmqtt.broker.message.publication import Publication, ticket_of
from kinmqtt.broker.message.ticket import Ticket
from kinmqtt.broker.routing.deliver import deliver, deliver_after_commit
from kinmqtt.broker.routing.election import Election
from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.fanouts import Fanouts
from kinmqtt.broker.routing.group_table import GroupTable
from kinmqtt.broker.routing.groups import Group, GroupKey
from kinmqtt.broker.routing.routed import Routed
from kinmqtt.broker.routing.shared import SharedDelivery
from kinmqtt.broker.routing.sliced_delivery import SlicedDelivery
from kinmqtt.broker.session.outbox_session import PREFIX
from kinmqtt.broker.turn.batch import Batch
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.cluster import RouteChange
from kinmqtt_spi.services.subscription import Subscriber, SubscriptionIndex
from kinmqtt_spi.values import Maybe, NodeIdentity, Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt.broker.turn.ports import Peer


_DELIVERED: Final = Routed.DELIVERED


def _fail(ticket: Ticket, reason: ReasonCode) -> None:
    ticket.failure = reason
    ticket.settle()


class Router:
    """Finds the subscribers of a topic; only this class changes the subscription index."""

    def __init__(
        self,
        runtime: Runtime,
        index: SubscriptionIndex,
        forwarder: Forwarder,
        announcer: Announcer,
        session_of: Callable[[str], Session | None],
    ) -> None:
        """``announcer`` tells the other nodes which filters this one has subscribers of."""
        self._runtime = runtime
        self.index = index
        self._forwarder = forwarder
        self.announcer = announcer
        self.election = Election(runtime)
        self._session_of = session_of
        self._shared = SharedDelivery(runtime, session_of)
        groups: dict[GroupKey, Group] = {}
        self.fanouts = Fanouts(runtime, index, session_of, groups, forwarder)
        self.taps = self.fanouts.taps
        self.groups = GroupTable(groups, self.fanouts, announcer)
        self._busy_topics: dict[str, deque[Deferred[None]]] = {}
        """By topic with a message that is delivered in slices: a Deferred for each later message, in order."""

    def subscribe(self, client_id: str, subscription: Subscription) -> bool:
        """Add or replace a subscription; returns whether it is new.

        Raises :class:`~kinmqtt_spi.errors.SubscriptionRefused`.
        """
        new = self.index.add(client_id, subscription)
        if subscription.share_group is None:
            self.fanouts.subscribed(client_id, subscription)
        else:
            key = (subscription.share_group, subscription.filter)
            self.groups.join(key, Subscriber(client_id, subscription), self._shared.is_connected(client_id))
        if client_id.startswith(PREFIX):
            return new  # Its messages never come from other nodes.
        self.announcer.subscribed(subscription.filter, subscription.share_group, subscription.qos, new)
        if subscription.share_group is not None:
            self.groups.announce_weight((subscription.share_group, subscription.filter))
        return new

    def unsubscribe(self, client_id: str, subscription: Subscription) -> None:
        """Remove a subscription."""
        group = subscription.share_group
        if self.index.remove(client_id, subscription.filter, group):
            if group is None:
                self.fanouts.unsubscribed(client_id, subscription.filter)
            else:
                self.groups.leave((group, subscription.filter), client_id)
            if not client_id.startswith(PREFIX):
                self.announcer.unsubscribed(subscription.filter, group)

    def node_of(self, uid: int) -> NodeIdentity | None:
        """Return another node by its uid; ``None`` for an unknown one."""
        link = self._forwarder.known_link(uid)
        return None if link is None else link.node

    def hold_route(self, filter: str) -> None:
        """Keep a route announced that has subscribers now, also without them, until :meth:`release_route`."""
        self.announcer.subscribed(filter, None, 0, True)

    def release_route(self, filter: str) -> None:
        """End what :meth:`hold_route` began."""
        self.announcer.unsubscribed(filter, None)

    def announce(self) -> None:
        """Announce this node's routes now, not at the end of the turn."""
        self.announcer.flush()

    def routes_known(self) -> Maybe[Sequence[NodeIdentity]]:
        """Wait until the other nodes know the last subscription; returns those that do not know it yet."""
        return self.announcer.known()

    def node_routes_changed(
        self, link: NodeLink, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        """Apply changes of another node's routes, which the forwarder knows already."""
        for route in removed:
            if route.share_group is not None:
                self.groups.set_node((route.share_group, route.filter), link, None)
            self.fanouts.filter_changed(route.filter)
        for route in added:
            if route.share_group is not None:
                self.groups.set_node((route.share_group, route.filter), link, route.weight)
            self.fanouts.filter_changed(route.filter)

    def forget_node(self, link: NodeLink) -> None:
        """Remove a node that is gone from all groups; fan-outs are built anew."""
        self.groups.forget_node(link)
        self.fanouts.clear()

    def invalidate(self) -> None:
        """Invalidate all cached fan-outs."""
        self.fanouts.clear()

    def connected(self, session: Session) -> None:
        """Update groups and fan-outs for a session that has a connection, maybe with another version or limits."""
        self.groups.connected(session.client_id)
        if self._runtime.hooks.authorize_receive.active:
            # The client may have other receive rights than the previous one.
            self.changed(session)
        self._update_sort_key(session)

    def disconnected(self, session: Session) -> None:
        """Update groups and fan-outs for a session that has lost its connection."""
        self.groups.disconnected(session.client_id)
        self._update_sort_key(session)

    def changed(self, session: Session) -> None:
        """Invalidate the fan-outs with a session whose receive rights have changed or that has ended."""
        if session.subscriptions:
            self.fanouts.changed(session.client_id)

    def withdraw(self, session: Session) -> None:
        """Stop routing to a session that is ending; its subscriptions are removed later."""
        self.groups.ending(session.client_id)
        self.changed(session)

    def reinstate(self, session: Session) -> None:
        """Resume routing to a session, without a connection, whose end was not committed."""
        self.changed(session)

    def _update_sort_key(self, session: Session) -> None:
        sort_key = session.sort_key
        if sort_key != session.sorted_by:
            session.sorted_by = sort_key
            self.changed(session)

    def fanout(self, topic: str) -> Fanout:
        """Return the current fan-out of a topic."""
        return self.fanouts.get(topic)

    def route(
        self,
        publication: Publication,
        fanout: Fanout | None = None,
        *,
        after_commit: bool = False,
        connection: Peer | None = None,
    ) -> Maybe[Routed]:
        """Deliver a message to all subscribers; to very many in slices, over several turns.

        With ``after_commit`` it is delivered only if this turn's writes are committed; otherwise it is retried.
        ``connection`` is the publisher's, if the message is to be acknowledged.
        """
        publish = publication.publish
        runtime = self._runtime
        if fanout is None or fanout.generation != self.fanouts.generation:
            fanout = self.fanouts.get(publish.topic)
        if runtime.notifies_published:
            runtime.hooks.published.about(publish.topic, publication.message)
        if fanout.is_large and not after_commit:
            return run(self._route_in_slices(publication, fanout, connection))
        if publication.is_identified and not fanout.is_empty and not self._forwarder.is_alone:
            return self._route_identified(publication)
        return self._route_at_once(publication, fanout, after_commit, connection)

    def _route_identified(self, publication: Publication) -> Routed:
        """Route a QoS 2 message once its identifier is stored with its message id.

        In a cluster its publisher's session may move, or this node may end, at any moment. Whoever routes a repeat
        then uses the same id, so that nobody gets the message twice.
        """
        ticket = ticket_of(publication)
        ticket.expect()
        batch = self._runtime.turn.batch
        batch.after_commit.append(partial(self._route_stored, publication, ticket, batch))
        batch.on_commit_failed.append(partial(_fail, ticket))
        return _DELIVERED

    def _route_stored(self, publication: Publication, ticket: Ticket, stored: Batch) -> None:
        if publication.publisher.client_id in stored.fenced:
            # The session has moved, and the identifier is not stored: the client sends the message again.
            _fail(ticket, ReasonCode.USE_ANOTHER_SERVER)
            return
        turn = self._runtime.turn
        turn.touch()
        batch = turn.batch
        batch.note_followed(publication.id)
        try:
            fanout = self.fanouts.get(publication.publish.topic)
            groups, links, taps = fanout.groups, fanout.links, fanout.taps
            accepted = self._to_targets(publication, fanout, False)
            if self._to_groups(publication, groups, links, False, accepted) is Routed.REFUSED:
                ticket.is_refused = True
            if taps is not None:
                self.taps.see(taps, publication, False, None)
        except Exception:
            _fail(ticket, ReasonCode.SERVER_UNAVAILABLE)
            raise
        batch.after_commit.append(partial(self._settle_stored, publication, ticket, batch))
        batch.on_commit_failed.append(partial(_fail, ticket))

    def _settle_stored(self, publication: Publication, ticket: Ticket, batch: Batch) -> None:
        """Settle a message once it is committed; it is sent after sessions that have moved."""
        try:
            for client_id, shared_filter in batch.fenced_appends(publication.id):
                if shared_filter is None:
                    self._forwarder.follow(publication, client_id)
                else:
                    _, name, filter = shared_filter.split("/", 2)
                    self._forwarder.wait_for_member(publication, (name, filter))
        except Exception:
            ticket.failure = ReasonCode.SERVER_UNAVAILABLE
            raise
        finally:
            ticket.settle()

    def is_topic_busy(self, topic: str) -> bool:
        """Return whether a message of the topic is being delivered in slices: later ones must not overtake it."""
        return bool(self._busy_topics) and topic in self._busy_topics

    async def route_in_order(self, publication: Publication, begin: Callable[[], Maybe[Routed]]) -> Routed:
        """Call ``begin`` once all earlier messages of the topic are delivered; only where it :meth:`is_topic_busy`.

        This preserves the order of a topic's messages (MQTT-4.6.0-6). A message that expires while it waits is
        dropped: its delivery had not begun (MQTT-3.3.2-5).
        """
        topic = publication.publish.topic
        runtime = self._runtime
        free: Deferred[None] = Deferred()
        waiting = self._busy_topics[topic]
        waiting.append(free)
        try:
            await free
        except BaseException:  # It was cancelled, as a source that is stopped is.
            if free in waiting:
                waiting.remove(free)
            else:
                self._release_topic(topic)
            raise
        runtime.turn.touch()
        try:
            if publication.has_expired(runtime.clock.now()):
                runtime.drop(publication.publisher.client_id, publication.message, "expired")
                return _DELIVERED
            return await resolve(begin())
        finally:
            self._release_topic(topic)

    def _route_at_once(
        self, publication: Publication, fanout: Fanout, after_commit: bool, connection: Peer | None
    ) -> Routed:
        runtime = self._runtime
        if fanout.is_empty:
            runtime.statistics.unrouted.value += 1
            if runtime.hooks.message_unrouted.active:
                runtime.hooks.message_unrouted(publication.message)
            return Routed.UNROUTED
        groups = fanout.groups  # A plugin called below may make the fan-out outdated.
        links = fanout.links
        taps = fanout.taps
        if after_commit or publication.audience is not None:
            accepted = self._to_targets(publication, fanout, after_commit)
        elif publication.publish.qos:
            accepted = fanout.deliver_acknowledged(publication)
        else:
            fanout.deliver_at_most_once(publication)
            accepted = True
        routed = _DELIVERED if accepted else Routed.REFUSED
        if groups or links is not None:
            routed = self._to_groups(publication, groups, links, after_commit, accepted)
        if taps is not None:
            self.taps.see(taps, publication, after_commit, connection)
        return routed

    def _to_targets(self, publication: Publication, fanout: Fanout, after_commit: bool) -> bool:
        accepted = True
        audience = publication.audience
        without = None if audience is None else audience.without
        if after_commit or without:
            give = deliver_after_commit if after_commit else deliver
            for target in fanout.targets:
                if without is None or target.session.client_id not in without:
                    accepted &= give(self._runtime, target, publication)
        elif publication.publish.qos:
            accepted = fanout.deliver_acknowledged(publication)
        else:
            fanout.deliver_at_most_once(publication)
        return accepted

    def _to_groups(
        self,
        publication: Publication,
        groups: tuple[Group, ...],
        links: tuple[LinkRoute, ...] | None,
        after_commit: bool,
        accepted: bool,
    ) -> Routed:
        """Deliver to a member of each shared subscription, here or on another node, and to the other nodes."""
        elected: dict[NodeLink, list[GroupKey]] | None = None
        audience = publication.audience
        groups_here = None if audience is None else audience.groups
        for group in groups:
            if group.nodes is not None and groups_here is None:
                link = self.election.elect(group)
                if link is not None:
                    if elected is None:
                        elected = {}
                    elected.setdefault(link, []).append((group.name, group.filter))
                    continue
            elif groups_here is not None and (group.name, group.filter) not in groups_here:
                continue
            accepted &= self._serve(group, publication, after_commit)
        if groups_here is None and (links is not None or elected is not None):
            accepted &= self._forward(publication, links or (), elected, after_commit)
        return _DELIVERED if accepted else Routed.REFUSED

    def _forward(
        self,
        publication: Publication,
        links: tuple[LinkRoute, ...],
        elected: dict[NodeLink, list[GroupKey]] | None,
        after_commit: bool,
    ) -> bool:
        """Forward a message to other nodes; ``False`` if it is certainly refused."""
        forwarder = self._forwarder
        if not after_commit or not publication.publish.qos:
            forwarder.forward(publication, links, elected)
            ticket = publication.ticket
            return ticket is None or not ticket.is_refused
        # The other nodes get it once its identifier is stored: a repeat must have the same message id.
        ticket = ticket_of(publication)
        ticket.expect()

        forward_now = partial(self._forward_committed, publication, links, elected, ticket)
        self._runtime.turn.batch.after_commit.append(forward_now)
        return True

    def _forward_committed(
        self,
        publication: Publication,
        links: tuple[LinkRoute, ...],
        elected: dict[NodeLink, list[GroupKey]] | None,
        ticket: Ticket,
    ) -> None:
        self._forwarder.forward(publication, links, elected)
        ticket.settle()

    def groups_here(self, topic: str) -> frozenset[GroupKey]:
        """Return the shared subscriptions of a topic that have members on this node."""
        return frozenset([(each.name, each.filter) for each in self.fanouts.get(topic).groups if each.members])

    def route_elsewhere(self, publication: Publication, again: bool) -> Ticket | None:
        """Forward a message to the other nodes, before it is routed here; returns what awaits their answers.

        :meth:`route` then delivers it to this node's subscribers, and to the shared subscriptions whose turn is here.
        """
        fanout = self.fanouts.get(publication.publish.topic)
        elected, here = self.election.elect_all(fanout.groups)
        publication.serve_only(frozenset(here))
        if fanout.links is not None or elected:
            self._forwarder.forward(publication, fanout.links or (), elected, again)
        return publication.ticket

    def forward_repeated(self, publication: Publication) -> bool:
        """Forward a message like :meth:`forward_again`; shared subscriptions get it, and taps see it, once more."""
        fanout = self.fanouts.get(publication.publish.topic)
        taps = fanout.taps
        elected, here = self.election.elect_all(fanout.groups)
        accepted = True
        for key in here:
            accepted &= self.deliver_to_group(key, publication)
        if fanout.links is not None or elected:
            self._forwarder.forward(publication, fanout.links or (), elected, again=True)
        if taps is not None:
            self.taps.see(taps, publication, False, None)
        ticket = publication.ticket
        return accepted and (ticket is None or not ticket.is_refused)

    def forward_again(self, publication: Publication) -> bool:
        """Forward a message that other nodes may have already; ``False`` if it is certainly refused."""
        links = self.fanouts.get(publication.publish.topic).links
        if links is not None:
            self._forwarder.forward(publication, links, None, again=True)
        ticket = publication.ticket
        return ticket is None or not ticket.is_refused

    def deliver_to_group(self, key: GroupKey, publication: Publication) -> bool:
        """Deliver a message to a member of a shared subscription on this node; ``False`` if a queue refused it."""
        group = self.groups.get(key)
        return group is None or self._serve(group, publication, False)

    def _serve(self, group: Group, publication: Publication, after_commit: bool) -> bool:
        """Deliver to a member of a group here; if all have moved, to one where they are now."""
        if not group.members and group.moved and publication.publish.qos:
            self._forwarder.wait_for_member(publication, (group.name, group.filter))
            return True
        return self._shared.deliver_to_group(group, publication, after_commit)

    def route_from_node(self, publication: Publication, is_plain: bool) -> Maybe[Routed]:
        """Deliver a message from another node to subscribers of this one.

        ``is_plain``: to those that are not in a shared subscription. Of the shared ones, only those are served that
        the message names in its ``audience``.
        """
        fanout = self.fanouts.get(publication.publish.topic)
        if is_plain and fanout.is_large:
            return run(self._route_in_slices(publication, fanout, None))
        groups = fanout.groups
        accepted = self._to_targets(publication, fanout, False) if is_plain else True
        return self._to_groups(publication, groups, None, False, accepted)

    async def _route_in_slices(self, publication: Publication, fanout: Fanout, connection: Peer | None) -> Routed:
        topic = publication.publish.topic
        # A message that has waited for the topic already holds it, and `route_in_order` releases it.
        holds = topic not in self._busy_topics
        if holds:
            self._busy_topics[topic] = deque()
            self.fanouts.is_busy = True
        runtime = self._runtime
        audience = publication.audience
        links = fanout.links
        taps = None if audience is not None and audience.is_forwarded else fanout.taps
        runtime.slices.hurry()
        try:
            sliced = SlicedDelivery(runtime, self.fanouts, self._session_of, publication, fanout, connection)
            while not sliced.deliver_slice():
                await runtime.slices.turn()
                runtime.turn.touch()
            routed = self._to_groups(publication, sliced.groups, links, False, sliced.accepted)
            if taps is not None:
                self.taps.see(taps, publication, False, connection)
            return routed
        finally:
            if holds:
                self._release_topic(topic)

    def _release_topic(self, topic: str) -> None:
        waiting = self._busy_topics[topic]
        if waiting:
            self._runtime.slices.later(partial(waiting.popleft().callback, None))
        else:
            del self._busy_topics[topic]
            self.fanouts.is_busy = bool(self._busy_topics)

    def deliver_to_another_member(
        self, client_id: str, shared_filter: str, publication: Publication, *, connected: bool, gone: bool = False
    ) -> bool:
        """Deliver a message that a member of a shared subscription held to another; ``False`` if none accepts it.

        With ``connected`` only connected members are eligible; each must be allowed to receive the message. A client
        that has unsubscribed gives nothing away, unless its session is ``gone``. The delivery is part of this turn's
        commit.
        """
        _, name, filter = shared_filter.split("/", 2)
        group = self.groups.get((name, filter))
        if group is None or not (gone or client_id in group.members):
            return False
        return self._shared.deliver_to_another(group, client_id, publication, connected)
