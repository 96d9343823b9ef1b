"""What brokers that are bridged promise together: nothing acknowledged is lost, and nothing goes round for ever.

The long run is a command of its own: 20 kills of each broker, in each direction::

    KINMQTT_MQTT_KILLS=20 python -m pytest -m soak tests/bridges/test_mqtt.py -s
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

from bridge_mqtt_harness.making import Made, message
from bridge_mqtt_harness.mosquitto import mosquitto
from core_harness.brokers import BrokerProcess, running_broker
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import V5, V311, Packet, Puback, Publish, Suback, Subscribe, SubscribeRequest
from kinmqtt_spi.errors import SinkRefused
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.bridge import Item
from root_harness.crash_clients import Notes, SubscribingClient
from root_harness.crash_run import LAST_SAID, Run, said
from spi_harness.processes import environment, free_port, wait_until

Direction = Literal["out", "in"]


def connection(port: int, *topics: str, name: str = "far", more: str = "") -> str:
    """The settings of a connection."""
    return (
        f'[plugins.bridge_mqtt.connections.{name}]\nservers = ["127.0.0.1:{port}"]\ntopics = {list(topics)}\n'
        f"timeout_s = 5\nsending = {{ longest_pause_s = 0.5 }}\n{more}"
    )


# Kills


class BridgedRun(Run):
    """A broker with clients, and a second one that gets all its messages over a bridge; both die and come back."""

    def __init__(self, folder: Path, direction: Direction, version: str, seed: int) -> None:
        """The bridge is in the first broker (``out``), or in the second one (``in``)."""
        self.peer_port = free_port()
        self.settings = folder / "kinmqtt.toml"
        self.peer_settings = folder / "peer.toml"
        super().__init__(folder / "data", seed, config=self.settings)
        target = self.peer_port if direction == "out" else self.port
        bridge = connection(target, f"crash/# {direction} 2", more=f'version = "{version}"\nclient_id = "bridge"\n')
        self.settings.write_text(bridge if direction == "out" else "")
        self.peer_settings.write_text(bridge if direction == "in" else "")
        self.direction = direction
        self.peer_notes = Notes()
        self.peer_subscriber = SubscribingClient((self.peer_port,), "peer", self.peer_notes, self.chance)
        self.rests_when = lambda: self.notes.have_come_to(self.peer_notes.received)
        self.patience_s = 60.0
        self.peer_data = folder / "peer-data"
        self._peer: asyncio.subprocess.Process | None = None
        self._is_first = True

    async def _start(self) -> None:
        await super()._start()
        if self._is_first and self.direction == "in":
            # The session is there before anything is published.
            await asyncio.to_thread(self._subscribe)
        self._is_first = False

    def _subscribe(self) -> None:
        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(listens, "the first broker listens")
        expiry = Properties(session_expiry_interval=3600)
        answer: Packet | None = None
        while not isinstance(answer, Suback):
            # The other broker's bridge may take the client id over meanwhile.
            with wire(self.port, "bridge", V5, clean_start=False, properties=expiry) as client:
                client.send(Subscribe(1, (SubscribeRequest("crash/#", 1),)))
                answer = client.receive()

    async def start_peer(self) -> None:
        """Start the second broker."""
        log = self.peer_data.with_suffix(".log").open("ab")
        with log:
            self._peer = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "kinmqtt", "run", "--listen", f"tcp:{self.peer_port}:interface=127.0.0.1",
                "--data", str(self.peer_data), "--log-level", "warn", "--config", str(self.peer_settings),
                env=environment(KINMQTT__LIMITS__MAX_QUEUED_MESSAGES="10000000"),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    async def kill_peer(self) -> None:
        """Kill it."""
        assert self._peer is not None
        assert self._peer.returncode is None, said(self.peer_data)[-LAST_SAID:]
        self._peer.kill()
        self.peer_subscriber.cut()
        await self._peer.wait()

    async def kill_both(self, kills: int) -> None:
        """Kill each broker so many times under traffic."""
        async with self.with_peer(), self.under_traffic():
            for _ in range(kills):
                await self.kill_once()
                await self.until(self.progress(1))
                await self.kill_peer()
                await self.until(self.progress(5))
                await self.start_peer()

    @asynccontextmanager
    async def with_peer(self) -> AsyncIterator[None]:
        """The second broker and its subscriber, until everything has come."""
        await self.start_peer()
        client = asyncio.create_task(self.peer_subscriber.run())
        try:
            while not self.peer_subscriber.known:
                await asyncio.sleep(0.01)
            yield
        finally:
            self.peer_subscriber.over = True
            self.peer_subscriber.cut()
            await client
            if self._peer is not None and self._peer.returncode is None:
                self._peer.kill()
                await self._peer.wait()


def check(run: BridgedRun) -> tuple[int, int]:
    """Fail if something acknowledged is missing or out of order; returns how many came, and how many twice."""
    for data in (run.settings.with_name("data"), run.peer_data):
        assert "Traceback" not in said(data), said(data)[-LAST_SAID:]
    twice = count = 0
    for topic, promised in run.notes.promised.items():
        came = run.peer_notes.received.get(topic, [])
        missing = promised - set(came)
        assert not missing, f"{topic}: {len(missing)} are missing: {sorted(missing)[:5]}"
        first = list(dict.fromkeys(came))
        assert all(before < after for before, after in pairwise(first)), topic
        count += len(promised)
        twice += len(came) - len(first)
    return count, twice


@pytest.mark.parametrize(("direction", "version"), [("out", "5"), ("in", "3.1.1")])
def test_nothing_acknowledged_is_lost_on_its_way_to_the_other_broker(
    tmp_path: Path, direction: Direction, version: str
) -> None:
    """B1, B2, B3: at least once, and in the order of each publisher, over kills of both brokers."""
    run = BridgedRun(tmp_path, direction, version, seed=31)

    asyncio.run(run.kill_both(3))

    check(run)


@pytest.mark.soak
@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("direction", ["out", "in"])
def test_nothing_is_lost_over_many_kills(tmp_path: Path, direction: Direction, version: str) -> None:
    """The same, for as many kills of each as are asked for."""
    kills = int(os.environ.get("KINMQTT_MQTT_KILLS", "20"))
    seed = int(os.environ.get("KINMQTT_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    run = BridgedRun(tmp_path, direction, version, seed)

    asyncio.run(run.kill_both(kills))

    count, twice = check(run)
    print(
        f"{direction}, MQTT {version}, seed {seed}: {kills} kills of each, {count} acknowledged, {twice} came twice"
    )


# Loops


@contextmanager
def brokers(folder: Path, settings: dict[str, str], ports: dict[str, int]) -> Iterator[dict[str, BrokerProcess]]:
    """Brokers with these settings, by name."""
    with ExitStack() as stack:
        found = {}
        for name, text in settings.items():
            (folder / name).mkdir()
            (folder / name / "kinmqtt.toml").write_text(f'[broker]\nnode_name = "{name}"\n{text}')
            command = ("-c", "kinmqtt.toml", "-l", f"127.0.0.1:{ports[name]}")
            found[name] = stack.enter_context(running_broker(*command, cwd=folder / name))
        yield found


def until_bridged(clients: Sequence[Wire], topic: str) -> None:
    """Wait until what each publishes comes to all the others; what came until then is thrown away."""
    for number, client in enumerate(clients):
        waiting = set(range(len(clients))) - {number}
        attempt = 0
        while waiting:
            attempt += 1
            payload = b"probe-%d-%d" % (number, attempt)
            client.publish(topic, payload)
            for other in list(waiting):
                clients[other].socket.settimeout(0.2)
                try:
                    while True:
                        packet = clients[other].receive()
                        if isinstance(packet, Publish) and bytes(packet.payload).startswith(b"probe-%d-" % number):
                            waiting.discard(other)
                            break
                except TimeoutError:
                    pass
                finally:
                    clients[other].socket.settimeout(30)


def counted(client: Wire, last: bytes) -> int:
    """Return how often the payload `x` comes to a client before ``last`` does."""
    count = 0
    while True:
        packet = client.receive()
        assert packet is not None
        if not isinstance(packet, Publish):
            continue
        count += packet.payload == b"x"
        if packet.payload == last:
            return count


RING = {
    "two, each with a connection to the other": {"a": "b", "b": "a"},
    "a ring of three": {"a": "b", "b": "c", "c": "a"},
}


@pytest.mark.parametrize("dials", RING.values(), ids=RING)
def test_nothing_goes_round_for_ever(tmp_path: Path, dials: dict[str, str]) -> None:
    """Connections in both directions between brokers in a ring: a message ends where it has been before."""
    ports = {name: free_port() for name in dials}
    settings = {name: connection(ports[far], "ring/# both 1") for name, far in dials.items()}
    with brokers(tmp_path, settings, ports), ExitStack() as stack:
        clients = [stack.enter_context(wire(port, f"w{name}", V5)) for name, port in ports.items()]
        for client in clients:
            client.subscribe("ring/#", 1)
        until_bridged(clients, "ring/probe")
        clients[0].publish("ring/x", b"x", 1, packet_id=1)
        totals = [0] * len(clients)
        for number in range(10):
            end = b"end-%d" % number
            clients[0].publish("ring/x", end, 1, packet_id=number + 2)
            for place, client in enumerate(clients):
                totals[place] += counted(client, end)

    assert all(1 <= total <= 2 * len(clients) - 1 for total in totals), totals


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("kind", ["kinmqtt", "mosquitto"])
def test_one_connection_in_both_directions_brings_nothing_back(tmp_path: Path, kind: str, version: str) -> None:
    """Each message comes once to each side, from either side, in 3.1.1 too."""
    with ExitStack() as stack:
        if kind == "mosquitto":
            far = stack.enter_context(mosquitto(tmp_path / "far")).port
        else:
            far = stack.enter_context(running_broker(cwd=tmp_path)).port
        near = free_port()
        settings = connection(far, "both/# both 1", more=f'version = "{version}"\n')
        stack.enter_context(brokers(tmp_path, {"near": settings}, {"near": near}))
        clients = [stack.enter_context(wire(port, "w", V5)) for port in (near, far)]
        for client in clients:
            client.subscribe("both/#", 1)
        until_bridged(clients, "both/probe")
        came = []
        for number, client in enumerate(clients):
            client.publish("both/x", b"x", 1, packet_id=1)
            client.publish("both/x", b"end-%d" % number, 1, packet_id=2)
            came += [counted(each, b"end-%d" % number) for each in clients]

    assert came == [1, 1, 1, 1]


# What the far broker says


def test_two_bridges_with_one_client_id_are_told_so(tmp_path: Path) -> None:
    """They would throw each other out for ever: an operator must know."""

    async def test(port: int) -> None:
        one, two = (Made(f"127.0.0.1:{port}", "# out 1", client_id="same") for _ in range(2))
        await one.sink.open()
        await two.sink.open()
        with pytest.raises(SinkRefused, match="give each bridge its own client_id"):
            while True:
                await one.sink.send([Item(message("a"), b"", 1)])
        await one.sink.close()
        await two.sink.close()

    with running_broker(cwd=tmp_path) as broker:
        asyncio.run(asyncio.wait_for(test(broker.port), 30))


def test_messages_wait_for_a_far_broker_that_is_away(tmp_path: Path) -> None:
    """B4: publishers notice nothing, and everything comes in its order, once it is there."""
    far, near = free_port(), free_port()
    far_broker = "-l", f"127.0.0.1:{far}", "--data", str(tmp_path / "far")
    with running_broker(*far_broker, cwd=tmp_path), wire(far, "s", V311, clean_start=False) as there:
        there.subscribe("to/#", 1)
    with brokers(tmp_path, {"near": connection(far, "to/# out 1")}, {"near": near}), wire(near, "p", V5) as client:
        for number in range(1, 51):
            client.publish("to/a", b"%d" % number, 1, packet_id=number).expect(Puback)
        came: dict[int, None] = {}
        with running_broker(*far_broker, cwd=tmp_path), wire(far, "s", V311, clean_start=False) as there:
            while len(came) < 50:
                came[int(there.expect(Publish).payload)] = None

    assert list(came) == list(range(1, 51))
