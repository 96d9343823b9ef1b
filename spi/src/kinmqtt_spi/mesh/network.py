"""A network in memory: nodes that find each other, connect again, and can be stalled, cut and crashed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kinmqtt_spi.mesh.backend import MeshBackend
from kinmqtt_spi.mesh.link import LinkLimits
from kinmqtt_spi.mesh.pipes import Pipe, PipeEnd
from kinmqtt_spi.mesh.results import PendingResult, Result, Run, polling
from kinmqtt_spi.services.cluster import ClusterListener, Guarantee, Member, MemberState
from kinmqtt_spi.services.plugin import Clock, Log
from kinmqtt_spi.values import Maybe, NodeIdentity

NOTICE_S: Final = 1.0
"""After how many seconds the others are told that a node has stopped, if they do not know it yet."""
RECONNECT_S: Final = 0.05

Pair = frozenset[int]


class Network:
    """Connects all nodes that are started. Nothing happens but by timers of the clock."""

    def __init__(self, clock: Clock, delay_s: float = 0.001, reconnect_s: float = RECONNECT_S) -> None:
        self.clock = clock
        self.delay_s = delay_s
        """How long bytes take, in seconds: of connections made from now on."""
        self.reconnect_s = reconnect_s
        self.nodes: dict[int, NetworkNode] = {}
        """By uid."""
        self.pipes: dict[Pair, Pipe] = {}
        """The connections, by the uids of their two nodes."""
        self.chop: Callable[[bytes], Iterable[bytes]] | None = None
        """Cuts what arrives into pieces: of connections made from now on."""
        self._blocked: set[Pair] = set()
        self._stalled: set[int] = set()

    def pipes_of(self, uid: int) -> Iterator[Pipe]:
        """Yield the connections of a node."""
        return (pipe for pair, pipe in tuple(self.pipes.items()) if uid in pair)

    def cut(self, uid: int) -> None:
        """Break the connections of a node, with all that is on its way; they are made again."""
        for pipe in self.pipes_of(uid):
            pipe.cut()

    def stall(self, uid: int) -> Callable[[], None]:
        """Stop what is on its way to a node, and what it sends; returns a call that lets it go on."""
        self._stalled.add(uid)
        for pipe in self.pipes_of(uid):
            pipe.stall()
        return lambda: self.resume(uid)

    def resume(self, uid: int) -> None:
        """End a stall."""
        self._stalled.discard(uid)
        for pair, pipe in self.pipes.items():
            if uid in pair and not pair & self._stalled:
                pipe.resume()

    def block(self, one: int, other: int) -> None:
        """Break the connection of two nodes, and let them make none until :meth:`unblock`."""
        pair = frozenset((one, other))
        self._blocked.add(pair)
        if pair in self.pipes:
            self.pipes[pair].cut()

    def unblock(self, one: int, other: int) -> None:
        """Let two nodes connect again."""
        self._blocked.discard(frozenset((one, other)))
        self._connect(one, other)

    def crash(self, uid: int) -> None:
        """Take a node off the network without a word. Who sees it as DOWN, and when, is the caller's to tell."""
        del self.nodes[uid]
        self.cut(uid)

    # Nodes

    def joined(self, node: NetworkNode, identity: NodeIdentity) -> None:
        """Connect a node with the others, and tell them of it."""
        others = tuple(self.nodes)
        self.nodes[identity.uid] = node
        for uid in others:
            self.nodes[uid].member(Member(identity, MemberState.JOINING))
            self._connect(identity.uid, uid)

    def stopped(self, identity: NodeIdentity) -> None:
        """Tell the others, later, that a node is gone."""
        if self.nodes.pop(identity.uid, None) is not None:
            self.clock.later(NOTICE_S, lambda: self._notice(identity))

    def _notice(self, identity: NodeIdentity) -> None:
        for node in tuple(self.nodes.values()):
            node.member(Member(identity, MemberState.REMOVED))

    def _connect(self, one: int, other: int) -> None:
        pair = frozenset((one, other))
        old = self.pipes.get(pair)
        if pair in self._blocked or not pair <= self.nodes.keys() or (old is not None and old.is_open):
            return
        first, second = self.nodes[one], self.nodes[other]
        if not first.knows(other) or not second.knows(one):
            return
        pipe = self.pipes[pair] = Pipe(self.clock, self.delay_s)
        pipe.left.chop = pipe.right.chop = self.chop
        if pair & self._stalled:
            pipe.stall()
        self._attach(first, other, pipe.left, lambda: self._lost(one, other, pipe))
        # The other end is not told who has connected: it reads it.
        connection = second.accepted(pipe.right)
        pipe.right.attach(connection.feed, connection.lost)

    def _attach(self, node: NetworkNode, to: int, end: PipeEnd, lost: Callable[[], object]) -> None:
        connection = node.connected(node.identity_of(to), end)

        def end_of_connection() -> None:
            connection.lost()
            lost()

        end.attach(connection.feed, end_of_connection)

    def _lost(self, one: int, other: int, pipe: Pipe) -> None:
        pair = frozenset((one, other))
        if self.pipes.get(pair) is pipe:
            del self.pipes[pair]
        pipe.cut()
        self.clock.later(self.reconnect_s, lambda: self._connect(one, other))


class NetworkNode(MeshBackend):
    """A backend that finds the other nodes of its network by itself, for as long as it is started."""

    def __init__(
        self,
        network: Network,
        log: Log,
        run: Run | None = None,
        new_result: Callable[[], Result] = PendingResult,
        limits: LinkLimits | None = None,
        guarantees: Guarantee = Guarantee.ACKNOWLEDGED_DELIVERY | Guarantee.ORDER_PER_PUBLISHER,
    ) -> None:
        super().__init__(network.clock, log, run or polling(network.clock), new_result, limits, guarantees)
        self.network = network
        self.identity: NodeIdentity | None = None

    def start(self, node: NodeIdentity, listener: ClusterListener) -> Maybe[None]:
        """Join the network."""
        self.identity = node
        for other in self.network.nodes.values():
            if other.identity is not None:
                self.member(Member(other.identity, MemberState.JOINING))
        started = super().start(node, listener)
        self.network.joined(self, node)
        return started

    def stop(self) -> None:
        """Leave the network."""
        super().stop()
        if self.identity is not None:
            self.network.stopped(self.identity)

    def knows(self, uid: int) -> bool:
        """Tell whether a node is a member that is not gone."""
        return self.find(uid) is not None

    def identity_of(self, uid: int) -> NodeIdentity:
        """Return the identity of a member."""
        peer = self.find(uid)
        assert peer is not None
        return peer.node
