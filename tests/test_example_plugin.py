"""The example plugin as its user meets it: built, pip-installed into a fresh environment, configured, and running."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from core_harness.brokers import BrokerProcess, run_command, running_broker
from spi_harness.processes import environment

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("spi", "core", "plugins/example_guard")
LIMIT_S = 20.0
NO_MATCHING_SUBSCRIBERS = 0x10

SETTINGS = """\
[broker]
sys_interval_s = 0.2

[plugins.example_guard]
deny = ["secret/#"]
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment into which only wheels were installed."""
    place = tmp_path_factory.mktemp("fresh")
    wheels = place / "wheels"
    # The tests' own setuptools builds them, from copies: a build leaves files in its source folder.
    # Without the compiler, which takes minutes: what it makes is what test_packaging is about.
    options = ("-q", "--no-deps", "--no-build-isolation", "-w", str(wheels))
    _run(sys.executable, "-m", "pip", "wheel", *options, *_copies(place / "sources"), KINMQTT_PURE="1")
    _run(sys.executable, "-m", "venv", str(place / "env"))
    commands = place / "env" / "bin"
    _run(str(commands / "python"), "-m", "pip", "install", "-q", *map(str, sorted(wheels.glob("*.whl"))))
    return commands


def _copies(place: Path) -> list[str]:
    leave_out = shutil.ignore_patterns("*.egg-info", "__pycache__", "build", "dist", "dropin.cache")
    return [str(shutil.copytree(ROOT / folder, place / folder, ignore=leave_out)) for folder in DISTRIBUTIONS]


def _run(*command: str, **changes: str) -> None:
    surroundings = environment(**changes)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=surroundings)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def _kinmqtt(fresh: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, program=[str(fresh / "kinmqtt")])


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A settings file that gives the plugin something to guard."""
    path = tmp_path / "kinmqtt.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    return path


@contextmanager
def _running(fresh: Path, *arguments: str) -> Iterator[BrokerProcess]:
    """A broker of the fresh environment, from its first listening to its stop in good order."""

    def command(port: int, *arguments: str) -> list[str]:
        return [str(fresh / "kinmqtt"), "run", "--listen", f"tcp:{port}:interface=127.0.0.1", *arguments]

    with running_broker(*arguments, command=command) as broker:
        yield broker


@pytest.fixture
def guarded(fresh: Path, settings: Path) -> Iterator[BrokerProcess]:
    """A broker with the plugin."""
    with _running(fresh, "-c", str(settings)) as broker:
        yield broker


