"""Members that keep the register of client ids together, with delays, deaths, joins and members seen late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akka_harness.virtual_loop import run_virtually
from kinmqtt_akka_like_cluster.pure.register_messages import END, LOCATE, REGISTER, RELEASE, pack_locate
from kinmqtt_akka_like_cluster.pure.registrars import registrar_of
from kinmqtt_akka_like_cluster.register.client_register import LOCATE_LIMIT_S, ClientRegister
from kinmqtt_spi.errors import NodeGone, ServiceUnavailable
from kinmqtt_spi.memory.plugin import RecordingLog
from kinmqtt_spi.services.cluster import Member, MemberState
from kinmqtt_spi.values import NodeIdentity

CLIENTS = tuple(f"c{number}" for number in range(6))
UP, JOINING, LEAVING = MemberState.UP, MemberState.JOINING, MemberState.LEAVING


class LoopClock:
    """The clock of the running loop."""

    def now(self) -> float:
        return 1.7e9 + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def later(self, delay_s: float, call: Any) -> Any:
        return asyncio.get_running_loop().call_later(delay_s, call)


class Node:
    """A member with its sessions: what its backend and its core would do."""

    shares_stores = False
    arbiter = None

    def __init__(self, world: World, uid: int, begins_anew: bool = False) -> None:
        self.world = world
        self.identity = NodeIdentity(f"n{uid}", uid)
        self.sessions: dict[str, tuple[int, set[str]]] = {}
        """By client id: epoch and content."""
        self.is_alive = True
        self.known: dict[NodeIdentity, MemberState] = {}
        self.register = ClientRegister(self.identity, self, self, world.clock, RecordingLog(), begins_anew)  # type: ignore[arg-type]

    # Backend

    def members(self) -> Sequence[Member]:
        return [Member(node, state, self.world.reaches(self.identity, node)) for node, state in self.known.items()]

    def ask_backend(self, node: NodeIdentity, data: bytes, limit_s: float) -> Awaitable[bytes]:
        return self.world.send(self, node, data, limit_s)

    # Core

    def owned(self) -> list[tuple[str, int]]:
        return [(client_id, epoch) for client_id, (epoch, _) in self.sessions.items()]

    def epoch_of(self, client_id: str) -> int | None:
        session = self.sessions.get(client_id)
        return None if session is None else session[0]

    async def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> None:
        """Hand a session off."""
        if client_id not in self.sessions:
            return
        if self.sessions[client_id][0] >= epoch:
            raise ServiceUnavailable("claimed later")
        await self.world.delay()
        other = self.world.nodes[owner]
        if not other.is_alive or not self.is_alive or client_id not in self.sessions:
            raise ServiceUnavailable("gone")
        before, content = self.sessions.pop(client_id)
        epoch = max(epoch, before, other.sessions.get(client_id, (0, set()))[0]) + 1
        other.sessions[client_id] = (epoch, content | other.sessions.get(client_id, (0, set()))[1])
        other.register.register(client_id, epoch)

    def lives(self) -> bool:
        return self.is_alive

    async def connect(self, client_id: str) -> None:
        """Open a session as a CONNECT does."""
        world = self.world
        members = world.known_up()
        located = await self.register.locate(client_id)
        if not self.is_alive:
            return
        world.enter(client_id, self)
        try:
            if located.owner is not None and located.owner != self.identity:
                await world.claim(self, client_id, located.epoch + 1, located.owner)
            await world.delay()
            if not self.lives():
                return
            epoch, content = self.sessions.get(client_id, (0, set()))
            if not content:
                world.begin_anew(client_id, members)
                content = {f"{client_id}@{self.identity.name}#{len(world.created)}"}
            epoch = max(epoch, located.epoch) + 1
            self.sessions[client_id] = (epoch, content)
            self.register.register(client_id, epoch)
        finally:
            world.leave(client_id, self)
            if self.is_alive:
                self.register.end_claim(client_id)


class World:
    """All nodes, and the network between them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = LoopClock()
        self.nodes: dict[NodeIdentity, Node] = {}
        self.within: dict[str, Node] = {}
        self.created: list[str] = []
        self.problems: list[str] = []
        self.checks = True
        self.last: dict[tuple[int, int], float] = {}
        self.slowest_s: dict[tuple[int, int], float] = {}
        """By pair: how long a message may be on its way. So what members are asked comes in any order."""
        self.full = 0.0
        """How often a link has no room for a notice."""
        self.cut: set[tuple[int, int]] = set()
        self.tasks: list[asyncio.Task[Any]] = []

    async def delay(self) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.001, 0.01, 0.03, 0.3)))

    def reaches(self, one: NodeIdentity, other: NodeIdentity) -> bool:
        return (one.uid, other.uid) not in self.cut

    # Messages

    async def _arrive(self, origin: NodeIdentity, target: NodeIdentity) -> None:
        """Wait for a message's arrival; those of a pair arrive in order."""
        now = self.clock.monotonic()
        slowest_s = self.slowest_s.setdefault((origin.uid, target.uid), self.random.choice((0.002, 0.02, 0.2)))
        at = max(now + self.random.random() * slowest_s, self.last.get((origin.uid, target.uid), 0.0) + 1e-5)
        self.last[origin.uid, target.uid] = at
        await asyncio.sleep(at - now)
        while not self.reaches(origin, target):
            await asyncio.sleep(0.01)

    async def _deliver(self, node: Node, target: NodeIdentity, data: bytes) -> bytes:
        await self._arrive(node.identity, target)
        other = self.nodes[target]
        while not other.is_alive:
            if target not in node.known:
                raise NodeGone(target.name)
            await asyncio.sleep(0.01)
        answer = other.register.asked(node.identity, data)
        answer = await answer if isinstance(answer, Awaitable) else answer
        await self._arrive(target, node.identity)
        return bytes(answer)

    def send(self, node: Node, target: NodeIdentity, data: bytes, limit_s: float) -> Awaitable[bytes]:
        if target not in node.known:
            raise NodeGone(target.name)
        if data[0] in (END, REGISTER, RELEASE) and self.random.random() < self.full:
            raise ServiceUnavailable("the link is full")
        return self.spawn(self._limited(self._deliver(node, target, data), limit_s))

    async def _limited(self, work: Any, limit_s: float) -> bytes:
        try:
            return bytes(await asyncio.wait_for(work, limit_s))
        except TimeoutError:
            raise ServiceUnavailable("no answer") from None

    async def claim(self, node: Node, client_id: str, epoch: int, owner: NodeIdentity) -> None:
        await self._arrive(node.identity, owner)
        other = self.nodes[owner]
        if other.is_alive:
            await other.session_claimed(client_id, epoch, node.identity)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.append(task)
        return task

    # Checks

    def enter(self, client_id: str, node: Node) -> None:
        before = self.within.get(client_id)
        if before is not None and before.is_alive:
            self.problems.append(f"{client_id} is claimed by {before.identity.name} and {node.identity.name}")
        self.within[client_id] = node

    def leave(self, client_id: str, node: Node) -> None:
        if self.within.get(client_id) is node:
            del self.within[client_id]

    def begin_anew(self, client_id: str, members: list[Node]) -> None:
        """``members``: those that all knew when the claim began. The newest session may be gone with its node."""
        newest = max((node.epoch_of(client_id) or 0 for node in self.nodes.values()), default=0)
        holders = [node.identity.name for node in members if node.is_alive and node.epoch_of(client_id) == newest]
        if holders and self.checks:
            self.problems.append(f"{client_id} begins anew, and {holders} have its session")
        self.created.append(client_id)

    def known_up(self) -> list[Node]:
        """The living nodes that all living members know as UP."""
        return [node for node in self.nodes.values() if node.is_alive and self.is_known_up(node)]

    def is_known_up(self, node: Node) -> bool:
        """Whether all living members know that a node is UP."""
        return all(other.known.get(node.identity) in (UP, LEAVING) for other in self.nodes.values() if other.is_alive)

    # Members

    async def tell(self, about: NodeIdentity, state: MemberState | None) -> None:
        """Let all members learn a state, each at its time; ``None``: it is gone."""
        for each in list(self.nodes.values()):
            if each.is_alive:
                self.spawn(self._tell_one(each, about, state, self.random.random() * 0.2))
        await asyncio.sleep(0.25)

    async def _tell_one(self, node: Node, about: NodeIdentity, state: MemberState | None, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if state is None:
            node.known.pop(about, None)
        else:
            node.known[about] = state
        if node.is_alive:
            node.register.members_changed(node.known.items())

    async def join(self, uid: int, sessions: dict[str, tuple[int, set[str]]] | None = None) -> Node:
        node = Node(self, uid)
        node.sessions = sessions or {}
        node.known = {each.identity: UP for each in self.nodes.values() if each.is_alive and self.is_known_up(each)}
        self.nodes[node.identity] = node
        await self.tell(node.identity, JOINING)
        await self.tell(node.identity, UP)
        return node

    async def kill(self, node: Node) -> None:
        node.is_alive = False
        node.register.stop()
        await asyncio.sleep(self.random.random() * 0.3)
        await self.tell(node.identity, None)

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_alive]

    async def try_to_connect(self, node: Node, client_id: str) -> None:
        try:
            await node.connect(client_id)
        except ServiceUnavailable:
            pass

    async def rest(self) -> None:
        """Wait until nothing is under way."""
        await asyncio.sleep(30.0)

    def close(self) -> None:
        for node in self.nodes.values():
            node.register.stop()
        for task in self.tasks:
            task.cancel()


