"""A real Kafka for tests: one broker in KRaft mode for a test session, ended by its process id.

    def test(kafka: Kafka) -> None:
        kafka.create_topic("readings", partitions=3)
        ...  # kafka.address takes connections
        assert [record.value for record in kafka.records("readings")] == [b"1"]

This module is a plugin of pytest, which conftest.py at the root names. It imports aiokafka only when it is used.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from root_harness import kafka_questions
from root_harness.kafka_jars import kafka_jars
from spi_harness.processes import Process, environment, free_port, needed, wait_until

START_LIMIT_S: Final = 120.0
"""How long a start may take; 4 to 8 s where nothing else runs."""

PASSWORDS: Final[Mapping[str, str]] = {"ada": "secret", "eve": "secret2", "mallory": "secret3"}
"""The users of the listener with SASL: ada may do everything, eve what a test allows, mallory nothing."""

_JAVA: Final = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")

_SETTINGS: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{control}
controller.listener.names=CONTROLLER
listeners=PLAIN://127.0.0.1:{port},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAIN://127.0.0.1:{port},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls}
listener.security.protocol.map=PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAIN
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.sasl.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required {users};
listener.name.sasl.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.tls.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.tls.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required {users};
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={keystore}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:ada
log.dirs={folder}/data
auto.create.topics.enable=true
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.cleaner.dedupe.buffer.size=4194304
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=300
"""


class Kafka:
    """A broker that runs, can be paused, killed and started again over what it has stored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.sasl_port, self.tls_port, self._control_port = (free_port() for _ in range(4))
        self.certificate = folder / "certificate.pem"
        """The certificate of the listener with TLS, which is its own authority."""
        self._process: Process | None = None
        self._paused = False
        self.start_s: float | None = None
        """How long the last start took, until a metadata request was answered."""
        jars = str(kafka_jars())
        self._java = [needed("java", "default-jre-headless"), *_JAVA, "-cp", f"{jars}/*"]
        users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
        self._settings = folder / "kafka.properties"
        self._settings.write_text(
            _SETTINGS.format(
                control=self._control_port,
                port=self.port,
                sasl=self.sasl_port,
                tls=self.tls_port,
                users=users,
                folder=folder,
                keystore=self._keystore(),
            ),
            encoding="utf-8",
        )
        self._format()

    @property
    def address(self) -> str:
        """Where everybody may do everything, without a password."""
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_address(self) -> str:
        """Where a user of :data:`PASSWORDS` is needed, by PLAIN or by SCRAM-SHA-256, without TLS."""
        return f"127.0.0.1:{self.sasl_port}"

    @property
    def tls_address(self) -> str:
        """As :attr:`sasl_address`, with TLS and :attr:`certificate`."""
        return f"127.0.0.1:{self.tls_port}"

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has said."""
        return "" if self._process is None else self._process.output

    def start(self) -> None:
        """Start it, and wait until it answers a metadata request."""
        began = time.monotonic()
        command = [*self._java, "kafka.Kafka", str(self._settings)]
        self._process = Process(command, cwd=self.folder, env=environment())
        self._paused = False
        wait_until(self._answers, "Kafka answers a metadata request", START_LIMIT_S)
        self.start_s = time.monotonic() - began

    def pause(self) -> None:
        """Have it stand still: connections stay, and nothing is answered."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)  # On a busy machine its threads stop a while after the signal.
        self._paused = True

    def go_on(self) -> None:
        """Let it go on with what has come meanwhile."""
        self._signal(signal.SIGCONT)
        self._paused = False

    def kill(self) -> None:
        """Kill it; what it has stored stays."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._process.end()
        self._process = None

    def restore(self) -> None:
        """Have it run again, whatever a test has done to it."""
        if self._process is None:
            self.start()
        elif self._paused:
            self.go_on()
            wait_until(self._answers, "Kafka goes on", START_LIMIT_S)

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic, and return its name; ``max_message_bytes="1000"`` sets ``max.message.bytes``."""
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        kafka_questions.ask(kafka_questions.create_topic(self.address, name, partitions, settings))
        return name

    def allow_writing(self, user: str, topic: str) -> None:
        """Let a user of the listener with SASL write to a topic."""
        kafka_questions.allow_writing(self.port, user, topic)

    def topics(self) -> set[str]:
        """The names of all topics."""
        return kafka_questions.ask(kafka_questions.topics(self.address))

    def records(self, topic: str) -> list[Any]:
        """All committed records of a topic, partition by partition, each as aiokafka's ``ConsumerRecord``."""
        return kafka_questions.ask(kafka_questions.records(self.address, topic))

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offsets that a group has committed, by partition; of a partition without one, 0."""
        return kafka_questions.ask(kafka_questions.committed(self.address, group, topic))

    def _keystore(self) -> Path:
        """Make the certificate, and the file with it and its key that Kafka reads."""
        key, both = self.folder / "key.pem", self.folder / "keystore.pem"
        subprocess.run(
            [
                needed("openssl", "openssl"), "req", "-x509", "-newkey", "ec",
                "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                "-days", "2", "-subj", "/CN=kafka", "-addext", "subjectAltName=IP:127.0.0.1",
                "-keyout", str(key), "-out", str(self.certificate),
            ],
            check=True, capture_output=True, timeout=30,
        )  # fmt: skip
        both.write_bytes(key.read_bytes() + self.certificate.read_bytes())
        return both

    def _format(self) -> None:
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*self._java, "kafka.tools.StorageTool", "format"]
        command += ["-t", f"k{identity[1:]}", "-c", str(self._settings)]
        for name, password in PASSWORDS.items():
            command += ["--add-scram", f"SCRAM-SHA-256=[name={name},password={password},iterations=4096]"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=START_LIMIT_S)
        assert done.returncode == 0, f"Kafka's folder can't be formatted:\n{done.stdout}{done.stderr}"

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.is_running, f"Kafka has ended:\n{self.output}"
        return kafka_questions.has_broker(self.port)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.signal(number)


@pytest.fixture(scope="session")
def kafka_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """The one broker of a test session."""
    server = Kafka(tmp_path_factory.mktemp("kafka"))
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture
def kafka(kafka_of_session: Kafka) -> Iterator[Kafka]:
    """A broker that runs, with the topics of earlier tests; it runs again after a test that has stopped it."""
    kafka_of_session.restore()
    yield kafka_of_session
    kafka_of_session.restore()
