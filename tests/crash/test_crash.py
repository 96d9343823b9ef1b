"""A broker that is killed at random moments keeps what it has acknowledged, by the notes of its clients.

Ten kills by default; the long run is a command of its own::

    KINMQTT_KILLS=1000 python -m pytest -m soak tests/crash -s
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from root_harness.crash_run import ENOUGH, LIMIT_S, Run, said


@pytest.mark.parametrize("durability", ["commit", "fsync"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, durability: str) -> None:
    """QoS 1 comes at least once, QoS 2 exactly once, each in order, over kills [MQTT-4.4.0-1, MQTT-4.3.3-13]."""
    run = Run(tmp_path / "data", seed=5, durability=durability)

    asyncio.run(run.kill(10 if durability == "commit" else 4))

    assert list(run.notes.violations()) == [], said(tmp_path / "data")
    assert all(len(numbers) >= ENOUGH for numbers in run.notes.promised.values())
    assert "Traceback" not in said(tmp_path / "data")


@pytest.mark.parametrize("mutation", ["acknowledge-before-commit", "forget-the-pubrel-stage", "drop-the-dedup-set"])
def test_the_checker_catches_a_broken_promise(tmp_path: Path, mutation: str) -> None:
    """A broker that breaks one of its promises is found out."""
    run = Run(tmp_path / "data", seed=7, mutation=mutation)

    asyncio.run(run.kill(20 if mutation == "acknowledge-before-commit" else 40, until_caught=True))

    assert list(run.notes.violations()) != []


@pytest.mark.parametrize(
    ("fault", "durability"),
    [
        ("failing-writes", "commit"),
        ("failing-writes", "fsync"),
        ("failing-fsync", "fsync"),
        ("slow-fsync", "fsync"),
    ],
)
def test_a_disk_that_fails_loses_nothing(tmp_path: Path, fault: str, durability: str) -> None:
    """What could not be kept was not acknowledged; clients come back, and everything goes on."""
    run = Run(tmp_path / "data", seed=11, durability=durability, mutation=fault)
    run.patience_s = LIMIT_S
    run.life_s = 4.0 if fault == "slow-fsync" else 0.3
    if fault != "slow-fsync":
        # Each broker has failed before it is killed, on a machine that has much to do as well.
        run.lives_until = lambda: said(tmp_path / "data").count("can't write") > run.kills

    asyncio.run(run.kill(3))

    assert list(run.notes.violations()) == [], said(tmp_path / "data")
    assert all(run.notes.promised.values())


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_over_many_kills(tmp_path: Path) -> None:
    """The same, for as many kills as are asked for."""
    kills = int(os.environ.get("KINMQTT_KILLS", "1000"))
    seed = int(os.environ.get("KINMQTT_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    run = Run(tmp_path / "data", seed)

    asyncio.run(run.kill(kills))

    promised = sum(map(len, run.notes.promised.values()))
    print(f"seed {seed}: {run.kills} kills, {promised} messages acknowledged")
    assert list(run.notes.violations()) == [], said(tmp_path / "data")
