"""The example plugin as its user meets it: built, pip-installed into a fresh environment, configured, and running."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from processes import BrokerProcess, environment, free_port, run_command

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("spi", "core", "plugins/example_guard")
LIMIT_S = 20.0

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
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), *_folders())
    _run(sys.executable, "-m", "venv", str(place / "env"))
    commands = place / "env" / "bin"
    _run(str(commands / "python"), "-m", "pip", "install", "-q", *map(str, sorted(wheels.glob("*.whl"))))
    return commands


def _folders() -> list[str]:
    return [str(ROOT / folder) for folder in DISTRIBUTIONS]


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def _kinmqtt(fresh: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, program=[str(fresh / "kinmqtt")])


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A settings file that gives the plugin something to guard."""
    path = tmp_path / "kinmqtt.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    return path


@pytest.fixture
def guarded(fresh: Path, settings: Path) -> Iterator[BrokerProcess]:
    """A broker with the plugin."""
    port = free_port()
    listen = f"tcp:{port}:interface=127.0.0.1"
    broker = BrokerProcess([str(fresh / "kinmqtt"), "run", "-c", str(settings), "--listen", listen], port)
    try:
        broker.wait_for_line("listening on ")
        yield broker
        broker.stop()
    finally:
        broker.end()


class Client:
    """An MQTT 5 client that remembers what it is told."""

    def __init__(self, port: int) -> None:
        self._news = threading.Condition()
        self._messages: list[tuple[str, bytes]] = []
        self._reasons: dict[int, int] = {}
        self._granted = 0
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._client.on_message = lambda client, data, message: self._note_message(message)
        self._client.on_publish = lambda client, data, mid, reason, properties: self._note_reason(mid, reason.value)
        self._client.on_subscribe = lambda *told: self._note_granted()
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

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def _wait(self, condition: object) -> None:
        with self._news:
            assert self._news.wait_for(condition, LIMIT_S), "what was waited for did not come"  # type: ignore[arg-type]

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


def test_named_without_configuration_it_stops_the_broker(fresh: Path, tmp_path: Path) -> None:
    """A guard that the settings name and that can't act must not vanish quietly: one sentence, exit status 1."""
    path = tmp_path / "kinmqtt.toml"
    path.write_text('[plugins]\norder = ["example_guard"]\n', encoding="utf-8")

    done = _kinmqtt(fresh, "check", "-c", str(path))

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "'example_guard' is named in the settings but not configured" in done.stderr


def test_it_can_be_left_out(fresh: Path, tmp_path: Path) -> None:
    """`-P no:example_guard` does without the plugin."""
    shown = _kinmqtt(fresh, "plugins", "-P", "no:example_guard").stdout

    assert "- example_guard (kinmqtt-example-guard 0.1.0): disabled by the settings" in shown
