"""Clients that note down what they were promised and what they got, and a checker of their notes.

They speak MQTT 3.1.1 with our codec, keep their side of the session in memory over every connection, as a client with
a disk of its own would, and are slow on purpose: what they have not read when the broker dies they never see.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from attrs import define, field

from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import (
    V311,
    Connack,
    Connect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt_spi.properties import NO_PROPERTIES

WINDOW: Final = 20
SLOWEST_READ_S: Final = 0.01


@define(slots=True)
class Notes:
    """What a run's clients saw."""

    promised: dict[str, set[int]] = field(factory=dict)
    """By topic: the messages whose publisher has their PUBACK or PUBCOMP."""
    received: dict[str, list[int]] = field(factory=dict)
    """By topic: the messages that came to the subscriber, in order; a QoS 2 repeat it could tell is left out."""
    problems: list[str] = field(factory=list)
    """What no client should see."""
    again: Counter[tuple[str, int]] = field(factory=Counter)
    """By topic and number: how often a QoS 2 message was sent again because its PUBREC had not come."""
    in_phases: bool = False
    """Whether it may come as often again as it was sent again: where a turn is kept in phases."""

    def have_come(self, promised: Mapping[str, set[int]]) -> bool:
        """Whether messages, by topic, have all come to the subscriber."""
        return all(numbers <= set(self.received.get(topic, ())) for topic, numbers in promised.items())

    def have_come_to(self, received: Mapping[str, Collection[int]]) -> bool:
        """Whether all that was promised has come elsewhere, too."""
        return all(numbers <= set(received.get(topic, ())) for topic, numbers in self.promised.items())

    def violations(self) -> Iterator[str]:
        """What the broker did that its promises forbid."""
        yield from self.problems
        for topic, promised in self.promised.items():
            received = self.received.get(topic, [])
            missing = promised - set(received)
            if missing:
                yield f"{topic}: {len(missing)} acknowledged messages never came: {sorted(missing)[:5]}"
            seen: Counter[int] = Counter()
            first: list[int] = []
            for number in received:
                if not seen[number]:
                    first.append(number)
                elif topic.endswith("2") and seen[number] > self.in_phases * self.again[topic, number]:
                    yield f"{topic}: {number} came twice"
                seen[number] += 1
            for before, after in pairwise(first):
                if after < before:
                    yield f"{topic}: {after} came behind {before}"


