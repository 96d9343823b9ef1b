"""The node's log comes to a real Kafka, whatever that does."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from event_kafka_harness.making import feed, settings, shipper
from kinmqtt_event_kafka.schema import decode
from kinmqtt_kafka_kit import SecuritySettings
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.event import Event, Recorded
from kinmqtt_spi.testing.build import event

_topics = count()


def recorded(*events: Event) -> list[Recorded]:
    return [Recorded(number, each) for number, each in enumerate(events)]


def arrived(kafka: Any, topic: str) -> list[tuple[str, int]]:
    """Client id and counter of each record."""
    events = [decode(record.value)[1] for record in kafka.records(topic)]
    return [(each.client_id, each.version.counter) for each in events]


def test_a_clients_events_are_in_order_in_one_partition(kafka: Any) -> None:
    """E1: many batches over three partitions, each event once."""
    topic = kafka.create_topic(f"shipping-{next(_topics)}", partitions=3)

    async def ship() -> None:
        its = shipper(settings(kafka.address, topic))
        for first in range(0, 50, 5):
            await its.ship(
                recorded(*(event(f"c{name}", number) for number in range(first, first + 5) for name in "abcd"))
            )
        await its.close()

    asyncio.run(ship())

    records = kafka.records(topic)
    assert len(records) == 200
    for name in (b"ca", b"cb", b"cc", b"cd"):
        its = [record for record in records if record.key == name]
        assert len({record.partition for record in its}) == 1
        assert [decode(record.value)[1].version.counter for record in its] == list(range(50))


def test_a_missing_topic_is_named_and_never_created(kafka: Any) -> None:
    """Its events wait until somebody has created it."""
    topic = f"shipping-{next(_topics)}"
    context = BareContext("event_kafka")

    async def ship() -> None:
        its = shipper(settings(kafka.address, topic), context=context)
        with pytest.raises(ServiceUnavailable, match=f"no topic '{topic}'"):
            await its.ship(recorded(event()))
        assert topic not in await asyncio.to_thread(kafka.topics)
        await asyncio.to_thread(kafka.create_topic, topic)
        await its.ship(recorded(event()))
        assert its.problem is None
        await its.close()

    asyncio.run(ship())

    assert arrived(kafka, topic) == [("client", 1)]


def test_what_is_too_large_does_not_hold_up_the_others(kafka: Any) -> None:
    """By the settings, or by the topic: it is left out and counted."""
    topic = kafka.create_topic(f"shipping-{next(_topics)}", max_message_bytes="3000")
    context = BareContext("event_kafka")
    batch = recorded(
        event("a", 1),
        event("b", 1, data={"x": "x" * 20_000}),
        event("c", 1, data={"x": "x" * 5_000}),
        event("d", 1, data={"x": "x" * 1_500}),
        event("e", 1, data={"x": "x" * 1_500}),
    )

    async def ship() -> None:
        its = shipper(settings(kafka.address, topic, max_record_bytes=10_000), context=context)
        for _ in range(5):
            try:
                await its.ship(batch)
                break
            except ServiceUnavailable:
                continue
        await its.close()

    asyncio.run(ship())

    assert dict.fromkeys(name for name, _ in arrived(kafka, topic)) == dict.fromkeys("ade")
    assert context.registry.sum("events.left_out") >= 2


def test_a_kafka_that_stands_still_has_a_time_limit(kafka: Any) -> None:
    """The batch fails, and is shipped when it goes on."""
    topic = kafka.create_topic(f"shipping-{next(_topics)}")

    async def ship() -> None:
        its = shipper(settings(kafka.address, topic, timeout_s=2.0))
        await its.ship(recorded(event("a", 1)))
        kafka.pause()
        with pytest.raises(ServiceUnavailable):
            await its.ship(recorded(event("a", 2)))
        kafka.go_on()
        for _ in range(10):
            try:
                await its.ship(recorded(event("a", 2)))
                break
            except ServiceUnavailable:
                continue
        await its.close()

    asyncio.run(ship())

    assert list(dict.fromkeys(arrived(kafka, topic))) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_wrong_credentials_are_named_with_the_way_out(kafka: Any, tmp_path: Path, mechanism: Any) -> None:
    """By the shipper and by the feed; the password is in no text."""
    (tmp_path / "p").write_text("wrong-one")
    security = SecuritySettings(
        protocol="SASL_PLAINTEXT", mechanism=mechanism, username="ada", password_file=tmp_path / "p"
    )
    its = settings(kafka.sasl_address, "any", security=security)
    context = BareContext("event_kafka")

    async def ask() -> None:
        reading = feed(its, "node-1", asyncio.get_running_loop(), context)
        for what in (shipper(its, context=context).ship(recorded(event())), reading.lag("group")):
            with pytest.raises(ServiceUnavailable, match=r"Kafka refuses this client: .*: check username") as refused:
                await what
            assert "wrong-one" not in str(refused.value)

    asyncio.run(ask())
