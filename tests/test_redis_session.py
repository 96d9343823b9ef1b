"""The plugin redis_session in brokers that run, over a real Redis that is shared, killed or stands still."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from core_harness.brokers import BrokerProcess, run_command, running_broker
from core_harness.wire import wire
from kinmqtt.mqtt.packets import (
    V5,
    Connack,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode
from redis_harness.servers import RedisCluster, RedisServer, redis_server
from root_harness.crash_clients import Notes, PublishingClient, SubscribingClient
from root_harness.crash_run import ENOUGH, Run, said
from spi_harness.processes import wait_until

MOVES = int(os.environ.get("KINMQTT_MOVES", "60"))
LIMIT_S = 60.0
KEPT = Properties(session_expiry_interval=60)
AWAY = "Redis is away"
"""What the broker logs once for each outage."""


def section(server: RedisServer, more: str = "") -> str:
    """The settings of a broker that keeps everything in a Redis."""
    return (
        '[services]\nsession = "redis_session"\nqueue = "redis_session"\nretain = "redis_session"\n'
        f'[plugins.redis_session]\nhost = "127.0.0.1"\nport = {server.port}\n{more}'
    )


def broker_over(stack: ExitStack, folder: Path, text: str) -> BrokerProcess:
    """A broker with these settings."""
    folder.mkdir(exist_ok=True)
    file = folder / "kinmqtt.toml"
    file.write_text(text, encoding="utf-8")
    return stack.enter_context(running_broker("--config", str(file)))


class RoamingClient(PublishingClient, SubscribingClient):
    """Publishes to itself, QoS 1 and 2 by turns, and goes on at another broker now and then."""

    def __init__(self, ports: list[int], name: str, notes: Notes, chance: random.Random) -> None:
        SubscribingClient.__init__(self, ports, name, notes, chance)
        PublishingClient.__init__(self, ports, name, 1, notes, chance)
        for qos in (1, 2):
            notes.promised[f"crash/{name}/{qos}"] = set()
        self.stopping = True
        self._others = cycle([*ports[1:], ports[0]])
        self._place = ports[0]

    def next_port(self) -> int:
        return self._place

    def move(self) -> None:
        """Go to the next broker."""
        self._place = next(self._others)
        self.cut()

    def connected(self, connack: Connack) -> None:
        if not self.known:
            self.send(Subscribe(1, (SubscribeRequest("crash/#", 2),)))
            return
        PublishingClient.connected(self, connack)

    def received(self, packet: Packet) -> None:
        if isinstance(packet, Suback):
            self.known = True
            self.stopping = False
            self._go_on()
        elif isinstance(packet, Puback | Pubcomp):
            number, _ = self._under_way.pop(packet.packet_id, (0, False))
            if number:
                self.notes.promised[f"crash/{self.name}/{1 + number % 2}"].add(number)
            self._go_on()
        elif isinstance(packet, Pubrec):
            PublishingClient.received(self, packet)
        else:
            SubscribingClient.received(self, packet)

    def _publish(self, number: int, packet_id: int, dup: bool = False) -> Publish:
        qos = 1 + number % 2
        return Publish.build(f"crash/{self.name}/{qos}", b"%d" % number, qos=qos, packet_id=packet_id, dup=dup)


async def roam(client: RoamingClient, moves: int) -> None:
    """Let a client move so many times under traffic, and come to rest."""
    task = asyncio.create_task(client.run())
    await until(lambda: client.known)
    for number in range(1, moves + 1):
        before = client.connections
        acknowledged = sum(map(len, client.notes.promised.values())) + client.chance.randrange(8)
        await until(partial(_has_promised, client, acknowledged, number / 2))
        client.move()
        await until(partial(_is_back, client, before))
    client.stopping = True
    promised = client.notes.promised
    received = client.notes.received
    await until(
        lambda: client.is_idle and all(its <= set(received.get(topic, ())) for topic, its in promised.items())
    )
    client.over = True
    client.cut()
    await task


def _has_promised(client: RoamingClient, enough: int, above: float) -> bool:
    """So many messages together, and more than ``above`` of each topic."""
    counts = [len(its) for its in client.notes.promised.values()]
    return sum(counts) >= enough and all(count > above for count in counts)


def _is_back(client: RoamingClient, before: int) -> bool:
    return client.connections > before


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Poll until a condition holds; fails after ``limit_s``."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_client_moves_between_two_brokers(tmp_path: Path) -> None:
    """Over moves under traffic every acknowledged message comes, QoS 2 exactly once, in order."""
    notes = Notes()
    with redis_server(tmp_path / "redis") as server, ExitStack() as stack:
        brokers = [broker_over(stack, tmp_path / name, section(server)) for name in ("one", "two")]
        client = RoamingClient([broker.port for broker in brokers], "roaming", notes, random.Random(3))

        asyncio.run(roam(client, MOVES))

    assert list(notes.violations()) == []
    assert all(len(numbers) > MOVES / 2 for numbers in notes.promised.values())


# Killed and paused


ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


class RedisRun(Run):
    """A broker whose state is in Redis, and its clients."""

    def __init__(self, folder: Path, server: RedisServer | RedisCluster, seed: int, timeout_s: float = 3) -> None:
        """``timeout_s`` is how long Redis may take; a machine that is busy is not to look like one without Redis."""
        super().__init__(folder / "broker", seed)
        own = {"session": "redis_session", "queue": "redis_session", "retain": "redis_session"}
        self._environment |= {f"KINMQTT__SERVICES__{name.upper()}": value for name, value in own.items()}
        where = {"CLUSTER": json.dumps(server.addresses)} if isinstance(server, RedisCluster) else _address(server)
        where |= {"TIMEOUT_S": str(timeout_s), "RECONNECT_MAX_S": "0.2"}
        self._environment |= {f"KINMQTT__PLUGINS__REDIS_SESSION__{name}": value for name, value in where.items()}
        self.notes.in_phases = isinstance(server, RedisCluster)
        self._command[self._command.index("--data") + 1] = "memory"

    async def suffer(self, times: int, blow: Callable[[], Awaitable[object]]) -> None:
        """Have something happen to Redis so many times under traffic, then let everybody come to rest."""
        async with self.under_traffic():
            for _ in range(times):
                await self.until(self.progress(1 + ENOUGH / times * self.chance.random()))
                await blow()
                await self.until(self.progress(ENOUGH / times))

    def outage(self) -> Callable[[], bool]:
        """A condition that holds once the broker has logged one more outage of Redis since this call."""
        log = Path(self._log.name)
        before = log.read_text(errors="replace").count(AWAY)
        return lambda: log.read_text(errors="replace").count(AWAY) > before

    def outage_or_progress(self) -> Callable[[], bool]:
        """A condition that holds once the broker has noticed an outage, or messages were acknowledged without it."""
        is_out, has_moved = self.outage(), self.progress(1)
        return lambda: is_out() or has_moved()


def _address(server: RedisServer) -> dict[str, str]:
    return {"HOST": "127.0.0.1", "PORT": str(server.port)}


KILLS = int(os.environ.get("KINMQTT_REDIS_KILLS", "6"))


def test_a_killed_broker_loses_nothing(tmp_path: Path) -> None:
    """Over kills of the broker QoS 1 comes at least once, QoS 2 exactly once, each in order."""
    with redis_server(tmp_path / "redis") as server:
        run = RedisRun(tmp_path, server, seed=5)

        asyncio.run(run.kill(KILLS))

    assert list(run.notes.violations()) == [], said(tmp_path / "broker")
    assert all(len(numbers) >= ENOUGH for numbers in run.notes.promised.values())
    assert "Traceback" not in said(tmp_path / "broker")


def test_a_killed_redis_loses_nothing(tmp_path: Path) -> None:
    """Over kills of Redis, which has an append-only file, nothing that was acknowledged is lost or comes twice."""
    with redis_server(tmp_path / "redis", *ALWAYS) as server:
        run = RedisRun(tmp_path, server, seed=6)

        async def blow() -> None:
            noticed = run.outage_or_progress()
            server.kill()
            await until(noticed)
            server.start()

        asyncio.run(run.suffer(KILLS, blow))

    assert list(run.notes.violations()) == [], said(tmp_path / "broker")
    assert all(len(numbers) >= ENOUGH for numbers in run.notes.promised.values())
    assert "Traceback" not in said(tmp_path / "broker")


def test_a_redis_that_stands_still_loses_nothing(tmp_path: Path) -> None:
    """What a paused Redis still has to read of earlier connections is not carried out behind what was sent again."""
    with redis_server(tmp_path / "redis") as server:
        run = RedisRun(tmp_path, server, seed=7, timeout_s=1)

        async def blow() -> None:
            noticed = run.outage()
            server.pause()
            await until(noticed)
            server.go_on()

        asyncio.run(run.suffer(2, blow))

    assert list(run.notes.violations()) == [], said(tmp_path / "broker")
    assert all(len(numbers) >= ENOUGH for numbers in run.notes.promised.values())
    assert "Traceback" not in said(tmp_path / "broker")


# In a cluster: three masters, and a turn in phases


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    """Three masters, each with an append-only file that is written before they answer."""
    cluster = RedisCluster(tmp_path / "cluster", *ALWAYS)
    yield cluster
    cluster.end()


def test_a_killed_broker_over_a_cluster_loses_nothing(tmp_path: Path, cluster: RedisCluster) -> None:
    """QoS 1 is not lost and in order; QoS 2 comes again only if its publisher had to send it again."""
    run = RedisRun(tmp_path, cluster, seed=8)
    run.life_s = 1.0

    asyncio.run(run.kill(KILLS))

    assert list(run.notes.violations()) == [], said(tmp_path / "broker")
    assert all(len(numbers) >= ENOUGH for numbers in run.notes.promised.values())
    assert "Traceback" not in said(tmp_path / "broker")


def test_a_killed_master_loses_nothing(tmp_path: Path, cluster: RedisCluster) -> None:
    """The others have kept what they had of a turn, and nothing that was acknowledged is lost or out of order."""
    run = RedisRun(tmp_path, cluster, seed=9)
    masters = cycle(cluster.nodes)

    async def blow() -> None:
        master = next(masters)
        noticed = run.outage_or_progress()
        master.kill()
        await until(noticed)
        master.start()

    asyncio.run(run.suffer(KILLS, blow))

    assert list(run.notes.violations()) == [], said(tmp_path / "broker")
    assert all(len(numbers) >= ENOUGH for numbers in run.notes.promised.values())
    assert "Traceback" not in said(tmp_path / "broker")


def test_the_checker_allows_a_repeat_that_a_resend_explains_and_no_other() -> None:
    """In phases a QoS 2 message may come as often again as it was sent again; elsewhere, and beyond that, never."""
    received = {"crash/p/2": [1, 2, 2, 3, 3, 3]}
    again = Counter({("crash/p/2", 2): 1, ("crash/p/2", 3): 1})

    one = Notes({"crash/p/2": {1, 2, 3}}, received, again=again)
    phased = Notes({"crash/p/2": {1, 2, 3}}, received, again=again, in_phases=True)

    assert list(one.violations()) == [f"crash/p/2: {number} came twice" for number in (2, 3, 3)]
    assert list(phased.violations()) == ["crash/p/2: 3 came twice"]


# While Redis is away


def test_live_traffic_goes_on_while_redis_is_away(tmp_path: Path) -> None:
    """Sessions that end with their connection are served; others are refused with 0x88 until it is back."""
    with redis_server(tmp_path / "redis") as server, ExitStack() as stack:
        broker = broker_over(stack, tmp_path / "one", section(server, "timeout_s = 0.3\nreconnect_max_s = 0.1\n"))
        server.pause()
        with wire(broker.port, "live", V5) as live, wire(broker.port, version=V5) as kept:
            live.subscribe("t", 1)
            live.publish("t", b"x", 1, packet_id=1)
            live.expect(Publish)
            assert live.expect(Puback).reason is ReasonCode.SUCCESS
            refused = kept.connect("kept", clean_start=False, properties=KEPT)
        server.go_on()

        assert refused.reason is ReasonCode.SERVER_UNAVAILABLE
        wait_until(lambda: _lets_in(broker), "the session is kept again")


def test_nobody_comes_in_while_redis_is_away(tmp_path: Path) -> None:
    """With ``refuse`` clients are told 0x88 whatever their session."""
    more = 'timeout_s = 0.3\nreconnect_max_s = 0.1\nwhen_away = "refuse"\n'
    with redis_server(tmp_path / "redis") as server, ExitStack() as stack:
        broker = broker_over(stack, tmp_path / "one", section(server, more))
        server.pause()
        with wire(broker.port, version=V5) as live:
            refused = live.connect("live")
        server.go_on()

        assert refused.reason is ReasonCode.SERVER_UNAVAILABLE
        wait_until(lambda: _lets_in(broker), "the session is kept again")


def _lets_in(broker: BrokerProcess) -> bool:
    with wire(broker.port, version=V5) as client:
        return client.connect("kept", clean_start=False, properties=KEPT).reason is ReasonCode.SUCCESS


# Moving


def test_a_store_moves_to_redis_and_back(tmp_path: Path) -> None:
    """What `kinmqtt store export` says is what `kinmqtt redis export` says after an import, and the other way."""
    data, again = tmp_path / "data", tmp_path / "again"
    with running_broker("--data", str(data)) as broker:
        with wire(broker.port, "s", V5, clean_start=False, properties=KEPT) as subscriber:
            subscriber.subscribe("t/#", 2)
            with wire(broker.port, "p", V5, clean_start=False, properties=KEPT) as publisher:
                publisher.publish("t/1", b"in flight", 1, packet_id=1)
                publisher.publish("t/2", b"taken over", 2, packet_id=2)
                publisher.expect(Puback)
                publisher.expect(Pubrec)
            subscriber.expect(Publish)
        with wire(broker.port, "q", V5) as publisher:
            publisher.publish("t/3", b"waits", 1, packet_id=1, retain=True)
            publisher.expect(Puback)
    said_before = run_command("store", "export", str(data)).stdout

    with redis_server(tmp_path / "redis") as server:
        settings = tmp_path / "kinmqtt.toml"
        settings.write_text(section(server), encoding="utf-8")
        imported = run_command("redis", "import", "-c", str(settings), input=said_before)
        refused = run_command("redis", "import", "-c", str(settings), input=said_before)
        said_after = run_command("redis", "export", "-c", str(settings)).stdout
    back = run_command("store", "import", str(again), input=said_after)

    assert imported.returncode == back.returncode == 0, imported.stderr + back.stderr
    assert "Redis has 2 sessions, 1 retained messages and 3 queued messages" in imported.stdout
    assert refused.returncode == 1 and "already holds something" in refused.stderr
    assert _without_events(said_after) == _without_events(said_before)
    assert _without_events(run_command("store", "export", str(again)).stdout) == _without_events(said_before)


def _without_events(text: str) -> list[str]:
    """The lines that every store has, in an order of ours."""
    kinds = ('"kind":"event"', '"kind":"consumer"', '"kind":"epochs"', '"kind":"end"')
    return sorted(line for line in text.splitlines() if not any(kind in line for kind in kinds))
