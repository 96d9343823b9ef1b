"""Brings retained messages to all nodes, where each has a retain store of its own.

A write has a version, and the newest wins everywhere; a deletion has one too. The node that takes a message commits
it, acknowledges it, and sends it to all others. What one did not get, an exchange brings: when a node joins or can be
reached again, and now and then. Where nodes share a retain store, and on a single node, none of this costs anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from kinmqtt.broker.retained_sync.answers import Answers
from kinmqtt.broker.retained_sync.exchange import Exchange
from kinmqtt.broker.retained_sync.index import VersionIndex
from kinmqtt.broker.retained_sync.intake import Intake
from kinmqtt.broker.retained_sync.loading import Loading
from kinmqtt.broker.retained_sync.source import Source, is_of
from kinmqtt.broker.retained_sync.spreading import Spreading
from kinmqtt.hooks.awaitables import TimeLimitExceeded, limited, pause, run
from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable
from kinmqtt_spi.services.cluster import GONE, ClusterBackend, Member, MemberState
from kinmqtt_spi.services.retain import RetainWrite
from kinmqtt_spi.values import Message, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.routing.retained import Retained
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt_spi.services.plugin import Timer

log = Logger("kinmqtt.retained")

SOON_S: Final = 0.5
"""An exchange with a node that is reachable again begins within so many seconds: messages are the same after 1 s."""

EVERY_S: Final = 30.0
"""About so often a node makes an exchange with one of the others: 100 bytes, if all are the same."""

REFUSED_S: Final = 300.0
"""The pause after one in which a node had no room: another one would be refused as well, and costs more."""

RETRY_S: Final = 2.0
"""About how long after a failure it is tried again; longer after each, up to :data:`EVERY_S`."""

JOIN_LIMIT_S: Final = 30.0
"""How long a node that joins waits for its first exchange before its listeners open."""

JOIN_ROUNDS: Final = 3
JOIN_PAUSE_S: Final = 0.5
"""How often it asks all others before it opens them without, and the pause between: some may read their stores."""


class _Peer:
    """Another node."""

    def __init__(self, node: NodeIdentity, spreading: Spreading) -> None:
        self.node = node
        self.spreading = spreading
        self.is_reachable = False
        self.timer: Timer | None = None
        """Begins the next exchange with it, if one is planned."""
        self.failures = 0


class RetainedSync:
    """Keeps this node's retained messages the same as those of the other nodes."""

    def __init__(self, runtime: Runtime, retained: Retained, backend: ClusterBackend) -> None:
        self._runtime = runtime
        self._retained = retained
        self._backend = backend
        self.index = VersionIndex()
        self._source = Source(runtime, self.index)
        self._intake = Intake(runtime, retained, self.index, self._source)
        self._peers: dict[int, _Peer] = {}
        """By uid: the other nodes that are not gone."""
        self._lane = DeferredLock()
        """One exchange at a time: after the first, the others find little that differs."""
        self._loading = Loading(runtime, retained, self.index)
        self._is_stopped = False
        self._timer: Timer | None = None
        self._writes: list[RetainWrite] = []
        self._batch: object = None
        """The batch that ``_writes`` are in."""
        self.answers = Answers(self.index, self._source, self._intake, runtime.clock, self._loading).by_question
        """What answers the questions of other nodes, by name."""

    # Members

    def member_changed(self, member: Member) -> None:
        """Note a member; one that is new, or reachable again, is asked soon what it has."""
        node = member.node
        if node == self._runtime.node or self._runtime.stores.are_shared or self._is_stopped:
            return
        if member.state in GONE:
            gone = self._peers.pop(node.uid, None)
            if gone is not None and gone.timer is not None:
                gone.timer.cancel()
            return
        if not self._loading.has_begun:
            self._retained.observe(self._wrote, self._expired)
            self._loading.begin()
            self._plan_next(EVERY_S)
        peer = self._peers.get(node.uid)
        if peer is None:
            peer = self._peers[node.uid] = _Peer(node, Spreading(node, self._backend, self._source, self._behind))
        was_reachable, peer.is_reachable = peer.is_reachable, member.reachable
        if member.reachable and not was_reachable:
            if peer.timer is not None:  # Of a retry, which may be far off.
                peer.timer.cancel()
                peer.timer = None
            peer.failures = 0
            self._plan(peer, self._jitter() * SOON_S)

    def stop(self) -> None:
        """Exchange nothing any more: the broker stops."""
        self._is_stopped = True
        self._loading.stop()
        timers = [self._timer, *[peer.timer for peer in self._peers.values()]]
        for timer in timers:
            if timer is not None:
                timer.cancel()
        self._timer = None
        self._peers.clear()

    # Writes of this node

    def _wrote(self, write: RetainWrite) -> None:
        batch = self._runtime.turn.batch
        if batch is not self._batch:
            self._batch = batch
            self._writes = []
            self._intake.when_committed(self._writes, self._spread)
        self._writes.append(write)

    def _spread(self, writes: Sequence[RetainWrite]) -> None:
        for peer in self._peers.values():
            # One that is out of reach gets it by the exchange when it is back.
            if peer.is_reachable:
                peer.spreading.add([write.message.topic for write in writes])

    def _expired(self, messages: Sequence[Message]) -> None:
        now = self._runtime.clock.now()
        for message in messages:
            version = self.index.version_of(message.topic)
            if version is not None and is_of(message, version):
                self.index.note_end(message.topic, version, now)

    # Exchanges

    async def join(self) -> None:
        """Make one exchange with another node, if there is one; the listeners open afterwards."""
        if not self._loading.has_begun:
            return
        try:
            if await limited(run(self._join()), self._runtime.clock, JOIN_LIMIT_S):
                return
            problem = "no other node answers"
        except Exception as error:
            # The broker is of use without: it must start.
            if not isinstance(error, TimeLimitExceeded):
                log.failure("no exchange of retained messages")
            problem = f"they were not all here after {JOIN_LIMIT_S:g} s at most"
        for peer in self._peers.values():
            self._behind(peer.node)
        log.warn("clients may miss retained messages for now: {problem}", problem=problem)

    async def _join(self) -> bool:
        await self._loading.done()
        for attempt in range(JOIN_ROUNDS):
            if attempt:
                await pause(self._runtime.clock, JOIN_PAUSE_S)
            others = self._others()
            if not others:
                return True
            for peer in others:
                if await self._exchange(peer):
                    return True
        return False

    def _others(self) -> list[_Peer]:
        """Return the other nodes that can be reached: first those that are UP, each time in another order."""
        order: list[tuple[bool, float, _Peer]] = []
        for member in self._backend.members():
            peer = self._peers.get(member.node.uid)
            if peer is not None and member.reachable and member.state in (MemberState.JOINING, MemberState.UP):
                order.append((member.state is MemberState.JOINING, self._jitter(), peer))
        return [peer for _, _, peer in sorted(order, key=lambda each: each[:2])]

    def _plan(self, peer: _Peer, delay_s: float) -> None:
        if peer.timer is None and not self._is_stopped:
            peer.timer = self._runtime.clock.later(delay_s, partial(self._planned, peer))

    def _planned(self, peer: _Peer) -> None:
        peer.timer = None
        run(self._exchange(peer)).addErrback(
            lambda failure: log.failure("no exchange with node {node}", failure, node=peer.node.name)
        )

    def _behind(self, node: NodeIdentity) -> None:
        """Plan an exchange with a node that may lack something."""
        peer = self._peers.get(node.uid)
        if peer is not None and peer.is_reachable:
            self._plan(peer, SOON_S * (1 + self._jitter()))

    def _plan_next(self, mean_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_stopped:
            self._timer = self._runtime.clock.later(mean_s * (0.5 + self._jitter()), self._exchange_with_any)

    def _exchange_with_any(self) -> None:
        self._timer = None
        self._plan_next(EVERY_S)
        self.index.forget_old(self._runtime.clock.now())
        others = self._others()
        if others:
            self._plan(others[0], 0.0)

    async def _exchange(self, peer: _Peer) -> bool:
        """Make an exchange; returns whether it went to its end."""
        await self._loading.done()
        await self._lane.acquire()
        try:
            if self._is_stopped or self._peers.get(peer.node.uid) is not peer:
                return False
            clock = self._runtime.clock
            exchange = Exchange(self._backend, peer.node, self.index, self._source, self._intake, clock)
            await exchange.run()
            peer.failures = 0
            if exchange.refused:
                self._plan_next(REFUSED_S)
            return True
        except NodeGone:
            return False
        except MalformedBatch as error:
            self._runtime.statistics.malformed.value += 1
            log.warn("no exchange with node {node}: {error}", node=peer.node.name, error=error)
            return False
        except ServiceUnavailable as error:
            log.debug("no exchange with node {node}: {error}", node=peer.node.name, error=error)
            self._retry(peer)
            return False
        finally:
            self._lane.release()

    def _retry(self, peer: _Peer) -> None:
        peer.failures += 1
        if peer.is_reachable and self._peers.get(peer.node.uid) is peer:
            delay_s = min(EVERY_S, RETRY_S * 2 ** (peer.failures - 1))
            self._plan(peer, delay_s * (0.5 + self._jitter()))

    def _jitter(self) -> float:
        """Return a random number from 0 to 1."""
        return int(self._runtime.random_hex(4), 16) / 0xFFFFFFFF
