"""The plugins that are installed here, found by their entry points and at work in one broker of its own process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_http_harness.server import Server
from bridge_mqtt_harness.mosquitto import Mosquitto, mosquitto
from core_harness.brokers import BrokerProcess, run_command, running_broker
from core_harness.wire import wire
from kinmqtt.mqtt.packets import V5, V311, Connack, Puback, Publish
from kinmqtt_spi.reasons import ReasonCode
from redis_harness.servers import RedisServer, redis_server
from root_harness.combination import PLUGINS, Installed
from root_harness.kafka import Kafka
from root_harness.rabbitmq import RabbitMQ
from root_harness.sections import (
    QUEUE,
    SECTIONS,
    WHO,
    addresses,
    kafka_with_topics,
    rabbitmq_with_queue,
    write_settings,
    write_shared,
)
from spi_harness.processes import free_port, wait_until

HERE = tuple(name for name in PLUGINS if name in Installed.here().plugins)


@pytest.fixture(scope="module")
def redis(folder: Path) -> Iterator[RedisServer | None]:
    """The server that redis_session keeps everything in, where that is installed."""
    if "redis_session" not in HERE:
        yield None
        return
    with redis_server(folder, on_socket=True) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest) -> Kafka | None:
    """The Kafka of the plugins that need one, with their topics, where any is installed."""
    return kafka_with_topics(request, HERE)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Server]:
    """An HTTP server that takes everything."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto | None]:
    """The broker that bridge_mqtt speaks with, where that is installed."""
    if "bridge_mqtt" not in HERE:
        yield None
        return
    with mosquitto(tmp_path_factory.mktemp("far")) as broker:
        yield broker


@pytest.fixture(scope="module")
def rabbitmq(request: pytest.FixtureRequest) -> RabbitMQ | None:
    """The RabbitMQ of bridge_rabbitmq, where that is installed."""
    return rabbitmq_with_queue(request, HERE)


@pytest.fixture(scope="module")
def others(kafka: Kafka | None, receiver: Server, far: Mosquitto | None, rabbitmq: RabbitMQ | None) -> dict[str, str]:
    """Where the programs are that bridges speak with."""
    return {"http": receiver.url, **addresses(kafka=kafka, mqtt=far, rabbitmq=rabbitmq)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, others: dict[str, str]) -> Path:
    """Where the settings and their files are."""
    folder = tmp_path_factory.mktemp("together")
    write_shared(HERE, folder)
    port = free_port()
    write_settings(HERE, folder, folder, "n1", port, port, **others)
    return folder


@pytest.fixture(scope="module")
def broker(folder: Path, redis: RedisServer | None) -> Iterator[BrokerProcess]:
    """A broker with every plugin that is installed here."""
    with running_broker("-c", "kinmqtt.toml", cwd=folder) as process:
        yield process


def who() -> dict[str, Any]:
    """A user who may come in."""
    return WHO if "auth_file" in HERE else {}


def _puback(broker: BrokerProcess, topic: str, times: int = 1, client_id: str = "publisher") -> ReasonCode:
    """How the last of so many messages is answered, from a client that may come in."""
    with wire(broker.port, client_id, V5, **who()) as client:
        for number in range(1, times + 1):
            client.publish(topic, b"x", 1, packet_id=number)
        return [client.expect(Puback).reason for _ in range(times)][-1]


def test_each_plugin_has_a_section_here() -> None:
    """A plugin that is added must be seen to act in a combination."""
    assert set(SECTIONS) == set(PLUGINS)


def test_every_installed_plugin_is_chosen(folder: Path) -> None:
    """`kinmqtt plugins` shows those of the environment's name as active, and no others of ours."""
    done = run_command("plugins", "-c", "kinmqtt.toml", cwd=folder)

    shown = [line for line in done.stdout.splitlines() if line[:1] in "+-" and "(built-in)" not in line]
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[1] for line in shown) == sorted(HERE)
    assert sorted(line.split()[1] for line in shown if line.startswith("+ ")) == sorted(HERE)


