"""Who gets a topic's messages: one target for each session, sorted by how a message reaches it."""

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
        """The highest that any of the filters was granted (MQTT-3.3.4-2)."""
        self.retain_as_published = retain_as_published
        self.no_local = no_local
        """Whether any of the filters asks not to get the client's own messages."""
        self.identifiers = identifiers
        self.subscription = subscription
        """One of them, for hooks: that of the highest QoS."""
        self.own = own
        """The target for its own messages, where ``no_local``: ``None`` if all of the filters ask for that."""

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """All of the filters that match."""
        return (self.subscription,) if self._subscriptions is None else self._subscriptions

    @property
    def shares_bytes(self) -> bool:
        """Whether the packets for this session are those of many others."""
        return not (
            self.retain_as_published or self.no_local or self.identifiers or self.session.has_packets_of_its_own
        )


DENIED: Final = 0
"""A target that may not receive the topic, of which nobody wants to hear."""
PLAIN: Final = 1
"""One that is delivered to by itself."""
UNKNOWN: Final = 2
"""The same, until it is known whether it may receive the topic."""
SHARED: Final = 4
"""This, or the protocol version :data:`V5`: one that takes the packets of that version that others take too."""


def part_of(runtime: Runtime, target: Target, topic: str, watched: bool) -> int:
    """How messages of a topic reach a target; ``watched`` where a hook must see each delivery."""
    authorize_receive = runtime.hooks.authorize_receive
    session = target.session
    if authorize_receive.active:
        right = known_right(session, topic)
        if right is None:
            return UNKNOWN if authorize_receive.asks_one else PLAIN
        if not right:
            return PLAIN if watched else DENIED
    if watched or not target.shares_bytes:
        return PLAIN
    return V5 if session.version == V5 else SHARED


class Sorted:
    """A topic's targets by how its messages reach them."""

    __slots__ = ("denied", "plain", "served", "shared", "targets", "unknown")

    def __init__(self, targets: tuple[Target, ...]) -> None:
        self.targets = targets
        self.served = targets
        """All but those that are denied,"""
        self.denied = 0
        """and how many those are."""
        self.shared: list[tuple[int, list[Session]]] = []
        """By version class, 4 or 5."""
        self.plain: list[Target] = []
        self.unknown: list[Session] = []
        """Sessions of which it may be learned whether they may receive the topic."""


def sort_targets(runtime: Runtime, topic: str, targets: Iterable[Target], watched: bool) -> Sorted:
    """Sort what :func:`merge` has made."""
    made = Sorted(tuple(targets))
    shared: dict[int, list[Session]] = {}
    served: list[Target] = []
    for target in made.targets:
        part = part_of(runtime, target, topic, watched)
        if part == DENIED:
            continue
        served.append(target)
        if part == PLAIN:
            made.plain.append(target)
        elif part == UNKNOWN:
            made.plain.append(target)
            made.unknown.append(target.session)
        else:
            shared.setdefault(part, []).append(target.session)
    if len(served) < len(made.targets):
        made.served = tuple(served)
        made.denied = len(made.targets) - len(served)
    made.shared = list(shared.items())
    return made


def merge(subscribers: Sequence[Subscriber], session_of: Callable[[str], Session | None]) -> list[Target]:
    """One target for each client, whatever the number of its filters that match."""
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
    # MQTT-3.8.3-4: a group has no No Local, whatever a plugin or a store says. Its message would go to nobody.
    no_local = only.no_local and only.share_group is None
    return Target(session, only.qos, only.retain_as_published, no_local, identifiers, only)


def target_of(session: Session, subscriptions: Sequence[Subscription]) -> Target:
    """What a session's matching subscriptions come to together."""
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
