"""Queues in memory, against a model that keeps plain lists."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kinmqtt_spi.errors import Fenced
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.services.queue import (
    ENTRY_BYTES,
    Append,
    Entry,
    InboundClose,
    InboundOpen,
    InflightEntry,
    Purge,
    QueueSizes,
    QueueState,
    QueueWrite,
    Release,
    Remove,
    Requeue,
    Send,
    Stage,
)
from kinmqtt_spi.values import MESSAGE_BYTES, Message, MessageId
from spi_harness.examples import examples


def entry(sequence: int, topic: str = "t", payload: bytes = b"12345", expires_at: float | None = None) -> Entry:
    return Entry(sequence, Message(topic, payload, expires_at=expires_at), qos=1)


def numbers(store: MemoryQueueStore, client_id: str = "c", after: int = 0, limit: int = 1000) -> list[int]:
    return [each.sequence for each in store.read(client_id, after, limit)]


def test_entries_are_read_in_order_of_append() -> None:
    """A queue answers pages of what waits, in order, after the number it is asked from (section 4.6)."""
    store = MemoryQueueStore()
    store.apply([Append("c", 1, entry(number)) for number in (1, 2, 5, 9)])

    first, second, rest = numbers(store, limit=2), numbers(store, after=2, limit=1), numbers(store, after=5)

    assert (first, second, rest) == ([1, 2], [5], [9])
    assert numbers(store, after=-1) == [1, 2, 5, 9]
    assert numbers(store, after=9) == numbers(store, "nobody") == numbers(store, limit=0) == []


def test_reading_behind_a_gap_finds_what_is_there() -> None:
    """Where numbers are sparse, a page is found without trying each number in between."""
    store = MemoryQueueStore()
    store.apply([Append("c", 1, entry(number)) for number in (1, 10**12, 10**12 + 1)])

    page = numbers(store, after=1)

    assert page == [10**12, 10**12 + 1]


def test_sparse_entries_are_requeued_in_order() -> None:
    """Going back into the queue keeps the order of append, however far apart the numbers are."""
    store = MemoryQueueStore()
    store.apply([Append("c", 1, entry(number)) for number in (1, 10**12)])

    store.apply([Send("c", 1, 1, 5), Requeue("c", 1)])

    assert numbers(store) == [1, 10**12]


def test_in_flight_entries_keep_the_order_of_sending() -> None:
    """What must be sent again is listed in the order in which it was sent (MQTT-4.6.0-1)."""
    store = MemoryQueueStore()
    one, two, three = entry(1), entry(2), entry(3)
    store.apply([Append("c", 1, one), Append("c", 1, two), Append("c", 1, three, packet_id=7)])

    store.apply([Send("c", 1, 2, 8), Send("c", 1, 1, 9), Release("c", 1, 2)])

    assert store.load("c").inflight == (
        InflightEntry(3, 7, Stage.SENT, three),
        InflightEntry(2, 8, Stage.RELEASED, None),
        InflightEntry(1, 9, Stage.SENT, one),
    )
    assert numbers(store) == []


def test_requeued_entries_take_their_old_places() -> None:
    """Entries nobody answers for go back before later ones; a released one stays in flight."""
    store = MemoryQueueStore()
    store.apply([Append("c", 1, entry(number)) for number in range(1, 6)])
    store.apply([Send("c", 1, 1, 11), Send("c", 1, 2, 12), Send("c", 1, 4, 14), Release("c", 1, 2)])

    store.apply([Requeue("c", 2)])

    assert numbers(store) == [1, 3, 4, 5]
    assert [(each.packet_id, each.stage) for each in store.load("c").inflight] == [(12, Stage.RELEASED)]


def test_a_former_owner_is_fenced_and_the_others_are_kept() -> None:
    """A write of an older epoch is refused by name; the rest of its batch is kept."""
    store = MemoryQueueStore()
    store.apply([Append("old", 3, entry(1)), Append("other", 1, entry(1))])

    with pytest.raises(Fenced) as caught:
        store.apply([Append("old", 2, entry(2)), Append("other", 1, entry(2)), Append("old", 3, entry(3))])

    assert caught.value.client_ids == {"old"}
    assert (numbers(store, "old"), numbers(store, "other")) == ([1, 3], [1, 2])


def test_the_fence_outlives_the_entries() -> None:
    """A client without any entry left is remembered by epoch and last sequence number."""
    store = MemoryQueueStore()
    store.apply([Append("c", 5, entry(41)), Purge("c", 5)])

    with pytest.raises(Fenced):
        store.apply([Append("c", 4, entry(42))])

    assert store.load("c") == QueueState(last_sequence=41)
    assert store.totals() == QueueSizes()


def test_the_number_of_remembered_clients_is_bounded() -> None:
    """Of clients without entries, the one that was purged longest ago is forgotten first."""
    store = MemoryQueueStore(remembered_epochs=2)

    pairs: list[list[QueueWrite]] = [[Append(name, 1, entry(9)), Purge(name, 1)] for name in "abc"]
    store.apply(list(chain(*pairs)))

    assert [store.load(name).last_sequence for name in "abc"] == [0, 9, 9]


def test_a_repeated_batch_changes_nothing() -> None:
    """After a crash an owner may repeat writes: none is doubled, and none comes back."""
    store = MemoryQueueStore()
    batch: list[QueueWrite] = [
        Append("c", 1, entry(1)),
        Append("c", 1, entry(2), packet_id=5),
        InboundOpen("c", 1, 3),
        Remove("c", 1, 2),
    ]
    store.apply(batch)
    before = (store.load("c"), store.totals(), numbers(store))

    store.apply(batch)
    store.apply([Send("c", 1, 99, 1), Release("c", 1, 99), Remove("c", 1, 99), InboundClose("c", 1, 99)])

    assert (store.load("c"), store.totals(), numbers(store)) == before


def test_an_owner_may_count_anew_after_a_purge() -> None:
    """A new session under an old client id loses no message, though its numbers begin at one again."""
    store = MemoryQueueStore()
    store.apply([Append("c", 1, entry(7)), Purge("c", 2)])

    store.apply([Append("c", 2, entry(1))])

    assert numbers(store) == [1]


def test_inbound_identifiers_stand_until_they_are_closed() -> None:
    """The packet identifier of a QoS 2 PUBLISH is known until PUBREL (MQTT-4.3.3-10)."""
    store = MemoryQueueStore()
    store.apply([InboundOpen("c", 1, 3), InboundOpen("c", 1, 4), InboundOpen("c", 1, 3)])

    store.apply([InboundClose("c", 1, 4)])

    assert store.load("c").inbound == {3}
    assert store.sizes("c") == store.totals() == QueueSizes(inbound=1)


@pytest.mark.parametrize(
    ("topic", "more", "expected"),
    [("t", {}, 6), ("température", {}, 49), ("t", {"identifiers": (1, 2)}, 22), ("t", {"shared_filter": "f"}, 57)],
)
def test_sizes_count_what_an_entry_holds(topic: str, more: dict[str, Any], expected: int) -> None:
    """Topic and payload, what comes with the delivery, and the objects that a message and an entry are."""
    store = MemoryQueueStore()
    held = entry(1, topic)._replace(**more)

    store.apply([Append("c", 1, held)])

    expected += MESSAGE_BYTES + ENTRY_BYTES
    assert store.sizes("c") == store.totals() == QueueSizes(queued=1, queued_bytes=expected)
    assert held.size_bytes == expected
    assert store.sizes("nobody") == QueueSizes()


def test_only_queued_messages_expire() -> None:
    """A message that is in flight is delivered though it expired meanwhile (MQTT-4.3.3-7)."""
    store = MemoryQueueStore()
    store.apply([Append("c", 1, entry(number, expires_at=float(number))) for number in range(1, 6)])
    store.apply([Send("c", 1, 1, 1)])

    removed = [store.expire(4.0, 2), store.expire(4.0, 2), store.expire(4.0, 2)]

    assert [[(name, each.sequence) for name, each in page] for page in removed] == [
        [("c", 2), ("c", 3)],
        [("c", 4)],
        [],
    ]
    assert numbers(store) == [5]
    assert store.sizes("c") == QueueSizes(1, entry(1).size_bytes, 1, 0)


def test_a_requeued_message_expires_again() -> None:
    """A message that went back into its queue is subject to its expiry once more (section 3.3.2.3.3)."""
    store = MemoryQueueStore()
    store.apply([Append("c", 1, entry(1, expires_at=1.0), packet_id=1), Requeue("c", 2)])

    removed = store.expire(1.0, 10)

    assert [each.sequence for _, each in removed] == [1]


def test_marks_of_messages_that_left_are_swept() -> None:
    """A stream of expiring messages that are delivered at once leaves nothing behind that grows."""
    store = MemoryQueueStore()

    for number in range(1, 10_001):
        store.apply([Append("c", 1, entry(number, expires_at=1e9)), Remove("c", 1, number)])

    assert len(store._expiry) <= 1025


CLIENTS = st.sampled_from(["a", "b"])
SEQUENCES = st.integers(1, 12)
PACKETS = st.integers(1, 4)


class QueueModel(RuleBasedStateMachine):
    """Queues as lists of (sequence, entry, packet identifier or None, released)."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryQueueStore()
        self.epochs = {"a": 1, "b": 1}
        self.last = {"a": 0, "b": 0}
        self.queued: dict[str, dict[int, Entry]] = {"a": {}, "b": {}}
        self.inflight: dict[str, list[InflightEntry]] = {"a": [], "b": []}
        self.inbound: dict[str, set[int]] = {"a": set(), "b": set()}
        self.pending: dict[str, dict[int, MessageId]] = {"a": {}, "b": {}}

    @rule(client=CLIENTS, packet=st.none() | PACKETS, expires=st.none() | st.integers(1, 5))
    def append(self, client: str, packet: int | None, expires: int | None) -> None:
        self.last[client] += 1
        new = entry(self.last[client], client * self.last[client], expires_at=expires)
        self.store.apply([Append(client, self.epochs[client], new, packet)])
        if packet is None:
            self.queued[client][new.sequence] = new
        else:
            self.inflight[client].append(InflightEntry(new.sequence, packet, Stage.SENT, new))

    @rule(client=CLIENTS, sequence=SEQUENCES, packet=PACKETS)
    def send(self, client: str, sequence: int, packet: int) -> None:
        self.store.apply([Send(client, self.epochs[client], sequence, packet)])
        sent = self.queued[client].pop(sequence, None)
        if sent is not None:
            self.inflight[client].append(InflightEntry(sequence, packet, Stage.SENT, sent))

    @rule(client=CLIENTS, sequence=SEQUENCES)
    def release(self, client: str, sequence: int) -> None:
        self.store.apply([Release(client, self.epochs[client], sequence)])
        self.inflight[client] = [
            InflightEntry(sequence, each.packet_id, Stage.RELEASED, None) if each.sequence == sequence else each
            for each in self.inflight[client]
        ]

    @rule(client=CLIENTS, sequence=SEQUENCES)
    def remove(self, client: str, sequence: int) -> None:
        self.store.apply([Remove(client, self.epochs[client], sequence)])
        self.queued[client].pop(sequence, None)
        self.inflight[client] = [each for each in self.inflight[client] if each.sequence != sequence]

    @rule(client=CLIENTS)
    def take_over(self, client: str) -> None:
        self.epochs[client] += 1
        self.store.apply([Requeue(client, self.epochs[client])])
        for each in self.inflight[client]:
            if each.entry is not None:
                self.queued[client][each.sequence] = each.entry
        self.inflight[client] = [each for each in self.inflight[client] if each.entry is None]

    @rule(client=CLIENTS, packet=PACKETS, opened=st.booleans(), counter=st.none() | st.integers(1, 3))
    def inbound_identifier(self, client: str, packet: int, opened: bool, counter: int | None) -> None:
        epoch = self.epochs[client]
        message = None if counter is None else MessageId(1, counter)
        write = InboundOpen(client, epoch, packet, message) if opened else InboundClose(client, epoch, packet)
        self.store.apply([write])
        self.inbound[client].discard(packet)
        self.pending[client].pop(packet, None)
        if opened and message is None:
            self.inbound[client].add(packet)
        elif opened and message is not None:
            self.pending[client][packet] = message

    @rule(client=CLIENTS)
    def purge(self, client: str) -> None:
        self.store.apply([Purge(client, self.epochs[client])])
        self.queued[client], self.inflight[client], self.inbound[client] = {}, [], set()
        self.pending[client] = {}

    @rule(now=st.integers(0, 6), limit=st.integers(0, 3))
    def expire(self, now: int, limit: int) -> None:
        removed = self.store.expire(now, limit)
        dead = {
            (client, each.sequence): each
            for client, queue in self.queued.items()
            for each in queue.values()
            if each.message.has_expired(now)
        }
        assert len(removed) == min(limit, len(dead))
        for client, each in removed:
            assert dead.pop((client, each.sequence)) == each
            del self.queued[client][each.sequence]

    @precondition(lambda self: self.epochs["a"] > 1 and self.last["a"])
    @rule()
    def former_owner(self) -> None:
        with pytest.raises(Fenced):
            self.store.apply([Purge("a", self.epochs["a"] - 1)])

    @invariant()
    def store_and_model_agree(self) -> None:
        total = [0, 0, 0, 0]
        for client in ("a", "b"):
            entries = [self.queued[client][number] for number in sorted(self.queued[client])]
            state = self.store.load(client)
            sizes = QueueSizes(
                len(entries),
                sum(each.size_bytes for each in entries),
                len(self.inflight[client]),
                len(self.inbound[client]) + len(self.pending[client]),
            )
            assert list(self.store.read(client, 0, 100)) == entries
            assert list(self.store.read(client, 3, 2)) == [each for each in entries if each.sequence > 3][:2]
            assert state == QueueState(
                tuple(self.inflight[client]),
                frozenset(self.inbound[client]),
                self.last[client],
                sizes,
                self.pending[client],
            )
            assert self.store.sizes(client) == sizes
            for place, value in enumerate((sizes.queued, sizes.queued_bytes, sizes.inflight, sizes.inbound)):
                total[place] += value
        assert self.store.totals() == QueueSizes(*total)


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
