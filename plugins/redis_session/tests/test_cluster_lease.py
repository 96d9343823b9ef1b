"""The lease in a real Redis keeps its contract, on one server and in a cluster, and what only Redis can break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_redis_session import RedisSession, RedisSessionSettings
from kinmqtt_redis_session.cluster_lease import RedisClusterLease
from kinmqtt_redis_session.connection import Link
from kinmqtt_redis_session.keys import Keys
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock
from kinmqtt_spi.services.cluster import ClusterLease
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.cluster_lease import ClusterLeaseContract
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.values import NodeIdentity
from redis_harness.redis_stores import SOON
from redis_harness.servers import RedisCluster, RedisServer, redis_server
from spi_harness.processes import wait_until

KEY = "kinmqtt:{n}:c"

PASS_TIME = """
local left = redis.call('PTTL', KEYS[1]) - tonumber(ARGV[1])
if left > 0 then return redis.call('PEXPIRE', KEYS[1], left) end
return redis.call('DEL', KEYS[1])
"""
"""Has a key expire earlier, as if time had passed: no test waits for it."""


class LeaseInRedis(ClusterLeaseContract):
    """Two brokers over one server, which is paused where it is to fail."""

    reactor = "asyncio"
    can_fail = survives_restart = True
    plugins: dict[NodeIdentity, RedisSession]

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Any]:
        """A server with nothing in it."""
        with redis_server(tmp_path / "redis") as server:
            yield server

    @pytest.fixture
    def cluster_lease(self, server: Any, drive: Driver, clock: TurnableClock) -> Iterator[ClusterLease]:
        self.running, self.clock_of_brokers, self.wait_for = server, clock, drive
        self.plugins = {}
        lease = self.begun(HERE)
        self.other = self.begun(THERE)
        yield lease
        for plugin in self.plugins.values():
            drive(plugin.stop())

    def settings(self) -> RedisSessionSettings:
        """Where the server is."""
        return RedisSessionSettings(host="127.0.0.1", port=self.running.port, **SOON)

    def begun(self, node: NodeIdentity) -> ClusterLease:
        """The lease of a broker that starts."""
        plugin = self.plugins[node] = RedisSession()
        context = BareContext("redis_session", self.settings(), node=node, clock=self.clock_of_brokers)
        plugin.configure(context)
        lease = plugin.cluster_lease()
        self.wait_for(plugin.start(context))
        return lease

    def peer(self, cluster_lease: ClusterLease) -> ClusterLease:
        return self.other

    def pass_time(self, clock: TurnableClock, seconds: float) -> None:
        self.running.ask("eval", PASS_TIME, "1", KEY, str(round(seconds * 1000)))

    def failing(self, cluster_lease: ClusterLease) -> Callable[[], object]:
        self.running.pause()

        def mend() -> None:
            self.running.go_on()
            self.is_back()

        return mend

    def reopened(self, cluster_lease: ClusterLease, drive: Driver) -> ClusterLease:
        drive(self.plugins[HERE].stop())
        return self.begun(HERE)

    def is_back(self) -> None:
        """Wait until both brokers reach Redis again."""
        for plugin in self.plugins.values():
            parts: Any = plugin._parts
            self.wait_for(parts.link.back())
            assert parts.link.is_up


class TestLease(LeaseInRedis):
    """One server."""


class TestLeaseOnSocket(LeaseInRedis):
    """A server with an append-only file behind a Unix socket, which is killed where it is to fail."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Any]:
        options = ("--appendonly", "yes", "--appendfsync", "always")
        with redis_server(tmp_path / "redis", *options, on_socket=True) as server:
            yield server

    def settings(self) -> RedisSessionSettings:
        return RedisSessionSettings(socket=self.running.socket, durability="aof", **SOON)

    def failing(self, cluster_lease: ClusterLease) -> Callable[[], object]:
        self.running.kill()

        def mend() -> None:
            self.running.start()
            self.is_back()

        return mend


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three masters."""
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.end()


class TestLeaseInCluster(LeaseInRedis):
    """A cluster whose masters are all paused where it is to fail."""

    @pytest.fixture
    def server(self, cluster: RedisCluster) -> Iterator[Any]:
        cluster.ask("flushall")
        yield cluster

    def settings(self) -> RedisSessionSettings:
        return RedisSessionSettings(cluster=self.running.addresses, **SOON)

    def pass_time(self, clock: TurnableClock, seconds: float) -> None:
        self.running.nodes[0].ask("-c", "eval", PASS_TIME, "1", KEY, str(round(seconds * 1000)))

    def failing(self, cluster_lease: ClusterLease) -> Callable[[], object]:
        self.running.each("pause")

        def mend() -> None:
            self.running.each("go_on")
            self.is_back()

        return mend


# What the suite can't see


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with nothing in it."""
    with redis_server(tmp_path / "redis") as server:
        yield server


async def started(server: RedisServer, node: NodeIdentity = HERE, **more: Any) -> tuple[RedisSession, ClusterLease]:
    """A broker's plugin of which only the lease is used."""
    plugin = RedisSession()
    settings = RedisSessionSettings(**{"host": "127.0.0.1", "port": server.port, **SOON, **more})
    context = BareContext("redis_session", settings, node=node)
    plugin.configure(context)
    lease = plugin.cluster_lease()
    await plugin.start(context)
    return plugin, lease


