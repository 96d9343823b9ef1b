"""A topic's subscribers, sorted by how a message reaches them. Made once for each topic, not for each message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from kinmqtt.broker.publication import Publication, check_message
from kinmqtt.broker.receiving import known_right, may_receive
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi.services.subscription import Subscriber
from kinmqtt_spi.values import Disconnect, Message, Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session import Session


log = Logger("kinmqtt.fanout")

HEAVY: Final = 64
"""Deliveries beyond which one message is much more work than most packets are."""


class Target:
    """One session that gets the messages of a topic, once for all of its overlapping filters (section 3.3.4)."""

    __slots__ = (
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
    ) -> None:
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
    def shares_bytes(self) -> bool:
        """Whether the packets for this session are those of many others."""
        return not (
            self.retain_as_published or self.no_local or self.identifiers or self.session.has_packets_of_its_own
        )


class Group:
    """A shared subscription: of its members one gets each message (section 4.8.2)."""

    __slots__ = ("_connected", "_presence", "_targets", "filter", "members", "name")

    def __init__(self, name: str, filter: str, members: tuple[Subscriber, ...]) -> None:
        self.name = name
        self.filter = filter
        self.members = members
        self._connected: tuple[Subscriber, ...] = ()
        self._presence = -1
        self._targets: dict[str, Target] = {}

    def connected(self, presence: int, is_connected: Callable[[str], bool]) -> tuple[Subscriber, ...]:
        """The members that are there, as of a ``presence``, which counts who comes and goes."""
        if presence != self._presence:
            self._connected = tuple(member for member in self.members if is_connected(member.client_id))
            self._presence = presence
        return self._connected

    def target(self, member: Subscriber, session: Session) -> Target:
        """What a member's subscription comes to."""
        target = self._targets.get(member.client_id)
        if target is None or target.session is not session:
            target = self._targets[member.client_id] = target_of(session, [member.subscription])
        return target


class Fanout:
    """Everybody who gets the messages of one topic, as of a generation of the index."""

    __slots__ = (
        "_denied",
        "_plain",
        "_runtime",
        "_served",
        "_shared",
        "_topic",
        "_unknown",
        "generation",
        "groups",
        "is_simple",
        "targets",
    )

    def __init__(
        self,
        runtime: Runtime,
        generation: int,
        topic: str,
        targets: Sequence[Target],
        groups: Sequence[Group],
        watched: bool,
    ) -> None:
        """``watched`` is true where a hook must see each delivery of this topic."""
        self._runtime = runtime
        self._topic = topic
        self._unknown: list[Session] = []
        """Sessions of which it may be learned whether they may receive the topic."""
        self.generation = generation
        self.targets = tuple(targets)
        self.groups = tuple(groups)
        self._shared: list[tuple[int, list[Session]]] = []
        self._plain: list[Target] = []
        self._served: tuple[Target, ...] = self.targets
        """All but those who may not receive the topic, of which nobody wants to hear."""
        self._denied = 0
        """How many those are."""
        self._sort(watched)
        self.is_simple = bool(targets) and not groups and not self._plain and len(self._shared) == 1
        """Whether a QoS 0 packet that came in one version goes out to all as it is."""

    @property
    def version(self) -> int:
        """The version class (4 or 5) of the packets that all subscribers take, where the fan-out is simple."""
        return self._shared[0][0]

    @property
    def is_empty(self) -> bool:
        """Whether nobody wants the topic."""
        return not self.targets and not self.groups

    def _sort(self, watched: bool) -> None:
        shared: dict[int, list[Session]] = {}
        served: list[Target] = []
        hooks = self._runtime.hooks
        guarded = hooks.authorize_receive.active
        for target in self.targets:
            right = known_right(target.session, self._topic) if guarded else True
            if right is None and hooks.authorize_receive.asks_one:
                self._unknown.append(target.session)
            if right is False and not watched:
                continue
            served.append(target)
            if watched or not right or not target.shares_bytes:
                self._plain.append(target)
            else:
                version = V5 if target.session.version == V5 else 4
                shared.setdefault(version, []).append(target.session)
        if len(served) < len(self.targets):
            self._served = tuple(served)
            self._denied = len(self.targets) - len(served)
        self._shared = list(shared.items())

    def forward(self, packet: bytes) -> None:
        """Send a QoS 0 packet as it came to everybody; only where :attr:`is_simple`."""
        sessions = self._shared[0][1]
        dirty = self._runtime.turn.dirty
        for session in sessions:
            out = session.out
            if not out:
                dirty.append(out)
            out.append(packet)
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
        if self._denied:
            self._count_denied()
        for version, sessions in self._shared:
            head, tail = publication.parts(version, 0, False)
            packet = head + tail
            dirty = self._runtime.turn.dirty
            for session in sessions:
                out = session.out
                if not out:
                    dirty.append(out)
                out.append(packet)
            self._runtime.statistics.messages_sent.value += len(sessions)
        for target in self._plain:
            deliver(self._runtime, target, publication)
        if self._unknown:
            self._learn()

    def _learn(self) -> None:
        """Where authorizers have answered for good, this fan-out gives way to one that need not ask."""
        if any(known_right(session, self._topic) is not None for session in self._unknown):
            self.generation = -1

    def assured(self, publication: Publication) -> bool:
        """Deliver a message of QoS 1 or 2; ``False`` if a queue refused it."""
        accepted = True
        qos = publication.publish.qos
        if len(self.targets) > HEAVY:
            self._runtime.slices.is_heavy = True
        if self._denied:
            self._count_denied()
        if self._plain:
            for target in self._served:
                accepted &= deliver(self._runtime, target, publication)
            if self._unknown:
                self._learn()
            return accepted
        for target in self._served:
            granted = target.qos
            if granted:
                accepted &= target.session.deliver(publication, qos if qos < granted else granted, False)
            else:
                deliver(self._runtime, target, publication)
        return accepted


