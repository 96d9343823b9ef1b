"""Kafka stands still or is killed under load: what the sink has taken is there, in order."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka.errors import OutOfOrderSequenceNumber

from bridge_kafka_harness.lanes import Lanes, firsts, until_alone
from bridge_kafka_harness.making import Made, connection, identity, item, items_of, open_sink
from kinmqtt_bridge_kafka.sink import KafkaSink
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.bridge import Item
from root_harness.kafka import Kafka
from spi_harness.waiting import until

LIMIT_S = 90.0


def promises_hold(lanes: Lanes, items: Sequence[Item], records: Sequence[Any]) -> None:
    """Everything was taken and is in the topic; without repeated records each key has the order of its items."""
    found = firsts(records)
    assert {identity(each.message) for each in lanes.taken} == {identity(each.message) for each in items}
    assert {name for _, name in found} == {identity(each.message) for each in items}
    by_key, expected = defaultdict(list), defaultdict(list)
    for key, name in found:
        by_key[key].append(name)
    for each in items:
        expected[each.key].append(identity(each.message))
    assert by_key == expected


def under_load(kafka: Kafka, topic: str, items: Sequence[Item], fault: Any, timeout_s: float) -> Lanes:
    """Send items in four lanes while ``fault`` does something to Kafka."""

    async def test() -> Lanes:
        sink = Made().sink(connection(kafka.address, timeout_s=timeout_s), topic)
        await sink.open()
        lanes = Lanes(sink, parallel=4)
        sending = asyncio.ensure_future(lanes.send(items))
        try:
            await fault(lanes)
            await asyncio.wait_for(sending, LIMIT_S)
        finally:
            sending.cancel()
            await sink.close()
        return lanes

    return asyncio.run(test())


def test_nothing_is_lost_while_kafka_stands_still(kafka: Kafka) -> None:
    """It answers nobody for longer than the sink waits, and goes on with what has come meanwhile."""
    topic = kafka.create_topic("faults-pause", partitions=3)
    items = list(items_of(clients=20, each=200))

    async def fault(lanes: Lanes) -> None:
        await until(lambda: len(lanes.taken) >= 1000, "some are taken")
        kafka.pause()
        await until(lambda: len(lanes.failures) >= 3, "the sink fails")
        kafka.go_on()

    lanes = under_load(kafka, topic, items, fault, timeout_s=1.0)

    assert any("in time" in each for each in lanes.failures)
    promises_hold(lanes, items, kafka.records(topic))


def test_nothing_is_lost_when_kafka_is_killed(kafka: Kafka) -> None:
    """It comes back with what it has stored; what it has not acknowledged is sent again."""
    topic = kafka.create_topic("faults-kill", partitions=3)
    items = list(items_of(clients=20, each=400))

    async def fault(lanes: Lanes) -> None:
        for taken in (1000, 3000, 5000):
            await until(lambda taken=taken: len(lanes.taken) >= taken, "some are taken")  # type: ignore[misc]
            await asyncio.to_thread(kafka.kill)
            await asyncio.to_thread(kafka.start)

    lanes = under_load(kafka, topic, items, fault, timeout_s=5.0)

    assert lanes.failures
    promises_hold(lanes, items, kafka.records(topic))


def test_a_sink_closes_soon_while_kafka_stands_still(kafka: Kafka) -> None:
    """A producer of aiokafka would wait for Kafka for ever, and the broker with it."""
    topic = kafka.create_topic("faults-close")

    async def test() -> float:
        sink = Made().sink(connection(kafka.address, timeout_s=1.0), topic)
        await sink.open()
        kafka.pause()
        with pytest.raises(ServiceUnavailable, match="in time"):
            await sink.send([item()])
        began = time.monotonic()
        await sink.close()
        took_s = time.monotonic() - began
        await until_alone()  # Its end in the background comes too, although Kafka still stands still.
        return took_s

    assert asyncio.run(test()) < 3


def test_a_sink_that_can_not_open_leaves_nothing_behind(kafka: Kafka) -> None:
    """Each attempt ends with its time limit, and with all its tasks and connections."""
    kafka.pause()

    async def test() -> None:
        sink = Made().sink(connection(kafka.address, timeout_s=0.5), "any")
        for _ in range(3):
            with pytest.raises(ServiceUnavailable):
                await sink.open()
        await until_alone()

    asyncio.run(test())


def test_a_part_that_fails_is_answered_with_retry(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other partitions have taken isn't sent again, and the next batch has another producer."""
    topic = kafka.create_topic("faults-part", partitions=2)
    items = [item(client=f"client-{number}") for number in range(20)]

    async def test(sink: KafkaSink) -> None:
        used = sink.producer
        send_batch = used.send_batch

        async def failing(batch: Any, topic: str, *, partition: int) -> Any:
            if partition == 1:
                raise OutOfOrderSequenceNumber
            return await send_batch(batch, topic, partition=partition)

        monkeypatch.setattr(used, "send_batch", failing)
        lanes = Lanes(sink)
        await lanes.send(items)
        assert sink.producer is not used
        assert lanes.failures == []
        promises_hold(lanes, items, await asyncio.to_thread(kafka.records, topic))
        assert len(await asyncio.to_thread(kafka.records, topic)) == 20

    async def opened() -> None:
        async with open_sink(kafka.address, topic) as sink:
            await test(sink)

    asyncio.run(opened())
