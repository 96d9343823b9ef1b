"""Each plugin that is installed here acts on both brokers of a cluster: beside akka_like_cluster alone, and with all.

A publisher has another client id in each test, as sentinel_limiter counts by client. The brokers share their stores
where redis_session is among the plugins; else each has its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from bridge_http_harness.server import Server
from bridge_mqtt_harness.mosquitto import Mosquitto, mosquitto
from core_harness.brokers import BrokerProcess, run_command, running_broker
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import V5, V311, Puback, Publish
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from redis_harness.servers import RedisServer, redis_server
from root_harness.combination import PLUGINS, Installed
from root_harness.kafka import Kafka
from root_harness.rabbitmq import RabbitMQ
from root_harness.sections import (
    QUEUE,
    WHO,
    addresses,
    kafka_with_topics,
    rabbitmq_with_queue,
    write_settings,
    write_shared,
)
from spi_harness.processes import free_port, wait_until

CLUSTER = "akka_like_cluster"
HERE = tuple(name for name in PLUGINS if name in Installed.here().plugins)
OTHERS = tuple(name for name in HERE if name != CLUSTER)
CHOICES = sorted({(), *((name,) for name in OTHERS), OTHERS}) if CLUSTER in HERE else []
"""The plugins beside akka_like_cluster, for each cluster that is started."""

EVE = WHO | {"username": "eve"}
NUMBERS = count()
PASSED = (ReasonCode.SUCCESS, ReasonCode.NO_MATCHING_SUBSCRIBERS)


@frozen
class Cluster:
    """Two brokers of one cluster, and what they have beside akka_like_cluster."""

    plugins: tuple[str, ...]
    folders: tuple[Path, Path]
    brokers: tuple[BrokerProcess, BrokerProcess]
    redis: RedisServer | None
    kafka: Kafka | None
    receiver: Server
    far: Mosquitto | None
    rabbitmq: RabbitMQ | None

    @property
    def ports(self) -> list[int]:
        """Where the two take clients."""
        return [broker.port for broker in self.brokers]

    @property
    def both_ways(self) -> list[tuple[int, int]]:
        """The two ports, and the two the other way round."""
        one, other = self.ports
        return [(one, other), (other, one)]

    @property
    def who(self) -> dict[str, Any]:
        """A user who may come in."""
        return WHO if "auth_file" in self.plugins else {}


def is_whole(folder: Path) -> bool:
    """Tell whether a broker sees both members UP, and can reach them."""
    done = run_command("cluster", "members", "--json", "--socket", "cluster.sock", cwd=folder)
    assert done.returncode == 0, done.stderr
    return [(each["state"], each["reachable"]) for each in json.loads(done.stdout)] == [("up", True)] * 2


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers with the plugins of the parameter."""
    plugins: tuple[str, ...] = request.param
    shared = tmp_path_factory.mktemp("cluster")
    folders = (shared / "n1", shared / "n2")
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(shared, on_socket=True)) if "redis_session" in plugins else None
        kafka, rabbitmq = kafka_with_topics(request, plugins), rabbitmq_with_queue(request, plugins)
        receiver = Server()
        stack.callback(receiver.stop)
        far = stack.enter_context(mosquitto(shared / "far")) if "bridge_mqtt" in plugins else None
        write_shared((CLUSTER, *plugins), shared)
        others = addresses(kafka=kafka, mqtt=far, rabbitmq=rabbitmq)
        brokers = []
        for folder, port in zip(folders, ports, strict=True):
            folder.mkdir()
            write_settings(
                (CLUSTER, *plugins), folder, shared, folder.name, port, ports[0], http=receiver.url, **others
            )
            brokers.append(stack.enter_context(running_broker("-c", "kinmqtt.toml", cwd=folder)))
        for folder in folders:
            wait_until(lambda folder=folder: is_whole(folder), f"{folder.name} sees both")  # type: ignore[misc]
        yield Cluster(plugins, folders, (brokers[0], brokers[1]), redis, kafka, receiver, far, rabbitmq)


def clusters(name: str | None = None) -> pytest.MarkDecorator:
    """Run a test for each cluster that has a plugin, or for all of them."""
    chosen = [pytest.param(each, id="-".join(each) or "alone") for each in CHOICES if name is None or name in each]
    return pytest.mark.parametrize("cluster", chosen, indirect=True)


