"""Who lives: leases that end, processes that have ended, and a Redis that was away."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_redis_session import RedisSessionSettings, leases
from kinmqtt_redis_session.command import _OpenStores
from kinmqtt_redis_session.keys import Keys, shard_of
from kinmqtt_redis_session.leases import Leases
from kinmqtt_redis_session.machine import Machine
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock
from kinmqtt_spi.services.session import DiscardSession, OpenSession, ReleaseSession
from kinmqtt_spi.testing.build import HERE, NOW, THERE, session
from kinmqtt_spi.values import NodeIdentity
from redis_harness.instances import Instance, start_instance
from redis_harness.servers import RedisServer, redis_server

FAR = NodeIdentity("far", 3)


class FakeRedis:
    """What leases ask of Redis; its keys end when a test says so."""

    def __init__(self) -> None:
        self.nodes: dict[bytes, bytes] = {}
        self.leases: dict[bytes, bytes] = {}

    async def execute(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Answer commands."""
        return [getattr(self, "_" + str(command[0]).lower())(*command[1:]) for command in commands]

    def _hset(self, key: bytes, uid: int, place: bytes) -> int:
        self.nodes[b"%d" % uid] = place
        return 1

    def _hgetall(self, key: bytes) -> dict[bytes, bytes]:
        return dict(self.nodes)

    def _get(self, key: bytes) -> bytes | None:
        return self.leases.get(key)

    def _set(self, key: bytes, value: bytes, *options: Any) -> bytes | None:
        before = self.leases.get(key)
        self.leases[key] = value
        return before

    def _exists(self, key: bytes) -> int:
        return int(key in self.leases)

    def _del(self, key: bytes) -> int:
        return int(self.leases.pop(key, None) is not None)


class Elsewhere(Machine):
    """A machine that knows nothing of the other one's processes."""

    def has_ended(self, place: bytes) -> bool:
        return False

    def is_running(self, place: bytes) -> bool:
        return False


class Pair:
    """Two nodes on two machines; leases take 9 seconds, and the grace is 12."""

    def __init__(self) -> None:
        self.redis = FakeRedis()
        self.clock = TurnableClock()
        self.log = RecordingLog()
        self.here, self.there = (
            Leases(Keys("k:"), node, self.clock, self.log, lease_s=9.0, grace_s=12.0, machine=Elsewhere(pid=node.uid))
            for node in (HERE, THERE)
        )

    def ends(self) -> None:
        """The lease of the other ends."""
        self.redis.leases.pop(Keys("k:").lease(THERE.uid), None)

    async def look_for(self, seconds: int) -> list[bool]:
        """Look each second whether the other is gone."""
        seen = []
        for _ in range(seconds):
            self.clock.advance(1)
            await self.here.look(self.redis.execute)
            seen.append(self.here.is_gone(THERE.uid))
        return seen


