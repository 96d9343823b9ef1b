"""The brokers that are measured: how each is started, and what its process has used."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 30.0
"""How long a broker may take until it listens."""

DOORS = ("tcp", "tls", "websocket")


class Failed(Exception):
    """Something could not be measured; the text says what and why."""


class Broker:
    """A broker's process, and the ports it listens on by the name of the door."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], ports: dict[str, int], log: Path) -> None:
        self.name = name
        self.ports = ports
        self._process = process
        self._log = log

    @property
    def port(self) -> int:
        """The port for plain TCP."""
        return self.ports["tcp"]

    @property
    def cpu_s(self) -> float:
        """The CPU time it has used, user and system, in seconds."""
        return _cpu_s(self._process.pid)

    @property
    def resident_bytes(self) -> int:
        """The memory it has."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def output(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-2000:]

    def wait(self, pace_s: float = 0.05) -> None:
        """Wait until it listens; raises :class:`Failed` with the end of its log where it does not.

        ``pace_s`` is how often that is tried.
        """
        until = time.monotonic() + PATIENCE_S
        for port in self.ports.values():
            while True:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise Failed(f"{self.name} does not listen on {port}:\n{self.output}")
                try:
                    socket.create_connection(("127.0.0.1", port), 0.5).close()
                    break
                except OSError:
                    time.sleep(pace_s)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class Redis:
    """A Redis that keeps its state in memory."""

    def __init__(self, process: subprocess.Popen[bytes], socket: Path) -> None:
        self._process = process
        self.socket = socket

    @property
    def cpu_s(self) -> float:
        """The CPU time it has used, user and system, in seconds."""
        return _cpu_s(self._process.pid)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Kind(NamedTuple):
    """A broker that is there."""

    name: str
    version: str
    command: Callable[[Path, dict[str, int], str], list[str]]
    """The command, for a folder to write settings to, the ports, and what is kept: ``memory``, ``commit``,
    ``fsync`` or ``redis``."""
    doors: tuple[str, ...] = DOORS


def found() -> list[Kind]:
    """The brokers that are installed; kinmqtt first."""
    kinds = [Kind("kinmqtt", _kinmqtt_version(), _kinmqtt)]
    mosquitto = _which("mosquitto")
    if mosquitto is not None:
        said = subprocess.run([mosquitto, "-h"], capture_output=True, text=True, check=False).stdout
        kinds.append(Kind("mosquitto", said.split("\n")[0].split()[-1], _mosquitto))
    amqtt = _which("amqtt")
    if amqtt is not None:
        said = subprocess.run([amqtt, "--version"], capture_output=True, text=True, check=False).stdout
        kinds.append(Kind("amqtt", said.strip().split()[-1] if said.strip() else "?", _amqtt, ("tcp",)))
    return kinds


@contextmanager
def running(kinds: list[Kind], doors: tuple[str, ...] = ("tcp",), keeps: str = "memory") -> Iterator[list[Broker]]:
    """Those of the brokers that have the doors, all of them at once: what they do not do costs nothing."""
    with ExitStack() as stack:
        brokers = []
        for kind in kinds:
            if set(doors) <= set(kind.doors):
                brokers.append(start(kind, stack, doors, keeps))
        yield brokers


def start(
    kind: Kind,
    stack: ExitStack,
    doors: tuple[str, ...] = ("tcp",),
    keeps: str = "memory",
    path: Path | str | None = None,
    wait: bool = True,
    settings: str = "",
) -> Broker:
    """Start a broker, which ends with the stack; with a ``path`` more Python distributions are found there.

    ``settings`` are added to those of kinmqtt.
    """
    folder = Path(
        stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{kind.name}-", ignore_cleanup_errors=True))
    )
    ports = dict(zip(doors, free_ports(len(doors)), strict=True))
    if set(doors) & {"tls"}:
        _certify(folder)
    log = folder / "log"
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = kind.command(folder, ports, keeps)
    if settings:
        with (folder / "kinmqtt.toml").open("a") as file:
            file.write(settings)
    if keeps == "redis" and kind.name == "kinmqtt":
        stack.enter_context(redis(folder))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=folder, env=environment
        )
    broker = Broker(kind.name, process, ports, log)
    stack.callback(broker.stop)
    if wait:
        broker.wait()
    return broker


def has_redis() -> bool:
    """Whether sessions can be kept in Redis here."""
    return _which("redis-server") is not None and find_spec("kinmqtt_redis_session") is not None


@contextmanager
def redis(folder: Path) -> Iterator[Redis]:
    """A Redis on the Unix socket ``redis.sock`` in the folder."""
    command = [_which("redis-server") or "redis-server", "--port", "0", "--unixsocket", "redis.sock", "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, cwd=folder)
    try:
        until = time.monotonic() + 10
        while not (folder / "redis.sock").exists():
            if time.monotonic() > until or process.poll() is not None:
                raise Failed("redis-server does not start")
            time.sleep(0.01)
        yield Redis(process, folder / "redis.sock")
    finally:
        process.terminate()
        process.wait()


def _which(name: str) -> str | None:
    """A program, also where Debian has those that run for themselves."""
    return shutil.which(
        name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
    )


def free_ports(number: int) -> list[int]:
    """Some ports of the loopback interface on which nobody listens.

    They are below those that the system gives to outgoing connections: a broker starts some time later.
    """
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 12_000):
        if len(found) == number:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found


def _certify(folder: Path) -> None:
    """A key and a certificate for loopback, signed by itself: ECDSA, as public authorities give them today."""
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1 "
        "-keyout key.pem -out certificate.pem"
    )
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    (folder / "key.pem").chmod(0o644)


def _kinmqtt_version() -> str:
    command = [sys.executable, "-m", "kinmqtt", "version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().partition(" ")[2]


def _kinmqtt(folder: Path, ports: dict[str, int], keeps: str) -> list[str]:
    data = "data" if keeps in ("commit", "fsync") else "memory"
    lines = ["[broker]", f'data = "{data}"']
    for door, port in ports.items():
        lines += [f"[listeners.{door}]", f'endpoint = "tcp:{port}:interface=127.0.0.1"']
        if door == "tls":
            lines += ["[listeners.tls.tls]", 'certificate = "certificate.pem"', 'private_key = "key.pem"']
        elif door == "websocket":
            lines += ["[listeners.websocket.websocket]", 'path = "/mqtt"']
    if keeps == "redis":
        lines += ["[plugins.redis_session]", 'socket = "redis.sock"']
    elif keeps != "memory":
        lines += ["[plugins.embedded]", f'durability = "{keeps}"']
    (folder / "kinmqtt.toml").write_text("\n".join(lines) + "\n")
    return [sys.executable, "-m", "kinmqtt", "run", "-c", "kinmqtt.toml", "--log-level", "error"]


def _mosquitto(folder: Path, ports: dict[str, int], keeps: str) -> list[str]:
    lines = ["per_listener_settings false", "persistence false", "max_queued_messages 0", "max_inflight_messages 0"]
    lines += ["set_tcp_nodelay true", "log_dest stderr", "log_type error"]
    for door, port in ports.items():
        lines += [f"listener {port} 127.0.0.1"]
        if door == "tls":
            lines += [f"certfile {folder}/certificate.pem", f"keyfile {folder}/key.pem"]
        elif door == "websocket":
            lines += ["protocol websockets"]
    lines += ["allow_anonymous true"]
    (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    folder.chmod(0o755)
    return [_which("mosquitto") or "mosquitto", "-c", str(folder / "mosquitto.conf")]


def _amqtt(folder: Path, ports: dict[str, int], keeps: str) -> list[str]:
    (folder / "amqtt.yaml").write_text(
        f"listeners:\n  default:\n    type: tcp\n    bind: 127.0.0.1:{ports['tcp']}\n    max_connections: 20000\n"
        "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n    allow_anonymous: true\n"
    )
    return [_which("amqtt") or "amqtt", "-c", str(folder / "amqtt.yaml")]
