"""The plugin redis_session in brokers that run, over a real Redis that is shared, killed or stands still."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

from crash_clients import Notes, PublishingClient, SubscribingClient
from processes import BrokerProcess, running_broker
from redis_processes import RedisServer, redis_server

from kinmqtt.mqtt.packets import (
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

MOVES = int(os.environ.get("KINMQTT_MOVES", "60"))
LIMIT_S = 60.0


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
        SubscribingClient.__init__(self, ports[0], name, notes, chance)
        PublishingClient.__init__(self, ports[0], name, 1, notes, chance)
        for qos in (1, 2):
            notes.promised[f"crash/{name}/{qos}"] = set()
        self.stopping = True
        self._ports = cycle([*ports[1:], ports[0]])

    def move(self) -> None:
        """Go to the next broker."""
        self.port = next(self._ports)
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
    for _ in range(moves):
        before = client.connections
        await asyncio.sleep(0.03 * client.chance.random())
        client.move()
        await until(lambda before=before: client.connections > before)
    client.stopping = True
    promised = client.notes.promised
    received = client.notes.received
    await until(
        lambda: client.is_idle and all(its <= set(received.get(topic, ())) for topic, its in promised.items())
    )
    client.over = True
    client.cut()
    await task


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait for what can only be asked for."""
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