class Client:
    """An MQTT 5 client that remembers what it is told."""

    def __init__(self, port: int, will: str | None = None) -> None:
        self._news = threading.Condition()
        self._messages: list[tuple[str, bytes | bytearray]] = []
        self._reasons: dict[int, int] = {}
        self._granted = 0
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = lambda client, data, message: self._note_message(message)
        self._client.on_publish = lambda client, data, mid, reason, properties: self._note_reason(mid, reason.value)
        self._client.on_subscribe = lambda *told: self._note_granted()
        if will is not None:
            self._client.will_set(will, b"will", qos=1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def subscribe(self, *filters: str) -> None:
        """Subscribe, and wait for the SUBACK."""
        self._client.subscribe([(filter, 1) for filter in filters])
        self._wait(lambda: self._granted > 0)

    def publish(self, topic: str, payload: bytes) -> int:
        """Publish with QoS 1; the reason code of the PUBACK."""
        mid = self._client.publish(topic, payload, qos=1).mid
        self._wait(lambda: mid in self._reasons)
        return self._reasons[mid]

    def wait_for(self, topic: str, payload: bytes) -> None:
        """Wait for a message."""
        self._wait(lambda: (topic, payload) in self._messages)

    def topics(self) -> set[str]:
        """The topics of all messages so far."""
        with self._news:
            return {topic for topic, _ in self._messages}

    def vanish(self) -> None:
        """Lose the connection without a DISCONNECT, once it stands."""
        self.subscribe("vanishing")
        self._client.loop_stop()
        connection = self._client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(condition, LIMIT_S), "what was waited for did not come"

    def _note_message(self, message: paho.MQTTMessage) -> None:
        with self._news:
            self._messages.append((message.topic, message.payload))
            self._news.notify_all()

    def _note_reason(self, mid: int, reason: int) -> None:
        with self._news:
            self._reasons[mid] = reason
            self._news.notify_all()

    def _note_granted(self) -> None:
        with self._news:
            self._granted += 1
            self._news.notify_all()


def test_the_plugin_vetoes_and_counts(guarded: BrokerProcess) -> None:
    """A denied publish gets 0x87 and reaches nobody; others pass; the count is there for everybody in $SYS."""
    client = Client(guarded.port)
    client.subscribe("#", "$SYS/example_guard/vetoed")

    refused = client.publish("secret/plan", b"no")
    passed = client.publish("open/plan", b"yes")
    client.wait_for("open/plan", b"yes")
    client.wait_for("$SYS/example_guard/vetoed", b"1")
    topics = client.topics()
    client.close()

    assert (refused, passed) == (0x87, 0x00)
    assert "secret/plan" not in topics


def test_a_will_is_no_way_around(guarded: BrokerProcess) -> None:
    """A client's will to a denied topic is refused too; one to another topic is published."""
    client = Client(guarded.port)
    client.subscribe("#", "$SYS/example_guard/vetoed")

    Client(guarded.port, will="secret/will").vanish()
    client.wait_for("$SYS/example_guard/vetoed", b"1")
    Client(guarded.port, will="open/will").vanish()
    client.wait_for("open/will", b"will")
    topics = client.topics()
    client.close()

    assert "secret/will" not in topics


def test_the_plugin_is_listed_with_why(fresh: Path, settings: Path) -> None:
    """`kinmqtt plugins` shows where the plugin comes from, that it is used, and its hooks."""
    shown = _kinmqtt(fresh, "plugins", "-c", str(settings)).stdout

    assert "+ example_guard (kinmqtt-example-guard 0.1.0): named in the settings" in shown
    assert "publish_received" in shown.splitlines()[1]


def test_without_configuration_it_abstains(fresh: Path) -> None:
    """Installed and not configured, the plugin is out of the way, and the list says why."""
    done = _kinmqtt(fresh, "plugins")

    assert done.returncode == 0
    assert "- example_guard (kinmqtt-example-guard 0.1.0): not configured: " in done.stdout


def test_without_configuration_the_broker_starts_and_says_nothing_of_it(fresh: Path) -> None:
    """The broker runs without the plugin and lets every publish pass; only `kinmqtt plugins` says why."""
    with _running(fresh) as broker:
        client = Client(broker.port)
        passed = client.publish("secret/plan", b"yes")
        client.close()

    said = [line for line in broker.lines if "example_guard" in line]
    assert passed in (0x00, NO_MATCHING_SUBSCRIBERS)
    assert said == []


@pytest.mark.parametrize("command", ["run", "check", "plugins"])
def test_named_without_configuration_it_stops_the_broker(fresh: Path, tmp_path: Path, command: str) -> None:
    """A guard that the settings name and that can't act must not vanish quietly: one sentence, exit status 1."""
    path = tmp_path / "kinmqtt.toml"
    path.write_text('[plugins]\norder = ["example_guard"]\n', encoding="utf-8")

    done = _kinmqtt(fresh, command, "-c", str(path))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "'example_guard' is named in the settings but not configured" in done.stderr


def test_it_can_be_left_out(fresh: Path) -> None:
    """`-P no:example_guard` does without the plugin, and a broker so started has nothing to say of it."""
    shown = _kinmqtt(fresh, "plugins", "-P", "no:example_guard").stdout
    with _running(fresh, "-P", "no:example_guard") as broker:
        pass

    assert "- example_guard (kinmqtt-example-guard 0.1.0): disabled by the settings" in shown
    assert "example_guard" not in broker.output
