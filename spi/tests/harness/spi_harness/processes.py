"""Real processes for tests: programs that run beside a test, and TCP ports that are free for them.

Nothing here sleeps, and every wait has a time limit.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path

TIME_LIMIT_S = 30.0
"""How long anything may take before a test gives up on it; nothing takes that long where all is well."""

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

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

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
