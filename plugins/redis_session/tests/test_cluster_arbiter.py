"""The arbiter in a real Redis keeps its contract, on one server and in a cluster, and what only Redis can break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_redis_session import RedisSession, RedisSessionSettings
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock
from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.cluster_arbiter import THAT, THIS, ClusterArbiterContract
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.values import NodeIdentity
from redis_harness.redis_stores import SOON
from redis_harness.servers import RedisCluster, RedisServer, redis_server
from spi_harness.processes import wait_until

KEY = "kinmqtt:{n}:a"


class ArbiterInRedis(ClusterArbiterContract):
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
    def cluster_arbiter(self, server: Any, drive: Driver, clock: TurnableClock) -> Iterator[ClusterArbiter]:
        self.running, self.clock_of_brokers, self.wait_for = server, clock, drive
        self.plugins = {}
        arbiter = self.begun(HERE)
        self.other = self.begun(THERE)
        yield arbiter
        for plugin in self.plugins.values():
            drive(plugin.stop())

    def settings(self) -> RedisSessionSettings:
        """Where the server is."""
        return RedisSessionSettings(host="127.0.0.1", port=self.running.port, **SOON)

    def begun(self, node: NodeIdentity) -> ClusterArbiter:
        """The arbiter of a broker that starts."""
        plugin = self.plugins[node] = RedisSession()
        context = BareContext("redis_session", self.settings(), node=node, clock=self.clock_of_brokers)
        plugin.configure(context)
        arbiter = plugin.cluster_arbiter()
        self.wait_for(plugin.start(context))
        return arbiter

    def peer(self, cluster_arbiter: ClusterArbiter) -> ClusterArbiter:
        return self.other

    def failing(self, cluster_arbiter: ClusterArbiter) -> Callable[[], object]:
        self.running.pause()

        def mend() -> None:
            self.running.go_on()
            self.is_back()

        return mend

    def reopened(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> ClusterArbiter:
        drive(self.plugins[HERE].stop())
        return self.begun(HERE)

    def is_back(self) -> None:
        """Wait until both brokers reach Redis again."""
        for plugin in self.plugins.values():
            parts: Any = plugin._parts
            self.wait_for(parts.link.back())
            assert parts.link.is_up


class TestArbiter(ArbiterInRedis):
    """One server."""


class TestArbiterOnSocket(ArbiterInRedis):
    """A server with an append-only file behind a Unix socket, which is killed where it is to fail."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Any]:
        options = ("--appendonly", "yes", "--appendfsync", "always")
        with redis_server(tmp_path / "redis", *options, on_socket=True) as server:
            yield server

    def settings(self) -> RedisSessionSettings:
        return RedisSessionSettings(socket=self.running.socket, durability="aof", **SOON)

    def failing(self, cluster_arbiter: ClusterArbiter) -> Callable[[], object]:
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


class TestArbiterInCluster(ArbiterInRedis):
    """A cluster whose masters are all paused where it is to fail."""

    @pytest.fixture
    def server(self, cluster: RedisCluster) -> Iterator[Any]:
        cluster.ask("flushall")
        yield cluster

    def settings(self) -> RedisSessionSettings:
        return RedisSessionSettings(cluster=self.running.addresses, **SOON)

    def failing(self, cluster_arbiter: ClusterArbiter) -> Callable[[], object]:
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


async def started(server: RedisServer, node: NodeIdentity = HERE, **more: Any) -> tuple[RedisSession, Any]:
    """A broker's plugin of which only the arbiter is used."""
    plugin = RedisSession()
    settings = RedisSessionSettings(**{"host": "127.0.0.1", "port": server.port, **SOON, **more})
    context = BareContext("redis_session", settings, node=node)
    plugin.configure(context)
    arbiter = plugin.cluster_arbiter()
    await plugin.start(context)
    return plugin, arbiter


def test_each_cluster_has_an_arbiter_of_its_own(server: RedisServer) -> None:
    """Brokers with another prefix are another cluster; the key has the term and its side, and never expires."""

    async def run() -> list[bool]:
        first, arbiter = await started(server, HERE, prefix="a:")
        second, other = await started(server, THERE, prefix="b:")
        answers = [await arbiter.decide(1, THIS), await other.decide(1, THAT)]
        await first.stop()
        await second.stop()
        return answers

    assert asyncio.run(run()) == [True, True]
    assert [server.ask("hget", f"{prefix}:{{n}}:a", "s") for prefix in "ab"] == [str(THIS), str(THAT)]
    assert (server.ask("hget", "a:{n}:a", "t"), server.ask("pttl", "a:{n}:a")) == ("1", "-1")


def test_a_full_redis_still_decides(server: RedisServer) -> None:
    """The arbiter is one small key: it decides while Redis refuses what is stored."""

    async def run() -> tuple[bool, int]:
        plugin, arbiter = await started(server)
        server.ask("config", "set", "maxmemory", "1")
        answer = await arbiter.decide(1, THIS), await arbiter.term()
        server.ask("config", "set", "maxmemory", "0")
        await plugin.stop()
        return answer

    assert asyncio.run(run()) == (True, 1)


def test_another_programs_value_is_no_answer(server: RedisServer) -> None:
    """Where the key has a value of another type nobody has a term, and nobody is told so."""
    server.ask("rpush", KEY, "x")

    async def run() -> None:
        plugin, arbiter = await started(server)
        for call in (arbiter.term, lambda: arbiter.decide(1, THIS)):
            with pytest.raises(ServiceUnavailable, match="WRONGTYPE"):
                await call()
        await plugin.stop()

    asyncio.run(run())


@pytest.mark.parametrize("call", ["term", "decide"])
def test_a_replica_decides_nothing(server: RedisServer, call: str) -> None:
    """A server that is no longer the master can't say who won: its last term may be old."""

    async def run() -> None:
        plugin, arbiter = await started(server)
        server.ask("replicaof", "127.0.0.1", "1")
        with pytest.raises(ServiceUnavailable):
            await (arbiter.term() if call == "term" else arbiter.decide(1, THIS))
        await plugin.stop()

    asyncio.run(run())


def test_scripts_that_were_flushed_are_loaded_again(server: RedisServer) -> None:
    """A term is had although Redis has forgotten the script."""

    async def run() -> bool:
        plugin, arbiter = await started(server)
        server.ask("script", "flush")
        has_it: bool = await arbiter.decide(1, THIS)
        await plugin.stop()
        return has_it

    assert asyncio.run(run())


def test_with_wait_replicas_must_have_the_decision(tmp_path: Path, server: RedisServer) -> None:
    """With durability "wait" a failover to a replica finds the decision; one that no replica has is no answer.

    The side asks again until they have it; another one is refused meanwhile.
    """
    with redis_server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port)) as replica:
        wait_until(lambda: "state=online" in server.ask("info", "replication"), "the replica has all of it")

        async def run() -> list[object]:
            plugin, arbiter = await started(server, durability="wait")
            seen: list[object] = [await arbiter.decide(1, THIS), replica.ask("hget", KEY, "t")]
            replica.pause()
            for _ in range(2):
                with pytest.raises(ServiceUnavailable, match="fewer than 1 replicas have the decision"):
                    await arbiter.decide(2, THIS)
            seen.append(await arbiter.decide(2, THAT))
            replica.go_on()
            seen += [await arbiter.decide(2, THIS), replica.ask("hget", KEY, "t")]
            await plugin.stop()
            return seen

        assert asyncio.run(run()) == [True, "1", False, True, "2"]
