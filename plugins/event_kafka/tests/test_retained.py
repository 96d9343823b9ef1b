"""Retained messages come to a real Kafka, of each topic at last what the store has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest

from event_kafka_harness.nodes import Node

_topics = count()


@pytest.fixture
def topic(kafka: Any) -> Iterator[str]:
    """A compacted topic."""
    yield kafka.create_topic(f"retained-{next(_topics)}", partitions=3, cleanup_policy="compact")


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]  # a coroutine function


def values(kafka: Any, topic: str) -> dict[str, list[bytes | None]]:
    """The values of each MQTT topic, in their order."""
    found: dict[str, list[bytes | None]] = {}
    for record in kafka.records(topic):
        found.setdefault(record.key.decode(), []).append(record.value)
    return found


def last(kafka: Any, topic: str) -> dict[str, bytes | None]:
    return {key: each[-1] for key, each in values(kafka, topic).items()}


async def two_nodes(kafka: Any, topic: str) -> tuple[Node, Node]:
    """Two that share a retain store, and have begun."""
    one = Node(kafka.address, topic)
    other = Node(kafka.address, topic, of=one)
    for node in (one, other):
        node.start()
    for node in (one, other):
        await node.idle()
    return one, other


async def drained_after(kafka: Any, topic: str, before: Node, values: dict[str, bytes] | None = None) -> None:
    """Let a node have the outbox of one that has stopped, with its values or without, until it is drained."""
    node = Node(kafka.address, topic, of=before)
    if values is not None:
        node.context.values = values
    node.start(before.context.outboxes["retained"])
    await node.idle()
    await node.shipper.stop()


def test_what_is_retained_is_written_and_a_deletion_is_a_tombstone(kafka: Any, topic: str) -> None:
    """Also what was there before the plugin: once, at its first start."""

    async def main() -> None:
        node = Node(kafka.address, topic, batch=2)
        for number in range(5):
            node.retain(f"before/{number}", b"old")
        node.start()
        await node.idle()
        node.retain("before/0", b"new")
        node.retain("before/1", b"")
        node.retain("$SYS/x", b"not this")
        await node.idle()
        await node.shipper.stop()
        await drained_after(kafka, topic, node, node.context.values)

    run(main)

    assert values(kafka, topic) == {
        "before/0": [b"old", b"new"],
        "before/1": [b"old", None],
        **{f"before/{number}": [b"old"] for number in range(2, 5)},
    }


def test_a_crash_before_kafka_had_it_is_made_good(kafka: Any, topic: str) -> None:
    """The outbox has the topic, whatever was sent before the crash; doubles are of the same value."""

    async def main() -> None:
        node = Node(kafka.address, topic)
        node.start()
        await node.idle()
        kafka.pause()
        node.retain("t", b"1")
        node.retain("t", b"2")
        await asyncio.wait({asyncio.ensure_future(node.shipper.stop())}, timeout=20)
        kafka.go_on()
        await drained_after(kafka, topic, node)

    run(main)

    assert last(kafka, topic) == {"t": b"2"}


def test_a_node_that_is_late_does_not_bring_an_old_value_back(kafka: Any, topic: str) -> None:
    """Two nodes share a store; one drains its outbox, or that of a node that is gone, after the other has written."""

    async def main() -> None:
        one, other = await two_nodes(kafka, topic)
        await one.shipper.stop()
        one.retain("t", b"old")
        other.retain("t", b"new")
        await other.idle()
        await drained_after(kafka, topic, one)
        await other.shipper.stop()

    run(main)

    assert last(kafka, topic) == {"t": b"new"}


def test_a_value_that_changes_while_it_is_written_is_written_again(kafka: Any, topic: str) -> None:
    """By a node whose own write of it came to Kafka first."""

    async def main() -> None:
        one, other = await two_nodes(kafka, topic)
        write = one.shipper._writer.write

        async def late(found: Any) -> Any:
            one.shipper._writer.write = write  # type: ignore[method-assign]
            other.retain("t", b"new")
            await other.idle()
            return await write(found)

        one.shipper._writer.write = late  # type: ignore[method-assign]
        one.retain("t", b"old")
        await one.idle()
        await one.shipper.stop()
        await other.shipper.stop()

    run(main)

    assert values(kafka, topic)["t"][-2:] == [b"old", b"new"]


def test_what_the_outbox_could_not_take_is_found_by_a_comparison(kafka: Any, topic: str) -> None:
    """Deletions too: a key of Kafka that the store does not have gets a tombstone."""

    async def main() -> None:
        node = Node(kafka.address, topic)
        node.start()
        node.retain("gone", b"1")
        node.retain("changed", b"1")
        await node.idle()
        await node.shipper.stop()
        node.fill()
        node.retain("kept", b"1")
        node.retain("gone", b"")
        node.retain("changed", b"2")
        await drained_after(kafka, topic, node, node.context.values)

    run(main)

    assert last(kafka, topic) == {"gone": None, "changed": b"2", "kept": b"1"}


def test_what_a_node_that_is_gone_has_missed_is_found_by_another(kafka: Any, topic: str) -> None:
    """It adopts the note, and compares everything."""

    async def main() -> None:
        gone = Node(kafka.address, topic)
        heir = Node(kafka.address, topic, of=gone)
        gone.start()
        heir.start()
        gone.retain("gone", b"1")
        await gone.idle()
        await heir.idle()
        await gone.shipper.stop()
        gone.fill()
        gone.retain("kept", b"1")
        gone.retain("gone", b"")
        heir.shipper.adopt(gone.context.values.values())
        await heir.until(lambda: len(heir.context.log.texts("info")) == 2)
        await heir.shipper.stop()

    run(main)

    assert last(kafka, topic) == {"gone": None, "kept": b"1"}


def test_an_empty_store_deletes_nothing_in_kafka(kafka: Any, topic: str) -> None:
    """A broker that has lost its store is what Kafka's copy is for."""

    async def main() -> None:
        node = Node(kafka.address, topic)
        node.start()
        node.retain("t", b"1")
        await node.idle()
        await node.shipper.stop()
        new = Node(kafka.address, topic)
        new.start()
        await new.idle()
        await new.shipper.stop()

    run(main)

    assert last(kafka, topic) == {"t": b"1"}


