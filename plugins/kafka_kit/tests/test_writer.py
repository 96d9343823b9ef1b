"""The writer, the delivery, producers and what is asked of topics, with a producer in memory: no Kafka is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import MessageSizeTooLargeError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from attrs import define, field, frozen

from kinmqtt_kafka_kit import SecuritySettings, metadata, producers
from kinmqtt_kafka_kit.delivery import SMALLEST_BATCH, Record
from kinmqtt_kafka_kit.partitions import partition_of
from kinmqtt_kafka_kit.producers import Producers
from kinmqtt_kafka_kit.writer import TopicWriter
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import Poison


@frozen(slots=True)
class Connection:
    """Of no Kafka."""

    servers: tuple[str, ...] = ("127.0.0.1:9",)
    security: SecuritySettings = SecuritySettings()
    timeout_s: float = 0.2


@define
class Batch:
    """As aiokafka's: the first record fits in any case."""

    limit_bytes: int
    records: list[tuple[bytes, bytes]] = field(factory=list)

    def append(self, *, timestamp: Any, key: bytes, value: bytes | None, headers: Any) -> object:
        if self.records and self.size() + len(key) + len(value or b"") > self.limit_bytes:
            return None
        self.records.append((key, value or b""))
        return self

    def size(self) -> int:
        return sum(len(key) + len(value) for key, value in self.records)

    def close(self) -> None:
        pass


@define
class Kafka:
    """What producers send to: topics with their partitions, and a largest batch."""

    topics: dict[str, set[int]] = field(factory=lambda: {"t": {0, 1, 2}})
    max_bytes: int = 1 << 30
    answers: bool = True
    each_takes_s: float = 0.0
    """By how much :attr:`now_s` has gone on when a batch is answered."""
    now_s: float = 0.0
    fails: dict[int, Exception] = field(factory=dict)
    """By partition."""
    sent: list[tuple[int, list[tuple[bytes, bytes]]]] = field(factory=list)
    refused: int = 0
    made: list[Any] = field(factory=list)
    ended: list[Any] = field(factory=list)
    options: dict[str, Any] = field(factory=dict)

    async def start(self, connection: Any, **more: Any) -> Any:
        self.options = more
        known = SimpleNamespace(partitions_for_topic=self.topics.get)
        client = SimpleNamespace(cluster=known, force_metadata_update=self.updated, get_random_node=lambda: None)
        producer = SimpleNamespace(
            client=client, create_batch=lambda: Batch(more["max_batch_size"]), send_batch=self.send_batch
        )
        self.made.append(producer)
        return producer

    async def end(self, producer: Any) -> None:
        self.ended.append(producer)

    async def updated(self) -> bool:
        return True

    async def send_batch(self, batch: Batch, topic: str, partition: int) -> Awaitable[None]:
        async def answer() -> None:
            if not self.answers:
                await asyncio.Event().wait()
            if self.each_takes_s:
                self.now_s += self.each_takes_s
                await asyncio.sleep(0)
            if partition in self.fails:
                raise self.fails[partition]
            if batch.size() > self.max_bytes:
                self.refused += 1
                raise MessageSizeTooLargeError
            self.sent.append((partition, batch.records))

        return answer()


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """A Kafka in memory."""
    made = Kafka()
    monkeypatch.setattr(producers, "start_producer", made.start)
    monkeypatch.setattr(producers, "end_producer", made.end)
    return made


def records(*sizes: int) -> list[Record]:
    return [(number, b"k%d" % number, b"x" * size, [], None) for number, size in enumerate(sizes)]


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(main())  # type: ignore[arg-type]  # a coroutine function


def test_records_go_to_the_partitions_of_their_keys(kafka: Kafka) -> None:
    """In their order, and compressed as asked."""
    wanted: list[Record] = [(0, b"a", b"1", [], 5), (1, b"b", None, [], 5), (2, b"a", b"2", [], 5)]

    assert run(lambda: TopicWriter(Connection(), "t", 1000, "gzip").write(wanted)) == [None] * 3

    places = dict(kafka.sent)
    assert places[partition_of(b"a", 3)] == [(b"a", b"1"), (b"a", b"2")]
    assert places[partition_of(b"b", 3)] == [(b"b", b"")]
    assert kafka.options == {"max_batch_size": 1000, "compression_type": "gzip"}


def test_what_a_topic_has_refused_is_not_tried_again(kafka: Kafka) -> None:
    """Its limit is learned once; each refusal costs a new producer. One that is too large alone is answered so."""
    kafka.topics["t"] = {0}
    kafka.max_bytes = 3 * SMALLEST_BATCH
    writer = TopicWriter(Connection(), "t", 1 << 20)

    async def main() -> tuple[int, Sequence[Any]]:
        await writer.write(records(*[1000] * 40))
        refused = kafka.refused
        await writer.write(records(*[1000] * 40))
        assert kafka.refused == refused > 0
        return refused, await writer.write(records(10, 5 * SMALLEST_BATCH, 10))

    refused, answers = run(main)

    assert [type(answer) for answer in answers] == [type(None), Poison, type(None)]
    assert [len(value) for _, found in kafka.sent for _, value in found] == [1000] * 80 + [10, 10]
    assert len(kafka.made) == kafka.refused + 1 == refused + 2
    assert kafka.ended == kafka.made[:-1]