def deliver(runtime: Runtime, target: Target, publication: Publication, retained: bool = False) -> bool:
    """Deliver to one session, with everything that is particular to it; ``False`` if its queue refused.

    ``retained`` marks a message sent because of a new subscription, which carries RETAIN (MQTT-3.3.1-8).
    """
    session = target.session
    publish = publication.publish
    if target.no_local and publication.publisher.client_id == session.client_id:
        return True if target.own is None else deliver(runtime, target.own, publication, retained)
    changed = _asked(runtime, target, publication)
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


def deliver_when_kept(runtime: Runtime, target: Target, publication: Publication) -> bool:
    """The same, for a message that may have to come again: only what is kept with this turn's writes is done at once.

    Whatever would go out without being kept goes when the turn's writes are, or not at all.
    """
    session = target.session
    # What finds the queue full is dropped, queued or refused, but not sent.
    if min(target.qos, publication.publish.qos) and (session.kept or session.has_no_room):
        return deliver(runtime, target, publication)
    runtime.turn.batch.afterwards.append(partial(_deliver_now, runtime, target, publication))
    return True


def _deliver_now(runtime: Runtime, target: Target, publication: Publication) -> None:
    session = target.session
    if session.kept or session.connection is not None:
        deliver(runtime, target, publication)
    else:
        runtime.drop(session.client_id, publication.message, "offline")


def _asked(runtime: Runtime, target: Target, publication: Publication) -> Publication | None:
    """What the hooks on deliveries leave of a message for one client; ``None`` where they drop it."""
    hooks = runtime.hooks
    session = target.session
    topic = publication.publish.topic
    if hooks.authorize_receive.active and not may_receive(runtime, session, publication.stored):
        return None
    intercept = hooks.delivering.for_topic(topic)
    if intercept is None:
        return publication
    outcome = intercept.at_once(session.client, publication.message, target.subscription)
    if outcome is publication.message:
        return publication
    if isinstance(outcome, Message):
        try:
            check_message(outcome)
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
    by_client: dict[str, list[Subscription]] = {}
    for subscriber in subscribers:
        by_client.setdefault(subscriber.client_id, []).append(subscriber.subscription)
    targets = []
    for client_id, subscriptions in by_client.items():
        session = session_of(client_id)
        if session is not None:
            targets.append(target_of(session, subscriptions))
    return targets


def target_of(session: Session, subscriptions: Sequence[Subscription]) -> Target:
    """What a session's matching subscriptions come to together."""
    if len(subscriptions) == 1:  # Nearly always, and for each of very many subscribers.
        only = subscriptions[0]
        identifier = only.identifier
        identifiers = () if identifier is None else (identifier,)
        return Target(session, only.qos, only.retain_as_published, only.no_local, identifiers, only)
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
    )
