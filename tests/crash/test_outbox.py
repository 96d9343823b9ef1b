"""A broker that is killed at random moments loses nothing of its outboxes that it has acknowledged."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from root_harness.crash_run import Run, said
from root_harness.file_shipper import installed, shipped

KILLS = 5
WINDOW = 50


def run_with_a_shipper(folder: Path, seed: int, mutation: str = "none", by_tap: bool = False) -> Run:
    """Return a run whose broker ships everything to a file."""
    run = Run(
        folder / "data",
        seed,
        "commit",
        mutation,
        PYTHONPATH=installed(folder / "site"),
        KINMQTT__PLUGINS__FILE_SHIPPER__FILE=str(folder / "shipped"),
        KINMQTT__PLUGINS__FILE_SHIPPER__FILTER="crash/#",
        KINMQTT__PLUGINS__FILE_SHIPPER__BY_TAP=str(by_tap).lower(),
        KINMQTT__PLUGINS__FILE_SHIPPER__OUTBOX__WINDOW=str(WINDOW),
    )
    run.rests_when = lambda: run.notes.have_come_to(shipped(folder / "shipped"))
    return run


@pytest.mark.parametrize(("by_tap", "kills"), [(False, KILLS), (True, KILLS // 2)], ids=["by filter", "by tap"])
def test_nothing_acknowledged_is_lost_on_its_way_out(tmp_path: Path, by_tap: bool, kills: int) -> None:
    """B1, B3: it leaves at least once, in the order of its publisher; a kill repeats a window of messages at most."""
    run = run_with_a_shipper(tmp_path, seed=3, by_tap=by_tap)

    asyncio.run(run.kill(kills))

    out = shipped(tmp_path / "shipped")
    assert "Traceback" not in said(tmp_path / "data")
    for topic, promised in run.notes.promised.items():
        assert promised <= set(out[topic]), said(tmp_path / "data")
        first = list(dict.fromkeys(out[topic]))
        assert all(before < after for before, after in pairwise(first)), topic
    repeated = sum(len(numbers) - len(set(numbers)) for numbers in out.values())
    again = sum(run.notes.again.values())
    assert repeated <= WINDOW * (run.kills + 1) + again


@pytest.mark.parametrize("mutation", ["acknowledge-before-commit"])
def test_the_checker_catches_a_broker_that_loses_what_should_leave(tmp_path: Path, mutation: str) -> None:
    """A broker that acknowledges too early is found out by what left it."""
    run = run_with_a_shipper(tmp_path, seed=7, mutation=mutation)

    asyncio.run(run.kill(20, until_caught=True))

    out = shipped(tmp_path / "shipped")
    assert any(not promised <= set(out.get(topic, ())) for topic, promised in run.notes.promised.items())
