"""What holds for the tests of every distribution.

``KINMQTT_TEST_STORE`` says where brokers of tests keep sessions, queues and retained messages: ``memory``, ``redis``.
``core_harness.house.House``, the broker without sockets that tests of the core and of conformance go through,
reads it too.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

try:
    from hypothesis import settings
except ImportError:
    pass  # Where only a plugin's own tests run, nothing needs it.
else:
    # How long an example takes is the machine's affair: no test asserts it.
    from spi_harness.examples import examples

    settings.register_profile("kinmqtt", deadline=None, max_examples=examples(100))
    settings.load_profile("kinmqtt")

pytest_plugins = ("root_harness.kafka", "root_harness.rabbitmq")
"""A Kafka and a RabbitMQ for the distributions that need one; each starts with the first test that does."""

LONG = (
    "tests/test_packaging.py",
    "metrics/tests/pipeline/",
    "tests/test_metrics",
    "metrics/tests/source/",
    "tests/cluster/",
    "tests/crash/",
    "tests/test_simulated_akka_cluster.py",
    "tests/attack/",
    "tests/test_over_redis.py",
    "tests/test_redis_session.py",
    "metrics/tests/test_learning.py",
    "tests/test_quality.py",
    "tests/conformance/test_v311",
    "tests/interop/",
    "tests/test_",
)
"""Files that take long with few tests: they begin first, or one worker would be at them when all others are done."""


THAWING = ("core/tests/net/test_collector.py", "core/tests/net/test_service.py", "core/tests/net/test_validity.py")
"""Files after which the garbage collector looks at everything again: they come last."""


def pytest_collection_finish() -> None:
    """Keep the collected tests out of each garbage collection: with all of them one takes half a second."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that take long first, and those that thaw last, each file's together and in their order."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    if item.nodeid.startswith(THAWING):
        return len(LONG) + 1
    return next((rank for rank, path in enumerate(LONG) if item.nodeid.startswith(path)), len(LONG))


if os.environ.get("KINMQTT_TEST_STORE", "memory") == "redis":
    from root_harness.redis_house import houses_that_end, redis_for_houses

    @pytest.fixture(scope="session")
    def redis_of_houses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        """One server for a session."""
        with redis_for_houses(tmp_path_factory.mktemp("redis")):
            yield

    @pytest.fixture(autouse=True)
    def houses(redis_of_houses: None) -> Iterator[None]:
        """A test's houses leave nothing behind."""
        with houses_that_end():
            yield
