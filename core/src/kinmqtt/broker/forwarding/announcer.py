"""Announces this node's routes to the other nodes: changes of a turn together, as one version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt_spi.services.cluster import ClusterBackend, RouteChange
from kinmqtt_spi.services.metric import Counter
from kinmqtt_spi.values import Maybe, NodeIdentity

BARRIER_LIMIT_S: Final = 1.0

RouteKey = str | tuple[str, str]
"""A topic filter; with the name of the group for a shared subscription. There are very many of the former."""

_TOLD: Final = 1
_QOS_SHIFT: Final = 1
_QOS: Final = 3 << _QOS_SHIFT
_SUBSCRIBER: Final = 8


class Announcer:
    """Counts this node's subscribers by route, and announces what changes."""

    __slots__ = (
        "_added",
        "_backend",
        "_is_closed",
        "_is_scheduled",
        "_later",
        "_removed",
        "_routes",
        "_unsynchronised",
        "_weights",
        "version",
    )

    def __init__(
        self,
        backend: ClusterBackend,
        later: Callable[[Callable[[], object]], object],
        unsynchronised: Counter | None = None,
    ) -> None:
        """``later`` makes a call in the next reactor turn.

        ``unsynchronised`` counts how often a node did not know the routes in time.
        """
        self._unsynchronised = unsynchronised
        self._backend = backend
        self._later = later
        self._is_closed = False
        self._is_scheduled = False
        self.version = 0
        self._routes: dict[RouteKey, int] = {}
        """The number of subscribers, the highest QoS, and whether the other nodes were told, as bits of a number."""
        self._weights: dict[RouteKey, int] = {}
        """Of shared subscriptions: how many members are connected, if there are any."""
        self._added: dict[RouteKey, RouteChange] = {}
        self._removed: dict[RouteKey, RouteChange] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def subscribed(self, filter: str, share_group: str | None, qos: int, is_new: bool) -> None:
        """Count a subscription; one that replaces another of its client is not new.

        The highest QoS never falls while the route lasts: an answer too many is awaited, none too few.
        """
        key = _key(filter, share_group)
        route = self._routes.get(key)
        if route is None:
            was_told = self._removed.pop(key, None) is not None
            self._routes[key] = _SUBSCRIBER | qos << _QOS_SHIFT | was_told
        else:
            if is_new:
                route += _SUBSCRIBER
            is_higher = qos > (route & _QOS) >> _QOS_SHIFT
            self._routes[key] = route & ~_QOS | qos << _QOS_SHIFT if is_higher else route
            if not is_higher:
                return
        self._announce(key)

    def unsubscribed(self, filter: str, share_group: str | None) -> None:
        """Uncount a subscription that is removed."""
        key = _key(filter, share_group)
        route = self._routes[key] - _SUBSCRIBER
        if route >= _SUBSCRIBER:
            self._routes[key] = route
            return
        del self._routes[key]
        self._weights.pop(key, None)
        self._added.pop(key, None)
        if route & _TOLD:
            self._removed[key] = RouteChange(filter, share_group)
            self._schedule()

    def weigh(self, filter: str, share_group: str, weight: int) -> None:
        """Set the number of connected members of a shared subscription."""
        key = (filter, share_group)
        if key in self._routes and self._weights.get(key, 0) != weight:
            self._weights[key] = weight
            self._announce(key)

    def renew(self, filter: str, share_group: str | None) -> int:
        """Announce a route again, whether it has changed or not; returns the version with which that is done.

        Messages that another node has sent by an earlier version were not sent for a subscriber that came now.
        """
        self._announce(_key(filter, share_group))
        return self.version + 1

    def _announce(self, key: RouteKey) -> None:
        qos = (self._routes[key] & _QOS) >> _QOS_SHIFT
        if isinstance(key, str):
            self._added[key] = RouteChange(key, None, qos)
        else:
            self._added[key] = RouteChange(*key, qos, self._weights.get(key, 0))
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._later(self.flush)

    def close(self) -> None:
        """Announce nothing more: the backend ends, and sessions may still be taken over by other nodes."""
        self._is_closed = True

    def flush(self) -> None:
        """Announce the changes since the last call."""
        self._is_scheduled = False
        if self._is_closed or (not self._added and not self._removed):
            return
        added, self._added = self._added, {}
        removed, self._removed = self._removed, {}
        for key in added:
            self._routes[key] |= _TOLD
        self.version += 1
        self._backend.routes_update(self.version, list(added.values()), list(removed.values()))

    def known(self) -> Maybe[Sequence[NodeIdentity]]:
        """Wait until the other nodes know all routes; returns those that do not know them in time."""
        self.flush()
        laggards = self._backend.route_barrier(self.version, BARRIER_LIMIT_S)
        if isinstance(laggards, Awaitable):
            return as_deferred(laggards).addCallback(self._count)
        return self._count(laggards)

    def _count(self, laggards: Sequence[NodeIdentity]) -> Sequence[NodeIdentity]:
        if laggards and self._unsynchronised is not None:
            self._unsynchronised.value += 1
        return laggards


def _key(filter: str, share_group: str | None) -> RouteKey:
    return filter if share_group is None else (filter, share_group)