async def story(world: World) -> None:
    """Clients connect everywhere while nodes die, return with outdated sessions, join and leave."""
    random = world.random
    for uid in range(1, random.randint(2, 5)):
        await world.join(uid)
    uid = 10
    for _ in range(random.randint(5, 60)):
        act = random.random()
        if act < 0.1:
            # Many want one client id while its entry may get another keeper.
            client_id = random.choice(CLIENTS)
            for node in world.alive:
                world.spawn(world.try_to_connect(node, client_id))
            await asyncio.sleep(random.choice((0.0, 0.01, 0.1)))
        elif act < 0.75:
            world.spawn(world.try_to_connect(random.choice(world.alive), random.choice(CLIENTS)))
            await asyncio.sleep(random.choice((0.0, 0.0, 0.01, 0.1)))
        elif act < 0.83 and len(world.alive) > 2:
            victim = random.choice(world.alive)
            kept = {client_id: (epoch, set(content)) for client_id, (epoch, content) in victim.sessions.items()}
            await world.kill(victim)
            if random.random() < 0.5:
                uid += 1
                await world.join(uid, kept)
        elif act < 0.93 and len(world.alive) < 6:
            uid += 1
            await world.join(uid)
        elif len(world.alive) > 2:
            leaver = random.choice(world.alive)
            await world.tell(leaver.identity, LEAVING)
            await leaver.register.hand_all_over(30.0)
            if leaver.sessions:
                # It may have been claimed by this node itself meanwhile: then it stays on its disk.
                world.problems += [f"{each} stays at a leaver" for each in leaver.sessions if each not in CLIENTS]
            await world.kill(leaver)
    world.full = 0.0
    await world.rest()
    for client_id in CLIENTS:
        await world.try_to_connect(random.choice(world.alive), client_id)
    await world.rest()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_client_id_has_one_owner_whatever_happens_to_members(seed: int) -> None:
    """One node at a time claims a client id, no session is begun anew while a member has it, and one is left."""

    async def run() -> tuple[list[str], Counter[str]]:
        world = World(seed)
        world.full = world.random.choice((0.0, 0.0, 0.05, 0.3))
        await story(world)
        owners = Counter(client_id for node in world.alive for client_id in node.sessions)
        world.close()
        return world.problems, owners

    problems, owners = run_virtually(run())

    assert problems == []
    assert owners == Counter(CLIENTS)


