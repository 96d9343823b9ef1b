"""Clients that look at one thing each: why brokers end connections, whether wills come once, and fresh routes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeVar

from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import (
    V5,
    Connack,
    Connect,
    ConnectWill,
    DisconnectPacket,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from root_harness.cluster_clients import WILLS, ClusterNotes, Dial, Streams

ANSWER_LIMIT_S: Final = 5.0
LIFE_S: Final = 4.0
"""How long a client with a will lives, on average."""

_Answer = TypeVar("_Answer", bound=Packet)


class Ended(Exception):
    """The broker has ended the connection; ``reason`` is that of its DISCONNECT, if there was one."""

    def __init__(self, reason: ReasonCode | None) -> None:
        super().__init__(reason)
        self.reason = reason


class Peer:
    """A connection over MQTT 5 that is used step by step."""

    def __init__(self, streams: Streams) -> None:
        self._reader, self._writer = streams
        self._framer = Framer()
        self._packets: list[Packet] = []

    @classmethod
    async def open(
        cls, dial: Dial, port: int, client_id: str, *, expiry_s: int = 0, will: ConnectWill | None = None
    ) -> Peer:
        """Connect. Raises Ended or TimeoutError if there is no CONNACK that accepts it."""
        try:
            peer = cls(await dial(port))
        except OSError:
            raise Ended(None) from None
        try:
            properties = Properties(session_expiry_interval=expiry_s)
            peer.send(Connect(V5, client_id, True, 0, None, None, will, properties))
            connack = await peer.expect(Connack)
            if connack.reason:
                raise Ended(connack.reason)
        except BaseException:
            peer.abort()
            raise
        return peer

    def send(self, *packets: Packet) -> None:
        """Send packets."""
        if not self._writer.is_closing():
            self._writer.write(b"".join(encode(packet, V5) for packet in packets))

    async def receive(self) -> Packet:
        """Return the next packet. Raises Ended when there is none any more."""
        while not self._packets:
            try:
                data = await self._reader.read(4096)
            except OSError:
                data = b""
            if not data:
                raise Ended(None)
            self._packets += [decode(frame, body, V5) for frame, body in self._framer.feed(data)]
        packet = self._packets.pop(0)
        if isinstance(packet, DisconnectPacket):
            raise Ended(packet.reason)
        return packet

    async def expect(self, kind: type[_Answer], limit_s: float = ANSWER_LIMIT_S) -> _Answer:
        """Return the next packet of a kind, and pass over others. Raises Ended, or TimeoutError."""
        async with asyncio.timeout(limit_s):
            while True:
                packet = await self.receive()
                if isinstance(packet, kind):
                    return packet

    def abort(self) -> None:
        """End it without a word."""
        self._writer.transport.abort()


class Watcher:
    """Stays at one broker and notes why its connections end."""

    def __init__(self, port: int, name: str, dial: Dial) -> None:
        self._port = port
        self._name = name
        self._dial = dial
        self.reasons: list[ReasonCode | None] = []
        """Of each connection that has ended; ``None`` if the broker gave none."""
        self.is_connected = False

    async def run(self) -> None:
        """Connect again and again, until it is cancelled."""
        while True:
            try:
                peer = await Peer.open(self._dial, self._port, self._name)
            except (Ended, TimeoutError):
                await asyncio.sleep(0.05)
                continue
            self.is_connected = True
            try:
                while True:
                    await peer.receive()
            except Ended as ended:
                self.reasons.append(ended.reason)
            finally:
                self.is_connected = False
                peer.abort()


class Mortals:
    """Clients with wills that die one after the other."""

    def __init__(self, ports: Sequence[int], notes: ClusterNotes, chance: random.Random, dial: Dial) -> None:
        self._ports = ports
        self._notes = notes
        self._chance = chance
        self._dial = dial
        self.number = 0
        """Of the one that lives, or has died last."""
        self._over = False
        self._living: Peer | None = None

    def end(self) -> None:
        """Let the last one die at once."""
        self._over = True
        if self._living is not None:
            self._living.abort()

    async def run(self) -> None:
        """Live and die, until it is over."""
        while not self._over:
            self.number += 1
            await self._live(self.number)

    async def _live(self, number: int) -> None:
        """Live as a client that nobody has been before, so that its will is not called off by its return."""
        will = ConnectWill(f"{WILLS}/2", b"%d" % number, qos=2)
        client_id = f"mortal-{number}"
        self._notes.wills[number] = False
        try:
            peer = await Peer.open(self._dial, self._chance.choice(self._ports), client_id, expiry_s=60, will=will)
        except (Ended, TimeoutError):
            await asyncio.sleep(0.05)
            return
        self._living = peer
        with suppress(Ended, TimeoutError):
            async with asyncio.timeout(self._chance.expovariate(1 / LIFE_S)):
                while True:
                    await peer.receive()
        self._living = None
        if self._chance.random() < 0.25:
            # If its broker is dead it has not read this, and the will comes.
            peer.send(DisconnectPacket())
        else:
            self._notes.wills[number] = True
        peer.abort()


async def missed_fresh(dial: Dial, ports: Sequence[int], number: int) -> list[str]:
    """Subscribe at each broker, publish at all others as soon as SUBACK is there, and return what was missed (C8)."""
    missed = []
    publishers = {port: await Peer.open(dial, port, f"fresh-publisher-{port}") for port in ports}
    try:
        for port in ports:
            topic = f"fresh/{number}/{port}"
            subscriber = await Peer.open(dial, port, f"fresh-{port}")
            subscriber.send(Subscribe(1, (SubscribeRequest(topic, 1),)))
            await subscriber.expect(Suback)
            others = [each for each in ports if each != port]
            for other in others:
                publishers[other].send(Publish.build(topic, b"%d" % other, qos=1, packet_id=1))
            expected = {other for other in others if not (await publishers[other].expect(Puback)).reason.is_failure}
            try:
                while expected:
                    publish = await subscriber.expect(Publish)
                    subscriber.send(Puback(publish.packet_id))
                    expected.discard(int(publish.payload))
            except (Ended, TimeoutError) as error:
                missed.append(f"{topic}: what was published at {sorted(expected)} did not come: {error!r}")
            subscriber.abort()
    finally:
        for peer in publishers.values():
            peer.abort()
    return missed
