"""However writes, deliveries, losses and exchanges interleave, all nodes end with the newest versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from kinmqtt.broker.retained_sync import pages
from kinmqtt.broker.retained_sync.comparison import compare, next_request
from kinmqtt.broker.retained_sync.index import BUCKETS, VersionIndex
from kinmqtt.broker.retained_sync.pages import deletion, read_list, read_request, write_list, write_request
from kinmqtt.broker.routing.version_clock import VersionClock
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.values import Message, MessageId
from spi_harness.examples import examples

NOW = 1_700_000_000.0

TOPICS = [f"t/{number}" for number in range(6)]


class Node:
    """What a node knows: its clock, its index and its store."""

    def __init__(self, uid: int, ahead_s: float) -> None:
        self.uid = uid
        self.index = VersionIndex()
        self.store = MemoryRetainStore()
        self.versions = VersionClock()
        self._ahead_s = ahead_s
        self._counter = 0

    def write(self, topic: str, payload: bytes, now: float) -> RetainWrite:
        """Take a message of a client."""
        self._counter += 1
        id = MessageId(self.uid, self._counter)
        version = self.versions.next(now + self._ahead_s, id)
        write = RetainWrite(Message(topic, payload, 0, True).received(id, now, None), version)
        self.accept(write)
        return write

    def accept(self, write: RetainWrite) -> None:
        """Take a write of any node."""
        message = write.message
        self.versions.observe(write.version.received_at)
        self.store.put([write])
        self.index.take(message.topic, write.version, not message.payload, NOW)

    def newest(self, topic: str) -> RetainWrite:
        """Return what it would send."""
        version = self.index.version_of(topic)
        assert version is not None
        if self.index.is_deleted(topic):
            return deletion(topic, version, NOW)
        [message] = self.store.match(topic).messages
        return RetainWrite(message, version)

    @property
    def contents(self) -> dict[str, tuple[RetainVersion, bytes]]:
        """The messages that its clients find."""
        found: dict[str, tuple[RetainVersion, bytes]] = {}
        cursor: object = None
        while True:
            page = self.store.iterate(cursor)
            found.update((write.message.topic, (write.version, write.message.payload)) for write in page.writes)
            cursor = page.cursor
            if cursor is None:
                return found


def exchange(one: Node, other: Node) -> Iterator[None]:
    """Exchange all that differs, in small pages; anything may happen between two steps."""
    buckets: Sequence[int] = one.index.differing(other.index.table())
    after = ""
    while buckets:
        yield
        sections = read_list(write_list(other.index, *read_request(write_request(buckets, after))))
        begins = after
        buckets, after = next_request(buckets, after, sections)
        yield
        for section in sections:
            found = compare(one.index, section, begins, NOW)
            begins = ""
            for entry in found.deleted:
                one.accept(deletion(entry.topic, entry.version, NOW))
            yield
            for topic in found.wanted:
                if other.index.version_of(topic) is not None:
                    one.accept(other.newest(topic))
            yield
            for topic in found.offered:
                other.accept(one.newest(topic))


steps = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3), st.sampled_from(TOPICS), st.sampled_from([b"", b"1", b"2"])),
    st.tuples(st.just("deliver"), st.integers(0, 1000)),
    st.tuples(st.just("lose"), st.integers(0, 1000)),
    st.tuples(st.just("exchange"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("go on"), st.integers(0, 1000)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 1e-7, 0.5, -0.5])),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 5.0, -5.0]), min_size=2, max_size=4),
    st.lists(steps, max_size=60),
    st.sampled_from([1, 60, 1 << 15]),
)
def test_all_nodes_end_with_the_newest_versions(clocks: list[float], script: list[tuple], page_bytes: int) -> None:  # type: ignore[type-arg]
    """C10: also where clocks differ or are set back, and messages are lost or come late."""
    nodes = [Node(uid, ahead_s) for uid, ahead_s in enumerate(clocks, start=1)]
    count = len(nodes)
    under_way: list[tuple[Node, RetainWrite]] = []
    exchanges: list[Iterator[None]] = []
    written: dict[str, RetainWrite] = {}
    now = NOW
    with patch.object(pages, "LIST_BYTES", page_bytes):
        for what, *more in script:
            if what == "write":
                number, topic, payload = more
                source = nodes[number % count]
                write = source.write(topic, payload, now)
                if topic not in written or write.version > written[topic].version:
                    written[topic] = write
                under_way += [(each, write) for each in nodes if each is not source]
            elif what in ("deliver", "lose") and under_way:
                target, write = under_way.pop(more[0] % len(under_way))
                if what == "deliver":
                    target.accept(write)
            elif what == "exchange" and (more[0] - more[1]) % count:
                exchanges.append(exchange(nodes[more[0] % count], nodes[more[1] % count]))
            elif what == "go on" and exchanges:
                going = exchanges.pop(more[0] % len(exchanges))
                if next(going, going) is None:
                    exchanges.append(going)
            elif what == "wait":
                now += more[0]
        for going in exchanges:
            for _ in going:
                pass
        for _ in range(2):
            for node in nodes[1:]:
                for _ in exchange(nodes[0], node):
                    pass

    expected = {
        topic: (write.version, write.message.payload) for topic, write in written.items() if write.message.payload
    }
    assert [node.contents for node in nodes] == [expected] * count
    assert {node.index.root() for node in nodes} == {nodes[0].index.root()}


def test_a_write_after_another_nodes_is_newer_whatever_the_clock_says() -> None:
    """Who has seen a message supersedes it, even with a clock an hour behind."""
    ahead, behind = Node(2, 3600.0), Node(1, 0.0)
    first = ahead.write("a", b"1", NOW)
    behind.accept(first)

    second = behind.write("a", b"2", NOW)

    assert second.version > first.version


def test_an_exchange_of_many_topics_takes_several_pages() -> None:
    """Each bucket is listed whole, in as many pages as it takes."""
    one, other = Node(1, 0.0), Node(2, 0.0)
    for number in range(3 * BUCKETS):
        (one, other)[number % 2].write(f"{number}", b"x", NOW)

    with patch.object(pages, "LIST_BYTES", 100):
        pages_asked = sum(1 for _ in exchange(one, other))

    assert one.contents == other.contents
    assert len(one.contents) == 3 * BUCKETS
    assert pages_asked > BUCKETS
