"""A topic's subscribers, sorted by how a message reaches them. Made once for each topic, not for each message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from kinmqtt.broker.buffers import SHARED_BYTES
from kinmqtt.broker.message.names import check_made_names
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.session.receive_rights import known_right, may_receive
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi.services.subscription import Subscriber
from kinmqtt_spi.values import Disconnect, Message, Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.routing.groups import Group
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session


log = Logger("kinmqtt.fanout")

HEAVY: Final = 64
"""Deliveries beyond which one message is much more work than most packets are."""

MANY: Final = 256
"""Subscribers beyond which a message reaches them in slices."""


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


class Fanout:
    """Everybody who gets the messages of one topic, as of a generation of the fan-outs."""

    __slots__ = (
        "_denied",
        "_plain",
        "_runtime",
        "_served",
        "_shared",
        "_unknown",
        "generation",
        "groups",
        "is_large",
        "is_simple",
        "targets",
        "topic",
        "weight",
    )

    def __init__(
        self, runtime: Runtime, generation: int, topic: str, ordered: Sorted, groups: tuple[Group, ...]
    ) -> None:
        self._runtime = runtime
        self.topic = topic
        self.generation = generation
        """Below 0 where it is of no use any more."""
        self.weight = 0
        """What it counts for where those that are remembered are bounded."""
        self.targets = ordered.targets
        self.groups = groups
        self._shared = ordered.shared
        self._plain = ordered.plain
        self._unknown = ordered.unknown
        self._served = ordered.served
        self._denied = ordered.denied
        self.is_simple = bool(self.targets) and not groups and not self._plain and len(self._shared) == 1
        """Whether a QoS 0 packet that came in one version goes out to all as it is."""
        self.is_large = len(self.targets) > MANY
        """Whether a message is too much for one slice."""

    def holds(self, client_id: str) -> bool:
        """Whether a client is among those who get the messages for themselves."""
        return client_id in [target.session.client.client_id for target in self.targets]

    def retire(self) -> None:
        """It is not remembered any more: whoever still holds it must not hold sessions by it."""
        self.generation = -1
        self.targets = self._served = ()
        self.groups = ()
        # What is being walked over stays as it is: new lists stand in the place of the old.
        self._shared = []
        self._plain = []
        self._unknown = []

    @property
    def version(self) -> int:
        """The version class (4 or 5) of the packets that all subscribers take, where the fan-out is simple."""
        return self._shared[0][0]

    @property
    def is_empty(self) -> bool:
        """Whether nobody wants the topic."""
        return not self.targets and not self.groups

    def forward(self, packet: bytes) -> None:
        """Send a QoS 0 packet as it came to everybody; only where :attr:`is_simple`."""
        sessions = self._shared[0][1]
        dirty = self._runtime.turn.dirty
        for session in sessions:
            outbox = session.outbox
            packets = outbox.packets
            if not packets:
                dirty.append(outbox)
            packets.append(packet)
        if len(packet) >= SHARED_BYTES:
            self._runtime.turn.has_large = True
        count = len(sessions)
        self._runtime.statistics.messages_sent.value += count
        if count > HEAVY:
            self._runtime.slices.is_heavy = True
        if self._denied:
            self._count_denied()

    def _count_denied(self) -> None:
        self._runtime.statistics.dropped["not_authorized"].value += self._denied

    def best_effort(self, publication: Publication) -> None:
        """Deliver a QoS 0 message."""
        if len(self.targets) > HEAVY:
            self._runtime.slices.is_heavy = True
        plain = self._plain  # A plugin that is asked below may make this fan-out stale.
        self._share(publication)
        for target in plain:
            deliver(self._runtime, target, publication)
        self.has_delivered()

    def _share(self, publication: Publication) -> None:
        """Send a QoS 0 message to those who take the same packets as others."""
        if self._denied:
            self._count_denied()
        for version, sessions in self._shared:
            head, tail = publication.parts(version, 0, False)
            packet = head + tail
            if len(packet) >= SHARED_BYTES:
                self._runtime.turn.has_large = True
            dirty = self._runtime.turn.dirty
            for session in sessions:
                outbox = session.outbox
                packets = outbox.packets
                if not packets:
                    dirty.append(outbox)
                packets.append(packet)
            self._runtime.statistics.messages_sent.value += len(sessions)

    def begin(self, publication: Publication) -> Sequence[Target]:
        """Begin to deliver a message in slices; answers those whom :meth:`bring` is to bring it to."""
        if not publication.publish.qos:
            plain = self._plain
            self._share(publication)
            return plain
        if self._denied:
            self._count_denied()
        return self._served

    def bring(self, targets: Sequence[Target], publication: Publication) -> bool:
        """Deliver a message to some; ``False`` if a queue refused it."""
        if self._plain:
            accepted = True
            for target in targets:
                accepted &= deliver(self._runtime, target, publication)
            return accepted
        return self._bring_alike(targets, publication)

    def _bring_alike(self, targets: Sequence[Target], publication: Publication) -> bool:
        """The same for a message of QoS 1 or 2, where nothing is particular to any of them."""
        accepted = True
        qos = publication.publish.qos
        for target in targets:
            granted = target.qos
            if granted:
                accepted &= target.session.deliver(publication, qos if qos < granted else granted, False)
            else:
                deliver(self._runtime, target, publication)
        return accepted

    def has_delivered(self) -> None:
        """Everybody has a message: see what authorizers have answered."""
        if self._unknown:
            self._learn()

    def _learn(self) -> None:
        """Where authorizers have answered for good, this fan-out gives way to one that need not ask."""
        if any(known_right(session, self.topic) is not None for session in self._unknown):
            self.generation = -1

    def assured(self, publication: Publication) -> bool:
        """Deliver a message of QoS 1 or 2; ``False`` if a queue refused it."""
        if len(self.targets) > HEAVY:
            self._runtime.slices.is_heavy = True
        if self._denied:
            self._count_denied()
        accepted = self.bring(self._served, publication)
        self.has_delivered()
        return accepted


def deliver(
    runtime: Runtime, target: Target, publication: Publication, retained: bool = False, permitted: bool = False
) -> bool:
    """Deliver to one session, with everything that is particular to it; ``False`` if its queue refused.

    ``retained`` marks a message sent because of a new subscription, which carries RETAIN (MQTT-3.3.1-8). With
    ``permitted`` the authorizers of deliveries have allowed it already.
    """
    session = target.session
    publish = publication.publish
    if target.no_local and publication.publisher.client_id == session.client_id:
        return True if target.own is None else deliver(runtime, target.own, publication, retained, permitted)
    changed = _asked(runtime, target, publication, permitted)
    if changed is None:
        return True
    retain = retained or (target.retain_as_published and publish.retain)
    qos = min(target.qos, changed.publish.qos)
    if qos:
        subscription = target.subscription
        shared_filter = None if subscription.share_group is None else subscription.full_filter
        return session.deliver(changed, qos, retain, target.identifiers, shared_filter)
    session.deliver_particular(changed, retain, target.identifiers)
    return True


def deliver_when_kept(runtime: Runtime, target: Target, publication: Publication, permitted: bool = False) -> bool:
    """The same, for a message that may have to come again: only what is kept with this turn's writes is done at once.

    Whatever would go out without being kept goes when the turn's writes are, or not at all.
    """
    session = target.session
    # What finds the queue full is dropped, queued or refused, but not sent.
    if min(target.qos, publication.publish.qos) and (session.kept or session.has_no_room):
        return deliver(runtime, target, publication, permitted=permitted)
    runtime.turn.batch.afterwards.append(partial(_deliver_now, runtime, target, publication, permitted))
    return True


def _deliver_now(runtime: Runtime, target: Target, publication: Publication, permitted: bool) -> None:
    session = target.session
    if session.kept or session.connection is not None:
        deliver(runtime, target, publication, permitted=permitted)
    else:
        runtime.drop(session.client_id, publication.message, "offline")


def _asked(runtime: Runtime, target: Target, publication: Publication, permitted: bool) -> Publication | None:
    """What the hooks on deliveries leave of a message for one client; ``None`` where they drop it."""
    hooks = runtime.hooks
    session = target.session
    topic = publication.publish.topic
    if not permitted and hooks.authorize_receive.active:
        if not may_receive(runtime, session, publication.stored):
            return None
    intercept = hooks.delivering.for_topic(topic)
    if intercept is None:
        return publication
    outcome = intercept.at_once(session.client, publication.message, target.subscription)
    if outcome is publication.message:
        return publication
    if isinstance(outcome, Message):
        try:
            check_made_names(runtime.limits, outcome, publication.message)
        except ValueError as error:
            log.error("a plugin made an unfit message of one to {topic!r}: {error}", topic=topic, error=error)
            return publication
        return Publication.of(outcome)
    runtime.drop(session.client_id, publication.message, "intercepted")
    if isinstance(outcome, Disconnect) and session.connection is not None:
        session.connection.fail(outcome.reason, outcome.text)
    return None


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
