"""The Redis of a cluster under test: it dies and comes back, its disk is small, and it may be a host of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from redis_harness.servers import READY
from root_harness.cluster_network import Host, Namespace, Network
from spi_harness.processes import Process, environment, free_port, needed, wait_until

MIB: Final = 1 << 20
_LEFT_BYTES: Final = 64 << 10
"""What a full disk still has: enough for some more writes."""


class _Server(Process):
    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None


class Redis:
    """One server, whose data is in a file system of its own.

    With ``fsync`` as ``always`` an answer follows fsync, so that a kill loses nothing; if the disk is full it ends.
    With ``everysec`` it then refuses to write.
    """

    def __init__(self, folder: Path, place: Namespace, *, fsync: str = "always", disk_bytes: int = 512 * MIB) -> None:
        self.folder = folder
        folder.mkdir()
        self.address = place.address if isinstance(place, Host) else "127.0.0.1"
        self.port = free_port()
        self._place = place
        self._fsync = fsync
        self._process: _Server | None = None
        place.run("mount", "-t", "tmpfs", "-o", f"size={disk_bytes}", "tmpfs", str(folder))

    @property
    def at(self) -> tuple[str, int]:
        """Where brokers connect."""
        return self.address, self.port

    @property
    def is_running(self) -> bool:
        """Whether it runs: it may have ended of its own accord."""
        return self._process is not None and self._process.is_running

    @property
    def output(self) -> str:
        """What it said since it was started last."""
        return "" if self._process is None else self._process.output

    def start(self) -> None:
        """Start it over what it has stored."""
        options = ["--save", "", "--appendonly", "yes", "--appendfsync", self._fsync]
        bind = "0.0.0.0" if isinstance(self._place, Host) else self.address
        command = [
            *self._place.prefix, needed("redis-server", "redis-server"), "--dir", str(self.folder),
            "--bind", bind, "--port", str(self.port), "--protected-mode", "no", *options,
        ]  # fmt: skip
        self._process = _Server(command, env=environment())
        self._process.wait_for_line(READY)

    def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        self._process.signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        if self._process is not None:
            self._process.end()

    def fill_disk(self) -> None:
        """Leave next to no room on its disk."""
        room = os.statvfs(self._disk)
        descriptor = os.open(self._disk / "ballast", os.O_CREAT | os.O_WRONLY)
        try:
            os.posix_fallocate(descriptor, 0, room.f_bavail * room.f_frsize - _LEFT_BYTES)
        finally:
            os.close(descriptor)

    def free_disk(self) -> None:
        """Make room again."""
        (self._disk / "ballast").unlink()

    def wait_until_it_ends(self) -> None:
        """Wait until it has ended of its own accord."""
        wait_until(lambda: not self.is_running, "Redis ends")
        self.end()

    @property
    def _disk(self) -> Path:
        """The folder, as seen from outside."""
        return Path(f"/proc/{self._place.pid}/root{self.folder}")


@contextmanager
def redis_on_disk(folder: Path, network: Network | None = None, *, fsync: str = "always") -> Iterator[Redis]:
    """A server, from its start to its end; with a network it is a host of it."""
    with ExitStack() as stack:
        place: Namespace = Namespace(network=False) if network is None else network.host()
        if network is None:
            stack.callback(place.end)
        redis = Redis(folder, place, fsync=fsync)
        stack.callback(redis.end)
        redis.start()
        yield redis
