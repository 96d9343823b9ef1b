"""Mistakes put into the broker are found by the simulator."""

from __future__ import annotations

import pytest

from kinmqtt import TWIN
from kinmqtt.testing.world.mutations import MUTATIONS, find

SLOW = {"PUBREC early"}
"""What only one of some hundred seeds finds: CONTRIBUTING.md names the command that looks for it."""


@pytest.mark.skipif(TWIN == "compiled", reason="no mistake can be put into compiled modules; the plain run has these")
@pytest.mark.parametrize("name", sorted(MUTATIONS.keys() - SLOW))
def test_a_mistake_is_found(name: str) -> None:
    """Within a few seeds."""
    failure = find(name, range(40))

    assert failure is not None
