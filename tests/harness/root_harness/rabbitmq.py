"""A real RabbitMQ for tests: one node for a test session, ended by its process id, with all of its files in a folder.

    def test(rabbitmq: RabbitMQ) -> None:
        rabbitmq.declare("readings")
        ...  # rabbitmq.address takes connections of guest
        assert [message.body for message in rabbitmq.take("readings")] == [b"1"]

This module is a plugin of pytest, which conftest.py at the root names. It imports pika only when it is used.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from spi_harness.processes import Process, environment, free_port, needed, wait_until

START_LIMIT_S: Final = 120.0
"""How long a start may take; 5 to 10 s where nothing else runs."""

PROGRAMS: Final = Path("/usr/lib/rabbitmq/bin")
"""The programs themselves: those in /usr/sbin run as the user of the package's service, in its folders."""

_CONFIGURATION: Final = """\
loopback_users = none
heartbeat = 60
vm_memory_high_watermark.absolute = 4GB
disk_free_limit.absolute = 1MB
"""


class Taken(NamedTuple):
    """A message that was taken from a queue."""

    body: bytes
    properties: Any
    routing_key: str
    redelivered: bool


class RabbitMQ:
    """A node that runs, can be paused, killed and started again over what it has stored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._epmd_port, self.port, distribution = (free_port() for _ in range(3))
        self.node = f"kinmqtt-{os.getpid()}-{self.port}@localhost"
        (folder / "plugins").write_text("[].\n")
        (folder / "env.conf").write_text("")
        (folder / "rabbitmq.conf").write_text(_CONFIGURATION)
        self._environment = environment(
            HOME=str(folder),
            ERL_EPMD_PORT=str(self._epmd_port),
            ERL_EPMD_ADDRESS="127.0.0.1",
            RABBITMQ_NODENAME=self.node,
            RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
            RABBITMQ_NODE_PORT=str(self.port),
            RABBITMQ_DIST_PORT=str(distribution),
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 1:1 +sbwt none",
            RABBITMQ_MNESIA_BASE=str(folder / "data"),
            RABBITMQ_LOG_BASE=str(folder / "log"),
            RABBITMQ_LOGS="-",
            RABBITMQ_ENABLED_PLUGINS_FILE=str(folder / "plugins"),
            RABBITMQ_PID_FILE=str(folder / "pid"),
            RABBITMQ_CONFIG_FILE=str(folder / "rabbitmq"),
            RABBITMQ_ADVANCED_CONFIG_FILE=str(folder / "advanced.config"),
            RABBITMQ_CONF_ENV_FILE=str(folder / "env.conf"),
            # Its standard input is then an Erlang shell, and its process is the one that was started.
            RABBITMQ_ALLOW_INPUT="yes",
        )
        self._epmd: Process | None = None
        self._process: Process | None = None
        self._answers = 0
        self._taking: Any = None
        self._paused = False

    @property
    def address(self) -> str:
        """Where it takes connections."""
        return f"127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        """What it has said."""
        return "" if self._process is None else self._process.output

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        if self._epmd is None:
            # A node would start it as a daemon, which nobody ends.
            self._epmd = Process([needed("epmd", "rabbitmq-server")], env=self._environment)
        program = needed(str(PROGRAMS / "rabbitmq-server"), "rabbitmq-server")
        self._process = Process([program], cwd=self.folder, env=self._environment)
        self._paused = False
        self._process.wait_for_line("Server startup complete", limit_s=START_LIMIT_S)

    def pause(self) -> None:
        """Have it stand still: connections stay, and nothing is answered."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def go_on(self) -> None:
        """Let it go on with what has come meanwhile."""
        self._signal(signal.SIGCONT)
        self._paused = False

    def kill(self) -> None:
        """Kill it; what it has stored stays."""
        self._signal(signal.SIGKILL)
        self._forget()

    def stop(self) -> None:
        """Stop it in order, as its service would be."""
        self._signal(signal.SIGTERM)
        self._forget()

    def restore(self) -> None:
        """Have it run again, whatever a test has done to it."""
        if self._process is None or not self._process.is_running:
            self.start()
        elif self._paused:
            self.go_on()

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        self._forget_taking()
        for each in (self._process, self._epmd):
            if each is not None:
                each.end()
        self._process = self._epmd = None

    # Questions and orders

    def evaluate(self, expressions: str) -> str:
        """Evaluate Erlang in the node; returns the value as Erlang writes it."""
        assert self._process is not None
        self._answers += 1
        # Each rabbitmqctl would take a second to start.
        expressions = f'io:format("~nanswer {self._answers} ~0p~n", [catch (fun() -> {expressions} end)()]).'
        self._process.say(expressions)
        [line] = self._process.wait_for_line(f"^answer {self._answers} ")
        value = line.split(" ", 2)[2]
        assert "EXIT" not in value, f"{expressions}: {value}"
        return value

    def left(self, queue: str) -> int:
        """How many messages a classic queue has, delivered ones that are not acknowledged included."""
        return self._number(queue, "messages")

    def consumers(self, queue: str) -> int:
        """How many consumers a queue has."""
        return self._number(queue, "consumers")

    def _number(self, queue: str, what: str) -> int:
        found = self.evaluate(
            f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)), '
            f"[{{{what}, N}}] = rabbit_amqqueue:info(Q, [{what}]), N"
        )
        return int(found)

    def add_user(self, name: str, password: str, *, may: str = ".*") -> None:
        """Add a user, or change its password; ``may`` is the pattern of what it may configure, write and read."""
        self.evaluate(
            f'case rabbit_auth_backend_internal:exists(<<"{name}">>) of '
            f'false -> rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"{password}">>, <<"test">>); '
            f'true -> rabbit_auth_backend_internal:change_password(<<"{name}">>, <<"{password}">>, <<"test">>) end, '
            f'rabbit_auth_backend_internal:set_permissions(<<"{name}">>, <<"/">>, <<"{may}">>, <<"{may}">>, '
            f'<<"{may}">>, <<"test">>)'
        )

    def set_memory_alarm(self, on: bool) -> None:
        """Have it block those who publish, or not, as ``rabbitmqctl set_vm_memory_high_watermark`` does."""
        self.evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({{absolute, {1 if on else 4 << 30}}})")
        state = "[]" if not on else "memory"
        wait_until(lambda: state in self.evaluate("rabbit_alarm:get_alarms()"), f"the alarm is {on}")

    def listen_with_tls(self, certificate: tuple[Path, Path], clients: Path | None = None) -> str:
        """Take encrypted connections too; returns where. ``clients`` is what signs the certificates of clients."""
        port = free_port()
        options = f'{{certfile, "{certificate[0]}"}}, {{keyfile, "{certificate[1]}"}}'
        if clients is not None:
            options += f', {{cacertfile, "{clients}"}}, {{verify, verify_peer}}, {{fail_if_no_peer_cert, true}}'
        self.evaluate(
            "{ok, _} = application:ensure_all_started(ssl), "
            f'rabbit_networking:start_ssl_listener({{"127.0.0.1", {port}, inet}}, [{options}], 1)'
        )
        return f"127.0.0.1:{port}"

    def connections(self) -> int:
        """How many connections it has."""
        return int(self.evaluate("length(rabbit_networking:connections())"))

    def channel(self) -> Any:
        """A blocking channel of pika, whose connection the caller closes."""
        import pika

        parameters = pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0)
        return pika.BlockingConnection(parameters).channel()

    def declare(self, queue: str, exchange: str = "", *keys: str, **arguments: Any) -> str:
        """Create a durable queue, classic unless told otherwise, bound to a topic exchange; returns its name."""
        channel = self.channel()
        channel.queue_declare(queue, durable=True, arguments={k.replace("_", "-"): v for k, v in arguments.items()})
        if exchange:
            channel.exchange_declare(exchange, "topic", durable=True)
            for key in keys or ("#",):
                channel.queue_bind(queue, exchange, key)
        channel.connection.close()
        # RabbitMQ writes where a quorum queue has its log some seconds later: one that is killed before has lost it.
        self.evaluate("[dets:sync(Table) || Table <- dets:all()]")
        return queue

    def take(self, queue: str) -> list[Taken]:
        """Take everything that a queue has to give. A quorum queue gives nothing for a while after a start."""
        import pika.exceptions

        found: list[Taken] = []

        def has_taken() -> bool:
            try:
                self._take(queue, found)
            except pika.exceptions.AMQPError:
                return False
            return True

        wait_until(has_taken, f"the queue {queue} answers", START_LIMIT_S)
        return found

    def _take(self, queue: str, found: list[Taken]) -> None:
        if self._taking is None or self._taking.is_closed:
            self._forget_taking()
            self._taking = self.channel()
        channel = self._taking
        while count := channel.queue_declare(queue, passive=True).method.message_count:
            # Each basic_get of a quorum queue would take milliseconds.
            count = min(count, 10_000)
            channel.basic_qos(prefetch_count=count)
            for method, properties, body in channel.consume(queue):
                found.append(Taken(body, properties, method.routing_key, method.redelivered))
                count -= 1
                if not count:
                    break
            # In this order: what came after an acknowledgement would go back, to another place in the queue.
            channel.cancel()
            channel.basic_ack(method.delivery_tag, multiple=True)

    def purge(self, queue: str) -> int:
        """Delete everything that a queue has, and return how many messages that were."""
        channel = self.channel()
        count = int(channel.queue_purge(queue).method.message_count)
        channel.connection.close()
        return count

    def put(self, queue: str, bodies: list[bytes], properties: Any = None) -> None:
        """Put messages into a queue, and wait until it has them."""
        channel = self.channel()
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", queue, body, properties, mandatory=True)
        channel.connection.close()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.signal(number)

    def _forget(self) -> None:
        assert self._process is not None
        self._process.wait(START_LIMIT_S)
        self._process.end()
        self._process = None
        self._forget_taking()

    def _forget_taking(self) -> None:
        if self._taking is not None:
            with suppress(Exception):  # The node may be gone.
                self._taking.connection.close()
        self._taking = None


@pytest.fixture(scope="session")
def rabbitmq_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """The one node of a test session."""
    server = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    try:
        server.start()
        yield server
    finally:
        server.end()


@pytest.fixture
def rabbitmq(rabbitmq_of_session: RabbitMQ) -> Iterator[RabbitMQ]:
    """A node that runs, with the queues of earlier tests; it runs again after a test that has stopped it."""
    rabbitmq_of_session.restore()
    yield rabbitmq_of_session
    rabbitmq_of_session.restore()