def test_the_time_limit_is_that_of_an_answer(kafka: Kafka) -> None:
    """However many batches a write takes: a slow Kafka is no Kafka that is away."""
    kafka.topics["t"] = {0}
    kafka.each_takes_s = 3.0

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        loop.time = lambda: kafka.now_s
        await TopicWriter(Connection(timeout_s=5.0), "t", 1000).write(records(*[900] * 6))

    run(main)

    assert len(kafka.sent) == 6


def test_a_kafka_that_does_not_answer_fails_the_write(kafka: Kafka) -> None:
    """And the producer ends, because aiokafka has counted what it did not send."""
    kafka.answers = False

    with pytest.raises(ServiceUnavailable, match="not answered in time"):
        run(lambda: TopicWriter(Connection(timeout_s=0.05), "t", 1000).write(records(1)))

    assert kafka.ended == kafka.made


def test_a_refusal_is_what_is_told(kafka: Kafka) -> None:
    """Of the failures of several partitions an operator must learn of that one."""
    kafka.fails = {partition_of(b"k0", 3): ConnectionError("gone")}
    kafka.fails |= {partition_of(b"k%d" % number, 3): ConnectionError("gone") for number in range(5)}
    kafka.fails[2] = TopicAuthorizationFailedError("t")

    with pytest.raises(SinkRefused, match="the user needs DESCRIBE"):
        run(lambda: TopicWriter(Connection(), "t", 1000).write(records(*[1] * 20)))


def test_a_missing_topic_is_named(kafka: Kafka) -> None:
    """It is looked for again with each write."""
    writer = TopicWriter(Connection(), "u", 1000)

    async def main() -> None:
        with pytest.raises(ServiceUnavailable, match="create it, what is for it waits"):
            await writer.write(records(1))
        kafka.topics["u"] = {0}
        await writer.write(records(1))

    run(main)

    assert len(kafka.sent) == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "the topic 'u' is new"), (UnknownTopicOrPartitionError.errno, "there is no topic 'u'")],
)
def test_why_a_topic_can_not_be_used(code: int, said: str) -> None:
    """Kafka is asked by name in a way that creates none."""
    asked: list[Any] = []

    async def send(node: object, request: Any) -> Any:
        asked.append(request)
        return SimpleNamespace(topics=[(code, "u", False, [])])

    async def updated() -> bool:
        return True

    known = SimpleNamespace(partitions_for_topic={"t": {0}}.get)
    client = SimpleNamespace(cluster=known, force_metadata_update=updated, get_random_node=lambda: 1, send=send)
    producer: Any = SimpleNamespace(client=client)

    found = run(lambda: metadata.missing(producer, ["t", "u"]))

    assert list(found) == ["u"]
    assert found["u"].startswith(said)
    assert metadata.partitions_of(producer, "t") == (0,)
    assert len(asked) == 1


def test_a_topic_that_this_client_may_not_see_is_a_refusal() -> None:
    """And a Kafka that does not list its topics is away."""

    async def send(node: object, request: Any) -> Any:
        return SimpleNamespace(topics=[(TopicAuthorizationFailedError.errno, "u", False, [])])

    answers = [True, False]

    async def updated() -> bool:
        return answers.pop(0)

    known = SimpleNamespace(partitions_for_topic={}.get)
    client = SimpleNamespace(cluster=known, force_metadata_update=updated, get_random_node=lambda: 1, send=send)
    producer: Any = SimpleNamespace(client=client)

    with pytest.raises(TopicAuthorizationFailedError):
        run(lambda: metadata.missing(producer, ["u"]))
    with pytest.raises(ServiceUnavailable, match="does not say which topics"):
        run(lambda: metadata.missing(producer, ["u"]))


def test_a_producer_is_replaced_once(kafka: Kafka) -> None:
    """Several partitions may be refused at once; and without one, this is said."""
    both = Producers(Connection(), max_batch_size=1)

    async def main() -> None:
        with pytest.raises(ServiceUnavailable, match="not connected"):
            assert both.producer
        await both.open()
        used = both.producer
        await asyncio.gather(both.renew(used), both.renew(used))
        await both.renew(used)
        assert both.producer is not used
        assert len(kafka.made) - len(kafka.ended) == 1
        await both.close()
        assert not both.is_open

    run(main)

    assert len(kafka.made) == len(kafka.ended)
