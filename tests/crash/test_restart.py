"""What a broker that was killed, and started again, takes up where it stood: from its directory, or from Redis."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from core_harness.brokers import BrokerProcess, broker_command
from core_harness.house import STORE
from core_harness.wire import wire
from kinmqtt.mqtt.packets import V5, ConnectWill, Puback, Pubcomp, Publish, Pubrec, Pubrel
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from spi_harness.processes import free_port, wait_until

KEPT: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=3600)}


DIRECTORY = pytest.mark.skipif(STORE != "memory", reason="it is about a directory, and everything is in Redis")


class House:
    """A broker on one data directory, that can be killed."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self.port = free_port()
        self._arguments = arguments or ("--data", str(data))
        self.broker: BrokerProcess | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self.broker = BrokerProcess(broker_command(self.port, *self._arguments), self.port)
        self.broker.wait_for_line("listening on ")

    def end(self, number: int) -> None:
        """Stop it by a signal."""
        assert self.broker is not None
        self.broker.signal(number)
        self.broker.wait()
        self.broker.end()

    def again(self, number: int) -> None:
        """Stop it by a signal, and start it again."""
        self.end(number)
        self.start()


@contextmanager
def house(data: Path, *arguments: str) -> Iterator[House]:
    """A running broker, of which nothing is left at the end."""
    with ExitStack() as stack:
        if STORE == "redis":
            arguments = _over_redis(stack, data)
        made = House(data, *arguments)
        made.start()
        assert made.broker is not None
        try:
            yield made
        finally:
            made.broker.end()


def _over_redis(stack: ExitStack, data: Path) -> tuple[str, str]:
    """The arguments of a broker that keeps everything in a Redis."""
    from redis_harness.servers import redis_server

    server = stack.enter_context(redis_server(data, on_socket=True))
    settings = data / "kinmqtt.toml"
    chosen = "".join(f'{family} = "redis_session"\n' for family in ("session", "queue", "retain"))
    settings.write_text(f'[services]\n{chosen}[plugins.redis_session]\nsocket = "{server.socket}"\n', "utf-8")
    return "--config", str(settings)


