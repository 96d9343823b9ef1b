"""The cluster backend: links between brokers that know each other as members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeAlias

from attrs import evolve

from kinmqtt_akka_like_cluster.bulk_links import BulkLinks
from kinmqtt_akka_like_cluster.membership_driver import MembershipDriver, node_address
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind, PeerInfo
from kinmqtt_akka_like_cluster.net.seeds import Seeds, StaticSeeds, make_seeds
from kinmqtt_akka_like_cluster.net.tls import Tls, load_tls
from kinmqtt_akka_like_cluster.net.transport import Network, NetworkConfig
from kinmqtt_akka_like_cluster.noted_members import NotedMembers
from kinmqtt_akka_like_cluster.pure.coordinator import Coordinator, CoordinatorSettings
from kinmqtt_akka_like_cluster.pure.detector import DetectorSettings
from kinmqtt_akka_like_cluster.pure.downing import Strategy
from kinmqtt_akka_like_cluster.pure.effects import AskArbiter
from kinmqtt_akka_like_cluster.pure.gossip import NodeInfo
from kinmqtt_akka_like_cluster.register.client_register import ClientRegister
from kinmqtt_akka_like_cluster.results import DeferredResult, run, settled
from kinmqtt_akka_like_cluster.settings import SECTION, AkkaSettings, agreement_digest, read_cookie
from kinmqtt_akka_like_cluster.tasks import Tasks
from kinmqtt_spi.errors import AssemblyError, ServiceUnavailable
from kinmqtt_spi.mesh.backend import MeshBackend
from kinmqtt_spi.mesh.link import LinkLimits
from kinmqtt_spi.services.cluster import GONE, ClusterListener, Guarantee, Located, Member, MemberState
from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter
from kinmqtt_spi.services.plugin import Clock, Context, Log
from kinmqtt_spi.values import Maybe, NodeIdentity

DRAIN_LIMIT_S: Final = 10.0
"""How long a node that leaves waits until all is answered, in seconds."""


OpenNetwork: TypeAlias = Callable[[NetworkConfig, PeerInfo, Log, Clock], Network]
"""Makes the connections of a broker."""

EXIT_LIMIT_S: Final = 3.0
"""How long a node that has drained waits until all others know that it has left."""


class AkkaBackend(MeshBackend):
    """Members by gossip, messages over direct connections.

    Sessions are in stores that all brokers share, or each broker has stores of its own, and sessions move.
    """

    with_shared_stores = Guarantee.SINGLE_OWNER

    def __init__(
        self,
        context: Context,
        settings: AkkaSettings,
        open_network: OpenNetwork = Network,
        random: Random | None = None,
    ) -> None:
        """``open_network`` makes the connections; ``random`` chooses with whom to gossip."""
        super().__init__(
            context.clock,
            context.log,
            run,
            DeferredResult,
            LinkLimits(queue_bytes=settings.link_bytes),
            Guarantee.SINGLE_OWNER | Guarantee.ACKNOWLEDGED_DELIVERY | Guarantee.ORDER_PER_PUBLISHER,
        )
        self._context = context
        self._settings = settings
        self._open_network = open_network
        self._random = random or Random()
        self._network: Network | None = None
        self._driver: MembershipDriver | None = None
        self._bulk: BulkLinks | None = None
        self._register: ClientRegister | None = None
        """Knows the owners of client ids; ``None`` where all brokers share their stores."""
        self._addresses: dict[NodeIdentity, str] = {}
        """Where members are dialled."""
        self._states: dict[NodeIdentity, MemberState] = {}
        """The states of the members that are not gone."""
        self._left_out: dict[NodeIdentity, Member] = {}
        """The members that the core takes only when others have gone; first the one that has waited longest."""
        self._listener: ClusterListener | None = None
        self._arbiter: ClusterArbiter | None = None
        self._noted: NotedMembers | None = None
        """What the arbiter knows of members; ``None`` before the start."""
        self._is_expelled = False
        self._joined: asyncio.Event = asyncio.Event()
        self._left: asyncio.Event = asyncio.Event()
        self._tasks = Tasks(context.log)
        self.strategy = Strategy.KEEP_MAJORITY
        """What decides which side of a split goes on."""
        self.takeovers = 0
        """How many sessions this node has taken over from other nodes."""

    @property
    def driver(self) -> MembershipDriver | None:
        """What knows the members; ``None`` before the start."""
        return self._driver

    @property
    def network(self) -> Network | None:
        """The connections; ``None`` before the start."""
        return self._network

    # The core's side

    async def start(self, node: NodeIdentity, listener: ClusterListener) -> None:
        """Listen for other brokers, join, and learn the members' routes. Raises AssemblyError, or ServiceUnavailable
        while the arbiter is away; waits for seeds without limit.
        """
        self.strategy = self._strategy(listener.arbiter)
        settings = evolve(self._settings, downing=self.strategy.value)
        self._listener, self._arbiter = listener, listener.arbiter
        if not listener.shares_stores:
            self._begin_register(node, listener)
        assert settings.cookie_file is not None  # `validated` has looked.
        cookie = await asyncio.to_thread(read_cookie, settings.cookie_file)
        tls = None if settings.tls is None else await asyncio.to_thread(load_tls, settings.tls)
        address = str(settings.advertised)
        config = NetworkConfig.of(settings, cookie, tls)
        own = PeerInfo(node.name, node.uid, address, settings.votes)
        self._network = network = self._open_network(config, own, self._context.log, self._context.clock)
        self._bulk = BulkLinks(network, self, node, self._context.log)
        self._noted = NotedMembers(self._arbiter, address, node.uid, self._context.clock, self._context.log)
        info = NodeInfo(node, node_address(address), settings.votes)
        coordinator = Coordinator(info, self._coordinator_settings(settings), self._random.choice)
        self._driver = MembershipDriver(
            coordinator,
            network,
            self._seeds(address),
            self._noted,
            self,
            self._context.clock,
            self._context.log,
            coordinator.settings.detector.tick_s,
        )
        if self._arbiter is not None:
            self._driver.apply(coordinator.set_founding_term(await settled(self._arbiter.term())))
        await network.start_listening(self._accepted)
        self._driver.start()
        await self._joined.wait()
        started = super().start(node, listener)
        for member in self.members():
            self._link_to(member)
        await settled(started)

    def _begin_register(self, node: NodeIdentity, listener: ClusterListener) -> None:
        context, begins_anew = self._context, self._settings.unreachable_owner == "clean"
        self._register = ClientRegister(node, self, listener, context.clock, context.log, begins_anew)
        context.log.warn(
            "each broker has stores of its own: a dead broker's sessions wait for its return, and after a split a "
            "client may have two for a while; redis_session gives all brokers one store"
        )

    def _strategy(self, arbiter: ClusterArbiter | None) -> Strategy:
        chosen = self._settings.downing
        if chosen == "auto":
            return Strategy.KEEP_MAJORITY if arbiter is None else Strategy.ARBITER
        if chosen == "arbiter" and arbiter is None:
            raise AssemblyError(
                f'{SECTION}.downing is "arbiter", but no plugin provides one: use redis_session, or another strategy'
            )
        return Strategy(chosen)

    def _coordinator_settings(self, settings: AkkaSettings) -> CoordinatorSettings:
        stable_after_s = settings.stable_after_s
        return CoordinatorSettings(
            seeds=(),
            asks_to_form=self._arbiter is not None,
            digest=agreement_digest(settings, shares_stores=self._register is None),
            detector=DetectorSettings(
                heartbeat_s=settings.heartbeat_s, pause_s=settings.pause_s, threshold=settings.threshold
            ),
            strategy=Strategy(settings.downing),
            gossip_s=min(1.0, settings.heartbeat_s),
            quorum=settings.quorum,
            stable_after_s=None if isinstance(stable_after_s, str) else stable_after_s,
        )

    def _seeds(self, own_address: str) -> Seeds:
        settings = self._settings
        if settings.seeds or settings.dns or settings.seeds_file is not None:
            return make_seeds(settings, self._context.log)
        return StaticSeeds([own_address])

    async def up(self) -> None:
        """Tell the members that this broker is ready; completes when they have its routes."""
        self._membership(lambda coordinator: coordinator.set_ready())
        await settled(super().up())

    def leaving(self) -> None:
        """Tell the members that this broker is LEAVING."""
        self._membership(lambda coordinator: coordinator.leave())
        super().leaving()

    async def leave(self, deadline_s: float) -> None:
        """Hand sessions off, wait until all is answered, and until the others know that this broker has left."""
        if self._driver is None or self._driver.coordinator.has_ended:
            return
        self._membership(lambda coordinator: coordinator.leave())
        if self._register is not None:
            await self._register.hand_all_over(deadline_s)
        await settled(super().leave(min(deadline_s, DRAIN_LIMIT_S)))
        self._membership(lambda coordinator: coordinator.drained())
        try:
            await asyncio.wait_for(self._left.wait(), EXIT_LIMIT_S)
        except TimeoutError:
            self._context.log.info("not all brokers know yet that this one has left: they will find it gone")

    async def stop(self) -> None:
        """Tell the others that this process ends, and close all connections."""
        super().stop()
        self._tasks.cancel()
        driver, bulk, network = self._driver, self._bulk, self._network
        self._driver = self._bulk = self._network = None
        register, self._register = self._register, None
        if register is not None:
            register.stop()
        if driver is not None:
            driver.stop()
        if bulk is not None:
            bulk.close()
        noted, self._noted = self._noted, None
        if noted is not None:
            await noted.end()
        if network is not None:
            if self._is_expelled:
                # Nobody waits for what is unsent, and who can't be reached would hold up the new start.
                network.abort()
            await network.close()

    def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> Maybe[None]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        if previous_owner is not None:
            self.takeovers += 1
        return super().claim(client_id, epoch, previous_owner)

    def locate(self, client_id: str) -> Maybe[Located | None]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        return None if self._register is None else self._register.locate(client_id)

    def end_claim(self, client_id: str) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        if self._register is not None:
            self._register.end_claim(client_id)

    def register(self, client_id: str, epoch: int) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        if self._register is not None:
            self._register.register(client_id, epoch)

    def release(self, client_id: str, epoch: int) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        if self._register is not None:
            self._register.release(client_id, epoch)

    def backend_asked(self, origin: NodeIdentity, data: bytes) -> Maybe[bytes]:
        """Answer a question about owners of client ids."""
        if self._register is None:
            return super().backend_asked(origin, data)
        return self._register.asked(origin, data)

    # What the coordinator decides

    def joined(self) -> None:
        """See :class:`~kinmqtt_akka_like_cluster.membership_driver.MembershipOwner`."""
        self._joined.set()

    def member_changed(self, member: Member, address: str) -> None:
        """See :class:`~kinmqtt_akka_like_cluster.membership_driver.MembershipOwner`."""
        node = member.node
        if address:
            self._addresses[node] = address
        else:
            self._addresses.pop(node, None)
        try:
            self.member(member)
        except ServiceUnavailable as error:
            if node not in self._left_out:
                self._context.log.error("node {node} is left out: {error}", node=node.name, error=error)
            self._left_out[node] = member
            return
        self._left_out.pop(node, None)
        self._link_to(member)
        if member.state in GONE:
            self._states.pop(node, None)
        else:
            self._states[node] = member.state
        if self._register is not None:
            self._register.members_changed(self._states.items())
        if member.state in GONE and self._left_out:
            waiting = next(iter(self._left_out))
            self.member_changed(self._left_out[waiting], self._addresses[waiting])

    def _link_to(self, member: Member) -> None:
        bulk, node = self._bulk, member.node
        if bulk is None:
            return
        if member.state in GONE:
            bulk.drop(node.uid)
        elif self.is_started:
            bulk.keep(node, self._addresses[node])

    def expelled(self, reason: str) -> None:
        """See :class:`~kinmqtt_akka_like_cluster.membership_driver.MembershipOwner`."""
        self._is_expelled = True
        if self._listener is not None:
            self._listener.expelled(reason)

    def left(self) -> None:
        """See :class:`~kinmqtt_akka_like_cluster.membership_driver.MembershipOwner`."""
        self._left.set()

    def ask_arbiter(self, question: AskArbiter) -> None:
        """See :class:`~kinmqtt_akka_like_cluster.membership_driver.MembershipOwner`."""
        self._tasks.spawn(self._decide(question), "asking the arbiter")

    async def _decide(self, question: AskArbiter) -> None:
        if self._arbiter is None:
            return
        try:
            granted = bool(await settled(self._arbiter.decide(question.term, question.side)))
        except ServiceUnavailable as error:
            # It is asked again: without an answer nobody may act.
            self._context.log.error("the arbiter can't be asked, so nobody is downed yet: {error}", error=error)
            return
        if self._driver is not None:
            self._driver.arbiter_decided(granted, question)

    # Connections

    def malformed_on(self, node: NodeIdentity | None, error: Exception) -> None:
        """See :class:`~kinmqtt_spi.mesh.connection.ConnectionOwner`."""
        super().malformed_on(node, error)
        if node is not None and self._driver is not None:
            self._driver.malformed(node.uid)

    def _accepted(self, connection: Established) -> None:
        driver, bulk = self._driver, self._bulk
        if driver is None or bulk is None:
            connection.close()
        elif connection.kind is ConnectionKind.CONTROL:
            driver.links.accept(connection)
        else:
            bulk.accept(connection)

    def _membership(self, event: Callable[[Coordinator], Sequence[Any]]) -> None:
        if self._driver is not None:
            self._driver.apply(event(self._driver.coordinator))

    def question(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
        """Ask a node's core, this node's as well; see :meth:`ask`."""
        if node == self._context.node and self._listener is not None:
            return self._listener.asked(node, method, data)
        return self.ask(node, method, data, limit_s)

    def now(self) -> float:
        """Return the monotonic time, in seconds."""
        return self._context.clock.monotonic()

    def use_tls(self, tls: Tls) -> None:
        """Use other certificates for new connections."""
        if self._network is not None:
            self._network.use_tls(tls)

    # What is shown

    def is_own(self, node: NodeIdentity) -> bool:
        """Tell whether a node is this one."""
        return node == self._context.node

    @property
    def malformed_input(self) -> int:
        """How often a connection of either kind was closed because of malformed input."""
        return self.malformed + (0 if self._driver is None else self._driver.links.malformed)

    def suspicion(self) -> float:
        """Return the highest suspicion (phi) of a member that this node monitors, 1,000 at most."""
        if self._driver is None:
            return 0.0
        return min(1000.0, max(self._driver.coordinator.phi(self.now()).values(), default=0.0))
