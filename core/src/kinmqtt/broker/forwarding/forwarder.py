"""Forwards messages to the nodes that have subscribers for them, and takes their answers."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from mypy_extensions import mypyc_attr
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.filter_table import FilterTable
from kinmqtt.broker.forwarding.batch_format import (
    CLIENTS_AT_ONCE,
    MOVED,
    NO_MEMBER,
    PLAIN,
    REFUSED,
    GroupKey,
    RunHead,
    read_answer,
)
from kinmqtt.broker.forwarding.node_link import (
    AssuredBuffer,
    Forwarded,
    LinkRoute,
    NodeLink,
    PushBuffer,
    packet_of,
)
from kinmqtt.broker.forwarding.route_table import RouteTable
from kinmqtt.broker.message.publication import Publication, ticket_of
from kinmqtt.broker.message.ticket import TicketOwner
from kinmqtt.broker.runtime import Runtime
from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.cluster import ClusterBackend, RouteChange
from kinmqtt_spi.values import NodeIdentity, Publisher

log = Logger("kinmqtt.forwarding")

GROUPS_AT_ONCE: Final = 1000
"""The most shared subscriptions that one run names."""

GROUP_BYTES_AT_ONCE: Final = 256 << 10
"""About how large their names and filters may be."""

MAX_PACKET_BYTES: Final = 15 << 20
"""The largest packet that is forwarded: a backend's frames have at most 16 MiB."""


@mypyc_attr(allow_interpreted_subclasses=True)  # The layer above is not compiled.
class Rerouting:
    """What is done with a message that a node could not take; the layer above overrides it."""

    __slots__ = ()

    def elect_again(self, message: Forwarded, group: GroupKey, node: NodeIdentity | None) -> None:
        """Give a message to another member of a shared subscription: a node had none, ``None`` for this one."""
        raise NotImplementedError

    def redirect(self, message: Forwarded, clients: Sequence[str], link: NodeLink | None) -> None:
        """Send a message to the nodes that have these clients' sessions now; ``link`` is to the one that may."""
        raise NotImplementedError

    def node_gone(self, node: NodeIdentity, message: Forwarded) -> None:
        """Send a message to whoever adopts the sessions of a node that is gone."""
        raise NotImplementedError


