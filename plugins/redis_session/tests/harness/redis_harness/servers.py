"""Real Redis servers for tests: started on free ports or sockets with nothing but what a test says, ended by id.

with redis_server(tmp_path) as server:
    ...  # server.port takes connections
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from spi_harness.processes import Process, environment, free_port, needed, wait_until

READY = r"Ready to accept connections|ready to accept connections"


class RedisServer:
    """A server that runs, can be paused, killed and started again over what it has kept."""

    def __init__(self, folder: Path, *options: str, on_socket: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = 0 if on_socket else free_port()
        self.socket = folder / "redis.sock" if on_socket else None
        self._options = list(options)
        self._process: Process | None = None
        self.start()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has said."""
        return "" if self._process is None else self._process.output

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        command = [
            needed("redis-server", "redis-server"), "--bind", "127.0.0.1", "--port", str(self.port),
            "--dir", str(self.folder), "--save", "", "--daemonize", "no", "--repl-diskless-sync-delay", "0",
        ]  # fmt: skip
        if self.socket is not None:
            command += ["--unixsocket", str(self.socket)]
        self._process = Process([*command, *self._options], cwd=self.folder, env=environment())
        self._process.wait_for_line(READY)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.signal(number)

    def pause(self) -> None:
        """Have it stand still: connections stay, and nothing is answered."""
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on with what has come meanwhile."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._process.end()

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        if self._process is not None:
            self._process.end()

    def ask(self, *words: str) -> str:
        """What ``redis-cli`` answers."""
        where = ["-s", str(self.socket)] if self.socket is not None else ["-p", str(self.port)]
        done = subprocess.run(
            [needed("redis-cli", "redis-tools"), *where, *words],
            capture_output=True, text=True, timeout=30, check=True, env=dict(os.environ),
        )  # fmt: skip
        return done.stdout.strip()


@contextmanager
def redis_server(folder: Path, *options: str, **more: Any) -> Iterator[RedisServer]:
    """A server, from its first connection to its end."""
    server = RedisServer(folder, *options, **more)
    try:
        yield server
    finally:
        server.end()


def _is_in_cluster(node: RedisServer) -> bool:
    return "cluster_state:ok" in node.ask("cluster", "info")


class RedisCluster:
    """Three masters that share the slots."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.nodes: list[RedisServer] = []
        try:
            for number in range(3):
                name = folder / f"node-{number}"
                cluster = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
                bus = ("--cluster-port", str(free_port()))
                self.nodes.append(RedisServer(name, *cluster, *bus, *options))
            addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
            self.nodes[0].ask("--cluster", "create", *addresses, "--cluster-yes")
            for node in self.nodes:
                wait_until(partial(_is_in_cluster, node), "the cluster is up")
        except BaseException:
            self.end()
            raise

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where its nodes are."""
        return tuple(f"127.0.0.1:{node.port}" for node in self.nodes)

    def each(self, call: str) -> None:
        """Have each node do something."""
        for node in self.nodes:
            getattr(node, call)()

    def ask(self, *words: str) -> Sequence[str]:
        """What ``redis-cli`` answers of each node."""
        return [node.ask(*words) for node in self.nodes]

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        for node in self.nodes:
            node.end()
