"""Retained messages in a cluster of real brokers that have a store each, on disk, and no Redis: C10."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from akka_harness.certificates import Authority
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import (
    V5,
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt_spi.reasons import ReasonCode
from root_harness.cluster_network import Network
from root_harness.cluster_node import TLS, Node, Timings

P = TypeVar("P")

SETTINGS = """
[broker]
node_name = "{name}"
leave_s = 1

[plugins]
only = ["akka_like_cluster"]

[plugins.akka_like_cluster]
listen = "{address}"
seeds = {seeds}
cookie_file = "{cookie}"
control = "{control}"
{timings}
"""

LIMIT_S = 60.0
SILENCE_S = 2.0
"""When no retained message has come for so long, a client has got all."""
END_S = 0.3
"""The same behind the number that is expected."""
MANY = 2000
"""Retained messages that a node which joins gets: several pages."""


class Client:
    """A client of one broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._framer = Framer()
        self._arrived: list[Packet] = []

    @classmethod
    async def of(cls, node: Node) -> Client:
        """Connect to a node, under its name: another session of it would have to move."""
        client = cls(*await node.dial())
        client.send(Connect(V5, f"client of {node.name}"))
        try:
            connack = await client.expect(Connack)
            assert connack.reason is ReasonCode.SUCCESS, connack
        except BaseException:
            client.close()
            raise
        return client

    def send(self, packet: Packet) -> None:
        self._writer.write(encode(packet, V5))

    async def next(self) -> Packet:
        while not self._arrived:
            data = await self._reader.read(1 << 16)
            assert data, "the broker has closed"
            self._arrived += [decode(frame, body, V5) for frame, body in self._framer.feed(data)]
        return self._arrived.pop(0)

    async def expect(self, packet_class: type[P]) -> P:
        packet = await self.next()
        assert isinstance(packet, packet_class), packet
        return packet

    async def retain(self, messages: Mapping[str, bytes]) -> None:
        """Publish retained messages; they are acknowledged when this returns."""
        items = list(messages.items())
        for start in range(0, len(items), 100):
            some = items[start : start + 100]
            for number, (topic, payload) in enumerate(some, start=1):
                self.send(Publish.build(topic, payload, qos=1, retain=True, packet_id=number))
            for _ in some:
                await self.expect(Puback)

    def close(self) -> None:
        self._writer.close()


async def retain(node: Node, messages: Mapping[str, bytes]) -> None:
    """Publish retained messages at a node, which has acknowledged them when this returns."""
    client = await Client.of(node)
    await client.retain(messages)
    client.close()


async def found(node: Node, count: int) -> dict[str, bytes]:
    """Return what a new subscriber at a node gets, at most one message more than ``count``; retained, all of them."""
    client = await Client.of(node)
    messages: dict[str, bytes] = {}
    try:
        client.send(Subscribe(1, (SubscribeRequest("#", 0),)))
        await client.expect(Suback)
        async with asyncio.timeout(SILENCE_S) as silence:
            while len(messages) <= count:
                packet = await client.expect(Publish)
                assert packet.retain
                messages[packet.topic] = bytes(packet.payload)
                # They come page by page. Behind the last one there is nothing to wait for but one too many.
                limit_s = SILENCE_S if len(messages) < count else END_S
                silence.reschedule(asyncio.get_running_loop().time() + limit_s)
    except TimeoutError:
        pass
    finally:
        client.close()
    return messages


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not await condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(what) from None


async def finds(node: Node, expected: Mapping[str, bytes]) -> None:
    """Wait until a node has these messages and no others."""

    async def has_all() -> bool:
        try:
            return await found(node, len(expected)) == expected
        except (AssertionError, OSError):
            return False  # It is starting again.

    await until(has_all, f"{node.name} has other retained messages:\n{node.output[-3000:]}")


