"""Messages that are routed again, because nobody knows who has them."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House
from core_harness.stores import Failing
from kinmqtt.broker.message.publication import Publication, ticket_of
from kinmqtt.broker.routing.resender import Resender
from kinmqtt.broker.routing.routed import Routed
from kinmqtt.hooks.awaitables import run
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi.services.queue import Append
from kinmqtt_spi.values import Message, MessageId


@pytest.mark.parametrize("route", [Resender.route, Resender.route_repeated])
def test_a_message_that_is_routed_again_is_not_acknowledged_where_its_commit_fails(route: Any) -> None:
    """C2: its ticket has the reason, and its publisher sends it once more."""
    queues = Failing()
    house = House(plugins={"queues": queues})
    house.connect("s", V5, expiry_s=600).subscribe("a", qos=1)
    publication = Publication.of(Message("a", b"1", 1, id=MessageId(3, 7)))
    routed: list[Routed] = []
    queues.refuses = lambda write: isinstance(write, Append)

    run(route(house.broker.services.resender, publication)).addCallback(routed.append)
    house.settle()

    assert routed == [Routed.DELIVERED]
    assert ticket_of(publication).failure is not None
