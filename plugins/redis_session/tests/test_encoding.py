"""What is written in a hurry is what would be written at leisure: messages, and many writes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_redis_session.codec import dumps, message_json
from kinmqtt_redis_session.writes import MAX_RUN
from kinmqtt_spi.errors import Fenced
from kinmqtt_spi.plain import to_plain
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.services.queue import Append, QueueSizes, QueueWrite, Remove, Send, Stage
from kinmqtt_spi.testing.build import NOW, entry, message
from kinmqtt_spi.values import Message, MessageId, Publisher
from redis_harness.instances import Instance, start_instance
from redis_harness.servers import RedisServer, redis_server

NUMBERS = st.integers(0, 2**64 - 1)
TIMES = st.floats(allow_nan=False, allow_infinity=False)
MESSAGES = st.builds(
    Message,
    topic=st.text(),
    payload=st.binary(),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=st.just(NO_PROPERTIES) | st.builds(Properties, content_type=st.text()),
    publisher=st.builds(Publisher, st.text(), st.none() | st.text()),
    id=st.builds(MessageId, NUMBERS, NUMBERS),
    received_at=TIMES,
    expires_at=st.none() | TIMES,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with nothing in it."""
    with redis_server(tmp_path / "redis") as server:
        yield server


async def committed(instance: Instance, *writes: Any) -> None:
    """Have a turn's queue writes kept."""
    instance.queues.apply(writes)
    answer = instance.queues.commit()
    assert answer is not None
    await answer


@given(MESSAGES)
def test_message_json_equals_the_plain_form(its: Message) -> None:
    """Character by character, whatever is in it."""
    assert message_json(its) == dumps(to_plain(its))


@pytest.mark.parametrize("moments", [{"received_at": float("nan")}, {"expires_at": float("inf")}])
def test_a_time_that_is_not_finite_is_rejected(moments: dict[str, Any]) -> None:
    """JSON has no such thing."""
    with pytest.raises(ValueError, match="expected a finite number"):
        message_json(message(**moments))


def test_a_turn_may_have_any_number_of_writes_of_one_client(server: RedisServer) -> None:
    """More than Lua can put in one call: in flight and waiting ones, that expire and that do not."""
    many = 2 * MAX_RUN + 1

    async def run() -> None:
        instance = await start_instance(host="127.0.0.1", port=server.port)
        flying = [Append("c", 1, entry(number), number) for number in range(1, many)]
        waiting = [
            Append("c", 1, entry(many + number, expires_at=NOW if number % 2 else None)) for number in range(many)
        ]

        await committed(instance, *flying, *waiting)

        state = await instance.queues.load("c")
        assert [each.packet_id for each in state.inflight] == list(range(1, many))
        assert [each.stage for each in state.inflight] == [Stage.SENT] * (many - 1)
        assert state.last_sequence == 2 * many - 1
        assert state.sizes == instance.queues.sizes("c")
        assert state.sizes.queued_bytes == sum(write.entry.size_bytes for write in waiting)
        assert [each.sequence for each in await instance.queues.read("c", 0, 3 * many)] == list(range(many, 2 * many))
        assert len(await instance.queues.expire(NOW + 1, 3 * many)) == many // 2

        await committed(instance, *(Remove("c", 1, number) for number in range(1, 2 * many)))

        assert await instance.queues.read("c", 0, 1) == ()
        assert (await instance.queues.load("c")).inflight == ()
        assert instance.queues.sizes("c") == QueueSizes()
        await instance.plugin.stop()

    asyncio.run(run())


def test_a_run_of_removals_covers_inflight_queued_and_missing_entries(server: RedisServer) -> None:
    """Each for itself, also where one is removed twice."""

    async def run() -> None:
        instance = await start_instance(host="127.0.0.1", port=server.port)
        await committed(
            instance, Append("c", 1, entry(1), 5), *(Append("c", 1, entry(number)) for number in (2, 3, 4))
        )

        await committed(instance, Send("c", 1, 2, 6), *(Remove("c", 1, number) for number in (9, 3, 1, 3)))

        state = await instance.queues.load("c")
        assert [(each.sequence, each.packet_id) for each in state.inflight] == [(2, 6)]
        assert [each.sequence for each in await instance.queues.read("c", 0, 9)] == [4]
        assert state.sizes == QueueSizes(queued=1, queued_bytes=entry(4).size_bytes, inflight=1)
        await instance.plugin.stop()

    asyncio.run(run())


def test_runs_of_an_older_epoch_are_refused_as_a_whole(server: RedisServer) -> None:
    """The turns of which they are hear it, and those whose writes stand between and behind are kept."""

    async def run() -> None:
        instance = await start_instance(host="127.0.0.1", port=server.port)
        turns: list[list[QueueWrite]] = [
            [Append("c", 2, entry(1), 1)],
            [Append("c", 1, entry(2), 2), Append("c", 1, entry(3))],
            [Append("c", 2, entry(4)), Remove("c", 2, 1)],
            [Remove("c", 1, 4), Remove("c", 1, 4)],
        ]
        answers: list[Any] = []
        for writes in turns:
            instance.queues.apply(writes)
            answers.append(instance.queues.commit())

        ends = await asyncio.gather(*answers, return_exceptions=True)

        assert [isinstance(each, Fenced) for each in ends] == [False, True, False, True]
        assert instance.parts.pipeline.refused == 4
        assert [each.sequence for each in await instance.queues.read("c", 0, 9)] == [4]
        assert (await instance.queues.load("c")).inflight == ()
        await instance.plugin.stop()

    asyncio.run(run())
