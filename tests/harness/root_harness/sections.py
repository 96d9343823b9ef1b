"""Settings under which each plugin of this repository can be seen to act, alone or beside the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from bridge_mqtt_harness.mosquitto import Mosquitto
from core_harness.brokers import run_command
from root_harness.combination import PLUGINS
from root_harness.kafka import Kafka
from root_harness.rabbitmq import RabbitMQ
from spi_harness.processes import environment

SECTIONS: Final[Mapping[str, str]] = {
    "akka_like_cluster": (
        '[plugins.akka_like_cluster]\nlisten = "127.0.0.1:{port}"\nseeds = ["127.0.0.1:{seed}"]\n'
        'cookie_file = "{shared}/cookie"\ncontrol = "cluster.sock"\n'
    ),
    "auth_file": '[plugins.auth_file]\npassword_file = "{shared}/passwords"\nacl_file = "{shared}/acl"\n',
    "bridge_http": '[plugins.bridge_http.sinks.out]\nfilters = ["open/hooked/#"]\nurl = "{http}/in"\n',
    "bridge_kafka": (
        '[plugins.bridge_kafka.connections.main]\nservers = ["{kafka}"]\n'
        '[plugins.bridge_kafka.sinks.out]\nconnection = "main"\nfilters = ["open/bridged/#"]\ntopic = "bridged"\n'
    ),
    "bridge_mqtt": (
        '[plugins.bridge_mqtt.connections.far]\nservers = ["{mqtt}"]\n'
        'topics = ["open/there/# out 1", "open/here/# in 1"]\n'
    ),
    "bridge_rabbitmq": (
        '[plugins.bridge_rabbitmq.connections.main]\nservers = ["{rabbitmq}"]\n'
        '[plugins.bridge_rabbitmq.sinks.out]\nconnection = "main"\nfilters = ["open/queued/#"]\n'
        'routing_key = "queued"\n'
    ),
    "event_kafka": '[plugins.event_kafka]\nservers = ["{kafka}"]\n',
    "example_guard": '[plugins.example_guard]\ndeny = ["guarded/#"]\nreason = "it is guarded"\n',
    "metrics": '[plugins.metrics]\nlanding = "landing"\nkeep_free_bytes = 0\n',
    "redis_session": '[plugins.redis_session]\nsocket = "{shared}/redis.sock"\n',
    "rules": (
        "[plugins.rules.copy]\nsql = 'SELECT payload.x AS x FROM \"open/ruled/#\" WHERE payload.x > 1'\n"
        'actions = [{{ republish = {{ topic = "open/made", payload = "${{x}}", qos = 1 }} }}]\n'
    ),
    "sentinel_limiter": (
        '[[plugins.sentinel_limiter.flow]]\nname = "few"\nkind = "publish"\nper = "client"\ncount = 3\nburst = 3\n'
    ),
}
"""A section for each plugin."""

ACL: Final = "user eve\ntopic readwrite #\n\npattern readwrite open/#\npattern readwrite guarded/#\n"
"""Everybody may do everything with what is open or guarded, eve with all topics."""

TOPICS: Final = {"bridge_kafka": "bridged", "event_kafka": "kinmqtt.events"}
"""By plugin: the topic of Kafka that its section needs."""

QUEUE: Final = "queued"
"""The queue of RabbitMQ that the section of bridge_rabbitmq needs."""

NOWHERE: Final = {
    "kafka": "127.0.0.1:9",
    "mqtt": "127.0.0.1:9",
    "rabbitmq": "127.0.0.1:9",
    "http": "http://127.0.0.1:9",
}
"""Where no program listens: what goes there waits."""

WHO: Final = {"username": "ada", "password": b"secret"}
"""A user who comes in also where auth_file is at work."""


def kafka_with_topics(request: pytest.FixtureRequest, plugins: Sequence[str]) -> Kafka | None:
    """Return the session's Kafka with the topics of the plugins that need one; ``None`` if none does."""
    topics = {TOPICS[name] for name in plugins if name in TOPICS}
    if not topics:
        return None
    kafka: Kafka = request.getfixturevalue("kafka_of_session")
    kafka.restore()
    for topic in topics - kafka.topics():
        kafka.create_topic(topic)
    return kafka


def rabbitmq_with_queue(request: pytest.FixtureRequest, plugins: Sequence[str]) -> RabbitMQ | None:
    """Return the session's RabbitMQ with the queue of bridge_rabbitmq; ``None`` without that plugin."""
    if "bridge_rabbitmq" not in plugins:
        return None
    rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq_of_session")
    rabbitmq.restore()
    rabbitmq.declare(QUEUE)
    return rabbitmq


def addresses(**servers: Kafka | Mosquitto | RabbitMQ | None) -> dict[str, str]:
    """Return where those servers that run take connections."""
    return {name: server.address for name, server in servers.items() if server is not None}


def write_shared(plugins: Sequence[str], shared: Path) -> None:
    """Write the files that the sections name, which all brokers use; redis_session's server is the test's own."""
    if "auth_file" in plugins:
        for options, user in (("--create", "ada"), (None, "eve")):
            command = ["passwd", *([options] if options else []), "--password-stdin", "passwords", user]
            done = run_command(*command, cwd=shared, input="secret\n", env=environment())
            assert done.returncode == 0, done.stderr
        (shared / "acl").write_text(ACL)
    if "akka_like_cluster" in plugins:
        done = run_command("cluster", "keys", "cookie", cwd=shared, env=environment())
        assert done.returncode == 0, done.stderr


def write_settings(
    plugins: Sequence[str],
    folder: Path,
    shared: Path,
    name: str,
    port: int,
    seed: int,
    **others: str,
) -> None:
    """Write a broker's kinmqtt.toml.

    ``shared``: the folder of :func:`write_shared`; ``name``: the node's; ``port`` and ``seed``: the ports of this
    broker and of the first one for their cluster; ``others``: where the programs are that bridges speak with, as
    in :data:`NOWHERE`.
    """
    unused = sorted(set(PLUGINS) - set(plugins))
    values = {**NOWHERE, **others, "port": port, "seed": seed, "shared": shared}
    sections = "".join(SECTIONS[each].format_map(values) for each in plugins)
    chosen = f"[plugins]\nonly = {list(plugins)}\n" if unused else ""
    (folder / "kinmqtt.toml").write_text(f'[broker]\nnode_name = "{name}"\n{chosen}{sections}')
