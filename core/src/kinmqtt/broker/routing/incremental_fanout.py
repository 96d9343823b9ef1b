"""A large fan-out, indexed by client id: a subscription change updates one entry instead of rebuilding all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.taps import TapCall
from kinmqtt.broker.routing.target import DENIED, INDIVIDUAL, UNKNOWN, SortedTargets, Target, delivery_path, target_of
from kinmqtt_spi.values import Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.forwarding.node_link import LinkRoute
    from kinmqtt.broker.routing.groups import Group, GroupKey
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session


class IncrementalFanout:
    """The subscribers of one topic with very many, updated entry by entry."""

    __slots__ = (
        "_denied",
        "_groups",
        "_individual",
        "_runtime",
        "_session_of",
        "_shared",
        "_targets",
        "_unknown",
        "_watched",
        "levels",
        "topic",
    )

    def __init__(
        self,
        runtime: Runtime,
        session_of: Callable[[str], Session | None],
        topic: str,
        targets: Sequence[Target],
        groups: dict[GroupKey, Group],
        watched: bool,
    ) -> None:
        """For ``watched`` see :func:`~kinmqtt.broker.routing.target.delivery_path`."""
        self._runtime = runtime
        self._session_of = session_of
        self.topic = topic
        self.levels = topic.split("/")
        self._watched = watched
        self._groups = groups
        self._targets: dict[str, Target] = {}
        self._individual: dict[str, Target] = {}
        self._shared: dict[int, dict[str, Session]] = {}
        self._unknown: dict[str, Session] = {}
        self._denied: set[str] = set()
        for target in targets:
            self._put(target.session.client_id, target)

    def __len__(self) -> int:
        return len(self._targets)

    def fanout(
        self, generation: int, links: tuple[LinkRoute, ...] | None, taps: tuple[TapCall, ...] | None
    ) -> Fanout:
        """Return the current fan-out; ``links`` are the other nodes with subscribers."""
        for client_id in tuple(self._unknown):
            # Authorizers may have given an answer to cache since.
            self._put(client_id, self._targets[client_id])
        targets = tuple(self._targets.values())
        served = targets
        if self._denied:
            served = tuple([target for id, target in self._targets.items() if id not in self._denied])
        ordered = SortedTargets(targets)
        ordered.served = served
        ordered.denied = len(self._denied)
        ordered.shared = [
            (version, list(sessions.values())) for version, sessions in self._shared.items() if sessions
        ]
        ordered.individual = list(self._individual.values())
        ordered.unknown = list(self._unknown.values())
        return Fanout(self._runtime, generation, self.topic, ordered, tuple(self._groups.values()), links, taps)

    def subscribed(self, client_id: str, subscription: Subscription) -> None:
        """Add or replace a client's subscription that matches the topic."""
        self._change(client_id, subscription.filter, subscription)

    def unsubscribed(self, client_id: str, filter: str) -> None:
        """Remove a client's subscription that matches the topic."""
        self._change(client_id, filter, None)

    def changed(self, client_id: str) -> bool:
        """Update the entry of a session that has changed or ended; ``False`` if there is none."""
        target = self._targets.get(client_id)
        if target is None:
            return False
        session = self._session_of(client_id)
        self._remove(client_id)
        if session is not None:
            self._put(client_id, target_of(session, target.subscriptions))
        return True

    def group_began(self, key: GroupKey, group: Group) -> None:
        """Add a shared subscription that matches the topic."""
        self._groups[key] = group

    def group_ended(self, key: GroupKey) -> None:
        """Remove a shared subscription that has no members any more."""
        self._groups.pop(key, None)

    def _change(self, client_id: str, filter: str, subscription: Subscription | None) -> None:
        target = self._targets.get(client_id)
        known = () if target is None else target.subscriptions
        matching = [each for each in known if each.filter != filter]
        if subscription is not None:
            matching.append(subscription)
        session = self._session_of(client_id)
        self._remove(client_id)
        if matching and session is not None:
            self._put(client_id, target_of(session, matching))

    def _put(self, client_id: str, target: Target) -> None:
        path = delivery_path(self._runtime, target, self.topic, self._watched)
        self._targets[client_id] = target
        self._unknown.pop(client_id, None)
        self._individual.pop(client_id, None)
        if path == DENIED:
            self._denied.add(client_id)
        elif path == INDIVIDUAL:
            self._individual[client_id] = target
        elif path == UNKNOWN:
            self._individual[client_id] = target
            self._unknown[client_id] = target.session
        else:
            self._shared.setdefault(path, {})[client_id] = target.session

    def _remove(self, client_id: str) -> None:
        self._targets.pop(client_id, None)
        self._individual.pop(client_id, None)
        self._unknown.pop(client_id, None)
        self._denied.discard(client_id)
        for sessions in self._shared.values():
            sessions.pop(client_id, None)
