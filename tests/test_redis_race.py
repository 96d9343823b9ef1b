"""Six broker processes over one Redis race for one client id, and what Redis carried out is read from its MONITOR."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from attrs import define, field

from core_harness.brokers import running_broker
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import V5, Connack, Connect, DisconnectPacket, Puback, Publish
from kinmqtt_spi import Properties
from kinmqtt_spi.reasons import ReasonCode
from redis_harness.servers import RedisServer, redis_server
from spi_harness.processes import Process, needed

BROKERS = 6
ROUNDS = int(os.environ.get("KINMQTT_RACES", "20"))
WRITES = 8
"""Messages that each connection publishes to itself before it is asked whether it is still the owner."""

TRIES = 10

NAME = "contested"
KEPT = Properties(session_expiry_interval=600, receive_maximum=1)

SECTION = """
[services]
session = "redis_session"
queue = "redis_session"
retain = "redis_session"
[limits]
max_queued_messages = 1000000
[plugins.redis_session]
socket = "%s"
timeout_s = 20
"""


@define
class Racer:
    """What the client did at one broker."""

    port: int
    number: int
    acknowledged: list[bytes] = field(factory=list)
    survived: list[int] = field(factory=list)
    """Rounds after which its connection was the owner's."""
    connections: int = 0

    def race(self, barrier: threading.Barrier) -> None:
        """Connect at the same time as the others, write, and see who is left; again and again."""
        for round_number in range(ROUNDS):
            barrier.wait(60)
            client, alive = self._connected()
            try:
                written = 0
                while alive and written < WRITES:
                    alive = self._write(client, round_number, written)
                    written += 1
                barrier.wait(60)
                # Nobody connects any more: whoever is not the owner is told so by its next write.
                if alive and self._write(client, round_number, written):
                    self.survived.append(round_number)
                barrier.wait(60)
            finally:
                client.close()

    def _connected(self) -> tuple[Wire, bool]:
        """A connection, and whether it was let in: who is overtaken before CONNACK is refused, and tries again."""
        for _ in range(TRIES):
            client = Wire(self.port, V5)
            client.send(Connect(V5, NAME, False, 0, None, None, None, KEPT))
            answer = client.receive()
            if isinstance(answer, Connack) and answer.reason is ReasonCode.SUCCESS:
                assert answer.session_present
                self.connections += 1
                return client, True
            client.close()
        return client, False

    def _write(self, client: Wire, round_number: int, written: int) -> bool:
        """Publish to itself; whether that was acknowledged."""
        payload = b"%d %d %d" % (round_number, self.number, written)
        client.publish("race", payload, 1, packet_id=written + 1)
        while True:
            packet = client.receive()
            if packet is None or isinstance(packet, DisconnectPacket):
                return False
            if isinstance(packet, Puback):
                if packet.reason is not ReasonCode.SUCCESS:
                    return False
                self.acknowledged.append(payload)
                return True


def epoch_violations(lines: Sequence[str]) -> Iterator[str]:
    """What Redis carried out, by its MONITOR, against the rules of epochs.

    A claim takes a higher epoch, whoever asks; an entry is put down only under the epoch of the last claim.
    """
    epoch = 0
    appended: dict[str, int] = {}
    for line in lines:
        words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
        if not words or "{" + NAME + "}" not in line:
            if "[0 lua]" not in line:
                appended = {}
            continue
        if "[0 lua]" not in line:
            # Of a run of appends its sort, the epoch, and how many they are; of each its number and two more.
            appended = {
                words[at + 3 + 3 * number]: int(words[at + 1])
                for at, word in enumerate(words[:-2])
                if word == "append"
                for number in range(int(words[at + 2]))
            }
        elif words[0] == "HSET" and words[1].endswith(":s") and words[2:3] == ["e"]:
            claimed = int(words[3])
            if claimed <= epoch:
                yield f"the claim after epoch {epoch} got {claimed}"
            epoch = claimed
        elif words[0] == "HSET" and words[1].endswith(":d"):
            its = appended.get(words[2])
            if its != epoch:
                yield f"entry {words[2]} was put down under epoch {its}, after the claim of {epoch}"


def claims(lines: Sequence[str]) -> int:
    """How many claims there were."""
    return sum(f'"HSET" "kinmqtt:{{{NAME}}}:s" "e"' in line for line in lines)


def test_six_brokers_race_for_one_client(tmp_path: Path) -> None:
    """The client connects to all six at the same time, writes at each, and one of them owns it at the end.

    A violation is: a claim whose epoch is not above that of the claim before; an entry that is put down under
    another epoch than the last claim's; a second connection whose write is acknowledged once all claims are over, or
    none; an acknowledged message that is missing, comes twice, or behind a later one of its connection.
    """
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(tmp_path / "redis", on_socket=True))
        monitor = _monitor(server)
        stack.callback(monitor.end)
        settings = tmp_path / "kinmqtt.toml"
        settings.write_text(SECTION % server.socket, "utf-8")
        brokers = [stack.enter_context(running_broker("--config", str(settings))) for _ in range(BROKERS)]
        racers = [Racer(broker.port, number) for number, broker in enumerate(brokers)]
        with wire(brokers[0].port, NAME, V5, clean_start=False, properties=KEPT) as client:
            client.subscribe("race", 1)

        barrier = threading.Barrier(BROKERS)
        with ThreadPoolExecutor(BROKERS) as pool:
            for done in [pool.submit(_raced, racer, barrier) for racer in racers]:
                done.result()
        acknowledged = [payload for racer in racers for payload in racer.acknowledged]
        received = _received(brokers[0].port)
        server.ask("echo", "the end")
        monitor.wait_for_line('"the end"')
        lines = list(monitor.lines)

    assert list(epoch_violations(lines)) == []
    owners = [[racer.number for racer in racers if number in racer.survived] for number in range(ROUNDS)]
    assert all(len(its) == 1 for its in owners), owners
    assert set(acknowledged) <= set(received)
    assert len(set(received)) == len(received)
    for number in range(BROKERS):
        its = [payload for payload in received if payload.split()[1] == b"%d" % number]
        assert its == sorted(its, key=lambda payload: [int(part) for part in payload.split()])
    # The race was one: all took part, and most connections were taken over by another broker.
    assert claims(lines) >= sum(racer.connections for racer in racers) > 2 * ROUNDS
    assert len(acknowledged) > ROUNDS * WRITES


def _raced(racer: Racer, barrier: threading.Barrier) -> None:
    try:
        racer.race(barrier)
    except BaseException:
        barrier.abort()
        raise


def _monitor(server: RedisServer) -> Process:
    process = Process([needed("redis-cli", "redis-tools"), "-s", str(server.socket), "monitor"])
    process.wait_for_line("OK")
    return process


def _received(port: int) -> list[bytes]:
    """Everything that waits for the client, taken at last."""
    came: list[bytes] = []
    with wire(port, version=V5) as client:
        answer = client.connect(NAME, clean_start=False, properties=Properties(session_expiry_interval=600))
        assert answer.session_present
        client.publish("race", b"9999999 0 0", 1, packet_id=60_000)
        while not came or came[-1] != b"9999999 0 0":
            packet = client.receive()
            if isinstance(packet, Publish):
                came.append(packet.payload)
                client.send(Puback(packet.packet_id))
    return came[:-1]
