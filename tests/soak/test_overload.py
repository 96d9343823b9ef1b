"""Overload: one subscriber stops reading while publishers push; and clients that come and go for an hour.

The short runs look whether memory stays within its bounds. The long one is a command of its own::

    KINMQTT_SOAK_S=3600 python -m pytest -m soak tests/soak -s
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core_harness.brokers import BrokerProcess, running_broker
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import (
    V5,
    Connack,
    Connect,
    DisconnectPacket,
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
from kinmqtt_spi.properties import Properties

LIMITS = """
[limits]
outbound_buffer_bytes = 1048576
max_queued_messages = 1000
queue_full = "drop_oldest"
[broker]
sys_interval_s = 1
"""


class Peer:
    """A client that answers what it gets, unless it has stopped reading."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self.name = name
        self.count = 0
        self._answers: dict[tuple[type[Packet], int], asyncio.Future[Packet]] = {}
        self._packet_id = 0
        self.on_message: Callable[[Publish], None] = lambda publish: None

    async def open(self, expiry_s: int = 0, clean: bool = True) -> Peer:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        properties = Properties(session_expiry_interval=expiry_s) if expiry_s else Properties()
        connack = self._wait(Connack, 0)
        self._task = asyncio.create_task(self._read())
        self._send(Connect(V5, self.name, clean, 60, None, None, None, properties))
        await connack
        return self

    async def subscribe(self, filter: str, qos: int) -> None:
        """Subscribe, and wait for the answer."""
        packet_id = self._next_id()
        answer = self._wait(Suback, packet_id)
        self._send(Subscribe(packet_id, (SubscribeRequest(filter, qos),)))
        await answer

    async def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        """Publish, and wait until it is acknowledged."""
        packet_id = self._next_id() if qos else 0
        answer = self._wait(Puback if qos == 1 else Pubcomp, packet_id) if qos else None
        self._send(Publish.build(topic, payload, qos=qos, retain=retain, packet_id=packet_id))
        await self._writer.drain()
        if answer is not None:
            await answer

    def stop_reading(self) -> None:
        """Read nothing more: the socket fills up."""
        self._task.cancel()
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def close(self) -> None:
        """DisconnectPacket."""
        self._send(DisconnectPacket())
        self._task.cancel()
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id

    def _wait(self, sort: type[Packet], packet_id: int) -> asyncio.Future[Packet]:
        answer: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._answers[sort, packet_id] = answer
        return answer

    def _send(self, packet: Packet) -> None:
        self._writer.write(encode(packet, V5))

    async def _read(self) -> None:
        framer = Framer()
        try:
            while data := await self._reader.read(65_536):
                for frame, body in framer.feed(data):
                    self._take(decode(frame, body, V5))
        finally:
            # Whoever waits for an answer would wait for ever.
            for (sort, packet_id), answer in self._answers.items():
                if not answer.done():
                    lost = f"{self.name}: the connection ended before {sort.__name__} {packet_id}"
                    answer.set_exception(ConnectionError(lost))

    def _take(self, packet: Packet) -> None:
        answer = self._answers.pop((type(packet), getattr(packet, "packet_id", 0)), None)
        if answer is not None and not answer.done():
            answer.set_result(packet)
        if isinstance(packet, Publish):
            self.count += 1
            self.on_message(packet)
            if packet.qos == 1:
                self._send(Puback(packet.packet_id))
            elif packet.qos == 2:
                self._send(Pubrec(packet.packet_id))
        elif isinstance(packet, Pubrec):
            self._send(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self._send(Pubcomp(packet.packet_id))


def resident_bytes(broker: BrokerProcess) -> int:
    """The broker's memory."""
    pages = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def push(port: int, name: str, topic: str, stop: asyncio.Event) -> None:
    """Publish as fast as the broker takes it, QoS 0 and 1 in turn."""
    peer = await Peer(port, name).open()
    while not stop.is_set():
        await peer.publish(topic, b"x" * 500, 0)
        await peer.publish(topic, b"x" * 500, 1)
    await peer.close()


async def round_trips(port: int, count: int) -> list[float]:
    """How long a QoS 1 message of somebody who has nothing to do with it takes, in seconds."""
    loop = asyncio.get_running_loop()
    peer = await Peer(port, "bystander").open()
    await peer.subscribe("bystander", 1)
    taken = []
    for _ in range(count):
        begun = loop.time()
        back: asyncio.Future[None] = loop.create_future()
        peer.on_message = lambda publish, back=back: back.done() or back.set_result(None)  # type: ignore[misc]
        await peer.publish("bystander", b"x", 1)
        await back
        taken.append(loop.time() - begun)
    await peer.close()
    return taken


async def with_one_who_stops_reading(broker: BrokerProcess, stops: bool, trips: int) -> tuple[list[float], int, int]:
    """Ten publishers push to two subscribers, of whom one may stop; round trips, and memory before and after."""
    port = broker.port
    reader = await Peer(port, "reader").open()
    other = await Peer(port, "other").open(expiry_s=60)
    for peer in (reader, other):
        await peer.subscribe("pushed/#", 1)
    before = resident_bytes(broker)
    if stops:
        other.stop_reading()
    stop = asyncio.Event()
    tasks = [asyncio.create_task(push(port, f"p{n}", f"pushed/{n}", stop)) for n in range(10)]
    taken = await round_trips(port, trips)
    after = resident_bytes(broker)
    stop.set()
    await asyncio.gather(*tasks)
    assert reader.count > trips
    await reader.close()
    await other.close()
    return taken, before, after


@pytest.fixture(params=["memory", "embedded"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with narrow bounds."""
    settings = tmp_path / "k.toml"
    settings.write_text(LIMITS)
    data = "memory" if request.param == "memory" else str(tmp_path / "data")
    with running_broker("-c", str(settings), "--data", data) as broker:
        yield broker


def test_one_who_stops_reading_costs_no_more_than_its_bounds(broker: BrokerProcess) -> None:
    """Its buffer and its queue fill up to their bounds; everybody else is served on."""
    usual, _, _ = asyncio.run(with_one_who_stops_reading(broker, False, 200))
    slow, before, after = asyncio.run(with_one_who_stops_reading(broker, True, 200))

    print(
        f"round trips with one who does not read, as ratios to those without: "
        f"median {statistics.median(slow) / statistics.median(usual):.2f}, "
        f"p99 {statistics.quantiles(slow, n=100)[98] / statistics.quantiles(usual, n=100)[98]:.2f}; "
        f"memory grew by {(after - before) / 1e6:.1f} MB"
    )
    # 1 MiB that waits for the socket, 1,000 messages that wait in the queue, and what Python makes of them.
    assert after - before < 16e6


async def come_and_go(port: int, number: int, seconds: float, chance: random.Random) -> int:
    """Connect, subscribe, publish and disconnect, again and again, sometimes leaving a session behind."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    turns = 0
    while loop.time() < end:
        kept = chance.random() < 0.3
        name = f"c{number}-{chance.randrange(50)}" if kept else f"c{number}-{turns}"
        peer = await Peer(port, name).open(expiry_s=5 if kept else 0, clean=not kept)
        await peer.subscribe(f"come/{number}/#", chance.randrange(3))
        for _ in range(20):
            topic = f"come/{chance.randrange(8)}/{chance.randrange(100)}"
            await peer.publish(topic, b"x" * chance.randrange(200), chance.randrange(3), chance.random() < 0.2)
        await peer.close()
        turns += 1
    return turns


async def watched(broker: BrokerProcess, seconds: float) -> tuple[list[int], int]:
    """The broker's memory at twenty moments while clients come and go, and how many did."""
    chance = random.Random(3)
    tasks = [asyncio.create_task(come_and_go(broker.port, n, seconds, chance)) for n in range(8)]
    sizes = []
    for _ in range(20):
        await asyncio.sleep(seconds / 20)
        sizes.append(resident_bytes(broker))
        print(f"{sizes[-1] / 1e6:.0f} MB", flush=True)
    return sizes, sum(await asyncio.gather(*tasks))


@pytest.mark.soak
def test_memory_is_flat(broker: BrokerProcess) -> None:
    """Clients that come and go leave nothing behind that has no end."""
    seconds = float(os.environ.get("KINMQTT_SOAK_S", "3600"))

    sizes, turns = asyncio.run(watched(broker, seconds))

    shown = ", ".join(f"{size / 1e6:.0f}" for size in sizes)
    print(f"{turns} connections in {seconds:.0f} s; memory in MB: {shown}")
    assert max(sizes[15:]) < 1.1 * max(sizes[5:10])
