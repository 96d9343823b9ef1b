"""The load generator, ``mqload.c``: built where a compiler is, and run."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from brokers import Broker, Failed

SOURCE = Path(__file__).with_name("mqload.c")
LIMIT_S = 60.0
"""How long a run may take beyond what it was asked for."""


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

    def run(self, broker: Broker, arguments: str, seconds: float, door: str = "tcp", warm_s: float = 0.5) -> Any:
        """What a run has measured: the generator's own figures, and ``cpu_us`` of the broker for each message."""
        extra = {"tcp": [], "tls": ["-t"], "websocket": ["-x"]}[door]
        command = [str(self._program), "-p", str(broker.ports[door]), "-W", str(warm_s), "-d", str(seconds), *extra]
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
