"""What holds for a broker with a sink in a real Kafka when something is wrong: the rows of docs/bridge.md."""

from __future__ import annotations

import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from core_harness.brokers import run_command, running_broker
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import V5, V311, Puback, Publish
from root_harness.kafka import Kafka
from spi_harness.processes import wait_until

_numbers = count()


def write_settings(folder: Path, address: str, sink: str, connection: str = "") -> None:
    """Write a broker's settings, with one sink."""
    (folder / "kinmqtt.toml").write_text(
        '[broker]\nsys_interval_s = 0.1\n[plugins]\nonly = ["bridge_kafka"]\n'
        f'[plugins.bridge_kafka.connections.main]\nservers = ["{address}"]\ntimeout_s = 2\n{connection}'
        f'[plugins.bridge_kafka.sinks.out]\nconnection = "main"\nfilters = ["to/#"]\n{sink}'
    )


def running(folder: Path) -> Any:
    """A broker over the folder's data."""
    return running_broker("-c", "kinmqtt.toml", "--data", str(folder / "data"), cwd=folder)


def state_is(client: Wire, wanted: bytes) -> None:
    """Wait until the sink's state below ``$SYS`` is that."""
    client.subscribe("$SYS/bridge/bridge_kafka/out/state", packet_id=9)
    while True:
        packet = client.receive()
        assert packet is not None
        if isinstance(packet, Publish) and packet.payload == wanted:
            return


def payloads(kafka: Kafka, topic: str) -> list[bytes]:
    """What has come."""
    return [record.value for record in kafka.records(topic)]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_sink_with_wrong_credentials_keeps_its_messages(kafka: Kafka, tmp_path: Path, mechanism: str) -> None:
    """B7: REFUSED, with a line that says where and how; publishers go on, and a reload tries at once."""
    topic = kafka.create_topic(f"promise-{next(_numbers)}")
    password = tmp_path / "password"
    password.write_text("wrong-one")
    security = f'protocol = "SASL_PLAINTEXT", mechanism = "{mechanism}", username = "ada"'
    write_settings(
        tmp_path,
        kafka.sasl_address,
        f'topic = "{topic}"\n',
        f'security = {{ {security}, password_file = "{password}" }}\n',
    )
    with running(tmp_path) as process, wire(process.port, "p", V5) as client:
        client.publish("to/a", b"1", 1, packet_id=1).expect(Puback)
        state_is(client, b"refused")
        [line] = process.wait_for_line("sink bridge_kafka:out failed in open")
        assert "plugins.bridge_kafka.connections.main: Kafka refuses this client: " in line
        assert "SaslAuthenticationFailed" in line
        assert "check username, password_file and mechanism of security" in line
        assert "tried again in 60" in line
        password.write_text("secret")
        process.signal(signal.SIGHUP)
        wait_until(lambda: payloads(kafka, topic) == [b"1"], "the message has come")
        assert "wrong-one" not in process.output


def test_wrong_settings_stop_the_start_and_a_reload_goes_on_with_the_old(kafka: Kafka, tmp_path: Path) -> None:
    """B8: an unknown key is named with its place and the key that was meant."""
    topic = kafka.create_topic(f"promise-{next(_numbers)}")
    sound = f'topic = "{topic}"\n'
    wrong = 'topick = "other"\n'
    problem = "plugins.bridge_kafka.sinks.out.topick: unknown key; did you mean 'topic'?"
    write_settings(tmp_path, kafka.address, wrong)
    for command in ("check", "run"):
        done = run_command(command, "-c", "kinmqtt.toml", cwd=tmp_path)
        assert done.returncode != 0
        assert f"kinmqtt.toml:11:1: {problem}" in done.stderr

    write_settings(tmp_path, kafka.address, sound)
    with running(tmp_path) as process, wire(process.port, "p", V5) as client:
        write_settings(tmp_path, kafka.address, sound + wrong)
        process.signal(signal.SIGHUP)
        process.wait_for_line("unknown key; did you mean 'topic'")
        client.publish("to/a", b"1", 1, packet_id=1).expect(Puback)
        wait_until(lambda: payloads(kafka, topic) == [b"1"], "the old sink goes on")


def test_a_missing_topic_is_named_and_waited_for(kafka: Kafka, tmp_path: Path) -> None:
    """B9: its messages wait with one line; it is not created, though Kafka would."""
    topic = f"promise-{next(_numbers)}"
    write_settings(tmp_path, kafka.address, f'topic = "{topic}"\nsending = {{ longest_pause_s = 0.1 }}\n')
    with running(tmp_path) as process, wire(process.port, "p", V5) as client:
        client.publish("to/a", b"1", 1, packet_id=1).expect(Puback)
        state_is(client, b"waiting")
        process.wait_for_line(
            f"sink bridge_kafka:out does not take a message: there is no topic '{topic}' in Kafka; create it"
        )
        assert topic not in kafka.topics()
        kafka.create_topic(topic)
        wait_until(lambda: payloads(kafka, topic) == [b"1"], "the message has come")
        assert len([line for line in process.lines if topic in line]) == 1


def test_a_full_outbox_refuses_and_says_so(kafka: Kafka, tmp_path: Path) -> None:
    """B5: a publisher of MQTT 5 gets 0x97, one of MQTT 3 is disconnected; what was acknowledged comes."""
    topic = f"promise-{next(_numbers)}"
    write_settings(
        tmp_path,
        kafka.address,
        f'topic = "{topic}"\noutbox = {{ max_messages = 3, window = 1, when_full = "refuse" }}\n'
        "sending = { longest_pause_s = 0.1 }\n",
    )
    with running(tmp_path) as process:
        with wire(process.port, "p", V5) as client:
            codes = [
                client.publish("to/a", b"%d" % number, 1, packet_id=number).expect(Puback).reason
                for number in range(1, 10)
            ]
        with wire(process.port, "old", V311) as client:
            assert client.publish("to/a", b"no", 1, packet_id=1).receive() is None
        taken = [b"%d" % number for number, code in enumerate(codes, 1) if code < 0x80]
        assert 3 <= len(taken) < 9
        assert {code for code in codes if code >= 0x80} == {0x97}
        kafka.create_topic(topic)
        wait_until(lambda: payloads(kafka, topic) == taken, "what was acknowledged has come, and nothing else")


def test_a_poison_message_is_parked_and_named(kafka: Kafka, tmp_path: Path) -> None:
    """B6: the line says which sink, why, and what became of it; the others go on."""
    topic = kafka.create_topic(f"promise-{next(_numbers)}")
    write_settings(tmp_path, kafka.address, f'topic = "{topic}"\nmax_record_bytes = 2000\n')
    with running(tmp_path) as process, wire(process.port, "p", V5) as client:
        client.publish("to/a", b"x" * 3000, 1, packet_id=1).expect(Puback)
        client.publish("to/a", b"2", 1, packet_id=2).expect(Puback)
        wait_until(lambda: payloads(kafka, topic) == [b"2"], "the other has come")
        [line] = process.wait_for_line("sink bridge_kafka:out will never take a message")
        assert "max_record_bytes allows" in line and "it is parked" in line