def test_a_message_that_is_too_large_is_counted_and_leaves_no_older_one(kafka: Any) -> None:
    """By the settings, or by the topic."""
    topic = kafka.create_topic(
        f"retained-{next(_topics)}", partitions=1, cleanup_policy="compact", max_message_bytes="3000"
    )

    async def main() -> None:
        node = Node(kafka.address, topic, max_record_bytes=10_000)
        node.start()
        node.retain("a", b"1")
        node.retain("b", b"1")
        await node.idle()
        node.retain("a", b"x" * 20_000)
        node.retain("b", b"x" * 5_000)
        node.retain("c", b"1")
        await node.idle()
        await node.shipper.stop()
        assert node.context.registry.sum("retained.left_out") == 2
        assert "max.message.bytes" in node.context.log.texts("warn")[0]

    run(main)

    assert last(kafka, topic) == {"a": None, "b": None, "c": b"1"}


def test_a_missing_topic_is_named(kafka: Any) -> None:
    """Retained messages wait until somebody has created it; it is never created here."""
    topic = f"retained-{next(_topics)}"

    async def main() -> None:
        node = Node(kafka.address, topic)
        node.start()
        node.retain("t", b"1")
        await node.until(lambda: node.shipper.problem)
        assert f"no topic '{topic}'" in str(node.shipper.problem)
        assert "create it" in node.context.log.texts("warn")[0]
        assert topic not in await asyncio.to_thread(kafka.topics)
        await asyncio.to_thread(kafka.create_topic, topic)
        await node.idle()
        assert node.shipper.problem is None
        await node.shipper.stop()

    run(main)

    assert last(kafka, topic) == {"t": b"1"}
