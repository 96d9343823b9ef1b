"""What tests of more than one distribution share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core_harness.brokers import BrokerProcess, running_broker


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """A broker in a process of its own, for all tests of a module."""
    with running_broker() as process:
        yield process
