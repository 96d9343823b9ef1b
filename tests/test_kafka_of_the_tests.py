"""The Kafka that tests use is a real one: it stores, stands still, and comes back with what it has stored."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaProducer

from root_harness.kafka import Kafka


def test_it_is_killed_and_has_its_records_afterwards(kafka: Kafka) -> None:
    """A test may kill it, and start it again over the same folder."""
    topic = kafka.create_topic("stays", partitions=2)
    asyncio.run(send(kafka.address, topic, b"before"))

    kafka.kill()
    kafka.start()

    assert [record.value for record in kafka.records(topic)] == [b"before", b"before"]


def test_it_stands_still_and_goes_on(kafka: Kafka) -> None:
    """A test may pause it: then it takes connections, and answers nobody."""
    topic = kafka.create_topic("paused")
    kafka.pause()

    was_answered = asyncio.run(send_beside(kafka, topic))

    assert not was_answered
    assert [record.value for record in kafka.records(topic)] == [b"late"]


async def send(address: str, topic: str, value: bytes) -> None:
    """Send a value to both partitions."""
    async with AIOKafkaProducer(bootstrap_servers=address) as producer:
        for partition in range(2):
            await producer.send_and_wait(topic, value, partition=partition)


async def send_beside(kafka: Kafka, topic: str) -> bool:
    """Whether a producer gets an answer while Kafka is paused; it ends when Kafka goes on."""

    async def late() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.address) as producer:
            await producer.send_and_wait(topic, b"late")

    sending = asyncio.ensure_future(late())
    done, _ = await asyncio.wait([sending], timeout=0.2)
    kafka.go_on()
    await sending
    return bool(done)
