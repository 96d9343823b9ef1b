"""What tests of whole clusters share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from root_harness.cluster_network import Network, network
from root_harness.cluster_redis import Redis, redis_on_disk


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    """The Redis of all brokers, on this machine."""
    with redis_on_disk(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def hosts() -> Iterator[Network]:
    """A network of hosts."""
    with network() as made:
        yield made


@pytest.fixture
def redis_host(tmp_path: Path, hosts: Network) -> Iterator[Redis]:
    """The Redis of all brokers, on a host of its own."""
    with redis_on_disk(tmp_path / "redis", hosts) as server:
        yield server
