"""One broker of a cluster under test: a process that is started again and again, maybe on a host of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from akka_harness.certificates import Authority
from kinmqtt_akka_like_cluster.control import ask
from kinmqtt_spi.errors import SpiError
from root_harness.cluster_clients import Streams
from root_harness.cluster_network import Host
from spi_harness.processes import environment, free_port

KINMQTT: Final = ("-m", "kinmqtt")
"""What Python runs as a broker: the beginning of its command line."""
PROXY: Final = Path(__file__).with_name("cluster_proxy.py")
CLUSTER_PORT: Final = 4883
"""Of each host: nothing else listens there."""

SETTINGS: Final = """
[broker]
node_name = "{name}"
leave_s = 2

[limits]
max_queued_messages = 10000000
{stores}
[plugins.akka_like_cluster]
listen = "{listen}"
advertise = "{advertise}"
seeds = {seeds}
cookie_file = "{cookie}"
control = "{control}"
{timings}
"""

REDIS: Final = """
[services]
session = "redis_session"
queue = "redis_session"
retain = "redis_session"

[plugins.redis_session]
host = "{redis}"
port = {redis_port}
timeout_s = 2
reconnect_max_s = 0.2
lease_s = 60
"""
"""The lease of a node is long: who adopts its sessions must not have waited for its end."""

TLS: Final = """
[plugins.akka_like_cluster.tls]
certificate = "{certificate}"
private_key = "{key}"
ca = "{ca}"
peers = ["*.brokers.example"]
"""


@frozen
class Timings:
    """How fast the members of a cluster notice that one is gone; as in the settings."""

    heartbeat_s: float = 0.25
    pause_s: float = 0.75
    stable_after_s: float | None = 1.5
    """``None``: as long as the plugin would wait."""

    def lines(self) -> str:
        """Return the lines of the settings."""
        stable_after = "" if self.stable_after_s is None else f"stable_after_s = {self.stable_after_s}"
        return f"heartbeat_s = {self.heartbeat_s}\npause_s = {self.pause_s}\n{stable_after}"


class Node:
    """One broker of the cluster."""

    def __init__(self, folder: Path, name: str, host: Host | None = None, *, has_proxy: bool = False) -> None:
        """With a host, clients reach it by a Unix socket: what cuts hosts off does not cut off their clients."""
        self.name = name
        self.host = host
        self.port = free_port()
        """What clients know it by."""
        self.settings = folder / f"{name}.toml"
        self.control = folder / f"{name}.sock"
        self.log = folder / f"{name}.log"
        self.process: asyncio.subprocess.Process | None = None
        self.proxy: asyncio.subprocess.Process | None = None
        self.program: Sequence[str] = KINMQTT
        """What runs as this broker, from its next start on."""
        self.variables: dict[str, str] = {}
        """What is added to its environment."""
        self.more_settings = ""
        """What is added to its settings."""
        self.data = str(folder / f"{name}.data")
        """Where it keeps what it stores itself."""
        self.is_wanted = False
        """Whether its supervisor starts it again when it has ended."""
        self._has_proxy = has_proxy
        self._door = folder / f"{name}.mqtt"
        ip = "127.0.0.1" if host is None else host.address
        self.advertise = f"{ip}:{free_port() if host is None else CLUSTER_PORT}"
        self._listen = f"127.0.0.1:{free_port()}" if has_proxy else self.advertise

    def write_settings(
        self,
        seeds: Sequence[str],
        cookie: Path,
        redis: tuple[str, int] | None,
        timings: Timings,
        authority: Authority | None,
    ) -> None:
        """Write its settings; ``redis`` is an address, or ``None``: it has stores of its own then."""
        stores = ""
        if redis is not None:
            stores = REDIS.format(redis=redis[0], redis_port=redis[1])
            self.data = "memory"
        text = SETTINGS.format(
            name=self.name,
            stores=stores,
            listen=self._listen,
            advertise=self.advertise,
            seeds=list(seeds),
            cookie=cookie,
            control=self.control,
            timings=timings.lines(),
        )
        text += self.more_settings
        if authority is not None:
            certificate, key = authority.issue(self.name, [f"{self.name}.brokers.example"])
            text += TLS.format(certificate=certificate, key=key, ca=authority.file)
        self.settings.write_text(text)

    @property
    def prefix(self) -> Sequence[str]:
        """A command that runs another one on its host."""
        return () if self.host is None else self.host.prefix

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.returncode is None

    @property
    def output(self) -> str:
        """The log of all its lives."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def lives(self) -> int:
        """How often it has opened its listeners."""
        return self.output.count("listening on ")

    async def dial(self) -> Streams:
        """Connect to it as a client."""
        if self.host is None:
            return await asyncio.open_connection("127.0.0.1", self.port)
        return await asyncio.open_unix_connection(self._door)

    async def start(self) -> None:
        """Start it."""
        if self._has_proxy and self.proxy is None:
            await self._start_proxy()
        listen = f"tcp:{self.port}:interface=127.0.0.1" if self.host is None else f"unix:{self._door}"
        command = [
            *self.prefix, sys.executable, *self.program, "run", "--data", self.data, "--listen", listen,
            "--config", str(self.settings),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, env=environment(**self.variables), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )

    def tell(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    async def end(self, number: signal.Signals) -> None:
        """End its process."""
        if self.is_running:
            assert self.process is not None
            self.tell(number)
            await self.process.wait()

    async def members(self) -> list[dict[str, Any]] | None:
        """Return the members as it sees them; ``None`` if it does not answer."""
        try:
            found: list[dict[str, Any]] = await asyncio.to_thread(ask, self.control, {"command": "members"}, 2.0)
        except SpiError:
            return None
        return found

    async def weather(self, line: str) -> None:
        """Make the network in front of it bad, or good: a line for its proxy."""
        assert self.proxy is not None and self.proxy.stdin is not None and self.proxy.stdout is not None
        self.proxy.stdin.write(f"{line}\n".encode())
        answer = await self.proxy.stdout.readline()
        assert answer == b"done\n", f"the proxy does not know {line!r}"

    async def _start_proxy(self) -> None:
        self.proxy = await asyncio.create_subprocess_exec(
            *self.prefix, sys.executable, str(PROXY), self.advertise, self._listen,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment(),
        )  # fmt: skip
        assert self.proxy.stdout is not None
        await self.proxy.stdout.readline()

    async def close(self) -> None:
        """Make sure that nothing of it is left."""
        await self.end(signal.SIGKILL)
        if self.proxy is not None and self.proxy.returncode is None:
            self.proxy.kill()
            await self.proxy.wait()
