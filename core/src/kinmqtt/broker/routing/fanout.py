"""A topic's subscribers, sorted by how a message reaches them. Made once for each topic, not for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kinmqtt.broker.buffers import SHARED_BYTES
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.deliver import deliver
from kinmqtt.broker.routing.groups import Group
from kinmqtt.broker.routing.target import Sorted, Target
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.receive_rights import known_right
from kinmqtt.broker.session.session import Session

HEAVY: Final = 64
"""Deliveries beyond which one message is much more work than most packets are."""

MANY: Final = 256
"""Subscribers beyond which a message reaches them in slices."""


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
        self._send(sessions, packet)
        if len(sessions) > HEAVY:
            self._runtime.slices.is_heavy = True
        if self._denied:
            self._count_denied()

    def _send(self, sessions: list[Session], packet: bytes) -> None:
        """Send the same packet to several sessions."""
        turn = self._runtime.turn
        dirty = turn.dirty
        for session in sessions:
            # As Turn.packets_for does it, without a call for each of very many.
            outbox = session.outbox
            packets = outbox.packets
            if not packets:
                dirty.append(outbox)
            packets.append(packet)
        if len(packet) >= SHARED_BYTES:
            turn.has_large = True
        self._runtime.statistics.messages_sent.value += len(sessions)

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
            self._send(sessions, head + tail)

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