def test_the_settings_are_sound(folder: Path) -> None:
    """`kinmqtt check` takes all the sections together."""
    done = run_command("check", "-c", "kinmqtt.toml", "-l", f"127.0.0.1:{free_port()}", cwd=folder)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the settings are valid\n")


def test_what_nobody_forbids_passes(broker: BrokerProcess) -> None:
    """All of them together let pass what each of them lets pass."""
    assert _puback(broker, "open/door") is ReasonCode.NO_MATCHING_SUBSCRIBERS


@pytest.mark.skipif("metrics" not in HERE, reason="metrics is not installed in this combination")
def test_metrics_acts(broker: BrokerProcess, folder: Path) -> None:
    """What happens to a client stands in the landing folder soon after."""
    with wire(broker.port, "seen", V5, **who()):
        pass

    def told() -> bool:
        return any(b'"client":"seen"' in path.read_bytes() for path in folder.glob("landing/date=*/*.jsonl"))

    wait_until(told, "the client is told of")


@pytest.mark.skipif("auth_file" not in HERE, reason="auth_file is not installed in this combination")
def test_auth_file_acts(broker: BrokerProcess) -> None:
    """Who does not know the password stays outside, and who does may not go everywhere."""
    with wire(broker.port, version=V5) as client:
        connack: Connack = client.connect("x", username="ada", password=b"guess")

    assert connack.reason is ReasonCode.BAD_USER_NAME_OR_PASSWORD
    assert _puback(broker, "elsewhere") is ReasonCode.NOT_AUTHORIZED


@pytest.mark.skipif("auth_file" in HERE, reason="auth_file is installed in this combination")
def test_without_auth_file_everybody_comes_in(broker: BrokerProcess) -> None:
    """On loopback nobody is asked who he is."""
    with wire(broker.port, version=V5) as client:
        assert client.connect("x", username="ada", password=b"guess").reason is ReasonCode.SUCCESS


@pytest.mark.skipif("example_guard" not in HERE, reason="example_guard is not installed in this combination")
def test_example_guard_acts(broker: BrokerProcess) -> None:
    """It refuses what the others would let pass."""
    assert _puback(broker, "guarded/door") is ReasonCode.NOT_AUTHORIZED


@pytest.mark.skipif("sentinel_limiter" not in HERE, reason="sentinel_limiter is not installed in this combination")
def test_sentinel_limiter_acts(broker: BrokerProcess) -> None:
    """A client that publishes too much is told so, whoever else looks at its messages."""
    # What the broker reads at once may pass on credit; what follows may not.
    _puback(broker, "open/door", 25)

    assert _puback(broker, "open/door", 25) is ReasonCode.QUOTA_EXCEEDED


@pytest.mark.skipif("redis_session" not in HERE, reason="redis_session is not installed in this combination")
def test_redis_session_acts(broker: BrokerProcess, redis: RedisServer) -> None:
    """What is retained is in Redis when it is acknowledged."""
    with wire(broker.port, "keeper", V5, **who()) as client:
        client.publish("open/kept", b"x", 1, packet_id=1, retain=True)
        client.expect(Puback)

    assert "open/kept" in " ".join(redis.ask("zrange", f"kinmqtt:{{r{number}}}:t", "0", "-1") for number in range(16))


@pytest.mark.skipif("bridge_http" not in HERE, reason="bridge_http is not installed in this combination")
def test_bridge_http_acts(broker: BrokerProcess, receiver: Server) -> None:
    """What is acknowledged comes to the server, and its outbox counts as a subscriber."""
    assert _puback(broker, "open/hooked/door", client_id="hooked") is ReasonCode.SUCCESS

    wait_until(lambda: any(json.loads(body)["topic"] == "open/hooked/door" for body in receiver.bodies()), "it came")