def answers(client: Wire, topic: str, payloads: Sequence[bytes]) -> list[ReasonCode]:
    """Publish at QoS 1, and return how each message was answered."""
    for number, payload in enumerate(payloads, start=1):
        client.publish(topic, payload, 1, packet_id=number)
    return [client.expect(Puback).reason for _ in payloads]


def received(client: Wire, last: bytes) -> list[tuple[str, bytes]]:
    """Return all messages that come to a client, up to one with that payload."""
    found: list[tuple[str, bytes]] = []
    while not found or found[-1][1] != last:
        publish = client.expect(Publish)
        found.append((publish.topic, bytes(publish.payload)))
    return found


def test_each_other_plugin_is_tested_here() -> None:
    """A plugin that is added must be seen to act across a cluster."""
    tested = {name for name in PLUGINS if f"test_{name}_acts_on_both_brokers" in globals()}

    assert tested == set(PLUGINS) - {CLUSTER}


@clusters()
def test_messages_go_both_ways(cluster: Cluster) -> None:
    """What nobody forbids comes to the other broker's clients."""
    for here, there in cluster.both_ways:
        with wire(there, "sub", V5, **cluster.who) as sub, wire(here, f"both{here}pub", V5, **cluster.who) as pub:
            sub.subscribe("open/door")

            assert answers(pub, "open/door", [b"x"]) == [ReasonCode.SUCCESS]
            assert received(sub, b"x") == [("open/door", b"x")]


@clusters()
def test_a_session_moves_with_its_messages(cluster: Cluster) -> None:
    """A client that comes back to the other broker has its subscriptions, and what came while it was away."""
    lasting = Properties(session_expiry_interval=600)
    for here, there in cluster.both_ways:
        name = f"mover{here}"
        with wire(here, version=V5) as client:
            client.connect(name, properties=lasting, **cluster.who)
            client.subscribe("open/moved", 1)
        with wire(there, f"moves{here}pub", V5, **cluster.who) as pub:
            assert answers(pub, "open/moved", [b"x"]) == [ReasonCode.SUCCESS]

        with wire(there, version=V5) as client:
            connack = client.connect(name, clean_start=False, properties=lasting, **cluster.who)

            assert (connack.reason, connack.session_present) == (ReasonCode.SUCCESS, True)
            assert received(client, b"x") == [("open/moved", b"x")]


def retained(cluster: Cluster, port: int, topic: str) -> list[tuple[bool, bytes]]:
    """Subscribe as a new client of a broker, and return the retained messages that come before a later one."""
    name = f"finds{port}"
    with (
        wire(port, name, V5, **cluster.who) as sub,
        wire(port, f"{name}pub{next(NUMBERS)}", V5, **cluster.who) as pub,
    ):
        sub.subscribe(topic)
        answers(pub, topic, [b"last"])
        found: list[tuple[bool, bytes]] = []
        while not found or found[-1][1] != b"last":
            publish = sub.expect(Publish)
            found.append((publish.retain, bytes(publish.payload)))
        return found[:-1]


@clusters()
def test_retained_messages_are_those_of_both_brokers(cluster: Cluster) -> None:
    """What one broker retains the other has, too; it is cleared there, and gone here."""
    for here, there in cluster.both_ways:
        topic = f"open/retained{here}"
        with wire(here, f"retains{here}", V5, **cluster.who) as pub:
            pub.publish(topic, b"x", 1, packet_id=1, retain=True)
            assert pub.expect(Puback).reason in PASSED
        wait_until(lambda: retained(cluster, there, topic) == [(True, b"x")], "it is there")  # noqa: B023
        with wire(there, f"clears{here}", V5, **cluster.who) as pub:
            pub.publish(topic, b"", 0, retain=True)
        wait_until(lambda: retained(cluster, here, topic) == [], "it is cleared here")  # noqa: B023


@clusters("auth_file")
def test_auth_file_acts_on_both_brokers(cluster: Cluster) -> None:
    """Passwords hold at both; what a user may not read does not come to him, whichever broker it was published to."""
    for here, there in cluster.both_ways:
        with wire(here, version=V5) as client:
            assert client.connect("x", username="ada", password=b"guess").reason is (
                ReasonCode.BAD_USER_NAME_OR_PASSWORD
            )
        with (
            wire(there, "sub", V5, **WHO) as sub,
            wire(here, f"file{here}pub", V5, **(WHO | {"username": "eve"})) as eve,
        ):
            sub.subscribe("#")

            assert answers(eve, "elsewhere", [b"hidden"])[0] in PASSED
            assert answers(eve, "open/door", [b"x"]) == [ReasonCode.SUCCESS]
            assert received(sub, b"x") == [("open/door", b"x")]
        with wire(here, f"file{here}ada", V5, **WHO) as ada:
            assert answers(ada, "elsewhere", [b"x"]) == [ReasonCode.NOT_AUTHORIZED]