class Client:
    """The half that both sorts share: a connection that comes again until it is told to end."""

    version: int = V311
    """The version of MQTT that it speaks."""

    def __init__(self, ports: Sequence[int], name: str, notes: Notes, chance: random.Random) -> None:
        """``ports`` are those of the brokers that it may connect to, each time to any of them."""
        self.ports = ports
        self.port = ports[0]
        """The port that it connects to, or is connected to."""
        self.name = name
        self.notes = notes
        self.chance = chance
        self.known = False
        """Whether the broker has said that it has our session."""
        self.gone = False
        """Whether the broker was killed: what has not been read yet is lost."""
        self.over = False
        self.connections = 0
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        """Connect again and again."""
        while not self.over:
            self.port = self.next_port()
            try:
                reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            self.gone = False
            self.connections += 1
            try:
                await self._talk(reader)
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                self._writer.close()

    def next_port(self) -> int:
        """Return where it connects next."""
        return self.chance.choice(self.ports)

    def cut(self) -> None:
        """The broker is dead: forget what is in the socket, and come again."""
        self.gone = True
        if self._writer is not None:
            self._writer.transport.abort()

    def send(self, *packets: Packet) -> None:
        """Send packets."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(b"".join(encode(packet, self.version) for packet in packets))

    def connect_packet(self) -> Connect:
        """Return what it introduces itself with: its session outlives its connections."""
        return Connect(self.version, self.name, False, 60, None, None, None, NO_PROPERTIES)

    async def _talk(self, reader: asyncio.StreamReader) -> None:
        self.send(self.connect_packet())
        framer = Framer()
        while not self.gone:
            data = await reader.read(4096)
            if not data or self.gone:
                return
            for frame, body in framer.feed(data):
                self._take(decode(frame, body, self.version))
            await asyncio.sleep(self.chance.random() * SLOWEST_READ_S)

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            if packet.reason:
                return  # Refused for now: the connection ends, and another comes.
            if self.known and not packet.session_present:
                self.session_lost()
            self.connected(packet)
        else:
            self.received(packet)

    def session_lost(self) -> None:
        """The broker has let us in, and does not know the session that it had."""
        self.notes.problems.append(f"the session of {self.name} was lost")

    def connected(self, connack: Connack) -> None:
        """The broker has let us in."""
        raise NotImplementedError

    def received(self, packet: Packet) -> None:
        """Something came."""
        raise NotImplementedError


class PublishingClient(Client):
    """Publishes numbers to its topic, ``WINDOW`` of them under way at a time."""

    def __init__(self, ports: Sequence[int], name: str, qos: int, notes: Notes, chance: random.Random) -> None:
        super().__init__(ports, name, notes, chance)
        self.qos = qos
        self.topic = f"crash/{name}/{qos}"
        notes.promised[self.topic] = set()
        self._under_way: dict[int, tuple[int, bool]] = {}
        """By packet identifier: the number, and whether it is released."""
        self.next_number = 1
        """Of the message that it publishes next."""
        self._packet_id = 0
        self.stopping = False

    @property
    def is_idle(self) -> bool:
        """Whether everything is acknowledged."""
        return not self._under_way

    @property
    def unacknowledged(self) -> list[int]:
        """The numbers under way."""
        return [number for number, _ in self._under_way.values()]

    def connected(self, connack: Connack) -> None:
        """Send again what was under way, in order, and go on."""
        self.known = True
        for packet_id, (number, released) in self._under_way.items():
            self.notes.again[self.topic, number] += not released
            self.send(Pubrel(packet_id) if released else self._publish(number, packet_id, dup=True))
        self._go_on()

    def received(self, packet: Packet) -> None:
        """An acknowledgement."""
        if isinstance(packet, Puback | Pubcomp):
            number, _ = self._under_way.pop(packet.packet_id, (0, False))
            if number:
                self.notes.promised[self.topic].add(number)
            self._go_on()
        elif isinstance(packet, Pubrec):
            if packet.packet_id in self._under_way:
                number, _ = self._under_way[packet.packet_id]
                self._under_way[packet.packet_id] = (number, True)
            self.send(Pubrel(packet.packet_id))

    def _go_on(self) -> None:
        while len(self._under_way) < WINDOW and not self.stopping:
            self._packet_id = self._packet_id % 65_535 + 1
            self._under_way[self._packet_id] = (self.next_number, False)
            self.send(self._publish(self.next_number, self._packet_id))
            self.next_number += 1

    def _publish(self, number: int, packet_id: int, dup: bool = False) -> Publish:
        return Publish.build(self.topic, b"%d" % number, qos=self.qos, packet_id=packet_id, dup=dup)


class SubscribingClient(Client):
    """Takes everything, and goes away now and then so that messages wait for it."""

    def __init__(self, ports: Sequence[int], name: str, notes: Notes, chance: random.Random) -> None:
        super().__init__(ports, name, notes, chance)
        self._taken: set[int] = set()
        """QoS 2 packet identifiers that were received and not released."""

    def connected(self, connack: Connack) -> None:
        """Subscribe, the first time."""
        if not self.known:
            self.send(Subscribe(1, (SubscribeRequest("crash/#", 2),)))

    def received(self, packet: Packet) -> None:
        """A message, or a step of one."""
        if isinstance(packet, Suback):
            self.known = True
        elif isinstance(packet, Publish):
            if packet.qos == 2 and packet.packet_id in self._taken:
                self.send(Pubrec(packet.packet_id))
                return
            self.notes.received.setdefault(packet.topic, []).append(int(packet.payload))
            if packet.qos == 2:
                self._taken.add(packet.packet_id)
                self.send(Pubrec(packet.packet_id))
            else:
                self.send(Puback(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self._taken.discard(packet.packet_id)
            # Late, so that the broker can die in between.
            delay_s = self.chance.random() * SLOWEST_READ_S
            asyncio.get_running_loop().call_later(delay_s, self.send, Pubcomp(packet.packet_id))
        if self.known and self.chance.random() < 0.002 and self._writer is not None:
            self._writer.transport.abort()
