"""Real processes for tests: a broker as a person would start it, and commands that run to their end.

    with running_broker() as broker:
        ...  # broker.port takes connections
    # stopped by SIGTERM, exit status 0, nothing amiss in its log

Nothing here sleeps: a broker is there when it says so in its log, and every wait has a time limit.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

TIME_LIMIT_S = 30.0
"""How long anything may take before a test gives up on it; nothing takes that long where all is well."""

AMISS = re.compile(r"Traceback|[Ff]ailure|Unhandled|Unexpected|Warning:")
"""What never stands in the log of a sound broker."""

PORTS = range(20_000, 32_000)
"""Below the range from which systems take the ports of outgoing connections, which could be in the way."""

WORKERS = 12
"""So many test workers beside each other have ports of their own."""


def ports_of(worker: str) -> range:
    """The ports that a test worker gives out: what another one has chosen and nobody listens on yet is not free."""
    number = int(worker.removeprefix("gw") or 0)
    return PORTS[number % WORKERS :: WORKERS] if worker else PORTS


_own_ports = ports_of(os.environ.get("PYTEST_XDIST_WORKER", ""))
_ports = cycle(random.sample(_own_ports, len(_own_ports)))


def free_port() -> int:
    """A TCP port of the loopback interface on which nobody listens, and which was not given out lately."""
    for port in islice(_ports, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free TCP port was found")


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, without settings for a broker that a person may have exported."""
    plain = {name: value for name, value in os.environ.items() if not name.upper().startswith("KINMQTT")}
    # A test that wants to keep something says where; the others leave nothing behind.
    return plain | {"KINMQTT__BROKER__DATA": "memory"} | changes


def wait_until(condition: Callable[[], object], what: str, limit_s: float = TIME_LIMIT_S) -> None:
    """Wait for what can only be asked for, and fail with ``what`` where it does not come about."""
    end = time.monotonic() + limit_s
    asking = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s:g} s: {what}"
        asking.wait(0.01)


def run_command(
    *arguments: str,
    program: Sequence[str] = (sys.executable, "-m", "kinmqtt"),
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with standard output and standard error apart."""
    return subprocess.run(
        [*program, *arguments],
        input=input,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        cwd=cwd,
        env=dict(env) if env is not None else environment(),
        check=False,
    )


def script(name: str) -> str:
    """A command that is installed beside this interpreter."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"the command {name!r} is not installed beside {sys.executable}"
    return found


def needed(program: str, package: str) -> str:
    """The path of another project's program; without it a test fails instead of being passed over in silence."""
    # Daemons lie where only root's path leads.
    found = shutil.which(program, path=os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/sbin")
    assert found, f"{program} is not installed: `apt-get install {package}`, or `python3 dev.py install`"
    return found


class Process:
    """A process that runs beside the test, with its output by lines."""

    def __init__(
        self, command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.command = list(command)
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            cwd=cwd,
            env=dict(env) if env is not None else environment(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def output(self) -> str:
        """Everything it has said so far."""
        with self._news:
            return "\n".join(self.lines)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_for_line(self, pattern: str, count: int = 1, limit_s: float = TIME_LIMIT_S) -> list[str]:
        """The lines that match, once there are ``count`` of them."""
        expression = re.compile(pattern)
        with self._news:
            enough = self._news.wait_for(lambda: self._ended or len(self._matching(expression)) >= count, limit_s)
            found = self._matching(expression)
        assert enough and len(found) >= count, (
            f"{len(found)} lines of {count} match {pattern!r} in the output of {self.command}:\n{self.output}"
        )
        return found

    def _matching(self, expression: re.Pattern[str]) -> list[str]:
        return [line for line in self.lines if expression.search(line)]

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self, limit_s: float = TIME_LIMIT_S) -> int:
        """The exit status, once it has ended and all its output is here."""
        try:
            status = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} has not ended:\n{self.output}") from None
        self._reader.join(limit_s)
        return status

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(TIME_LIMIT_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


class BrokerProcess(Process):
    """A broker that runs, and the port on which it takes connections."""

    def __init__(self, command: Sequence[str], port: int, **options: object) -> None:
        super().__init__(command, **options)  # type: ignore[arg-type]
        self.port = port
        self.good_status = 0
        self._told = False

    def tell_to_stop(self) -> None:
        """Ask it to stop, as an operator does; it is asked once only."""
        if not self._told:
            self._told = True
            self.signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop it, and look whether it went in good order."""
        self.tell_to_stop()
        status = self.wait()
        assert status == self.good_status, f"the broker ended with status {status}:\n{self.output}"
        amiss = [line for line in self.lines if AMISS.search(line)]
        assert not amiss, f"the broker's log has {amiss[0]!r}:\n{self.output}"


def broker_command(port: int, *arguments: str) -> list[str]:
    """``kinmqtt run`` on a port of the loopback interface."""
    endpoint = f"tcp:{port}:interface=127.0.0.1"
    return [sys.executable, "-m", "kinmqtt", "run", "--listen", endpoint, "--data", "memory", *arguments]


def twistd_command(port: int, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """``twistd kinmqtt`` on a port of the loopback interface; ``options`` are twistd's own."""
    endpoint = f"tcp:{port}:interface=127.0.0.1"
    return [script("twistd"), "-n", "--pidfile=", *options, "kinmqtt", "--listen", endpoint, *arguments]


@contextmanager
def running_broker(
    *arguments: str,
    command: Callable[..., list[str]] = broker_command,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[BrokerProcess]:
    """A broker, from its first listening to its stop in good order; a test that fails has its log."""
    port = free_port()
    broker = BrokerProcess(command(port, *arguments), port, cwd=cwd, env=env)
    if "twistd" in Path(broker.command[0]).name:
        # What stopped it in good order is how twistd says how it ended.
        broker.good_status = -signal.SIGTERM
    try:
        broker.wait_for_line(r"listening on ")
        yield broker
        broker.stop()
    except BaseException:
        print(f"The log of the broker on port {port}:\n{broker.output}")
        raise
    finally:
        broker.end()