class Brokers:
    """Three brokers, each on a host of its own."""

    def __init__(self, folder: Path, hosts: Network) -> None:
        cookie = folder / "cookie"
        cookie.write_text("c" * 64)
        cookie.chmod(0o600)
        authority = Authority(folder)
        self.nodes = [Node(folder, f"n{number}", hosts.host()) for number in (1, 2, 3)]
        seeds = [node.advertise for node in self.nodes[:2]]
        for node in self.nodes:
            node.data = str(folder / f"data-{node.name}")
            certificate, key = authority.issue(node.name, [f"{node.name}.brokers.example"])
            text = SETTINGS.format(
                name=node.name,
                address=node.advertise,
                seeds=seeds,
                cookie=cookie,
                control=node.control,
                timings=Timings().lines(),
            )
            node.settings.write_text(text + TLS.format(certificate=certificate, key=key, ca=authority.file))

    async def start(self, node: Node) -> None:
        """Start a broker, and wait until its listener is open."""
        lives = node.lives
        await node.start()

        async def listens() -> bool:
            assert node.is_running, node.output
            return node.lives > lives

        await until(listens, node.output)

    async def see_each_other(self, nodes: list[Node]) -> None:
        """Wait until these nodes are UP and reach each other."""

        async def do_all() -> bool:
            for node in nodes:
                members = await node.members() or []
                if [(each["state"], each["reachable"]) for each in members] != [("up", True)] * len(nodes):
                    return False
            return True

        await until(do_all, "\n".join(node.output[-2000:] for node in nodes))

    async def close(self) -> None:
        for node in self.nodes:
            await node.close()


async def _walk(brokers: Brokers, hosts: Network) -> None:
    n1, n2, n3 = brokers.nodes
    await brokers.start(n1)
    await brokers.start(n2)
    await brokers.see_each_other([n1, n2])

    # Retained at one node, found at the other; cleared there, and gone here.
    await retain(n1, {"a": b"1", "b": b"1"})
    await finds(n2, {"a": b"1", "b": b"1"})
    await retain(n2, {"a": b""})
    await finds(n1, {"b": b"1"})

    # A node that joins has everything when it listens.
    many = {f"many/{number}": b"x" * 500 for number in range(MANY)}
    await retain(n2, many)
    await brokers.start(n3)
    assert await found(n3, MANY + 1) == {"b": b"1", **many}
    await brokers.see_each_other(brokers.nodes)

    # After a partition both sides have what was written later, on whichever side.
    assert n1.host is not None and n2.host is not None and n3.host is not None
    lives = n3.lives
    here, there = await Client.of(n1), await Client.of(n3)
    hosts.split([n1.host, n2.host], [n3.host])
    await there.retain({"b": b"n3", "c": b"n3"})
    await here.retain({"b": b"", "d": b"n1", "many/0": b""})
    here.close()
    there.close()

    async def has_ended() -> bool:
        return "this node is out of its cluster" in n3.output or n3.lives > lives

    await until(has_ended, "n3 goes on alone")
    hosts.heal()
    if not n3.is_running:
        await brokers.start(n3)
    expected = {"c": b"n3", "d": b"n1", **many}
    del expected["many/0"]
    for node in brokers.nodes:
        await finds(node, expected)

    # Deletions outlive a restart of all: a broker that was away meanwhile does not bring anything back.
    await n3.end(signal.SIGTERM)
    await retain(n1, {"c": b""})
    del expected["c"]
    await finds(n2, expected)
    for node in (n2, n1):
        await node.end(signal.SIGTERM)
    for node in brokers.nodes:
        await brokers.start(node)
    for node in brokers.nodes:
        await finds(node, expected)


def test_all_brokers_have_the_newest_retained_messages(tmp_path: Path, hosts: Network) -> None:
    """C10: with a store each, through a join, a partition and a restart of all."""
    brokers = Brokers(tmp_path, hosts)

    async def go_through() -> None:
        try:
            await _walk(brokers, hosts)
        finally:
            await brokers.close()

    asyncio.run(go_through())
