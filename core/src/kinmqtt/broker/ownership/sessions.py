"""The interface of this package for the rest of the broker."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from kinmqtt.broker.ownership.arrivals import Arrivals
from kinmqtt.broker.ownership.claims import Claims
from kinmqtt.broker.ownership.ending import Ending
from kinmqtt.broker.ownership.expiry import Expiry
from kinmqtt.broker.ownership.failed_writes import FailedWrites
from kinmqtt.broker.ownership.handoff import HandOffs
from kinmqtt.broker.ownership.leaving import Leaving
from kinmqtt.broker.ownership.locating import USER, Locating
from kinmqtt.broker.ownership.outboxes import OutboxSessions
from kinmqtt.broker.ownership.recovery import SessionRecovery
from kinmqtt.broker.ownership.redistribution import Redistribution
from kinmqtt.broker.ownership.registry import Registry
from kinmqtt.broker.ownership.reload import Reload
from kinmqtt.broker.ownership.subscription_removal import SubscriptionRemoval
from kinmqtt.broker.ownership.wills import Wills

if TYPE_CHECKING:
    from kinmqtt.broker.routing.due import DuePublisher
    from kinmqtt.broker.routing.publisher import MessagePublisher
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt_spi.services.cluster import ClusterBackend


class Sessions:
    """The sessions of this node: claims, ends, wills and recovery.

    A facade: each method belongs to one part of this package, and is documented there.
    """

    def __init__(
        self,
        runtime: Runtime,
        router: Router,
        publisher: MessagePublisher,
        due: DuePublisher,
        cluster: ClusterBackend,
    ) -> None:
        registry = Registry(runtime, router)
        wills = Wills(runtime, registry, publisher, due)
        redistribution = Redistribution(runtime, router)
        removal = SubscriptionRemoval(runtime, router)
        reload = Reload(runtime, registry)
        ending = Ending(runtime, registry, cluster, publisher, wills, redistribution, removal, reload)
        leaving = Leaving(runtime, registry, wills, redistribution, ending)
        claims = Claims(runtime, registry, cluster, wills, removal, reload, ending, leaving)
        arrivals = Arrivals(runtime, registry, cluster, claims)
        hand_offs = HandOffs(runtime, registry, cluster, claims, reload)
        locating = Locating(runtime, registry, cluster, claims, hand_offs)
        recovery = SessionRecovery(runtime, registry, wills, removal, reload, claims)
        expiry = Expiry(runtime, registry, wills, ending)
        failed_writes = FailedWrites(runtime, registry, router, removal, reload)
        self._registry = registry
        self._claims = claims
        self.outboxes = OutboxSessions(runtime, registry, claims, ending)
        self.by_id = registry.by_id
        self.get = registry.get
        self.settled = registry.settled
        self.arrived_since = registry.arrived_since
        self.owned = registry.owned
        self.when_dropped = failed_writes.when_dropped
        self.open = locating.open
        self.answers = {USER: locating.answer_user}
        self.hand_off = hand_offs.hand_off
        self.handing = arrivals.handing
        self.when_leaving = hand_offs.when_leaving
        self.merge_by = arrivals.merge_by
        self.connection_closed = leaving.connection_closed
        self.restore = recovery.restore
        self.adopt_orphaned = recovery.adopt_orphaned
        self.expire = expiry.expire
        self.expire_messages = expiry.expire_messages
        self.fenced = failed_writes.fenced
        self.unopened = failed_writes.unopened
        self.on_commit_failed = failed_writes.on_commit_failed

    @property
    def coming_from(self) -> Set[int]:
        """The uids of nodes whose sessions come here, and are not known here yet."""
        return self._claims.coming_from

    @property
    def newest_arrival(self) -> int:
        """The version of the routes with which other nodes know of the last session that came from a store."""
        return self._registry.newest_arrival

    @property
    def clients(self) -> int:
        """The number of sessions that are clients'."""
        return self._registry.clients

    @property
    def connected(self) -> int:
        """The number of sessions that have a connection."""
        return self._registry.connected
