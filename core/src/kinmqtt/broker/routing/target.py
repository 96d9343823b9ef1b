"""Delivery targets of a topic: one for each session, sorted by how messages are delivered to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.receive_rights import known_right
from kinmqtt.broker.session.session import Session
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi.services.subscription import Subscriber
from kinmqtt_spi.values import Subscription


class Target:
    """One session that gets the messages of a topic, once for all of its overlapping filters (section 3.3.4)."""

    __slots__ = (
        "_subscriptions",
        "identifiers",
        "no_local",
        "own",
        "qos",
        "retain_as_published",
        "session",
        "subscription",
    )

    def __init__(
        self,
        session: Session,
        qos: int,
        retain_as_published: bool,
        no_local: bool,
        identifiers: tuple[int, ...],
        subscription: Subscription,
        own: Target | None = None,
        subscriptions: tuple[Subscription, ...] | None = None,
    ) -> None:
        self._subscriptions = subscriptions
        self.session = session
        self.qos = qos
        """The highest QoS granted for any of the filters (MQTT-3.3.4-2)."""
        self.retain_as_published = retain_as_published
        self.no_local = no_local
        """Whether any of the subscriptions has No Local."""
        self.identifiers = identifiers
        self.subscription = subscription
        """The subscription with the highest QoS, for hooks."""
        self.own = own
        """With ``no_local``: the target for the client's own messages; ``None`` if all have No Local."""

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """All matching subscriptions."""
        return (self.subscription,) if self._subscriptions is None else self._subscriptions

    @property
    def shares_bytes(self) -> bool:
        """Whether this session takes the same packets as others."""
        return not (
            self.retain_as_published or self.no_local or self.identifiers or self.session.has_packets_of_its_own
        )


DENIED: Final = 0
"""The session may not receive the topic, and no hook must see the denial."""
INDIVIDUAL: Final = 1
"""Messages are delivered individually."""
UNKNOWN: Final = 2
"""Messages are delivered individually until it is known whether the session may receive the topic."""
SHARED: Final = 4
"""This value, or the protocol version :data:`V5`: the session takes the same packets as others of its version."""


def delivery_path(runtime: Runtime, target: Target, topic: str, watched: bool) -> int:
    """Return how messages of a topic are delivered to a target; ``watched`` if a hook must see each delivery."""
    authorize_receive = runtime.hooks.authorize_receive
    session = target.session
    if authorize_receive.active:
        right = known_right(session, topic)
        if right is None:
            return UNKNOWN if authorize_receive.asks_one else INDIVIDUAL
        if not right:
            return INDIVIDUAL if watched else DENIED
    if watched or not target.shares_bytes:
        return INDIVIDUAL
    return V5 if session.version == V5 else SHARED


class SortedTargets:
    """A topic's targets, sorted by how messages are delivered to them."""

    __slots__ = ("denied", "individual", "served", "shared", "targets", "unknown")

    def __init__(self, targets: tuple[Target, ...]) -> None:
        self.targets = targets
        self.served = targets
        """The targets that are not denied."""
        self.denied = 0
        """The number of denied targets."""
        self.shared: list[tuple[int, list[Session]]] = []
        """Sessions that share packets, by version class, 4 or 5."""
        self.individual: list[Target] = []
        self.unknown: list[Session] = []
        """Sessions whose right to receive the topic may become known."""


def sort_targets(runtime: Runtime, topic: str, targets: Iterable[Target], watched: bool) -> SortedTargets:
    """Sort the targets that :func:`merge` returns."""
    made = SortedTargets(tuple(targets))
    shared: dict[int, list[Session]] = {}
    served: list[Target] = []
    for target in made.targets:
        path = delivery_path(runtime, target, topic, watched)
        if path == DENIED:
            continue
        served.append(target)
        if path == INDIVIDUAL:
            made.individual.append(target)
        elif path == UNKNOWN:
            made.individual.append(target)
            made.unknown.append(target.session)
        else:
            shared.setdefault(path, []).append(target.session)
    if len(served) < len(made.targets):
        made.served = tuple(served)
        made.denied = len(made.targets) - len(served)
    made.shared = list(shared.items())
    return made


def merge(subscribers: Sequence[Subscriber], session_of: Callable[[str], Session | None]) -> list[Target]:
    """Return one target for each client, however many of its filters match."""
    first: dict[str, Subscription] = {}
    several: dict[str, list[Subscription]] = {}
    for subscriber in subscribers:
        client_id = subscriber.client_id
        if client_id in first:
            several.setdefault(client_id, [first[client_id]]).append(subscriber.subscription)
        else:
            first[client_id] = subscriber.subscription
    targets = []
    for client_id, subscription in first.items():
        session = session_of(client_id)
        if session is None:
            continue
        if several and client_id in several:
            targets.append(target_of(session, several[client_id]))
        else:
            targets.append(_target_of_one(session, subscription))
    return targets


def _target_of_one(session: Session, only: Subscription) -> Target:
    identifier = only.identifier
    identifiers = () if identifier is None else (identifier,)
    # MQTT-3.8.3-4: a shared subscription never has No Local, whatever a plugin or store says: messages would be lost.
    no_local = only.no_local and only.share_group is None
    return Target(session, only.qos, only.retain_as_published, no_local, identifiers, only)


def target_of(session: Session, subscriptions: Sequence[Subscription]) -> Target:
    """Return the target that combines all matching subscriptions of a session."""
    if len(subscriptions) == 1:
        return _target_of_one(session, subscriptions[0])
    best = max(subscriptions, key=lambda subscription: subscription.qos)
    wanted = [s for s in subscriptions if not s.no_local]
    return Target(
        session,
        best.qos,
        any(s.retain_as_published for s in subscriptions),
        len(wanted) < len(subscriptions),
        tuple(s.identifier for s in subscriptions if s.identifier is not None),
        best,
        target_of(session, wanted) if 0 < len(wanted) < len(subscriptions) else None,
        tuple(subscriptions),
    )