@pytest.mark.skipif("bridge_kafka" not in HERE, reason="bridge_kafka is not installed in this combination")
def test_bridge_kafka_acts(broker: BrokerProcess, kafka: Kafka) -> None:
    """What is acknowledged comes to Kafka, and its outbox counts as a subscriber."""
    assert _puback(broker, "open/bridged/door", client_id="bridged") is ReasonCode.SUCCESS

    wait_until(lambda: any(record.value == b"x" for record in kafka.records("bridged")), "it is in Kafka")


@pytest.mark.skipif("bridge_mqtt" not in HERE, reason="bridge_mqtt is not installed in this combination")
def test_bridge_mqtt_acts(broker: BrokerProcess, far: Mosquitto) -> None:
    """What is acknowledged comes to the far broker, and what is published there comes here."""
    with wire(far.port, "there", V311) as there, wire(broker.port, "here", V5, **who()) as here:
        there.subscribe("open/there/#", 1)
        here.subscribe("open/here/#", 1)
        # Retained: the bridge may subscribe later than this.
        there.publish("open/here/door", b"in", 1, packet_id=1, retain=True).expect(Puback)
        assert here.expect(Publish).payload == b"in"
        here.publish("open/there/door", b"out", 1, packet_id=1).expect(Puback)
        assert there.expect(Publish).payload == b"out"


@pytest.mark.skipif("bridge_rabbitmq" not in HERE, reason="bridge_rabbitmq is not installed in this combination")
def test_bridge_rabbitmq_acts(broker: BrokerProcess, rabbitmq: RabbitMQ) -> None:
    """What is acknowledged comes to RabbitMQ, and its outbox counts as a subscriber."""
    assert _puback(broker, "open/queued/door", client_id="queued") is ReasonCode.SUCCESS

    wait_until(lambda: any(taken.body == b"x" for taken in rabbitmq.take(QUEUE)), "it is in RabbitMQ")


@pytest.mark.skipif("event_kafka" not in HERE, reason="event_kafka is not installed in this combination")
def test_event_kafka_acts(broker: BrokerProcess, kafka: Kafka) -> None:
    """What happens to a client is in Kafka soon after."""
    with wire(broker.port, "shipped", V5, **who()):
        pass

    wait_until(lambda: any(record.key == b"shipped" for record in kafka.records("kinmqtt.events")), "it is in Kafka")


@pytest.mark.skipif("rules" not in HERE, reason="rules is not installed in this combination")
def test_rules_act(broker: BrokerProcess) -> None:
    """What a rule makes of a message comes to the subscribers of another topic."""
    with wire(broker.port, "ruled", V5, **who()) as client:
        client.subscribe("open/made")
        client.publish("open/ruled/x", b'{"x": 2}', 1, packet_id=1)
        came = [client.receive(), client.receive()]

    assert [(each.topic, each.payload) for each in came if isinstance(each, Publish)] == [("open/made", b"2")]


def test_a_client_is_explained(folder: Path) -> None:
    """`kinmqtt explain` has a line of each plugin that answers such questions."""
    options = ["--client", "c", "--user", "ada", "--publish", "elsewhere", "-c", "kinmqtt.toml"]

    done = run_command("explain", *options, cwd=folder)

    assert done.returncode == 0, done.stderr
    for name in set(HERE) & {"auth_file", "sentinel_limiter"}:
        assert f"  {name} " in done.stdout
    assert ("example_guard (publish_received)" in done.stdout) is ("example_guard" in HERE)


@pytest.mark.skipif("akka_like_cluster" not in HERE, reason="akka_like_cluster is not installed in this combination")
def test_akka_like_cluster_acts(broker: BrokerProcess, folder: Path) -> None:
    """The broker is a member, and leads the cluster that it has formed."""

    def is_up() -> bool:
        done = run_command("cluster", "status", "--json", "--socket", "cluster.sock", cwd=folder)
        assert done.returncode in (0, 1), done.stderr
        status = json.loads(done.stdout)
        return bool(status["state"] == "up" and status["leader"] == status["node"])

    wait_until(is_up, "the broker is UP")
