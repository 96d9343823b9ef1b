"""The shortest way through the whole broker."""

from __future__ import annotations

import pytest

from core_harness.house import House


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_reaches_a_subscriber(qos: int) -> None:
    """A published message comes to a matching subscriber with its QoS."""
    house = House()
    sub = house.connect("sub").subscribe("a/#", qos=2)

    house.connect("pub").publish("a/b", b"x", qos=qos)

    assert sub.messages == [("a/b", b"x", qos)]
