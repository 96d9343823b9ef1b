"""What tests start processes with: a port is not given to two, and a run says why its broker ended."""

from __future__ import annotations

import asyncio
from itertools import combinations
from pathlib import Path

import pytest

from root_harness.crash_run import Run
from spi_harness.processes import PORTS, WORKERS, free_port, ports_of


def test_workers_beside_each_other_share_no_port() -> None:
    """Another worker's port may be chosen already while nobody listens on it."""
    given = [set(ports_of(f"gw{number}")) for number in range(WORKERS)]

    assert all(not one & other for one, other in combinations(given, 2))
    assert set().union(*given) == set(PORTS) == set(ports_of(""))


def test_a_port_is_not_given_out_twice_in_a_row() -> None:
    """Who asked first may not listen yet."""
    ports = [free_port() for _ in range(200)]

    assert len(set(ports)) == len(ports)


def test_a_broker_that_ends_of_its_own_accord_ends_the_run(tmp_path: Path) -> None:
    """The run fails at once with what the broker said, and leaves nothing open."""
    run = Run(tmp_path / "data", seed=1)
    run._environment["KINMQTT__LIMITS__MAX_QUEUED_MESSAGES"] = "many"

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(run.kill(1))

    assert "the broker ended of its own accord" in str(raised.value.exceptions[0])
    assert "max_queued_messages" in str(raised.value.exceptions[0])
