"""Links on which the world tells every node who is a member, and who is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt.testing.world.links import NodeProcess, Surroundings, Undo
from kinmqtt_spi import hookimpl
from kinmqtt_spi.mesh.network import Network, NetworkNode
from kinmqtt_spi.mesh.pipes import Pipe
from kinmqtt_spi.services.cluster import ClusterBackend, Guarantee, Member, MemberState

if TYPE_CHECKING:
    from collections.abc import Awaitable

GUARANTEES: Final = Guarantee.SINGLE_OWNER | Guarantee.ACKNOWLEDGED_DELIVERY | Guarantee.ORDER_PER_PUBLISHER
DETECTED_S: Final = (0.5, 4.0)
"""After how long the others are told of a crash: at least, at most."""
LOST_S: Final = (0.2, 1.0)
"""How long bytes are on their way where some are lost."""


class DeferredResult:
    """A result that the core awaits; see :class:`kinmqtt_spi.mesh.results.Result`."""

    def __init__(self) -> None:
        self.awaitable: Deferred[Any] = Deferred()

    def set(self, value: Any) -> None:
        """Complete it."""
        if not self.awaitable.called:
            self.awaitable.callback(value)

    def fail(self, error: Exception) -> None:
        """Let it raise."""
        if not self.awaitable.called:
            self.awaitable.errback(error)


def drive(it: Awaitable[Any], done: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
    """Call one of the two with an awaitable's outcome; see :data:`kinmqtt_spi.mesh.results.Run`."""

    def fail(failure: Failure) -> None:
        error = failure.value
        failed(error if isinstance(error, Exception) else RuntimeError(str(error)))

    as_deferred(it).addCallbacks(done, fail)


class ToldLink:
    """One process's link; it is the plugin that provides it, too."""

    def __init__(self, network: Network, uid: int) -> None:
        self.backend = NetworkNode(network, Logger("kinmqtt.world"), drive, DeferredResult, guarantees=GUARANTEES)
        self.plugins: Mapping[str, Any] = {"links": self}
        self.settings: Mapping[str, Any] = {}
        self.services: Mapping[str, str] = {"cluster": "links"}
        self._uid = uid

    @hookimpl
    def cluster_backend(self) -> ClusterBackend:
        """Return the node's link."""
        return self.backend

    def around(self, call: Callable[[], object]) -> None:
        """Make a call."""
        call()

    def crash(self) -> None:
        """Leave the network without a word."""
        if self._uid in self.backend.network.nodes:
            self.backend.network.crash(self._uid)


class ToldLinks:
    """Links over one network in memory. A node that crashes counts as a member until the world tells the others."""

    warm_up_s = 0.0
    lease_s: float | None = None
    starts_failed_again = False

    def __init__(self, world: Surroundings, random: Random) -> None:
        self._world = world
        self._random = random
        self._network = Network(world.schedule, world.plan.link_delay_s)
        self._links: dict[int, ToldLink] = {}
        self._undetected: list[NodeProcess] = []
        """Nodes that have crashed, and count as members."""

    def new_uid(self, serial: int) -> int:
        """Return a uid that says how old the process is."""
        return 1000 + serial

    def link(self, node: NodeProcess) -> ToldLink:
        """Return what a new process needs."""
        link = self._links[node.identity.uid] = ToldLink(self._network, node.identity.uid)
        return link

    def starts(self, node: NodeProcess) -> None:
        """Tell it of nodes that have crashed, as the others would."""
        for dead in self._undetected:
            self._tell(node, Member(dead.identity, MemberState.UP))

    def crashed(self, node: NodeProcess) -> None:
        """Tell the others later."""
        self._undetected.append(node)
        self._world.schedule.later(self._random.uniform(*DETECTED_S), partial(self._tell_down, node))

    def _tell_down(self, node: NodeProcess) -> None:
        """Tell all others that a node is DOWN."""
        self._world.note(f"{node.name} is down")
        if node in self._undetected:
            self._undetected.remove(node)
        for other in self._world.nodes:
            if other is not node and other.is_alive:
                self._tell(other, Member(node.identity, MemberState.DOWN, reachable=False))

    def _tell(self, node: NodeProcess, member: Member) -> None:
        self._links[node.identity.uid].backend.member(member)

    # Faults

    def _pipe(self, one: NodeProcess, other: NodeProcess) -> Pipe | None:
        return self._network.pipes.get(frozenset((one.identity.uid, other.identity.uid)))

    def connections(self, one: NodeProcess, other: NodeProcess) -> Sequence[Pipe]:
        """Return the connection of two nodes, if there is one."""
        pipe = self._pipe(one, other)
        return [] if pipe is None else [pipe]

    def block(self, pairs: Iterable[tuple[NodeProcess, NodeProcess]]) -> Undo:
        """Break the connections, and let the nodes make none."""
        return self._blocked([(one.identity.uid, other.identity.uid) for one, other in pairs])

    def isolate(self, node: NodeProcess) -> Undo:
        """Break the connections of a node with all others."""
        uid = node.identity.uid
        return self._blocked([(uid, other) for other in self._network.nodes if other != uid])

    def _blocked(self, pairs: list[tuple[int, int]]) -> Undo:
        for pair in pairs:
            self._network.block(*pair)

        def unblock() -> None:
            for pair in pairs:
                self._network.unblock(*pair)

        return unblock

    def one_way(self, one: NodeProcess, other: NodeProcess, random: Random) -> Undo | None:
        """Stop what is on its way to one end of the present connection."""
        pipe = self._pipe(one, other)
        if pipe is None:
            return None
        end = random.choice((pipe.left, pipe.right))
        end.stall()
        return end.resume

    def stall(self, node: NodeProcess) -> Undo:
        """Stop what is on its way to a node and from it; its clients notice nothing."""
        return self._network.stall(node.identity.uid)

    def lose(self, node: NodeProcess, random: Random) -> Undo:
        """Let the present connections of a node take longer."""
        ends = [end for pipe in self._network.pipes_of(node.identity.uid) for end in (pipe.left, pipe.right)]
        for end in ends:
            end.delay_s = random.uniform(*LOST_S)

        def end_of_loss() -> None:
            for end in ends:
                end.delay_s = self._network.delay_s

        return end_of_loss

    def give_up(self, node: NodeProcess) -> Undo:
        """Tell the others that a node is dead, which is cut off; it ends, and starts again, with the fault."""
        self.isolate(node)
        self._tell_down(node)

        def end() -> None:
            if node.is_alive:
                number = self._world.nodes.index(node)
                node.crash()
                self._world.start_again(number, node)

        return end