def in_pair(work: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    """Run with two nodes that have joined."""

    async def run() -> None:
        pair = Pair()
        await pair.here.join(pair.redis.execute)
        await pair.there.join(pair.redis.execute)
        await pair.here.look(pair.redis.execute)
        await work(pair)

    asyncio.run(run())


def test_a_node_that_renews_its_lease_is_alive() -> None:
    """As long as a node renews nobody takes it for gone."""

    async def work(pair: Pair) -> None:
        for _ in range(10):
            assert not any(await pair.look_for(3))
            assert await pair.there.renew(pair.redis.execute)
        assert pair.here.is_known(THERE.uid)

    in_pair(work)


def test_a_node_whose_lease_has_expired_is_gone() -> None:
    """Who has long seen Redis there takes a node for gone once its lease has ended."""

    async def work(pair: Pair) -> None:
        await pair.look_for(3)
        await pair.there.renew(pair.redis.execute)
        before = await pair.look_for(9)
        pair.ends()
        after = await pair.look_for(1)

        assert not any(before)
        assert after == [True]
        assert await pair.there.renew(pair.redis.execute) is False
        assert await pair.look_for(1) == [False]

    in_pair(work)


def test_a_renewal_without_an_answer_does_not_prove_that_the_lease_lasted() -> None:
    """It may have been the one that found it ended: sessions are looked for that others have claimed meanwhile."""

    async def work(pair: Pair) -> None:
        async def lost(commands: Sequence[tuple[Any, ...]]) -> list[Any]:
            await pair.redis.execute(commands)
            raise TimeoutError

        pair.ends()
        with pytest.raises(TimeoutError):
            await pair.there.renew(lost)

        assert await pair.there.back(pair.redis.execute) is False
        assert await pair.there.renew(pair.redis.execute) is True

    in_pair(work)


def test_a_node_that_has_just_renewed_is_not_gone() -> None:
    """A lease that ends too early, because Redis stood still or lost it, says nothing for half its time."""

    async def work(pair: Pair) -> None:
        await pair.look_for(11)
        await pair.there.renew(pair.redis.execute)
        await pair.look_for(1)
        pair.ends()

        assert await pair.look_for(6) == [False] * 4 + [True] * 2

    in_pair(work)


def test_no_node_is_gone_for_a_while_after_redis_was_away() -> None:
    """When Redis is back it takes the grace until a lease that has ended says anything."""

    async def work(pair: Pair) -> None:
        await pair.look_for(20)
        pair.here.lost()
        pair.redis.leases.clear()
        away = await pair.look_for(20)
        assert await pair.here.back(pair.redis.execute) is False

        assert not any(away)
        assert await pair.look_for(13) == [False] * 11 + [True] * 2

    in_pair(work)


def test_a_node_that_has_lost_its_own_lease_starts_over() -> None:
    """Where all stood still nobody takes another for gone that goes on a moment later."""

    async def work(pair: Pair) -> None:
        await pair.look_for(20)
        pair.redis.leases.clear()
        first = await pair.look_for(1)
        await pair.here.renew(pair.redis.execute)

        assert first == [False]
        assert await pair.look_for(13) == [False] * 11 + [True] * 2

    in_pair(work)


def test_a_node_that_stops_is_gone_at_once() -> None:
    """A node that says so is gone, whatever else is known; and forgotten by its own renewal only."""

    async def work(pair: Pair) -> None:
        await pair.there.leave(pair.redis.execute)

        assert await pair.look_for(1) == [True]
        assert pair.here.gone() == [0, THERE.uid]

    in_pair(work)


def test_a_buried_node_stays_gone() -> None:
    """All take it for gone, also while it renews its lease: who has buried it, and who starts later."""

    async def work(pair: Pair) -> None:
        await pair.here.bury(THERE.uid, pair.redis.execute)
        before = pair.here.is_gone(THERE.uid)
        await pair.there.renew(pair.redis.execute)

        assert before
        assert all(await pair.look_for(3))
        assert THERE.uid in pair.here.gone()
        later = Leases(
            Keys("k:"), FAR, pair.clock, pair.log, lease_s=9.0, grace_s=12.0, machine=Elsewhere(pid=FAR.uid)
        )
        await later.join(pair.redis.execute)
        await later.look(pair.redis.execute)
        assert later.is_gone(THERE.uid) and not later.is_gone(HERE.uid)

    in_pair(work)


def test_buried_nodes_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten here first; Redis still has them."""
    monkeypatch.setattr(leases, "MOST_BURIED", 2)

    async def work(pair: Pair) -> None:
        for uid in (THERE.uid, 901, 902):
            await pair.here.bury(uid, pair.redis.execute)

        assert list(pair.here._buried) == [901, 902]
        assert pair.here.is_gone(THERE.uid)

    in_pair(work)


def test_a_start_waits_until_it_is_known_who_lives() -> None:
    """Who renews is waited for until it does so, who does not for as long as the grace is; who is here not at all."""

    async def work(pair: Pair) -> None:
        waited: list[float] = []
        for ownership in ({HERE.uid, 0}, {THERE.uid}, {THERE.uid, FAR.uid}):
            began = pair.clock.monotonic()
            task = asyncio.ensure_future(pair.here.wait_until_known(pair.redis.execute, ownership))
            while not task.done():
                await asyncio.sleep(0)
                if pair.clock.pending() and not task.done():
                    pair.clock.advance(1)
                    if int(pair.clock.monotonic()) % 3 == 0:
                        await pair.there.renew(pair.redis.execute)
            await task
            waited.append(pair.clock.monotonic() - began)

        assert waited[0] == 0
        assert 0 < waited[1] <= 4
        assert 4 < waited[2] <= 13
        assert pair.here.is_gone(FAR.uid) and not pair.here.is_gone(THERE.uid)
        assert "waiting up to 12.4 s" in pair.log.texts("info")[0]

    in_pair(work)


# Processes


def test_a_process_is_seen_to_run_and_to_have_ended() -> None:
    """On the same machine it is known of a process whether it is there; of one that only has its number, too."""
    machine = Machine()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    place = Machine(pid=child.pid).here()
    world, _, began = json.loads(place)
    running = machine.is_running(place), machine.has_ended(place)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    unreaped = machine.is_running(place), machine.has_ended(place)
    child.communicate()
    reaped = machine.is_running(place), machine.has_ended(place)

    assert running == (True, False)
    assert unreaped == reaped == (False, True)
    mine = json.loads(machine.here())
    assert machine.is_running(machine.here())
    assert machine.has_ended(json.dumps([world, mine[1], began + "1"]).encode())


@pytest.mark.parametrize("place", [b"", b"-", b"{}", b"[]", b'["another machine",1,"1"]', b'["",1,"1"]'])
def test_nothing_is_known_of_processes_elsewhere(place: bytes) -> None:
    """Neither that it runs nor that it has ended."""
    machine = Machine()

    assert not machine.is_running(place)
    assert not machine.has_ended(place)


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    """Where a system does not show its processes, leases alone decide."""
    machine = Machine(tmp_path)

    assert not machine.is_running(machine.here())
    assert not machine.has_ended(machine.here())


# Over Redis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with nothing in it."""
    with redis_server(tmp_path / "redis") as server:
        yield server


def at(server: RedisServer) -> dict[str, Any]:
    """The settings that lead to a server."""
    return {"host": "127.0.0.1", "port": server.port}


async def opened(instance: Instance, *names: str) -> dict[str, int]:
    """Claim and open sessions; their epochs."""
    epochs = {name: (await instance.sessions.claim(name, instance.context.node)).epoch for name in names}
    instance.sessions.apply([OpenSession(epoch, session(name)) for name, epoch in epochs.items()])
    await committed(instance)
    return epochs


async def committed(instance: Instance) -> None:
    """Have what was applied kept."""
    answer = instance.sessions.commit()
    assert answer is not None
    await answer


def indexed(server: RedisServer, uid: int) -> set[str]:
    """Whom a node's index names."""
    keys = [f"kinmqtt:{{i{shard}}}:o:{uid}" for shard in range(16)]
    return {name for key in keys for name in server.ask("zrange", key, "0", "-1").split()}


def test_a_lease_is_renewed_and_released(server: RedisServer) -> None:
    """It stands in Redis with an expiry, a third of its time later anew, and is gone when the plugin stops."""

    async def run() -> list[str]:
        instance = await start_instance(HERE, **at(server), timeout_s=1.0)
        said = [server.ask("get", "kinmqtt:{n}:l:1"), server.ask("pttl", "kinmqtt:{n}:l:1")]
        instance.context.clock.advance(3.4)
        await asyncio.gather(*instance.plugin._tasks)
        said.append(server.ask("get", "kinmqtt:{n}:l:1"))
        await instance.plugin.stop()
        return [*said, server.ask("get", "kinmqtt:{n}:l:1"), server.ask("hget", "kinmqtt:{n}:n", "1")]

    first, left_ms, second, after, place = asyncio.run(run())

    assert (first, second, after, place) == ("1", "2", "", "-")
    assert 5_000 < int(left_ms) <= 10_000


def test_redis_says_whether_a_lease_has_lasted(server: RedisServer) -> None:
    """By what it holds of the renewal before: another one's answer may have been lost."""

    async def run() -> list[bool]:
        instance = await start_instance(HERE, **at(server), timeout_s=1.0)
        leases, execute = instance.parts.leases, instance.parts.link.execute
        lasted = [await leases.renew(execute)]
        server.ask("del", "kinmqtt:{n}:l:1")
        lasted.append(await leases.renew(execute))
        lasted.append(await leases.renew(execute))
        await instance.plugin.stop()
        return lasted

    assert asyncio.run(run()) == [True, False, True]


def test_forgotten_nodes_take_no_memory(server: RedisServer) -> None:
    """However many lives a node has had, only those are asked after that may have left something."""

    async def run() -> set[int]:
        instance = await start_instance(HERE, **at(server))
        for uid in range(100, 110):
            server.ask("hset", "kinmqtt:{n}:n", str(uid), "-")
        for _ in range(3):
            await instance.sessions.orphaned(HERE, 10)
        known = set(instance.parts.leases._others)
        await instance.plugin.stop()
        return known

    assert asyncio.run(run()) == set()


def test_a_node_without_sessions_is_forgotten(server: RedisServer) -> None:
    """Once all that it left has another home its entry is gone, and so is its index."""

    async def run() -> tuple[list[str], list[str]]:
        here, there = await start_instance(HERE, **at(server)), await start_instance(THERE, **at(server))
        epochs = await opened(there, "a", "b", "c")
        there.sessions.apply([DiscardSession("b", epochs["b"]), ReleaseSession("c", epochs["c"], NOW)])
        await committed(there)
        await there.plugin.stop()

        told = [*await here.sessions.orphaned(HERE, 10), *await here.sessions.orphaned(HERE, 10)]
        nodes = server.ask("hkeys", "kinmqtt:{n}:n").split()
        await here.plugin.stop()
        return told, nodes

    told, nodes = asyncio.run(run())

    assert sorted(told) == ["a", "a", "c", "c"]
    assert nodes == ["1"]
    assert indexed(server, THERE.uid) == set()
    assert indexed(server, HERE.uid) == {"a", "c"}


def test_sessions_without_an_index_entry_are_found_at_the_start(server: RedisServer) -> None:
    """A session that its home's index lacks is not said to be elsewhere once that node is gone."""

    async def run() -> tuple[list[str], Any]:
        there = await start_instance(THERE, **at(server))
        await opened(there, "a")
        server.ask("del", f"kinmqtt:{{i{shard_of(b'a')}}}:o:2")
        await there.plugin.stop()
        here = await start_instance(HERE, **at(server))

        told = list(await here.sessions.orphaned(HERE, 10))
        page = await here.sessions.iterate()
        await here.plugin.stop()
        return told, page

    told, page = asyncio.run(run())

    assert told == []
    assert (len(page.sessions), page.elsewhere) == (1, frozenset())


def test_a_session_handed_over_is_found_though_the_answer_was_lost(server: RedisServer) -> None:
    """Whoever asked asks again, or is gone and another does: the session is found either way."""

    async def run() -> list[list[str]]:
        here, there = await start_instance(HERE, **at(server)), await start_instance(THERE, **at(server))
        await opened(there, "a")
        await there.plugin.stop()
        await here.sessions.orphaned(HERE, 10)
        # As if the answer had not come, and what comes after it had not been done.
        here.sessions.ownership._offered.clear()
        server.ask("zadd", f"kinmqtt:{{i{shard_of(b'a')}}}:o:2", "0", "a")
        server.ask("hset", "kinmqtt:{n}:n", "2", "-")
        again = list(await here.sessions.orphaned(HERE, 10))
        far = await start_instance(FAR, **at(server))
        await here.plugin.stop()
        told = list(await far.sessions.orphaned(FAR, 10))
        await far.plugin.stop()
        return [again, told]

    assert asyncio.run(run()) == [["a"], ["a"]]


def test_an_adoption_whose_answer_was_lost_is_undone(server: RedisServer) -> None:
    """The session is named again, and can be adopted."""

    async def run() -> tuple[list[str], Any]:
        here, there = await start_instance(HERE, **at(server)), await start_instance(THERE, **at(server))
        epochs = await opened(there, "a")
        await there.plugin.stop()
        await here.sessions.orphaned(HERE, 10)
        await here.sessions.adopt("a", HERE)
        # As if Redis had been away before it answered.
        here.sessions.ownership._offered[HERE.uid] = {"a": None}
        here.sessions._claiming[f"{HERE.uid:x}-{here.sessions._claims:x}"] = "a"
        await here.sessions.repair(here.parts.link.execute)

        told = list(await here.sessions.orphaned(HERE, 10))
        claim = await here.sessions.adopt("a", HERE)
        assert claim is not None and claim.previous_epoch == epochs["a"]
        await here.plugin.stop()
        return told, claim.session

    assert asyncio.run(run()) == (["a"], session("a"))


def test_a_node_considered_gone_restores_its_index(server: RedisServer) -> None:
    """Who finds its lease ended names anew whom it holds: others may have swept that."""

    async def run() -> set[str]:
        instance = await start_instance(HERE, **at(server))
        await opened(instance, "a", "b")
        for shard in range(16):
            server.ask("del", f"kinmqtt:{{i{shard}}}:o:1")
        server.ask("del", "kinmqtt:{n}:l:1")
        instance.context.clock.advance(4)
        await asyncio.gather(*instance.plugin._tasks)
        await instance.plugin.stop()
        return indexed(server, 1)

    assert asyncio.run(run()) == {"a", "b"}


def test_an_index_is_swept(server: RedisServer) -> None:
    """What has ended or moved is taken out of a node's index in time; what is being claimed stays."""

    async def run() -> tuple[set[str], set[str]]:
        here, there = await start_instance(HERE, **at(server)), await start_instance(THERE, **at(server))
        epochs = await opened(here, "ended", "moved", "stays", "coming")
        await there.sessions.claim("moved", THERE)
        await there.sessions.claim("coming", THERE)
        here.sessions.apply([DiscardSession("ended", epochs["ended"])])
        await committed(here)
        before = indexed(server, 1)
        here.sessions._claiming["token"] = "coming"
        await here.sessions.ownership.sweep(HERE)
        del here.sessions._claiming["token"]
        await here.plugin.stop()
        await there.plugin.stop()
        return before, indexed(server, 1)

    before, after = asyncio.run(run())

    assert before == {"ended", "moved", "stays", "coming"}
    assert after == {"stays", "coming"}


def test_an_export_claims_nothing(server: RedisServer) -> None:
    """An export or import joins nobody, and waits for nobody."""

    async def run() -> None:
        instance = await start_instance(THERE, **at(server))
        await opened(instance, "a")
        async with _OpenStores(RedisSessionSettings(host="127.0.0.1", port=server.port)) as copying:
            page: Any = copying.sessions.iterate()
            page = await page
            assert page.elsewhere == frozenset()
            assert server.ask("hkeys", "kinmqtt:{n}:n").split() == ["2"]
        await instance.plugin.stop()

    asyncio.run(run())