@pytest.fixture(params=[signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def number(request: pytest.FixtureRequest) -> int:
    """How the broker ends."""
    return int(request.param)


def test_queues_and_what_is_in_flight(tmp_path: Path, number: int) -> None:
    """What was sent comes again with DUP under its identifier, what waits behind it in order [MQTT-4.4.0-1]."""
    with house(tmp_path / "data") as broker:
        with wire(broker.port, "s", **KEPT) as sub:
            sub.subscribe("a/#", 2)
            with wire(broker.port, "p") as pub:
                for n in range(3):
                    pub.publish(f"a/{n}", b"%d" % n, 1, packet_id=n + 1).expect(Puback)
            sent = [sub.expect(Publish) for _ in range(3)]
            sub.send(Puback(sent[0].packet_id)).ping()
        with wire(broker.port, "p") as pub:
            pub.publish("a/3", b"3", 2, packet_id=9).expect(Pubrec)
            pub.send(Pubrel(9)).expect(Pubcomp)

        broker.again(number)

        with wire(broker.port) as sub:
            assert sub.connect("s", **KEPT).session_present
            came = [sub.expect(Publish) for _ in range(3)]
    assert [(p.payload, p.qos, p.dup) for p in came] == [(b"1", 1, True), (b"2", 1, True), (b"3", 2, False)]
    assert [p.packet_id for p in came[:2]] == [p.packet_id for p in sent[1:]]


def test_both_sides_of_qos_2(tmp_path: Path, number: int) -> None:
    """A released message is not sent again, only PUBREL; a taken one is not taken twice [MQTT-4.3.3-10]."""
    with house(tmp_path / "data") as broker:
        with wire(broker.port, "s", **KEPT) as sub, wire(broker.port, "p", **KEPT) as pub:
            sub.subscribe("a", 2)
            pub.publish("a", b"x", 2, packet_id=7).expect(Pubrec)
            packet_id = sub.expect(Publish).packet_id
            sub.send(Pubrec(packet_id)).expect(Pubrel)

            broker.again(number)

        with wire(broker.port) as pub:
            assert pub.connect("p", **KEPT).session_present
            assert pub.publish("a", b"x", 2, packet_id=7, dup=True).expect(Pubrec).packet_id == 7
            assert pub.send(Pubrel(7)).expect(Pubcomp).reason is ReasonCode.SUCCESS
        with wire(broker.port) as sub:
            assert sub.connect("s", **KEPT).session_present
            assert sub.expect(Pubrel).packet_id == packet_id
            sub.send(Pubcomp(packet_id)).ping()  # and no PUBLISH comes in between


def test_retained_messages_wills_and_delayed_ones(tmp_path: Path, number: int) -> None:
    """Retained messages stay, a will whose delay runs and a message whose time comes are published."""
    with house(tmp_path / "data") as broker:
        will = ConnectWill("gone", b"will", 1, False, Properties(will_delay_interval=1))
        with wire(broker.port, "s", **KEPT) as sub, wire(broker.port, "w", will=will, **KEPT) as dying:
            sub.subscribe("gone", 1)
            sub.subscribe("later", 1, packet_id=2)
            sub.publish("$delayed/1/later", b"delayed", 1, packet_id=3).expect(Puback)
            sub.publish("kept", b"retained", 1, retain=True, packet_id=4).expect(Puback)
            sub.publish("kept/not", b"x", 1, retain=True, packet_id=5).expect(Puback)
            sub.publish("kept/not", b"", 1, retain=True, packet_id=6).expect(Puback)
            dying.reset()

        broker.again(number)

        with wire(broker.port) as sub:
            assert sub.connect("s", **KEPT).session_present
            came = {(p.topic, p.payload) for p in (sub.expect(Publish), sub.expect(Publish))}
        with wire(broker.port, "new") as new:
            new.subscribe("kept/#")
            retained = new.expect(Publish)
            new.ping()
    assert came == {("gone", b"will"), ("later", b"delayed")}
    assert (retained.topic, retained.payload, retained.retain) == ("kept", b"retained", True)


def test_sessions_end_in_time(tmp_path: Path) -> None:
    """A session that was open as the broker died expires by its own interval, counted from the start."""
    with house(tmp_path / "data") as broker:
        with wire(broker.port, "c", clean_start=False, properties=Properties(session_expiry_interval=1)) as client:
            client.subscribe("a", 1)
            broker.again(signal.SIGKILL)
        assert broker.broker is not None
        broker.broker.wait_for_line("1 sessions restored")

        def is_gone() -> bool:
            with wire(broker.port, "asks") as asks:
                answer = asks.publish("a", b"x", 1, packet_id=5).expect(Puback)
                return answer.reason is ReasonCode.NO_MATCHING_SUBSCRIBERS

        wait_until(is_gone, "the session has expired, and its subscription with it")


@DIRECTORY
def test_a_second_broker_is_refused(tmp_path: Path) -> None:
    """One directory serves one broker at a time; the second says who uses it and what to do."""
    with house(tmp_path / "data") as broker:
        other = BrokerProcess(broker_command(free_port(), "--data", str(tmp_path / "data")), 0)
        status = other.wait()
        other.end()

        assert status == 1
        assert broker.broker is not None
        assert f"is in use by process {broker.broker.pid}" in other.output
        assert "`--data DIRECTORY`" in other.output
        with wire(broker.port, "still", V5) as client:
            client.ping()


@DIRECTORY
def test_a_damaged_directory_is_refused(tmp_path: Path) -> None:
    """The broker names the file and the ways on, and changes nothing."""
    data = tmp_path / "data"
    with house(data) as broker:
        with wire(broker.port, "p") as pub:
            pub.publish("kept", b"x" * 20_000, 1, retain=True, packet_id=4).expect(Puback)
        broker.end(signal.SIGTERM)
        file = data / "journal-0000000001.sqlite3"
        content = file.read_bytes()
        at = content.index(b"x" * 100) + 50
        file.write_bytes(content[:at] + b"y" + content[at + 1 :])

        other = BrokerProcess(broker_command(free_port(), "--data", str(data)), 0)
        status = other.wait()
        other.end()

    assert status == 1
    assert "journal-0000000001.sqlite3: row " in other.output
    assert "its checksum is wrong" in other.output
    assert "kinmqtt store export --skip-damaged" in other.output