@clusters("example_guard")
def test_example_guard_acts_on_both_brokers(cluster: Cluster) -> None:
    """What one broker refuses does not come to the other one's clients."""
    for here, there in cluster.both_ways:
        with wire(there, "sub", V5, **cluster.who) as sub, wire(here, f"guard{here}pub", V5, **cluster.who) as pub:
            sub.subscribe("guarded/door", packet_id=1)
            sub.subscribe("open/door", packet_id=2)

            assert answers(pub, "guarded/door", [b"hidden"]) == [ReasonCode.NOT_AUTHORIZED]
            assert answers(pub, "open/door", [b"x"]) == [ReasonCode.SUCCESS]
            assert received(sub, b"x") == [("open/door", b"x")]


@clusters("metrics")
def test_metrics_acts_on_both_brokers(cluster: Cluster) -> None:
    """Each broker tells of its own clients in its own folder, also of one whose messages came from the other one."""

    def tells(folder: Path, client_id: str) -> bool:
        wanted = f'"client":"{client_id}"'.encode()
        return any(wanted in path.read_bytes() for path in folder.glob("landing/date=*/*.jsonl"))

    first, second = cluster.ports
    with wire(second, "taker", V5, **cluster.who) as taker, wire(first, "giver", V5, **cluster.who) as giver:
        taker.subscribe("open/told")
        answers(giver, "open/told", [b"x"])
        received(taker, b"x")

    for folder, client_id, other in zip(cluster.folders, ("giver", "taker"), ("taker", "giver"), strict=True):
        wait_until(lambda: tells(folder, client_id), f"{client_id} is told of")  # noqa: B023
        assert not tells(folder, other)


@clusters("redis_session")
def test_redis_session_acts_on_both_brokers(cluster: Cluster) -> None:
    """What one broker retains is in Redis when it is acknowledged, and comes from the other one."""
    assert cluster.redis is not None
    for here, there in cluster.both_ways:
        topic = f"open/kept/{here}"
        with wire(here, f"session{here}keeper", V5, **cluster.who) as keeper:
            keeper.publish(topic, b"x", 1, packet_id=1, retain=True)
            keeper.expect(Puback)
            shards = [cluster.redis.ask("zrange", f"kinmqtt:{{r{number}}}:t", "0", "-1") for number in range(16)]

        with wire(there, "late", V5, **cluster.who) as late:
            late.subscribe(topic)

            assert topic in " ".join(shards)
            assert received(late, b"x") == [(topic, b"x")]


@clusters("bridge_http")
def test_bridge_http_acts_on_both_brokers(cluster: Cluster) -> None:
    """Each broker sends what it took from publishers, and nothing that came from the other one."""
    payloads = []
    for here, there in cluster.both_ways:
        payload = f"{cluster.plugins}{here}"
        with wire(there, "sub", V5, **cluster.who) as sub, wire(here, f"hook{here}", V5, **cluster.who) as pub:
            sub.subscribe("open/hooked/#")
            answers(pub, "open/hooked/door", [payload.encode()])
            received(sub, payload.encode())
        payloads.append(payload)

    def came() -> list[str]:
        found = [json.loads(body)["payload"] for body in cluster.receiver.bodies()]
        return [payload for payload in found if payload in payloads]

    wait_until(lambda: set(came()) == set(payloads), "both have come")
    assert sorted(came()) == sorted(payloads)


@clusters("bridge_kafka")
def test_bridge_kafka_acts_on_both_brokers(cluster: Cluster) -> None:
    """Each broker sends what it took from publishers, and nothing that came from the other one."""
    kafka = cluster.kafka
    assert kafka is not None
    payloads = []
    for here, there in cluster.both_ways:
        payload = f"{cluster.plugins}{here}".encode()
        with wire(there, "sub", V5, **cluster.who) as sub, wire(here, f"out{here}", V5, **cluster.who) as pub:
            sub.subscribe("open/bridged/#")
            answers(pub, "open/bridged/door", [payload])
            received(sub, payload)
        payloads.append(payload)

    def came() -> list[bytes]:
        return [record.value for record in kafka.records("bridged") if record.value in payloads]

    wait_until(lambda: set(came()) == set(payloads), "both are in Kafka")
    assert sorted(came()) == sorted(payloads)