def test_client_ids_are_spread_over_all_members() -> None:
    """Each of five members keeps about a fifth, and a sixth one takes from each only what it keeps itself."""
    view = tuple(range(1000, 1005))
    names = [f"client-{number}" for number in range(5000)]
    before = [registrar_of(name, view) for name in names]
    after = [registrar_of(name, (*view, 2000)) for name in names]

    assert all(850 < count < 1150 for count in Counter(before).values())
    assert all(one == other or other == 2000 for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_session_on_a_node_that_can_t_be_reached(begins_anew: bool) -> None:
    """The client is refused, or gets a new session; the old one's messages are merged when the node is back."""

    async def run() -> None:
        world = World(1)
        here, there = await world.join(1), await world.join(2)
        here.register._begins_anew = begins_anew
        client_id = next(each for each in CLIENTS if registrar_of(each, (1, 2)) == 1)
        await there.connect(client_id)
        await asyncio.sleep(1.0)
        world.cut = {(1, 2), (2, 1)}
        if begins_anew:
            world.checks = False
            await here.connect(client_id)
            world.cut.clear()
            await world.rest()
            assert len(here.sessions[client_id][1]) == 2
            assert there.sessions == {}
        else:
            with pytest.raises(ServiceUnavailable, match=r"n2, which has the session of .*, can't be reached"):
                await here.connect(client_id)
        world.close()

    run_virtually(run())


def kept_by(uid: int, *members: int) -> str:
    """Return a client id whose entry a member keeps."""
    return next(each for each in CLIENTS if registrar_of(each, members) == uid)


@pytest.mark.parametrize("keeper", [1, 2])
def test_a_claim_that_fails_leaves_the_one_under_way_alone(keeper: int) -> None:
    """When a second claim of a client id on one broker is given up, the first one ends as ever."""

    async def run() -> None:
        world = World(1)
        here, there = await world.join(1), await world.join(2)
        client_id = kept_by(keeper, 1, 2)
        await here.register.locate(client_id)
        second = world.spawn(here.register.locate(client_id))
        with pytest.raises(ServiceUnavailable, match=r"no answer|earlier claims of the client id have not ended"):
            await asyncio.wait_for(second, LOCATE_LIMIT_S + 1.0)
        here.register.end_claim(client_id)
        await there.register.locate(client_id)
        there.register.end_claim(client_id)
        await asyncio.sleep(1.0)
        assert [node.register.keeper.register.claims for node in (here, there)] == [0, 0]
        world.close()

    run_virtually(run())


def test_nothing_is_left_of_the_claims_of_a_dead_member() -> None:
    """A claim that waits for its turn is forgotten when its member is gone, and the next one gets its turn."""

    async def run() -> None:
        world = World(1)
        here, there = await world.join(1), await world.join(2)
        client_id = kept_by(1, 1, 2)
        await here.register.locate(client_id)
        claim = world.spawn(world.try_to_connect(there, client_id))
        await asyncio.sleep(1.0)
        assert here.register.keeper.waiting == 1
        await world.kill(there)
        assert here.register.keeper.waiting == 0
        here.register.end_claim(client_id)
        await here.connect(client_id)
        assert here.register.keeper.register.claims == 0
        claim.cancel()
        world.close()

    run_virtually(run())


@pytest.mark.parametrize("ends", ["it is given up", "the member stops"])
def test_a_claim_that_waits_is_answered_when_it_ends(ends: str) -> None:
    """The member that asked gets an answer that is no failure: it asks again, or has given up."""

    async def run() -> None:
        world = World(1)
        here, there = await world.join(1), await world.join(2)
        client_id = kept_by(1, 1, 2)
        await here.register.locate(client_id)
        answer = here.register.asked(there.identity, pack_locate(LOCATE, 7, client_id))
        assert isinstance(answer, Awaitable)
        if ends == "it is given up":
            here.register.asked(there.identity, pack_locate(END, 7, client_id))
        else:
            here.register.stop()
        assert await answer == b""
        assert here.register.keeper.waiting == 0
        world.close()

    run_virtually(run())


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_claim_ends_though_the_link_had_no_room(seed: int) -> None:
    """Clients that connect find their sessions, in turn, though notices were held back by full links."""

    async def run() -> list[str]:
        world = World(seed)
        here, there = await world.join(1), await world.join(2)
        for client_id in CLIENTS:
            for node in (here, there):
                await node.connect(client_id)
                world.full = 0.4
        world.full = 0.0
        await world.rest()
        assert [len(node.register.notices) for node in (here, there)] == [0, 0]
        assert [node.register.keeper.register.claims for node in (here, there)] == [0, 0]
        for client_id in CLIENTS:
            await there.connect(client_id)
        world.close()
        return world.problems

    assert run_virtually(run()) == []