class Forwarder:
    """The links to the other nodes, and their routes."""

    __slots__ = ("_by_number", "_links", "_moved", "_rerouting", "_runtime", "backend", "routes", "unanswered")

    def __init__(self, runtime: Runtime, backend: ClusterBackend) -> None:
        self._runtime = runtime
        self.backend = backend
        self.routes = RouteTable()
        self._links: dict[int, NodeLink] = {}
        """By node uid."""
        self._by_number: dict[int, NodeLink] = {}
        self._moved = FilterTable()
        """By filter: the links to the new owners of sessions that were here, by client id."""
        self._rerouting = Rerouting()
        self.unanswered = 0
        """The number of messages that nodes have not answered."""

    def reroute_by(self, rerouting: Rerouting) -> None:
        """Set what is done with messages that a node could not take."""
        self._rerouting = rerouting

    # Nodes and routes

    @property
    def is_alone(self) -> bool:
        """Whether no message leaves this node: there is no other, and none that is gone or has a session of here."""
        return not self._by_number and not len(self._moved)

    @property
    def awaits_adoption(self) -> bool:
        """Whether sessions of a node that is gone may have no owner yet."""
        return len(self._by_number) > len(self._links)

    def link_to(self, node: NodeIdentity) -> NodeLink:
        """Return the link to a node; made on first use. Raises ServiceUnavailable for too many nodes."""
        link = self._links.get(node.uid)
        if link is None:
            number = self.routes.add_node()
            push = PushBuffer(node, self._runtime.message_ids, partial(self._push, node))
            own_uid = self._runtime.message_ids.uid
            assured = AssuredBuffer(
                node, own_uid, self._runtime.now, partial(self._deliver, node), partial(self._not_written, node)
            )
            link = NodeLink(node, number, push, assured)
            self._links[node.uid] = self._by_number[number] = link
        return link

    def queued_bytes(self) -> int:
        """Return the bytes of batches that other nodes have not acknowledged."""
        return sum([self._queued_bytes(link.node) for link in self._links.values()])

    def _queued_bytes(self, node: NodeIdentity) -> int:
        try:
            return self.backend.link(node).queued_bytes
        except NodeGone:
            return 0

    def known_link(self, uid: int) -> NodeLink | None:
        """Return the link to a node by its uid; ``None`` for an unknown node."""
        return self._links.get(uid)

    def links(self) -> Sequence[NodeLink]:
        """Return the links to all other nodes."""
        return tuple(self._links.values())

    def remove_node(self, node: NodeIdentity) -> bool:
        """Remove a node that is gone; returns whether it was known.

        Until :meth:`forget_routes` its routes stay: messages for its sessions wait for those that adopt them.
        """
        link = self._links.pop(node.uid, None)
        if link is None:
            return False
        link.is_gone = True
        return True

    def forget_routes(self, link: NodeLink) -> None:
        """Forget the routes of a node that is gone: its sessions have new owners, whose routes are known."""
        if self._by_number.pop(link.number, None) is not None:
            self.routes.remove_node(link.number)

    def routes_changed(
        self, node: NodeIdentity, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        """Apply changes of a node's routes."""
        link = self.link_to(node)
        routes = self.routes
        for route in removed:
            routes.remove(link.number, route)
        for route in added:
            routes.put(link.number, route)
        link.push.routes_version = link.assured.routes_version = version

    def links_for(self, topic: str) -> tuple[LinkRoute, ...]:
        """Return the nodes with subscribers of a topic that are not in a shared subscription."""
        by_number = self._by_number
        found = [LinkRoute(by_number[number], assured) for number, assured in self.routes.nodes_for(topic)]
        if len(self._moved):
            found += self._moved_for(topic)
        return tuple(found)

    def _moved_for(self, topic: str) -> list[LinkRoute]:
        """Return the nodes to which sessions with subscribers of a topic have moved."""
        by_link: dict[NodeLink | None, dict[str, None]] = {}
        for moved in self._moved.match(topic):
            if isinstance(moved, dict):
                for client_id, link in moved.items():
                    by_link.setdefault(link, {})[client_id] = None
        return [
            LinkRoute(link, True, some)
            for link, clients in by_link.items()
            for some in _pieces_of_clients(tuple(clients))
        ]

    def session_moved(self, client_id: str, link: NodeLink | None, filters: Sequence[str]) -> None:
        """Send messages that match these filters to a client's session on another node, until it is forgotten.

        ``link`` is ``None`` while the new owner is not known: then it is looked for.
        Other nodes send such messages here until they know the new owner's routes.
        """
        for filter in filters:
            moved = self._moved.get(filter)
            if not isinstance(moved, dict):
                moved = {}
                self._moved.put(filter, moved)
            moved[client_id] = link

    def forget_moved(self, client_id: str, filters: Sequence[str]) -> None:
        """End what :meth:`session_moved` began."""
        for filter in filters:
            moved = self._moved.get(filter)
            if isinstance(moved, dict):
                moved.pop(client_id, None)
                if not moved:
                    self._moved.put(filter, None)

    # Messages

    def forward_packet(
        self, routes: tuple[LinkRoute, ...], packet: bytes, publisher: Publisher, is_v5: bool, topic: str
    ) -> None:
        """Forward a QoS 0 packet, without RETAIN and properties, as it came."""
        turn = self._runtime.turn
        for route in routes:
            if route.link is None:
                continue
            if route.link.is_gone:
                self._runtime.statistics.dropped["node_gone"].value += 1
                continue
            push = route.link.push
            push.note(packet, publisher, is_v5, topic)
            turn.packets_for(push).append(packet)

    def forward(
        self,
        publication: Publication,
        routes: tuple[LinkRoute, ...],
        elected: dict[NodeLink, list[GroupKey]] | None = None,
        again: bool = False,
    ) -> None:
        """Forward a message to nodes with subscribers, and to those elected for shared subscriptions.

        ``again``: they may have it already.

        The answers of nodes with subscribers above QoS 0 are awaited by the message's ticket.
        """
        if len(publication.publish.frame) > MAX_PACKET_BYTES:
            self._refuse_large(publication)
            return
        packet, flags = packet_of(publication)
        qos = publication.publish.qos
        for route in routes:
            link = route.link
            groups: tuple[GroupKey, ...] = ()
            if route.clients:
                if qos:
                    self._follow_moved(route, packet, flags, publication)
                continue
            assert link is not None
            if elected is not None:
                groups = tuple(elected.pop(link, ()))
            plain = True
            for some in _pieces(groups):
                if qos and (route.assured or groups):
                    message = Forwarded(publication, ticket_of(publication), plain, some, (), again)
                    self._assure(link, packet, flags, message)
                else:
                    self._push_one(link, packet, flags, publication, plain, some)
                plain = False
        for link, keys in (elected or {}).items():
            for some in _pieces(tuple(keys)):
                if qos:
                    message = Forwarded(publication, ticket_of(publication), False, some, (), again)
                    self._assure(link, packet, flags, message)
                else:
                    self._push_one(link, packet, flags, publication, False, some)

    def _follow_moved(self, route: LinkRoute, packet: bytes, flags: int, publication: Publication) -> None:
        """Send a message to the node that has a session which was here."""
        ticket = ticket_of(publication)
        message = Forwarded(publication, ticket, False, (), route.clients, True)
        if route.link is None or route.link.is_gone:
            self._rerouting.redirect(message, route.clients, None)
        else:
            self._assure(route.link, packet, flags, message)

    def follow(self, publication: Publication, client_id: str) -> None:
        """Send a message to a client's session, which was here: its owner is looked for."""
        message = Forwarded(publication, ticket_of(publication), False, (), (client_id,), True)
        self._rerouting.redirect(message, (client_id,), None)

    def wait_for_member(self, publication: Publication, group: GroupKey) -> None:
        """Give a message to a shared subscription whose members have all moved, once their new node is known."""
        message = Forwarded(publication, ticket_of(publication), False, (group,))
        self._rerouting.elect_again(message, group, None)

    def send_to_clients(self, link: NodeLink, message: Forwarded, clients: tuple[str, ...]) -> None:
        """Send a message to sessions that a node is said to have."""
        for some in _pieces_of_clients(clients):
            self.send(link, Forwarded(message.publication, message.ticket, False, (), some, True))

    def send(self, link: NodeLink, message: Forwarded) -> None:
        """Send one message to a node, which answers to the message's ticket."""
        packet, flags = packet_of(message.publication)
        self._assure(link, packet, flags, message)

    def _assure(self, link: NodeLink, packet: bytes, flags: int, message: Forwarded) -> None:
        ticket = message.ticket
        if link.is_gone:
            if message.searching:
                ticket.is_elsewhere = True
                ticket.expect()
                ticket.settle()
                return
            # It may wait long: its publisher should not send more meanwhile.
            ticket.is_slow = True
            self._rerouting.node_gone(link.node, message)
            return
        ticket.expect()
        if link.is_full:
            ticket.is_slow = True
        self.unanswered += 1
        link.assured.note(message, flags, packet)
        self._runtime.turn.packets_for(link.assured).append(packet)

    def _push_one(
        self,
        link: NodeLink,
        packet: bytes,
        flags: int,
        publication: Publication,
        plain: bool,
        groups: tuple[GroupKey, ...],
    ) -> None:
        if link.is_gone:
            self._runtime.statistics.dropped["node_gone"].value += 1
            return
        push = link.push
        is_v5 = flags != 0
        if plain and not groups and publication.expires_at is None:
            push.note(packet, publication.publisher, is_v5, None)
        else:
            age_ms = int(max(0.0, self._runtime.now() - publication.received_at) * 1000)
            head = RunHead(flags | (PLAIN if plain else 0), publication.publisher, 0, 0, age_ms, groups)
            push.note_apart(packet, head)
        self._runtime.turn.packets_for(push).append(packet)

    def _refuse_large(self, publication: Publication) -> None:
        runtime = self._runtime
        size_bytes = len(publication.publish.frame)
        runtime.drop(publication.publisher.client_id, publication.message, "packet_too_large")
        if runtime.log_lines.may("forwarding"):
            log.warn(
                "a message of {size} bytes to {topic!r} is not forwarded: at most {most} bytes are",
                size=size_bytes,
                topic=publication.publish.topic,
                most=MAX_PACKET_BYTES,
            )
        if publication.publish.qos:
            ticket_of(publication).is_refused = True

    # Batches and answers

    def _push(self, node: NodeIdentity, batch: bytes, messages: int) -> None:
        statistics = self._runtime.statistics
        try:
            taken = self.backend.push(node, batch)
        except ServiceUnavailable:
            taken = False
        if taken:
            statistics.forwarded.value += messages
        else:
            statistics.dropped["link_full"].value += messages

    def _deliver(self, node: NodeIdentity, batch: bytes, messages: list[Forwarded]) -> None:
        self._runtime.statistics.forwarded.value += len(messages)
        try:
            answer = self.backend.deliver(node, batch, len(messages))
        except Exception as error:
            self._failed(node, messages, Failure(error))
            return
        if isinstance(answer, Awaitable):
            self._look_at_credit(node)
            deferred: Deferred[bytes] = as_deferred(answer)
            deferred.addCallbacks(partial(self._answered, node, messages), partial(self._failed, node, messages))
            deferred.addErrback(partial(log.failure, "the answer of node {node} was not applied", node=node.name))
        else:
            self._answered(node, messages, answer)

    def _not_written(self, node: NodeIdentity, messages: list[Forwarded], error: Exception) -> None:
        self._failed(node, messages, Failure(error))

    def _look_at_credit(self, node: NodeIdentity) -> None:
        """Note whether a link has credit: after a batch, and after each answer."""
        link = self._links.get(node.uid)
        if link is not None:
            try:
                link.is_full = self.backend.link(node).credit_bytes <= 0
            except NodeGone:
                link.is_full = False

    def _answered(self, node: NodeIdentity, messages: list[Forwarded], answer: bytes) -> None:
        """Settle the messages of a batch, and send those on that the node could not take."""
        try:
            verdicts = read_answer(answer, len(messages)) if answer else []
        except MalformedBatch:
            self._runtime.statistics.malformed.value += 1
            self._failed(node, messages, Failure())
            return
        self._look_at_credit(node)
        self.unanswered -= len(messages)
        self._runtime.turn.touch()
        moved: dict[tuple[int, str], list[str]] = {}
        for number, code, texts in verdicts:
            message = messages[number]
            if code == REFUSED:
                message.ticket.is_refused = True
            elif code == NO_MEMBER:
                key = (texts[0], texts[1])
                if key in message.groups:  # Each is given to another node once.
                    message.groups = tuple([each for each in message.groups if each != key])
                    self._rerouting.elect_again(message, key, node)
            elif message.searching:
                message.ticket.is_elsewhere = True
            elif code == MOVED:
                moved.setdefault((number, texts[1]), []).append(texts[0])
        for (number, uid), clients in moved.items():
            self._rerouting.redirect(messages[number], clients, self._link_of(uid))
        owner: TicketOwner | None = None
        for message in messages:
            settled = message.ticket.note_answer()
            # Most messages of a batch have one publisher, which acknowledges all that are answered together.
            if settled is not None and settled is not owner:
                if owner is not None:
                    owner.release_held()
                owner = settled
        if owner is not None:
            owner.release_held()

    def _link_of(self, uid: str) -> NodeLink | None:
        """Return the link to the node that an answer names as the owner of a session."""
        try:
            return self._links.get(int(uid, 16))
        except ValueError:
            return None  # It is not known there.

    def _failed(self, node: NodeIdentity, messages: list[Forwarded], failure: Failure) -> None:
        self.unanswered -= len(messages)
        self._runtime.turn.touch()
        error = failure.value
        if isinstance(error, NodeGone):
            for message in messages:
                if message.searching:
                    message.ticket.is_elsewhere = True
                else:
                    self._rerouting.node_gone(node, message)
                message.ticket.settle()
            return
        if not isinstance(error, ServiceUnavailable):
            log.failure("a batch for node {node} failed", failure, node=node.name)
        elif self._runtime.log_lines.may("forwarding"):
            text = "node {node} did not commit {count} messages: {error}"
            log.error(text, node=node.name, count=len(messages), error=error)
        reason = error.reason if isinstance(error, ServiceUnavailable) else ReasonCode.SERVER_UNAVAILABLE
        for message in messages:
            if message.clients and not message.searching:
                # They may move on; and their owner may commit it a little later.
                self._rerouting.redirect(message, message.clients, None)
            else:
                message.ticket.failure = reason
            message.ticket.settle()


def _pieces_of_clients(clients: tuple[str, ...]) -> Sequence[tuple[str, ...]]:
    """Cut clients into as many as one run may name."""
    return [clients[at : at + CLIENTS_AT_ONCE] for at in range(0, len(clients), CLIENTS_AT_ONCE)]


def _pieces(groups: tuple[GroupKey, ...]) -> Sequence[tuple[GroupKey, ...]]:
    """Cut the shared subscriptions of a message into as many as one run may name; one piece if there are none."""
    if len(groups) < 2:
        return (groups,)
    pieces: list[tuple[GroupKey, ...]] = []
    start = size_bytes = 0
    for number, (name, filter) in enumerate(groups):
        size_bytes += 4 * (len(name) + len(filter))
        if number > start and (number - start >= GROUPS_AT_ONCE or size_bytes > GROUP_BYTES_AT_ONCE):
            pieces.append(groups[start:number])
            start, size_bytes = number, 4 * (len(name) + len(filter))
    pieces.append(groups[start:])
    return pieces
