"""The fixtures of the kit, for every test where kinmqtt-spi is installed.

It imports nothing until a fixture is requested, so that other runs cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kinmqtt_spi.memory.plugin import BareContext, TurnableClock

HARNESS_GROUP = "kinmqtt.testing"
"""The entry-point group in which the core offers its harness: the SPI knows no broker."""


@pytest.fixture
def kinmqtt_clock() -> TurnableClock:
    """A clock that stands still until the test calls ``advance``."""
    from kinmqtt_spi.memory.plugin import TurnableClock

    return TurnableClock()


@pytest.fixture
def kinmqtt_context(kinmqtt_clock: TurnableClock) -> Callable[..., BareContext]:
    """Makes contexts without a broker: ``kinmqtt_context("my_plugin", settings)`` records the plugin's calls."""
    from kinmqtt_spi.memory.plugin import BareContext

    def make(name: str = "plugin", settings: Any = None, **more: Any) -> BareContext:
        return BareContext(name, settings, **{"clock": kinmqtt_clock, **more})

    return make


@pytest.fixture
def kinmqtt_broker() -> Any:
    """Makes whole brokers in memory: ``kinmqtt_broker(plugins={"guard": Guard()})``; needs kinmqtt-core.

    Each is a ``kinmqtt.testing.BrokerHarness``, see its docstring. If the core is not installed, as in a run of one
    distribution alone, the test is skipped and says so.
    """
    found = [point for point in entry_points(group=HARNESS_GROUP) if point.name == "broker"]
    if not found:
        pytest.skip("needs a broker, and kinmqtt-core is not installed here")
    return found[0].load()
