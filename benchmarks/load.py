"""The load generator, ``mqload.c``: built where a compiler is, and run."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brokers import Broker, Failed

SOURCE = Path(__file__).with_name("mqload.c")
LIMIT_S = 60.0
"""How long a run may take beyond what it was asked for."""


class Tick(NamedTuple):
    """What had happened at a moment of a run."""

    at_s: float
    """The time since the measurement began."""
    received: int
    """The messages that subscribers had received."""
    cpu_s: tuple[float, ...]
    """The CPU time that was used, in seconds, by whoever the caller looks at."""


class Watched(NamedTuple):
    """A run that was looked at while it lasted."""

    row: dict[str, Any]
    """The generator's own figures."""
    ticks: list[Tick]
    pid: int
    """The generator's process, whose clients are named after it."""

    def cpu_us(self, whose: int = 0) -> float:
        """The CPU time of a received message, in microseconds."""
        first, last = self.ticks[0], self.ticks[-1]
        return (last.cpu_s[whose] - first.cpu_s[whose]) * 1e6 / max(1, last.received - first.received)


class Load:
    """The built generator."""

    def __init__(self) -> None:
        """Build it. Raises :class:`Failed` where there is no compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise Failed("the load generator is written in C: install a compiler (on Debian: apt-get install gcc)")
        self._program = Path(tempfile.mkdtemp(prefix="mqload-")) / "mqload"
        plain = [compiler, "-O2", "-o", str(self._program), str(SOURCE)]
        tls = [*plain[:2], "-DTLS", *plain[2:], "-lssl", "-lcrypto"]
        self.has_tls = subprocess.run(tls, capture_output=True, check=False).returncode == 0
        """Whether OpenSSL's headers are there (on Debian: libssl-dev)."""
        if not self.has_tls:
            subprocess.run(plain, check=True)

    def command(self, broker: Broker, door: str = "tcp") -> list[str]:
        """The beginning of a command: the program, and where the broker is."""
        return [str(self._program), "-p", str(broker.ports[door])]

    def run(self, broker: Broker, arguments: str, seconds: float, door: str = "tcp", warm_s: float = 0.5) -> Any:
        """What a run has measured: the generator's own figures, and ``cpu_us`` of the broker for each message."""
        extra = {"tcp": [], "tls": ["-t"], "websocket": ["-x"]}[door]
        command = [*self.command(broker, door), "-W", str(warm_s), "-d", str(seconds), *extra]
        before = broker.cpu_s
        try:
            done = subprocess.run(
                [*command, *arguments.split()], capture_output=True, text=True, timeout=seconds + LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"{broker.name}: {arguments}: timed out") from None
        if done.returncode:
            raise Failed(f"{broker.name}: {arguments}: {done.stderr.strip()[-200:]}")
        row = json.loads(done.stdout)
        if row.get("recv_per_s"):
            row["cpu_us"] = (broker.cpu_s - before) * 1e6 / (row["recv_per_s"] * (seconds + warm_s))
        return row

    def idle(self, broker: Broker, connections: int, hold_s: float, subscribe: bool) -> subprocess.Popen[str]:
        """Open idle connections and hold them; the first line that comes is how long that took."""
        command = [str(self._program), "-p", str(broker.port), "-I", str(connections), "-d", str(hold_s)]
        return subprocess.Popen([*command, *(["-b"] if subscribe else [])], stdout=subprocess.PIPE, text=True)

    def watch(
        self,
        publishers: Sequence[int],
        subscribers: Sequence[int],
        arguments: str,
        seconds: float,
        look: Callable[[float], tuple[float, ...]],
        interval_s: float | None = None,
        warm_s: float = 0.5,
    ) -> Watched:
        """Run with clients at several ports, and look at the CPU time when the measurement begins and at its end.

        ``look`` gets the time since the beginning; with an interval it is also called in between. Raises
        :class:`Failed` if a message was lost or came out of order.
        """
        places = [
            option for name, ports in (("-p", publishers), ("-A", subscribers)) for option in (name, _list(ports))
        ]
        times = ["-W", str(warm_s), "-d", str(seconds), "-i", str(interval_s or seconds)]
        process = subprocess.Popen(
            [str(self._program), *places, *times, *arguments.split()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        limit = threading.Timer(warm_s + seconds + LIMIT_S, process.kill)
        limit.start()
        ticks: list[Tick] = []
        row: dict[str, Any] = {}
        with process:
            assert process.stdout is not None and process.stderr is not None
            for line in process.stdout:
                row = json.loads(line)
                if "at" in row:
                    ticks.append(Tick(row["at"], row["received"], look(row["at"])))
            said = process.stderr.read()
        limit.cancel()
        if process.returncode or len(ticks) < 2:
            raise Failed(f"{arguments}: exit status {process.returncode}: {said.strip()[-200:]}")
        if row["lost"] or row["reordered"]:
            raise Failed(f"{arguments}: {row['lost']} lost, {row['reordered']} reordered")
        return Watched(row, ticks, process.pid)


def _list(ports: Sequence[int]) -> str:
    return ",".join(map(str, ports))
