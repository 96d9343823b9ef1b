"""What the shipper of retained messages does about its store, its outbox and foreign keys: no Kafka is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define, field

from event_kafka_harness.nodes import Node
from kinmqtt_event_kafka import retained
from kinmqtt_event_kafka.retained import DONE, MISSES
from kinmqtt_event_kafka.retained_writer import READ_AT_ONCE
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.outbox import Accepted


@define
class Topic:
    """Stands in for the topic's writer, and for what is read from there."""

    pieces: list[list[tuple[str, bytes | None]]] = field(factory=list)
    fails_at: int | None = None
    """The number of a piece that fails once."""
    has: list[tuple[bytes | None, bytes | None]] = field(factory=list)

    async def write(self, records: Sequence[Any]) -> list[None]:
        await asyncio.sleep(0)
        if len(self.pieces) == self.fails_at:
            self.fails_at = None
            raise ServiceUnavailable("away")
        self.pieces.append([(key.decode(), value) for _, key, value, _, _ in records])
        return [None] * len(records)

    async def close(self) -> None:
        pass

    async def everything(self, *_: Any) -> AsyncIterator[Any]:
        for key, value in self.has:
            yield SimpleNamespace(key=key, value=value)

    @property
    def written(self) -> list[tuple[str, bytes | None]]:
        return [record for piece in self.pieces for record in piece]


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    """A topic in memory."""
    made = Topic()
    monkeypatch.setattr(retained, "everything", made.everything)
    return made


def node_of(topic: Topic, **more: Any) -> Node:
    node = Node("127.0.0.1:9", "t", **more)
    writer: Any = topic
    node.shipper._writer._writer = writer
    return node


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]  # a coroutine function


def test_pieces_are_cut_by_their_bytes_and_acknowledged_each(topic: Topic) -> None:
    """A failure repeats only what Kafka has not got; all at once may never get there in time."""

    async def main() -> None:
        node = node_of(topic, max_record_bytes=1_000_000)
        node.start()
        await node.idle()
        topic.fails_at = 3
        reads: list[str] = []
        ask = node.context.retained

        def asked(filter: str, cursor: object = None) -> Any:
            reads.append(filter)
            return ask(filter, cursor)

        node.context.retained = asked  # type: ignore[method-assign]
        for number in range(10):
            node.retain(f"{number}", b"x" * 400_000)
        await node.until(lambda: node.shipper.problem is not None)
        assert node.context.outboxes["retained"].figures().inflight == 4
        await node.idle()
        await node.shipper.stop()
        # Of each piece: three to find its end, and two to compare.
        assert len(reads) <= 6 * 5

    run(main)

    assert [len(piece) for piece in topic.pieces] == [2, 2, 2, 2, 2]
    assert sorted(name for name, _ in topic.written) == [f"{number}" for number in range(10)]


def test_small_messages_go_together(topic: Topic) -> None:
    """As many as the setting batch says; the store is asked for a few at a time."""

    async def main() -> None:
        node = node_of(topic, batch=200)
        node.start()
        await node.idle()
        for number in range(4 * READ_AT_ONCE):
            node.retain(f"{number}", b"x")
        await node.idle()
        await node.shipper.stop()

    run(main)

    assert [len(piece) for piece in topic.pieces] == [4 * READ_AT_ONCE]


def test_keys_that_are_no_topics_are_skipped_and_counted(topic: Topic) -> None:
    """They are of others. Those that have a tombstone already get no further one."""
    topic.has = [(b"\xff", b"1"), (b"a/+", b"1"), (b"", b"1"), (None, b"1"), (b"$SYS/x", b"1"), (b"dead", b"1")]
    topic.has += [(b"dead", None), (b"gone", None), (b"gone", b"1"), (b"there", b"1")]

    async def main() -> None:
        node = node_of(topic)
        node.retain("there", b"2")
        node.context.values[node.shipper._key] = MISSES
        node.start()
        await node.idle()
        await node.shipper.stop()
        assert node.context.registry.sum("retained.skipped") == 5
        assert "keys are no MQTT topics" in node.context.log.texts("warn")[0]
        assert node.context.values[node.shipper._key] == DONE

    run(main)

    assert topic.written == [("there", b"2"), ("gone", None)]


def test_health_is_good_again_when_nothing_was_left_to_write(topic: Topic) -> None:
    """What had failed need not be followed by a write."""

    async def main() -> None:
        node = node_of(topic)
        ask = node.context.persisted

        def fails() -> Any:
            node.context.persisted = ask  # type: ignore[method-assign]
            raise ServiceUnavailable("the store is away")

        node.context.persisted = fails  # type: ignore[method-assign]
        node.start()
        await node.until(lambda: node.shipper.problem == "the store is away")
        await node.until(lambda: node.shipper.problem is None)
        assert "shipped to Kafka again" in node.context.log.texts("info")[-1]
        await node.shipper.stop()

    run(main)


def test_a_change_that_the_outbox_could_not_take_is_written_at_once(topic: Topic) -> None:
    """It does not wait for a change that the outbox takes."""

    async def main() -> None:
        node = node_of(topic)
        node.start()
        await node.idle()
        node.fill()
        node.retain("t", b"1")
        await node.until(lambda: topic.written == [("t", b"1")])
        await node.until(lambda: node.context.values[node.shipper._key] == DONE)
        await node.shipper.stop()

    run(main)


def test_a_copy_begins_when_what_was_missed_is_committed(topic: Topic) -> None:
    """Before that the store would not have it, and nobody would look again."""

    async def main() -> None:
        node = node_of(topic)
        node.start()
        await node.idle()
        outbox = node.context.outboxes["retained"]
        outbox.put = lambda message: Accepted.DROPPED  # type: ignore[method-assign]
        waiting: list[Callable[[], None]] = []
        persist = node.context.persist

        def later(key: str, value: bytes | None, *, after_commit: Any = None, **more: Any) -> None:
            persist(key, value, **more)
            if after_commit is not None:
                waiting.append(after_commit)

        node.context.persist = later  # type: ignore[method-assign]
        node.shipper.note("t")
        await node.until(lambda: waiting)
        node.retain("t", b"1")
        assert topic.written == []
        waiting.pop()()
        await node.until(lambda: topic.written == [("t", b"1")])
        await node.shipper.stop()

    run(main)


def test_that_something_is_missed_is_stored_also_after_a_failed_commit(topic: Topic) -> None:
    """Or a restart would not know; health says so meanwhile."""

    async def main() -> None:
        node = node_of(topic)
        node.start()
        await node.idle()
        node.fill()
        node.context.fails_to_persist = True
        node.retain("t", b"1")
        await node.until(lambda: "not committed" in str(node.shipper.problem))
        assert topic.written == []
        stored: list[bytes | None] = []
        persist = node.context.persist

        def noted(key: str, value: bytes | None, **more: Any) -> None:
            stored.append(value)
            persist(key, value, **more)

        node.context.persist = noted  # type: ignore[method-assign]
        node.context.fails_to_persist = False
        await node.until(lambda: node.shipper.problem is None)
        assert stored == [MISSES, DONE]
        await node.shipper.stop()

    run(main)

    assert topic.written == [("t", b"1")]
