"""How long Redis knows the QoS 2 messages that a client has got."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_redis_session import codec
from kinmqtt_redis_session.keys import encoded
from kinmqtt_spi.services.queue import KNOWN_MESSAGES, KNOWN_S, Append, Release
from kinmqtt_spi.testing.build import entry
from kinmqtt_spi.values import MessageId
from redis_harness.instances import start_instance
from redis_harness.servers import redis_server

REMEMBERED_S = 3600
"""How long Redis knows a message of a client that gets few."""
OLDER = 1000
"""As many as it knows that are older than ``KNOWN_S``."""


@pytest.mark.parametrize(
    ("age_s", "before", "after"),
    [
        pytest.param(KNOWN_S - 30, KNOWN_MESSAGES - 1, KNOWN_MESSAGES, id="recent"),
        pytest.param(KNOWN_S - 30, KNOWN_MESSAGES + 5, KNOWN_MESSAGES, id="recent-and-too-many"),
        pytest.param(KNOWN_S + 30, OLDER - 1, OLDER, id="few-older"),
        pytest.param(KNOWN_S + 30, KNOWN_MESSAGES - 1, OLDER, id="many-older"),
    ],
)
def test_a_busy_client_has_its_messages_known_for_a_minute(
    tmp_path: Path, age_s: float, before: int, after: int
) -> None:
    """However many a fault of some seconds holds up, none of them comes twice; older ones take little memory."""
    got = [MessageId(7, number) for number in range(before)]
    expires_at = time.time() - age_s + REMEMBERED_S
    last = entry(1, qos=2)

    async def known() -> set[MessageId]:
        with redis_server(tmp_path / "redis") as server:
            instance = await start_instance(host="127.0.0.1", port=server.port)
            key = instance.parts.pipeline.keys.client(encoded("a"), b"k")[0]
            scores: list[Any] = []
            for number, id in enumerate(got):
                scores += [f"{expires_at + number / 1000000:.6f}", codec.message_id(id)]
            await instance.parts.execute([("ZADD", key, *scores)])
            instance.queues.apply([Append("a", 1, last, 1), Release("a", 1, 1)])
            answer = instance.queues.commit()
            assert answer is not None
            await answer
            found = await instance.queues.known("a", {*got, last.message.id})
            await instance.plugin.stop()
            return set(found)

    assert asyncio.run(known()) == {*got[before + 1 - after :], last.message.id}
