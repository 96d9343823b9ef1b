"""A topic's subscribers, sorted by how messages are delivered to them; built once per topic, not per message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kinmqtt.broker.buffers import SHARED_BYTES
from kinmqtt.broker.forwarding.node_link import LinkRoute
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.deliver import deliver
from kinmqtt.broker.routing.groups import Group
from kinmqtt.broker.routing.taps import TapCall
from kinmqtt.broker.routing.target import SortedTargets, Target
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.receive_rights import known_right
from kinmqtt.broker.session.session import Session
from kinmqtt.mqtt.packets import V5

HEAVY: Final = 64
"""With more deliveries, one message is much more work than most packets."""

MANY: Final = 256
"""With more subscribers, a message is delivered in slices."""


class Fanout:
    """The sessions and groups that get the messages of one topic, as of a generation of the cache."""

    __slots__ = (
        "_denied",
        "_individual",
        "_runtime",
        "_served",
        "_shared",
        "_unknown",
        "generation",
        "groups",
        "is_large",
        "is_simple",
        "links",
        "taps",
        "targets",
        "topic",
        "weight",
    )

    def __init__(
        self,
        runtime: Runtime,
        generation: int,
        topic: str,
        ordered: SortedTargets,
        groups: tuple[Group, ...],
        links: tuple[LinkRoute, ...] | None = None,
        taps: tuple[TapCall, ...] | None = None,
    ) -> None:
        self._runtime = runtime
        self.topic = topic
        self.generation = generation
        """The generation of the cache for which it is current; below 0 if it is outdated."""
        self.weight = 0
        """Its weight against the bound of the cache."""
        self.targets = ordered.targets
        self.groups = groups
        self._shared = ordered.shared
        self._individual = ordered.individual
        self._unknown = ordered.unknown
        self._served = ordered.served
        self._denied = ordered.denied
        self.links = links
        """The other nodes with subscribers; ``None`` if there are none."""
        self.taps = taps
        """The taps that see the messages; ``None`` if there are none."""
        self.is_simple = not groups and not self._individual and len(self._shared) == (1 if self.targets else 0)
        """Whether all subscribers take a QoS 0 packet of one version as it was received."""
        if taps is not None or (not self.targets and links is None):
            self.is_simple = False
        self.is_large = len(self.targets) > MANY
        """Whether messages are delivered in slices."""

    def has_client(self, client_id: str) -> bool:
        """Return whether a client gets the messages by a subscription of its own."""
        return client_id in [target.session.client.client_id for target in self.targets]

    def retire(self) -> None:
        """Mark it as outdated and drop its references to sessions, as connections may still refer to it."""
        self.generation = -1
        self.targets = self._served = ()
        self.groups = ()
        self.links = None
        self.taps = None
        # New lists, as a delivery in progress may iterate over the old ones.
        self._shared = []
        self._individual = []
        self._unknown = []

    def takes(self, version: int) -> bool:
        """Whether the subscribers take packets of a protocol version; only where :attr:`is_simple`."""
        shared = self._shared
        return not shared or (shared[0][0] == V5) == (version == V5)

    @property
    def is_empty(self) -> bool:
        """Whether the topic has no subscribers, and no taps."""
        return not self.targets and not self.groups and self.links is None and self.taps is None

    def forward(self, packet: bytes) -> None:
        """Send a QoS 0 packet as received to all subscribers of this node; only where :attr:`is_simple`."""
        if not self._shared:
            return
        sessions = self._shared[0][1]
        self._send(sessions, packet)
        if len(sessions) > HEAVY:
            self._runtime.slices.is_heavy = True
        if self._denied:
            self._count_denied()

    def forward_run(self, packets: bytes, count: int) -> None:
        """Send so many packets, which are one piece, like :meth:`forward`."""
        if not self._shared:
            return
        sessions = self._shared[0][1]
        turn = self._runtime.turn
        dirty = turn.dirty
        for session in sessions:
            buffer = session.turn_buffer
            if not buffer.packets:
                dirty.append(buffer)
            buffer.append_run(packets, count)
        if len(packets) >= SHARED_BYTES and len(sessions) > 1:
            turn.has_large = True
        self._runtime.statistics.messages_sent.value += len(sessions) * count
        if len(sessions) > HEAVY:
            self._runtime.slices.is_heavy = True
        if self._denied:
            self._runtime.statistics.dropped["not_authorized"].value += self._denied * count

    def _send(self, sessions: list[Session], packet: bytes) -> None:
        """Send the same packet to several sessions."""
        turn = self._runtime.turn
        dirty = turn.dirty
        for session in sessions:
            # Turn.packets_for, inlined: there may be very many sessions.
            buffer = session.turn_buffer
            packets = buffer.packets
            if not packets:
                dirty.append(buffer)
            packets.append(packet)
        if len(packet) >= SHARED_BYTES:
            turn.has_large = True
        self._runtime.statistics.messages_sent.value += len(sessions)

    def _count_denied(self) -> None:
        self._runtime.statistics.dropped["not_authorized"].value += self._denied

    def deliver_at_most_once(self, publication: Publication) -> None:
        """Deliver a QoS 0 message."""
        if len(self.targets) > HEAVY:
            self._runtime.slices.is_heavy = True
        individual = self._individual  # A plugin called below may make this fan-out outdated.
        self._send_shared(publication)
        for target in individual:
            deliver(self._runtime, target, publication)
        self.finish_delivery()

    def _send_shared(self, publication: Publication) -> None:
        """Send a QoS 0 message to all sessions that share packets with others."""
        if self._denied:
            self._count_denied()
        for version, sessions in self._shared:
            head, tail = publication.parts(version, 0, False)
            self._send(sessions, head + tail)

    def begin_slices(self, publication: Publication) -> Sequence[Target]:
        """Begin to deliver a message in slices; returns the targets for :meth:`deliver_to`."""
        if not publication.publish.qos:
            individual = self._individual
            self._send_shared(publication)
            return individual
        if self._denied:
            self._count_denied()
        return self._served

    def deliver_to(self, targets: Sequence[Target], publication: Publication) -> bool:
        """Deliver a message to some of the targets; ``False`` if a queue refused it."""
        if self._individual:
            accepted = True
            for target in targets:
                accepted &= deliver(self._runtime, target, publication)
            return accepted
        return self._deliver_to_similar(targets, publication)

    def _deliver_to_similar(self, targets: Sequence[Target], publication: Publication) -> bool:
        """Deliver a message of QoS 1 or 2 to targets that all share packets with others."""
        accepted = True
        qos = publication.publish.qos
        for target in targets:
            granted = target.qos
            if granted:
                accepted &= target.session.deliver(publication, qos if qos < granted else granted, False)
            else:
                deliver(self._runtime, target, publication)
        return accepted

    def finish_delivery(self) -> None:
        """End the delivery of a message: apply what authorizers have answered."""
        if self._unknown:
            self._apply_known_rights()

    def _apply_known_rights(self) -> None:
        """Mark this fan-out as outdated if authorizers gave an answer to cache: the next one need not ask them."""
        if any(known_right(session, self.topic) is not None for session in self._unknown):
            self.generation = -1

    def deliver_acknowledged(self, publication: Publication) -> bool:
        """Deliver a message of QoS 1 or 2; ``False`` if a queue refused it."""
        if len(self.targets) > HEAVY:
            self._runtime.slices.is_heavy = True
        if self._denied:
            self._count_denied()
        accepted = self.deliver_to(self._served, publication)
        self.finish_delivery()
        return accepted
