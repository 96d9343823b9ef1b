"""`twistd kinmqtt`, in processes of its own."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from core_harness.brokers import BrokerProcess, run_command, running_broker, twistd_command
from core_harness.surroundings import Surroundings
from core_harness.wire import wire
from kinmqtt.mqtt.packets import V5, DisconnectPacket
from kinmqtt_spi.reasons import ReasonCode
from spi_harness.processes import free_port, script


@pytest.fixture
def surroundings(tmp_path: Path) -> Surroundings:
    """A watch on what listens."""
    return Surroundings(tmp_path)


def refused(surroundings: Surroundings, cwd: Path, *arguments: str) -> str:
    """What twistd says where the broker must not start."""
    done = run_command(
        *arguments,
        program=[script("twistd"), "-n", "--pidfile=", "kinmqtt"],
        cwd=cwd,
        env=surroundings.environment,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "Traceback" not in said
    assert surroundings.bound_ports == []
    return said


def test_it_runs_on_the_asyncio_reactor_by_itself() -> None:
    """Without a choice of reactor the broker runs on asyncio's, and serves."""
    with running_broker(command=twistd_command) as broker, wire(broker.port, "client") as client:
        client.ping()
        assert "asyncio reactor" in broker.output


def test_the_operator_s_reactor_is_used() -> None:
    """`twistd --reactor` is respected."""

    def command(port: int) -> list[str]:
        return twistd_command(port, options=["--reactor=select"])

    with running_broker(command=command) as broker, wire(broker.port, "client") as client:
        client.subscribe("a")
        client.ping()
        assert "SelectReactor reactor" in broker.output


def test_sigterm_ends_it_in_good_order() -> None:
    """SIGTERM tells MQTT 5 clients that the server shuts down; twistd ends with that signal, as it always does."""
    with running_broker(command=twistd_command) as broker, wire(broker.port, "client", V5) as client:
        broker.tell_to_stop()

        assert client.expect(DisconnectPacket).reason is ReasonCode.SERVER_SHUTTING_DOWN
        assert client.receive() is None
        assert broker.wait() == -signal.SIGTERM


def test_help() -> None:
    """`twistd kinmqtt --help` shows the broker's options."""
    done = run_command("kinmqtt", "--help", program=[script("twistd")])

    assert (done.returncode, done.stderr) == (0, "")
    for option in ("--config=", "--listen=", "--data=", "--allow-anonymous"):
        assert option in done.stdout


USAGE = [
    ("unknown-table", "[brokr]\n", (), "k.toml:1:2: brokr: unknown table; did you mean 'broker'?"),
    ("wrong-type", "[broker]\nlisten = 5\n", (), "k.toml:2:10: broker.listen: expected a list"),
    ("bad-toml", "[broker\n", (), "k.toml:1:8: "),
    ("data-nowhere", "", ("--data", ""), "--data: name a directory, or memory"),
]


@pytest.mark.parametrize(("settings", "arguments", "message"), [row[1:] for row in USAGE], ids=[r[0] for r in USAGE])
def test_a_mistake_in_the_settings(
    surroundings: Surroundings, tmp_path: Path, settings: str, arguments: tuple[str, ...], message: str
) -> None:
    """A mistake is shown in one line, without the usage, with exit status 1."""
    (tmp_path / "k.toml").write_text(settings)

    said = refused(surroundings, tmp_path, "-c", "k.toml", *arguments)

    assert said.startswith(f"kinmqtt: {message}") and len(said.splitlines()) == 1


def test_an_unknown_option_is_shown_below_the_usage(surroundings: Surroundings, tmp_path: Path) -> None:
    """A mistake in usage is told as twistd has it."""
    said = refused(surroundings, tmp_path, "--bogus")

    assert ": option --bogus not recognized" in said.splitlines()[-1]


def test_a_missing_file(surroundings: Surroundings, tmp_path: Path) -> None:
    """A settings file that isn't there is named, in one line."""
    said = refused(surroundings, tmp_path, "-c", "missing.toml")

    assert said == "kinmqtt: missing.toml: there is no such file\n"


ASSEMBLY = [
    ("unknown-plugin", "[plugins.redis]\n", (), "k.toml:1: plugins.redis: no plugin named 'redis' is installed"),
    ("bad-endpoint", "", ("--listen", "tcp:x"), "--listen: 'tcp:x' is not an endpoint ("),
    ("beyond-loopback", "", ("--listen", "1883"), "the broker would listen beyond loopback"),
]


@pytest.mark.parametrize(
    ("settings", "arguments", "message"), [row[1:] for row in ASSEMBLY], ids=[row[0] for row in ASSEMBLY]
)
def test_a_mistake_in_the_assembly(
    surroundings: Surroundings, tmp_path: Path, settings: str, arguments: tuple[str, ...], message: str
) -> None:
    """What can't hold is told in one line and nothing else, with exit status 1."""
    (tmp_path / "k.toml").write_text(settings)

    said = refused(surroundings, tmp_path, "-c", "k.toml", *arguments)

    assert said.startswith(f"kinmqtt: {message}")
    assert said.count("\n") == 1


def test_a_port_in_use(tmp_path: Path) -> None:
    """A port in use ends twistd with status 1 and one message in its log, no traceback and no pidfile left."""
    pidfile = tmp_path / "twistd.pid"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        others = ["--listen", f"127.0.0.1:{free_port()}"]
        broker = BrokerProcess(twistd_command(port, *others, options=[f"--pidfile={pidfile}"]), port)
        try:
            assert broker.wait() == 1
        finally:
            broker.end()

    messages = [line.partition("kinmqtt: ")[2] for line in broker.lines if "kinmqtt: " in line]
    assert len(messages) == 1
    assert f"can't listen on 'tcp:{port}:interface=127.0.0.1" in messages[0]
    assert "Traceback" not in broker.output
    assert "listening on" not in broker.output
    assert not pidfile.exists()