@clusters("bridge_mqtt")
def test_bridge_mqtt_acts_on_both_brokers(cluster: Cluster) -> None:
    """Each broker sends what it took from publishers, and nothing that came from the other one."""
    assert cluster.far is not None
    with wire(cluster.far.port, "there", V311) as far:
        far.subscribe("open/there/#", 1)
        payloads = []
        for here, there in cluster.both_ways:
            payload = f"{here}".encode()
            with wire(there, "sub", V5, **cluster.who) as sub, wire(here, f"there{here}", V5, **cluster.who) as pub:
                sub.subscribe("open/there/#")
                answers(pub, "open/there/door", [payload])
                received(sub, payload)
            payloads.append(payload)
        with wire(cluster.far.port, "last", V311) as last:
            came = [far.expect(Publish).payload, far.expect(Publish).payload]
            last.publish("open/there/last", b"last")

        assert (sorted(came), far.expect(Publish).payload) == (sorted(payloads), b"last")


@clusters("bridge_rabbitmq")
def test_bridge_rabbitmq_acts_on_both_brokers(cluster: Cluster) -> None:
    """Each broker sends what it took from publishers, and nothing that came from the other one."""
    rabbitmq = cluster.rabbitmq
    assert rabbitmq is not None
    payloads = []
    for here, there in cluster.both_ways:
        payload = f"{cluster.plugins}{here}".encode()
        with wire(there, "sub", V5, **cluster.who) as sub, wire(here, f"queue{here}", V5, **cluster.who) as pub:
            sub.subscribe("open/queued/#")
            answers(pub, "open/queued/door", [payload])
            received(sub, payload)
        payloads.append(payload)
    came: list[bytes] = []

    def have_come() -> bool:
        came.extend(taken.body for taken in rabbitmq.take(QUEUE) if taken.body in payloads)
        return set(came) == set(payloads)

    wait_until(have_come, "both are in RabbitMQ")
    assert sorted(came) == sorted(payloads)


@clusters("event_kafka")
def test_event_kafka_acts_on_both_brokers(cluster: Cluster) -> None:
    """Each broker ships what happens to its own clients."""
    kafka = cluster.kafka
    assert kafka is not None
    for here in cluster.ports:
        name = f"event{len(cluster.plugins)}{here}"
        with wire(here, name, V5, **cluster.who):
            pass

        def came(key: bytes = name.encode()) -> bool:
            return any(record.key == key for record in kafka.records("kinmqtt.events"))

        wait_until(came, f"{name} is in Kafka")


@clusters("rules")
def test_rules_acts_on_both_brokers(cluster: Cluster) -> None:
    """A rule is applied by the broker that took a message, once, and its message comes from the other one, too."""
    for here, there in cluster.both_ways:
        with wire(there, "sub", V5, **cluster.who) as sub, wire(here, f"ruled{here}", V5, **cluster.who) as pub:
            sub.subscribe("open/made")
            answers(pub, "open/ruled/x", [b'{"x": 1}', b'{"x": 2}', b'{"x": 3}'])

            assert received(sub, b"3") == [("open/made", b"2"), ("open/made", b"3")]


@clusters("sentinel_limiter")
def test_sentinel_limiter_acts_on_both_brokers(cluster: Cluster) -> None:
    """Each broker limits its own clients: what it refuses does not come to the other one's, and the rest does."""
    for here, there in cluster.both_ways:
        payloads = [str(number).encode() for number in range(50)]
        with (
            wire(there, "sub", V5, **cluster.who) as sub,
            wire(here, f"hasty{here}", V5, **cluster.who) as hasty,
        ):
            sub.subscribe("open/many")
            sub.subscribe("open/end", packet_id=2)

            # What the broker reads at once may pass on credit; what follows may not.
            codes = [*answers(hasty, "open/many", payloads[:25]), *answers(hasty, "open/many", payloads[25:])]
            with wire(here, f"limiter{here}end", V5, **cluster.who) as end:
                answers(end, "open/end", [b"end"])
            came = [payload for _, payload in received(sub, b"end")]

            assert ReasonCode.QUOTA_EXCEEDED in codes
            assert sorted(came[:-1]) == sorted(
                payload for payload, code in zip(payloads, codes, strict=True) if code is ReasonCode.SUCCESS
            )
            assert len(came) > 1
