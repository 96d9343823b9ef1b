"""A Mosquitto beside the tests, which can be killed, stopped and started again."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spi_harness.processes import Process, free_port, needed

PLAIN = "allow_anonymous true\n"


class Mosquitto:
    """A broker on a port of its own; its sessions survive a kill if it stores each change."""

    def __init__(self, folder: Path, extra: str = PLAIN, port: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port() if port is None else port
        self.folder = folder
        self._settings = folder / "mosquitto.conf"
        self._settings.write_text(
            f"listener {self.port} 127.0.0.1\nuser root\nlog_dest stderr\nset_tcp_nodelay true\n"
            f"max_queued_messages 0\n{extra}"
        )
        self._process: Process | None = None
        self.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = Process([needed("mosquitto", "mosquitto"), "-c", str(self._settings)])
        self._process.wait_for_line(r"mosquitto version .* running")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.signal(number)

    def end(self) -> None:
        """End it; it writes what it stores."""
        if self._process is not None:
            self._process.end()
            self._process = None


@contextmanager
def mosquitto(folder: Path, extra: str = PLAIN) -> Iterator[Mosquitto]:
    """A Mosquitto, for as long as the block lasts."""
    broker = Mosquitto(folder, extra)
    try:
        yield broker
    finally:
        broker.end()


def persistent(folder: Path) -> str:
    """Settings with which what waits survives an end in good order."""
    return f"{PLAIN}persistence true\npersistence_location {folder}/\n"


def with_user(folder: Path, lines: Sequence[str]) -> str:
    """Settings with which nobody comes in but those of a password file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "passwords").write_text("".join(f"{line}\n" for line in lines))
    return f"allow_anonymous false\npassword_file {folder / 'passwords'}\n"