async def acquired(lease: ClusterLease, node: NodeIdentity = HERE) -> bool:
    """Whether a node has got the lease, for a minute."""
    answer: Any = lease.acquire(node, 60.0)
    has_it: bool = await answer
    return has_it


def test_each_cluster_has_a_lease_of_its_own(server: RedisServer) -> None:
    """Brokers with another prefix are another cluster; the key says who holds it, and expires."""

    async def run() -> list[bool]:
        first, lease = await started(server, HERE, prefix="a:")
        second, other = await started(server, THERE, prefix="b:")
        answers = [await acquired(lease, HERE), await acquired(other, THERE)]
        await first.stop()
        await second.stop()
        return answers

    assert asyncio.run(run()) == [True, True]
    assert [server.ask("get", f"{prefix}:{{n}}:c") for prefix in "ab"] == ["1", "2"]
    assert 50_000 < int(server.ask("pttl", "a:{n}:c")) <= 60_000


def test_a_full_redis_still_decides(server: RedisServer) -> None:
    """The lease is one small key: it is taken and released while Redis refuses what is stored."""

    async def run() -> bool:
        plugin, lease = await started(server)
        server.ask("config", "set", "maxmemory", "1")
        has_it = await acquired(lease)
        server.ask("config", "set", "maxmemory", "0")
        await plugin.stop()
        return has_it

    assert asyncio.run(run())


def test_another_programs_value_is_no_answer(server: RedisServer) -> None:
    """Where the key has a value of another type nobody holds the lease, and nobody is told so."""
    server.ask("rpush", KEY, "x")

    async def run() -> None:
        plugin, lease = await started(server)
        with pytest.raises(ServiceUnavailable, match="WRONGTYPE"):
            await acquired(lease)
        await plugin.stop()

    asyncio.run(run())


def test_a_replica_does_not_give_the_lease(server: RedisServer) -> None:
    """A server that is no longer the master can't say who has it: a split of Redis must not be one of the lease."""

    async def run() -> None:
        plugin, lease = await started(server)
        server.ask("replicaof", "127.0.0.1", "1")
        with pytest.raises(ServiceUnavailable):
            await acquired(lease)
        await plugin.stop()

    asyncio.run(run())


def test_scripts_that_were_flushed_are_loaded_again(server: RedisServer) -> None:
    """The lease is had although Redis has forgotten the script."""

    async def run() -> bool:
        plugin, lease = await started(server)
        server.ask("script", "flush")
        has_it = await acquired(lease)
        await plugin.stop()
        return has_it

    assert asyncio.run(run())


def test_with_wait_replicas_must_have_the_lease(tmp_path: Path, server: RedisServer) -> None:
    """With durability "wait" a failover to a replica finds the holder; a lease that no replica has is no answer."""
    with redis_server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port)) as replica:
        wait_until(lambda: "state=online" in server.ask("info", "replication"), "the replica has all of it")

        async def run() -> str:
            plugin, lease = await started(server, durability="wait")
            assert await acquired(lease)
            held_by = replica.ask("get", KEY)
            replica.pause()
            with pytest.raises(ServiceUnavailable, match="fewer than 1 replicas have the lease"):
                await acquired(lease)
            await cast(Any, lease.release(HERE))
            replica.go_on()
            await plugin.stop()
            return held_by

        assert asyncio.run(run()) == "1"


class SlowLink:
    """A link that carries out a command when the test says so."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []
        self.answers: list[asyncio.Future[list[Any]]] = []

    async def execute(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Answer when the future of this call is set."""
        self.commands += commands
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    @property
    def times(self) -> list[int]:
        """The times in ms that were sent: 0 for a release."""
        return [command[-1] for command in self.commands]


def test_a_late_release_does_not_end_a_lease_that_was_acquired_after_it() -> None:
    """A release that its caller has given up is still carried out before the next call."""

    async def run() -> tuple[list[int], list[int], bool]:
        link = SlowLink()
        lease = RedisClusterLease(cast(Link, link), Keys("k:"), timeout_s=1.0)
        release = asyncio.ensure_future(lease.release(HERE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        release.cancel()
        acquire = asyncio.ensure_future(lease.acquire(HERE, 60.0))
        for _ in range(5):
            await asyncio.sleep(0)
        before = list(link.times)
        link.answers[0].set_result([0])
        while len(link.answers) < 2:
            await asyncio.sleep(0)
        link.answers[1].set_result([1])
        return before, link.times, await acquire

    before, after, has_it = asyncio.run(run())

    assert (before, after, has_it) == ([0], [0, 60_000], True)


@given(st.floats(min_value=0.0, max_value=1e9, exclude_min=True))
def test_a_lease_never_lasts_shorter_in_redis_than_for_its_holder(ttl_s: float) -> None:
    """Redis counts in whole milliseconds: at least one, and not a millisecond too few or too many."""

    async def run() -> int:
        link = SlowLink()
        lease = RedisClusterLease(cast(Link, link), Keys("k:"), timeout_s=1.0)
        acquire = asyncio.ensure_future(lease.acquire(HERE, ttl_s))
        while not link.answers:
            await asyncio.sleep(0)
        link.answers[0].set_result([1])
        await acquire
        return link.times[0]

    sent = asyncio.run(run())

    assert sent >= 1
    assert sent >= ttl_s * 1000 > sent - 1
