"""What a node takes of other nodes' retained messages."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.nodes import Nodes
from kinmqtt.broker.retained_sync.intake import MOST_AHEAD_S
from kinmqtt.hooks.awaitables import run
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.values import Message, MessageId


@pytest.mark.parametrize(("ahead_s", "expected"), [(MOST_AHEAD_S - 1, 0), (MOST_AHEAD_S + 1, 1)])
def test_a_version_from_the_far_future_is_refused(ahead_s: float, expected: int) -> None:
    """It would win for ever, and this node's own versions would have to be later still."""
    nodes = Nodes(2, shared=False)
    intake: Any = nodes.backends[0].listener.retained_sync._intake  # type: ignore[attr-defined]
    now = nodes.brokers[0].broker.runtime.clock.now()
    message = Message("t", b"x", 0, True).received(MessageId(7, 1), now, None)
    answers: list[int] = []

    run(intake.accept([RetainWrite(message, RetainVersion(now + ahead_s, 7, 1))])).addCallback(answers.append)
    nodes.settle()

    assert answers == [expected]
    assert nodes.brokers[0].broker.retained.versions.next(now, MessageId(1, 1)).received_at <= now + MOST_AHEAD_S
