"""A broker under attack, with a bystander: the memory it takes, how long the bystander waits, what is left."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from core_harness.brokers import BrokerProcess, running_broker
from spi_harness.processes import Process

HARNESS = Path(__file__).parents[1]

ATTACK_LIMIT_S = 120.0
"""How long an attack may take until it has done its worst."""

RECOVERY_LIMIT_S = 30.0
"""How long after an attack the broker's memory may take to be back."""

SAMPLED_EVERY_S = 0.02

CALM_TRIPS = 100
"""Messages of the bystander before the attack, and the fewest during it."""


@frozen
class Result:
    """What came of one attack."""

    name: str
    before_bytes: int
    peak_bytes: int
    after_bytes: int
    """Resident memory: before the attack, the most, and the least within half a minute after it."""
    bystander: dict[str, float]
    """What the bystander saw during the attack: see ``bystander.py``."""
    calm: dict[str, float]
    """The same before the attack."""
    attack_s: float

    @property
    def row(self) -> str:
        """The result as a row of a table in Markdown."""
        sizes = (self.before_bytes, self.peak_bytes, self.after_bytes)
        seen = self.bystander
        cells = [
            self.name,
            *(f"{size / 2**20:.0f}" for size in sizes),
            f"{self.calm['p99_ms']:.1f}",
            f"{seen['p99_ms']:.1f}",
            f"{seen['longest_ms']:.0f}",
            f"{seen['trips']:.0f}",
            f"{seen['lost']:.0f}",
            f"{self.attack_s:.1f}",
        ]
        return "| " + " | ".join(cells) + " |"


def settings_with(watermarks: tuple[int, int, int] | None) -> str:
    """Settings of a broker whose memory watermarks are these, in MiB; ``None`` for its defaults."""
    if watermarks is None:
        return ""
    slow, drop, refuse = watermarks
    return (
        f'[limits]\nmemory_slow_bytes = "{slow} MiB"\nmemory_drop_bytes = "{drop} MiB"\n'
        f'memory_refuse_bytes = "{refuse} MiB"\n'
    )


HEAD = (
    "| attack | before MiB | peak MiB | after MiB | p99 calm ms | p99 ms | longest ms | trips | lost | took s |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Looks at the memory of a process until it is stopped."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(SAMPLED_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, resident_bytes(self._pid))

    def stop(self) -> int:
        """Stop looking; the most that was seen."""
        self._stop.set()
        self._thread.join()
        return self.peak_bytes


@contextmanager
def helper(module: str, *arguments: str) -> Iterator[Process]:
    """A module of this package, as a process of its own."""
    process = Process([sys.executable, "-m", f"root_harness.{module}", *arguments], cwd=HARNESS)
    try:
        yield process
    finally:
        process.end()


class Asked:
    """A bystander, asked again and again."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._questions = 0

    def seen(self, trips: int) -> dict[str, float]:
        """What it has seen since it was asked before, once so many of its messages have come back."""
        self._questions += 1
        self._process.say(str(trips))
        answers = self._process.wait_for_line(r"^\{", self._questions, ATTACK_LIMIT_S)
        answer: dict[str, float] = json.loads(answers[-1])
        return answer


def attacked(broker: BrokerProcess, name: str, lasts_s: float = 10.0) -> Result:
    """Attack a broker, and look what becomes of it."""
    with helper("bystander", str(broker.port)) as process:
        bystander = Asked(process)
        bystander.seen(CALM_TRIPS)
        calm = bystander.seen(CALM_TRIPS)
        before = resident_bytes(broker.pid)
        watch = Watch(broker.pid)
        began = time.monotonic()
        with helper("attacker", name, str(broker.port), str(lasts_s)) as attacker:
            attacker.wait_for_line("^under way$", limit_s=ATTACK_LIMIT_S)
            attack_s = time.monotonic() - began
            seen = bystander.seen(CALM_TRIPS)
        peak = watch.stop()
        after = recovered(broker.pid, before)
    return Result(name, before, peak, after, seen, calm, attack_s)


def recovered(pid: int, before_bytes: int) -> int:
    """The memory once it is back at one and a half times what it was, or half a minute later."""
    end = time.monotonic() + RECOVERY_LIMIT_S
    least = resident_bytes(pid)
    pause = threading.Event()
    while least > 1.5 * before_bytes and time.monotonic() < end:
        pause.wait(0.1)
        least = min(least, resident_bytes(pid))
    return least


@contextmanager
def broker_with(settings: str, folder: Path) -> Iterator[BrokerProcess]:
    """A broker with these settings, which keeps its state in a folder."""
    file = folder / "kinmqtt.toml"
    file.write_text(settings)
    with running_broker("-c", str(file), "--data", str(folder / "data")) as broker:
        yield broker
