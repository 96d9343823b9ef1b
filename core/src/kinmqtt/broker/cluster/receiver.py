"""Batches of messages from other nodes: delivered here, and answered when they are committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred, DeferredList

from kinmqtt.broker.forwarding.batch_format import (
    AGAIN,
    CLIENTS,
    MOVED,
    NO_MEMBER,
    ONE_TOPIC,
    PLAIN,
    REFUSED,
    V5_PACKETS,
    RunHead,
    Verdict,
    packet_bounds,
    read_batch,
    routes_version,
    write_answer,
)
from kinmqtt.broker.message.audience import Audience
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.resender import Resent
from kinmqtt.broker.routing.routed import Routed
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.turn.batch import Batch
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import as_deferred, resolve, run
from kinmqtt.mqtt.codec.publish import decode_publish
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.packets import V5, V311, Publish
from kinmqtt_spi.errors import MalformedBatch, ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import Append
from kinmqtt_spi.values import Maybe, Publisher

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.sessions import Sessions
    from kinmqtt.broker.routing.resender import Resender
    from kinmqtt.broker.routing.router import Router

CACHED_TOPICS: Final = 8192
"""Topics in bytes whose fan-out is cached; a full cache is cleared."""

_PLAIN_RUN: Final = (PLAIN, PLAIN | V5_PACKETS)
_NOBODY: Final[frozenset[str]] = frozenset()
_NO_GROUPS: Final = Audience(frozenset(), None, True)
_PLAIN_PUBLISH: Final = 0x30
"""The first byte of a QoS 0 PUBLISH without DUP and RETAIN."""


class Answer:
    """What is said of the messages of a batch once they are committed."""

    __slots__ = ("_batch", "_publications", "verdicts")

    def __init__(self, batch: Batch, publications: list[list[Publication]]) -> None:
        """``publications`` are the messages, by run."""
        self._batch = batch
        self._publications = publications
        self.verdicts: list[Verdict] = []

    def written(self) -> bytes:
        """Return the answer as bytes, after the commit."""
        if self._batch.fenced:
            fenced = self._batch.fenced
            messages = [each for run in self._publications for each in run]
            numbers = {each.id: number for number, each in enumerate(messages)}
            for write in self._batch.queue:
                if isinstance(write, Append) and write.client_id in fenced:
                    number = numbers.get(write.entry.message.id)
                    if number is not None:
                        self.verdicts.append((number, MOVED, (write.client_id, "")))
        return write_answer(self.verdicts) if self.verdicts else b""


class Receiver:
    """Delivers the messages of other nodes to this node's subscribers."""

    __slots__ = ("_fanouts", "_publishers", "_resender", "_router", "_runtime", "_sessions", "_topics")

    def __init__(self, runtime: Runtime, router: Router, resender: Resender, sessions: Sessions) -> None:
        self._runtime = runtime
        self._router = router
        self._fanouts = router.fanouts
        self._resender = resender
        self._sessions = sessions
        self._topics: dict[bytes, Fanout] = {}
        self._publishers: dict[bytes, Publisher] = {}
        """Those of earlier batches, as :func:`read_batch` keeps them."""

    def received(self, batch: bytes, assured: bool) -> Maybe[bytes]:
        """Deliver a batch; see :meth:`kinmqtt_spi.services.cluster.ClusterListener.received`."""
        runs = read_batch(batch, self._publishers)
        turn = self._runtime.turn
        turn.touch()
        statistics = self._runtime.statistics
        if not assured:
            version = routes_version(batch)
            is_old = version < self._sessions.newest_arrival
            # At most once: a session that came later may have got them where it was.
            spared = self._sessions.arrived_since(version) if is_old else _NOBODY
            for head in runs:
                statistics.from_nodes.value += self._deliver_pushed(head, batch, spared)
            return b""
        # Everything is cut before anything is delivered: an assured batch that is malformed has no effect.
        publications = [self._publications(head, batch) for head in runs]
        answer = Answer(turn.batch, publications)
        version = routes_version(batch)
        is_old = version < self._sessions.newest_arrival or not version
        pending: list[Awaitable[object]] = []
        number = 0
        for head, several in zip(runs, publications, strict=True):
            statistics.from_nodes.value += len(several)
            number = self._deliver_assured(head, several, is_old, number, answer, pending)
        if pending:
            return run(self._answer_later(answer, pending, turn.recovery.failed))
        return self._answer_when_committed(answer)

    # QoS 0

    def _deliver_pushed(self, head: RunHead, batch: bytes, spared: frozenset[str]) -> int:
        """Deliver a run of a batch to all but some clients; returns the number of its messages."""
        if head.flags & ONE_TOPIC and not spared:
            forwarded = self._forward_run(head, batch)
            if forwarded:
                return forwarded
        is_plain = head.flags & ~ONE_TOPIC in _PLAIN_RUN and not spared
        is_v5 = head.is_v5
        version = V5 if is_v5 else V311
        received_at = self._received_at(head)
        fanouts = self._fanouts
        topics = self._topics
        at = head.start
        number = 0
        while at < head.end:
            body, after = packet_bounds(batch, at, head.end)
            packet = batch[at:after]
            if is_plain and packet[0] == _PLAIN_PUBLISH and body + 2 <= after:
                end = body + 2 + (batch[body] << 8 | batch[body + 1])
                fanout = topics.get(batch[body + 2 : end])
                if (
                    fanout is not None
                    and (fanout.generation == fanouts.generation or fanouts.renew(fanout))
                    and not fanouts.is_busy
                    and (not is_v5 or (end < after and not batch[end]))
                    and end <= after
                ):
                    fanout.forward(packet)
                    at = after
                    number += 1
                    continue
            publication = self._publication(head, packet, body - at, version, received_at, number)
            if is_plain:
                self._cache(publication, version)
            elif spared:
                publication.leave_out(spared)
            self._route(publication, head)
            at = after
            number += 1
        return number

    def _forward_run(self, head: RunHead, batch: bytes) -> int:
        """Forward packets with one topic as they came, if all its subscribers take them so; returns how many."""
        end = head.end
        body, after = packet_bounds(batch, head.start, end)
        topic_end = body + 2
        if topic_end <= after:
            topic_end += batch[body] << 8 | batch[body + 1]
        if topic_end > after or (head.is_v5 and topic_end == after):
            return 0
        fanout = self._topics.get(batch[body + 2 : topic_end])
        fanouts = self._fanouts
        if fanout is None or fanouts.is_busy:
            return 0
        if fanout.generation != fanouts.generation and not fanouts.renew(fanout):
            return 0
        at = head.start
        packets = 0
        while at < end:
            if batch[at] != _PLAIN_PUBLISH:
                return 0
            _, at = packet_bounds(batch, at, end)
            packets += 1
        # Uncut: to cut and join them would cost more than all the rest.
        fanout.forward_run(batch[head.start : end], packets)
        return packets

    def _cache(self, publication: Publication, version: int) -> None:
        """Cache the fan-out of a topic whose packets go to subscribers as they came."""
        publish = publication.publish
        fanout = self._fanouts.get(publish.topic)
        if not fanout.is_simple or not fanout.takes(version) or self._runtime.notifies_published:
            return
        if len(self._topics) >= CACHED_TOPICS:
            self._topics.clear()
        self._topics[publish.topic.encode()] = fanout

    def _received_at(self, head: RunHead) -> float:
        return self._runtime.now() - head.age_ms / 1000

    def _publication(
        self, head: RunHead, packet: bytes, body: int, version: int, received_at: float, position: int
    ) -> Publication:
        """Return the message of a packet, with the id and the age that its node has given."""
        try:
            publish: Publish = decode_publish(packet, body, version)
        except RemoteError as error:
            raise MalformedBatch(f"a packet that can't be read: {error.text}") from None
        if not publish.topic:
            raise MalformedBatch("a packet without a topic")
        publication = Publication(publish, version, head.publisher, received_at, self._runtime.message_ids)
        publication.use_number(head.uid, head.counter + position)
        groups = head.groups
        publication.audience = Audience(frozenset(groups), None, True) if groups else _NO_GROUPS
        return publication

    def _route(self, publication: Publication, head: RunHead) -> Maybe[Routed]:
        """Deliver a message; behind earlier ones of its topic that are delivered in slices."""
        router = self._router
        if publication.expires_at is not None and publication.has_expired(self._runtime.now()):
            return Routed.DELIVERED
        is_plain = head.flags & PLAIN != 0
        if router.is_topic_busy(publication.publish.topic):
            begin: Callable[[], Maybe[Routed]] = lambda: router.route_from_node(publication, is_plain)  # noqa: E731
            return run(router.route_in_order(publication, begin))
        return router.route_from_node(publication, is_plain)

    # QoS 1 and 2

    def _publications(self, head: RunHead, batch: bytes) -> list[Publication]:
        """Return the messages of a run."""
        version = V5 if head.is_v5 else V311
        received_at = self._received_at(head)
        publications: list[Publication] = []
        at, end = head.start, head.end
        while at < end:
            body, after = packet_bounds(batch, at, end)
            packet = batch[at:after]
            publications.append(self._publication(head, packet, body - at, version, received_at, len(publications)))
            at = after
        return publications

    def _deliver_assured(
        self,
        head: RunHead,
        publications: list[Publication],
        is_old: bool,
        number: int,
        answer: Answer,
        pending: list[Awaitable[object]],
    ) -> int:
        """Deliver a run whose first message has a number in its batch; returns the next number.

        ``is_old``: it was sent before a session arrived here, which may have got it where it was.
        """
        is_plain = head.flags in _PLAIN_RUN
        is_first = not head.flags & (CLIENTS | AGAIN)
        resent = self._resender.resent
        for publication in publications:
            if is_first and resent and (publication.uid, publication.counter) in resent:
                pending.append(run(self._again(publication, head, number, answer)))
                number += 1
                continue
            if is_old and is_first:
                pending.append(run(self._deliver_checked(publication, head, number, answer)))
                number += 1
                continue
            if is_plain and self._deliver_simply(publication, number, answer):
                number += 1
                continue
            if head.groups:
                self._name_empty(publication, head, number, answer)
            if head.clients:
                pending.append(run(self._to_clients(publication, head.clients, number, answer)))
            elif head.flags & AGAIN:
                pending.append(run(self._again(publication, head, number, answer)))
            else:
                if head.flags & PLAIN:
                    self._name_moved(publication, number, answer)
                routed = self._route(publication, head)
                if isinstance(routed, Awaitable):
                    pending.append(run(self._note_later(routed, number, answer)))
                elif routed is Routed.REFUSED:
                    answer.verdicts.append((number, REFUSED, ()))
            number += 1
        return number

    def _deliver_simply(self, publication: Publication, number: int, answer: Answer) -> bool:
        """Deliver a message whose topic has nothing but some subscribers here; ``False`` if it has more."""
        fanouts = self._fanouts
        publish = publication.publish
        fanout = fanouts.get(publish.topic)
        if (
            fanout.groups
            or fanout.links is not None
            or fanout.is_large
            or not fanout.targets
            or not publish.qos
            or publication.expires_at is not None
            or fanouts.is_busy
        ):
            return False
        if not fanout.deliver_acknowledged(publication):
            answer.verdicts.append((number, REFUSED, ()))
        return True

    def _name_empty(self, publication: Publication, head: RunHead, number: int, answer: Answer) -> None:
        """Name the shared subscriptions of a message that have no member here; others are served."""
        served = []
        for key in head.groups:
            if self._router.groups.has_members(key):
                served.append(key)
            else:
                answer.verdicts.append((number, NO_MEMBER, key))
        publication.serve_only(frozenset(served))

    def _name_moved(self, publication: Publication, number: int, answer: Answer) -> None:
        """Name the clients that would get a message here, but whose sessions have moved."""
        links = self._fanouts.get(publication.publish.topic).links
        if links is None:
            return
        for route in links:
            owner = "" if route.link is None else f"{route.link.node.uid:x}"
            for client_id in route.clients:
                answer.verdicts.append((number, MOVED, (client_id, owner)))

    async def _note_later(self, routed: Awaitable[Routed], number: int, answer: Answer) -> None:
        if await as_deferred(routed) is Routed.REFUSED:
            answer.verdicts.append((number, REFUSED, ()))

    async def _deliver_checked(self, publication: Publication, head: RunHead, number: int, answer: Answer) -> None:
        """Deliver a message that was sent before a session arrived here, which may have got it where it was."""
        if head.flags & PLAIN:
            self._name_moved(publication, number, answer)
            kept = self._resender.kept_here(publication.publish.topic)
            if kept:
                publication.leave_out(kept)
                if not self._note_resent(await self._resender.deliver_here(publication), number, answer):
                    answer.verdicts.append((number, REFUSED, ()))
        if head.groups:
            self._name_empty(publication, head, number, answer)
        if await resolve(self._route(publication, head)) is Routed.REFUSED:
            answer.verdicts.append((number, REFUSED, ()))

    async def _again(self, publication: Publication, head: RunHead, number: int, answer: Answer) -> None:
        accepted = True
        if head.flags & PLAIN:
            self._name_moved(publication, number, answer)
            accepted = self._note_resent(await self._resender.deliver_here(publication), number, answer)
        for key in (publication.audience and publication.audience.groups) or ():
            accepted &= self._router.deliver_to_group(key, publication)
        if not accepted:
            answer.verdicts.append((number, REFUSED, ()))

    async def _to_clients(
        self, publication: Publication, clients: tuple[str, ...], number: int, answer: Answer
    ) -> None:
        """Deliver to sessions that have moved here; a session that is not here has moved on."""
        here = []
        for client_id in clients:
            session = await self._sessions.settled(client_id)
            if session is None or not session.persistent:
                answer.verdicts.append((number, MOVED, (client_id, "")))
            else:
                here.append(session)
        resent = await self._resender.deliver_to_sessions(publication, here)
        if not self._note_resent(resent, number, answer):
            answer.verdicts.append((number, REFUSED, ()))

    @staticmethod
    def _note_resent(resent: Resent, number: int, answer: Answer) -> bool:
        """Name the clients whose sessions have moved on; returns whether no queue refused the message."""
        for client_id in resent.moved:
            answer.verdicts.append((number, MOVED, (client_id, "")))
        return resent.accepted

    # Answers

    def _answer_when_committed(self, answer: Answer) -> Deferred[bytes]:
        done: Deferred[bytes] = Deferred()
        batch = self._runtime.turn.batch
        batch.after_commit.append(lambda: done.callback(answer.written()))
        batch.on_commit_failed.append(lambda reason: done.errback(_not_committed(reason)))
        return done

    async def _answer_later(self, answer: Answer, pending: list[Awaitable[object]], failed: int) -> bytes:
        """Answer when all is delivered and committed; ``failed`` batches were not committed before these messages."""
        outcomes: list[tuple[bool, Any]] = await DeferredList(
            [as_deferred(each) for each in pending], consumeErrors=True
        )
        for succeeded, failure in outcomes:
            if not succeeded and failure.check(CommitFailed):
                raise _not_committed(failure.value.reason)
            if not succeeded:
                failure.raiseException()
        turn = self._runtime.turn
        turn.touch()
        written = await self._answer_when_committed(answer)
        if turn.recovery.failed != failed:
            # One of the turns in between may have had a part of the messages.
            raise _not_committed(ReasonCode.SERVER_UNAVAILABLE)
        return written


def _not_committed(reason: ReasonCode) -> ServiceUnavailable:
    return ServiceUnavailable("a store of the node did not commit the messages", reason)
