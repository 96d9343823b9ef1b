"""The contract of a queue store: queued entries, entries in flight, and inbound identifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.queue import (
    KNOWN_MESSAGES,
    KNOWN_S,
    Append,
    Entry,
    InboundClose,
    InboundOpen,
    InflightEntry,
    Purge,
    QueueSizes,
    QueueState,
    QueueStore,
    QueueWrite,
    Release,
    Remove,
    Requeue,
    Send,
    Stage,
)
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import NOW, entry, message
from kinmqtt_spi.testing.contract import StoreContract, many
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.values import MessageId, Publisher


class QueueStoreContract(StoreContract):
    """Override the fixture ``queue_store``: an empty store, opened with ``drive`` if it must be awaited."""

    @pytest.fixture
    def queue_store(self) -> QueueStore:
        """The store under test, empty."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture queue_store")

    # Entries that wait

    @behaviour("QUEUE-01")
    def test_queue_01_an_unknown_queue_is_empty(self, queue_store: QueueStore, drive: Driver) -> None:
        """The queue of an unknown client id is empty in every respect."""
        self._apply(queue_store, drive, Append("b", 1, entry(1)), InboundOpen("b", 1, 1))

        assert drive(queue_store.load("a")) == QueueState()
        assert not drive(queue_store.read("a", 0, 10))
        assert queue_store.sizes("a") == QueueSizes()

    @behaviour("QUEUE-02")
    def test_queue_02_entries_are_in_order(self, queue_store: QueueStore, drive: Driver) -> None:
        """Entries are read in the order of their sequence numbers, compared as numbers, which may have gaps."""
        sequences = [2, 9, 10, 11, 100, 10**12]
        self._apply(queue_store, drive, *(Append("a", 1, entry(each)) for each in sequences))

        assert self._read(queue_store, drive, "a") == [entry(each) for each in sequences]

    @behaviour("QUEUE-03")
    def test_queue_03_reading_goes_on_after_a_number(self, queue_store: QueueStore, drive: Driver) -> None:
        """``read`` returns entries above the given number, whether or not there is one with that number."""
        self._apply(queue_store, drive, *(Append("a", 1, entry(each)) for each in (1, 2, 5, 9)))

        for after, expected in ((0, [1, 2, 5, 9]), (1, [2, 5, 9]), (3, [5, 9]), (5, [9]), (9, []), (10, [])):
            assert _numbers(drive(queue_store.read("a", after, 10))) == expected

    @behaviour("QUEUE-04")
    def test_queue_04_no_more_than_the_limit(self, queue_store: QueueStore, drive: Driver) -> None:
        """``read`` returns at most the limit, from the first entry on."""
        self._apply(queue_store, drive, *(Append("a", 1, entry(each)) for each in range(1, 8)))

        assert _numbers(drive(queue_store.read("a", 0, 3))) == [1, 2, 3]
        assert _numbers(drive(queue_store.read("a", 3, 3))) == [4, 5, 6]
        assert _numbers(drive(queue_store.read("a", 6, 3))) == [7]

    @behaviour("QUEUE-05")
    def test_queue_05_pages_show_each_entry_once(self, queue_store: QueueStore, drive: Driver) -> None:
        """Reads after the last number seen return each entry that stays exactly once, whatever changes."""
        going, staying = range(1, 30, 3), [each for each in range(1, 31) if each % 3 != 1]
        self._apply(queue_store, drive, *(Append("a", 1, entry(each)) for each in range(1, 31)))

        seen: list[int] = []
        for number in range(100):
            page = _numbers(drive(queue_store.read("a", seen[-1] if seen else 0, 4)))
            if not page:
                break
            seen += page
            if number < 5:
                self._apply(
                    queue_store,
                    drive,
                    Remove("a", 1, going[number]),
                    Send("a", 1, going[-1 - number], number + 1),
                    Append("a", 1, entry(31 + number)),
                )

        assert [each for each in seen if each in staying] == staying
        assert seen == sorted(set(seen))

    @behaviour("QUEUE-06")
    def test_queue_06_reading_leaves_what_it_reads(self, queue_store: QueueStore, drive: Driver) -> None:
        """Reading and loading change nothing: an entry stays until a write or its expiry removes it."""
        self._apply(queue_store, drive, Append("a", 1, entry(1)), Append("a", 1, entry(2), 7), InboundOpen("a", 1, 3))
        before = drive(queue_store.load("a"))

        assert self._read(queue_store, drive, "a") == self._read(queue_store, drive, "a") == [entry(1)]
        assert drive(queue_store.load("a")) == before

    @behaviour("QUEUE-07")
    def test_queue_07_everything_comes_back(self, queue_store: QueueStore, drive: Driver) -> None:
        """An entry is returned unchanged: its message with every field, and the properties of this delivery."""
        name = "ä/client+#"
        stored = whole_entry(1)
        plain = Entry(2, message("", b"", publisher=Publisher(""), expires_at=None), 0)
        sent = whole_entry(3)
        self._apply(
            queue_store, drive, Append(name, 1, stored), Append(name, 1, plain), Append(name, 1, sent, 0xFFFF)
        )

        assert self._read(queue_store, drive, name) == [stored, plain]
        assert drive(queue_store.load(name)).inflight == (InflightEntry(3, 0xFFFF, Stage.SENT, sent),)

    # In flight

    @behaviour("QUEUE-08")
    def test_queue_08_an_entry_may_go_in_flight_at_once(self, queue_store: QueueStore, drive: Driver) -> None:
        """An entry that is appended with a packet identifier is in flight, and not queued."""
        self._apply(queue_store, drive, Append("a", 1, entry(1), 7), Append("a", 1, entry(2)))

        assert drive(queue_store.load("a")).inflight == (InflightEntry(1, 7, Stage.SENT, entry(1)),)
        assert self._read(queue_store, drive, "a") == [entry(2)]

    @behaviour("QUEUE-09")
    def test_queue_09_sending_moves_an_entry(self, queue_store: QueueStore, drive: Driver) -> None:
        """Send moves the entry with that number in flight, under its packet identifier, and no other."""
        self._apply(queue_store, drive, *(Append("a", 1, entry(each)) for each in (1, 2, 3)))

        self._apply(queue_store, drive, Send("a", 1, 2, 1))

        assert drive(queue_store.load("a")).inflight == (InflightEntry(2, 1, Stage.SENT, entry(2)),)
        assert self._read(queue_store, drive, "a") == [entry(1), entry(3)]

    @behaviour("QUEUE-10")
    def test_queue_10_in_flight_in_the_order_of_sending(self, queue_store: QueueStore, drive: Driver) -> None:
        """Entries in flight are loaded in the order in which they were sent (MQTT-4.6.0-1).

        That order does not follow from sequence numbers or packet identifiers; a release does not change it.
        """
        self._apply(queue_store, drive, *(Append("a", 1, entry(each)) for each in (1, 2, 3)))
        self._apply(queue_store, drive, Append("a", 1, entry(4), 9), Send("a", 1, 2, 30), Send("a", 1, 1, 100))
        self._apply(queue_store, drive, Send("a", 1, 3, 5), Release("a", 1, 2))

        inflight = drive(queue_store.load("a")).inflight

        assert [(each.sequence, each.packet_id) for each in inflight] == [(4, 9), (2, 30), (1, 100), (3, 5)]

    @behaviour("QUEUE-11")
    def test_queue_11_releasing_forgets_the_message(self, queue_store: QueueStore, drive: Driver) -> None:
        """Release deletes the message, and keeps its sequence number and packet identifier."""
        self._apply(queue_store, drive, Append("a", 1, entry(1), 7), Append("a", 1, entry(2), 8))

        self._apply(queue_store, drive, Release("a", 1, 1))

        assert drive(queue_store.load("a")).inflight == (
            InflightEntry(1, 7, Stage.RELEASED, None),
            InflightEntry(2, 8, Stage.SENT, entry(2)),
        )

    @behaviour("QUEUE-12")
    def test_queue_12_removing_works_in_every_stage(self, queue_store: QueueStore, drive: Driver) -> None:
        """Remove deletes the entry with that number, whether queued, sent or released, and no other."""
        self._apply(
            queue_store,
            drive,
            Append("a", 1, entry(1), 7),
            Append("a", 1, entry(2), 8),
            Append("a", 1, entry(3), 9),
            Append("a", 1, entry(4)),
            Append("a", 1, entry(5)),
            Release("a", 1, 2),
        )

        self._apply(queue_store, drive, *(Remove("a", 1, each) for each in (1, 2, 4)))

        assert drive(queue_store.load("a")).inflight == (InflightEntry(3, 9, Stage.SENT, entry(3)),)
        assert self._read(queue_store, drive, "a") == [entry(5)]

    @behaviour("QUEUE-13")
    def test_queue_13_a_packet_identifier_is_used_anew(self, queue_store: QueueStore, drive: Driver) -> None:
        """A packet identifier is free again after the removal of its entry, and a repeated removal has no effect."""
        self._apply(queue_store, drive, Append("a", 1, entry(1), 7), Append("a", 1, entry(2)))

        self._apply(queue_store, drive, Remove("a", 1, 1), Send("a", 1, 2, 7), Remove("a", 1, 1))

        assert drive(queue_store.load("a")).inflight == (InflightEntry(2, 7, Stage.SENT, entry(2)),)

    @behaviour("QUEUE-14")
    def test_queue_14_requeued_entries_take_their_old_place(self, queue_store: QueueStore, drive: Driver) -> None:
        """Requeue moves sent entries back to their old place in the queue; released ones stay in flight."""
        self._apply(queue_store, drive, *(Append("a", 1, entry(each)) for each in range(1, 6)))
        self._apply(queue_store, drive, *(Send("a", 1, each, 10 - each) for each in (4, 2, 1)))
        self._apply(queue_store, drive, Release("a", 1, 2))

        self._apply(queue_store, drive, Requeue("a", 1))

        assert self._read(queue_store, drive, "a") == [entry(each) for each in (1, 3, 4, 5)]
        assert drive(queue_store.load("a")).inflight == (InflightEntry(2, 8, Stage.RELEASED, None),)

    @behaviour("QUEUE-15")
    def test_queue_15_inbound_identifiers_stand_until_closed(self, queue_store: QueueStore, drive: Driver) -> None:
        """An inbound packet identifier is open from InboundOpen to InboundClose, however often either is repeated."""
        opened = [InboundOpen("a", 1, each) for each in (1, 0xFFFF, 7, 1)]
        self._apply(queue_store, drive, *opened)
        assert drive(queue_store.load("a")).inbound == {1, 7, 0xFFFF}

        self._apply(queue_store, drive, InboundClose("a", 1, 1), InboundClose("a", 1, 3), InboundClose("a", 1, 3))

        assert drive(queue_store.load("a")).inbound == {7, 0xFFFF}

    @behaviour("QUEUE-43")
    def test_queue_43_a_pending_identifier_names_its_message(self, queue_store: QueueStore, drive: Driver) -> None:
        """An inbound identifier is pending under its message id until it is opened without one, or closed."""
        ids = {each: MessageId(2**64 - each, each) for each in (1, 2, 3, 4)}
        self._apply(queue_store, drive, InboundOpen("a", 1, 9), *(InboundOpen("a", 1, *each) for each in ids.items()))
        before = drive(queue_store.load("a"))
        again = InboundOpen("a", 1, 4, MessageId(7, 7))
        self._apply(queue_store, drive, InboundOpen("a", 1, 2), InboundClose("a", 1, 3), again)
        after = drive(queue_store.load("a"))

        assert before.inbound == {9}
        assert dict(before.pending) == ids
        assert after.inbound == {2, 9}
        assert dict(after.pending) == {1: ids[1], 4: MessageId(7, 7)}
        assert (before.sizes.inbound, after.sizes.inbound) == (5, 4)
        self._apply(queue_store, drive, Purge("a", 1), InboundOpen("a", 1, 1))
        assert drive(queue_store.load("a")).inbound == {1}

    @behaviour("QUEUE-44")
    def test_queue_44_what_a_queue_has_is_known(self, queue_store: QueueStore, drive: Driver) -> None:
        """A message is known to its client's queue while it is queued, in flight or released, and to no other."""
        entries = {each: entry(each, qos=2) for each in (1, 2, 3, 4)}
        self._apply(queue_store, drive, *(Append("a", 1, each) for each in entries.values()))
        self._apply(queue_store, drive, Send("a", 1, 2, 2), Send("a", 1, 3, 3), Release("a", 1, 3), Remove("a", 1, 4))
        ids = {number: each.message.id for number, each in entries.items()}
        asked = {*ids.values(), MessageId(5, 5)}

        assert drive(queue_store.known("a", asked)) == {ids[1], ids[2], ids[3]}
        assert drive(queue_store.known("a", {ids[2]})) == {ids[2]}
        assert drive(queue_store.known("b", asked)) == set()

    @behaviour("QUEUE-45")
    def test_queue_45_a_completed_exchange_stays_known(self, queue_store: QueueStore, drive: Driver) -> None:
        """A QoS 2 message is still known when its exchange has just been completed, and its entry removed."""
        done = entry(1, qos=2)
        self._apply(queue_store, drive, Append("a", 1, done, 1))
        self._apply(queue_store, drive, Release("a", 1, 1))
        self._apply(queue_store, drive, Remove("a", 1, 1))

        assert drive(queue_store.known("a", {done.message.id})) == {done.message.id}

    @behaviour("QUEUE-46")
    def test_queue_46_it_stays_known_for_a_while(self, queue_store: QueueStore, drive: Driver) -> None:
        """A completed message stays known until ``expire`` gets a time that is ``KNOWN_S`` later, and until Purge.

        The first call of ``expire`` may come after the message was removed.
        """
        early, late = entry(1, qos=2), entry(2, qos=2)
        ids = {early.message.id, late.message.id}
        for each in (early, late):
            number = each.sequence
            for name in ("a", "b"):
                self._apply(queue_store, drive, Append(name, 1, each, number), Release(name, 1, number))
                self._apply(queue_store, drive, Remove(name, 1, number))
            drive(queue_store.expire(NOW + number, 10))
        self._apply(queue_store, drive, Purge("b", 1))

        drive(queue_store.expire(NOW + KNOWN_S, 10))

        assert drive(queue_store.known("a", ids)) == ids
        assert drive(queue_store.known("b", ids)) == set()

    @behaviour("QUEUE-47")
    def test_queue_47_the_newest_are_known(self, queue_store: QueueStore, drive: Driver) -> None:
        """Of completed messages the newest ``KNOWN_MESSAGES`` of a client stay known, and older ones do not."""
        several = [entry(each, qos=2) for each in range(1, KNOWN_MESSAGES + 11)]
        for start in range(0, len(several), 1000):
            writes: list[QueueWrite] = []
            for each in several[start : start + 1000]:
                number = each.sequence
                writes += [Append("a", 1, each, 1), Release("a", 1, number), Remove("a", 1, number)]
            self._apply(queue_store, drive, *writes)

        known = drive(queue_store.known("a", {each.message.id for each in several}))

        assert sorted(known) == [each.message.id for each in several[10:]]

    @behaviour("QUEUE-16")
    def test_queue_16_identifiers_belong_to_one_client(self, queue_store: QueueStore, drive: Driver) -> None:
        """Sequence numbers and packet identifiers are separate for each client, and for each direction."""
        for name in ("a", "b"):
            self._apply(queue_store, drive, Append(name, 1, entry(1, name), 7), InboundOpen(name, 1, 7))

        self._apply(queue_store, drive, Remove("a", 1, 1), InboundClose("b", 1, 7))

        a, b = drive(queue_store.load("a")), drive(queue_store.load("b"))
        assert not a.inflight and a.inbound == {7}
        assert b.inflight == (InflightEntry(1, 7, Stage.SENT, entry(1, "b")),) and not b.inbound

    @behaviour("QUEUE-17")
    def test_queue_17_purging_forgets_everything(self, queue_store: QueueStore, drive: Driver) -> None:
        """Purge deletes a client's entries, those in flight and its inbound identifiers; others keep theirs."""
        for name in ("a", "b"):
            self._apply(queue_store, drive, *_some_of_each(name))
        others = drive(queue_store.load("b"))

        self._apply(queue_store, drive, Purge("a", 1))

        state = drive(queue_store.load("a"))
        assert (state.inflight, state.inbound, state.sizes) == ((), frozenset(), QueueSizes())
        assert not drive(queue_store.read("a", 0, 10))
        assert drive(queue_store.load("b")) == others
        assert queue_store.totals() == others.sizes

    @behaviour("QUEUE-18")
    def test_queue_18_who_begins_anew_may_count_anew(self, queue_store: QueueStore, drive: Driver) -> None:
        """After Purge numbers may start at one again: entries appended under them are new."""
        self._apply(queue_store, drive, Append("a", 1, entry(1, "old")), Append("a", 1, entry(7, "old")))

        self._apply(queue_store, drive, Purge("a", 2), Append("a", 2, entry(1, "new")))

        assert self._read(queue_store, drive, "a") == [entry(1, "new")]

    @behaviour("QUEUE-19")
    def test_queue_19_the_last_number_is_known(self, queue_store: QueueStore, drive: Driver) -> None:
        """``last_sequence`` is the highest number that was ever appended, whatever happened to the entry."""
        last = []
        for write in (
            Append("a", 1, entry(9)),
            Append("a", 1, entry(10), 1),
            Release("a", 1, 10),
            Remove("a", 1, 10),
            Remove("a", 1, 9),
        ):
            self._apply(queue_store, drive, write)
            last.append(drive(queue_store.load("a")).last_sequence)

        assert last == [9, 10, 10, 10, 10]

    # Epochs

    @behaviour("QUEUE-20")
    def test_queue_20_an_older_epoch_is_refused(self, queue_store: QueueStore, drive: Driver) -> None:
        """A write with an older epoch than the last one's raises Fenced with its client id, and changes nothing."""
        self._apply(queue_store, drive, *_some_of_each("a", 10))
        before = (drive(queue_store.load("a")), self._read(queue_store, drive, "a"))

        for write in _every_write("a", 9):
            with pytest.raises(Fenced) as refused:
                self._apply(queue_store, drive, write)
            assert refused.value.client_ids == {"a"}

        assert (drive(queue_store.load("a")), self._read(queue_store, drive, "a")) == before

    @behaviour("QUEUE-21")
    def test_queue_21_any_write_raises_the_epoch(self, queue_store: QueueStore, drive: Driver) -> None:
        """The first write sets a client id's epoch, and every later one with a higher epoch raises it."""
        for number, write in enumerate(_every_write("a", 10)):
            name = f"a{number}"
            self._apply(queue_store, drive, *_some_of_each(name, 9))
            self._apply(queue_store, drive, write._replace(client_id=name))

            with pytest.raises(Fenced):
                self._apply(queue_store, drive, Append(name, 9, entry(100)))
            self._apply(queue_store, drive, Append(name, 10, entry(101)))

            assert _numbers(self._read(queue_store, drive, name))[-1] == 101
            assert drive(queue_store.load(name)).last_sequence == 101

    @behaviour("QUEUE-22")
    def test_queue_22_others_of_the_batch_are_kept(self, queue_store: QueueStore, drive: Driver) -> None:
        """If some writes of a batch are refused, all others are committed, and Fenced names all refused ones.

        A client id that is named may have other writes with its newer epoch in the same batch.
        """
        for name in "abc":
            self._apply(queue_store, drive, Append(name, 2, entry(1)))
        batch = [Append(name, epoch, entry(2)) for name, epoch in (("a", 1), ("b", 2), ("c", 1))]

        with pytest.raises(Fenced) as refused:
            self._apply(queue_store, drive, *batch, Append("a", 2, entry(3)))

        assert refused.value.client_ids == {"a", "c"}
        assert {name: _numbers(self._read(queue_store, drive, name)) for name in "abc"} == {
            "a": [1, 3],
            "b": [1, 2],
            "c": [1],
        }

    @behaviour("QUEUE-23")
    def test_queue_23_purging_leaves_the_epoch(self, queue_store: QueueStore, drive: Driver) -> None:
        """Purge does not delete the epoch: a former owner of the queue is still refused."""
        self._apply(queue_store, drive, Append("a", 2, entry(1)), Purge("a", 3))

        with pytest.raises(Fenced):
            self._apply(queue_store, drive, Append("a", 2, entry(2)))

        assert not drive(queue_store.read("a", 0, 10))

    # Batches

    @behaviour("QUEUE-24")
    def test_queue_24_writes_to_what_is_not_there(self, queue_store: QueueStore, drive: Driver) -> None:
        """A write to an unknown sequence number or packet identifier changes nothing."""
        self._apply(queue_store, drive, *_some_of_each("a"))
        before = (drive(queue_store.load("a")), self._read(queue_store, drive, "a"))

        self._apply(
            queue_store,
            drive,
            Send("a", 1, 99, 50),
            Release("a", 1, 99),
            Remove("a", 1, 99),
            InboundClose("a", 1, 99),
            Send("nobody", 1, 1, 1),
            Release("nobody", 1, 1),
            Remove("nobody", 1, 1),
            Requeue("nobody", 1),
            InboundClose("nobody", 1, 1),
            Purge("nobody", 1),
        )

        assert (drive(queue_store.load("a")), self._read(queue_store, drive, "a")) == before
        assert queue_store.totals() == before[0].sizes
        assert drive(queue_store.load("nobody")) == QueueState()

    @behaviour("QUEUE-25")
    def test_queue_25_writes_of_a_batch_are_in_order(self, queue_store: QueueStore, drive: Driver) -> None:
        """The writes of a batch are applied in order, whatever their type, with clients mixed."""
        writes: list[QueueWrite] = []
        for name in ("a", "b"):
            writes += [InboundOpen(name, 1, 1), Append(name, 1, entry(1)), Append(name, 1, entry(2))]
        for name in ("a", "b"):
            writes += [Purge(name, 1), Append(name, 1, entry(3)), Send(name, 1, 3, 5), Append(name, 1, entry(4))]
        for name in ("a", "b"):
            writes += [Requeue(name, 1), Send(name, 1, 4, 5), InboundClose(name, 1, 2), InboundOpen(name, 1, 2)]

        self._apply(queue_store, drive, *writes)

        for name in ("a", "b"):
            state = drive(queue_store.load(name))
            assert state.inflight == (InflightEntry(4, 5, Stage.SENT, entry(4)),)
            assert state.inbound == {2}
            assert self._read(queue_store, drive, name) == [entry(3)]

    @behaviour("QUEUE-26")
    def test_queue_26_a_repeated_batch_changes_nothing(self, queue_store: QueueStore, drive: Driver) -> None:
        """A batch that is applied twice has the effect of one: nothing is doubled, and nothing comes back."""
        batch: list[QueueWrite] = [
            *(Append("a", 1, entry(each)) for each in (1, 2, 3, 4)),
            Append("a", 1, entry(5), 50),
            Append("a", 1, entry(6), 60),
            Send("a", 1, 2, 20),
            Send("a", 1, 1, 10),
            Release("a", 1, 5),
            Remove("a", 1, 6),
            Remove("a", 1, 3),
            InboundOpen("a", 1, 1),
            InboundOpen("a", 1, 2),
            InboundClose("a", 1, 1),
        ]
        self._apply(queue_store, drive, *batch)
        before = (drive(queue_store.load("a")), self._read(queue_store, drive, "a"), queue_store.totals())

        self._apply(queue_store, drive, *batch)

        after = (drive(queue_store.load("a")), self._read(queue_store, drive, "a"), queue_store.totals())
        assert after == before

    @behaviour("QUEUE-27")
    def test_queue_27_a_half_done_batch_can_be_done_whole(self, queue_store: QueueStore, drive: Driver) -> None:
        """After half of a batch was applied, applying the whole batch has the same effect as once."""
        batch: list[QueueWrite] = [
            InboundOpen("a", 1, 1),
            Append("a", 1, entry(1), 10),
            Append("a", 1, entry(2)),
            Send("a", 1, 2, 20),
            Release("a", 1, 1),
            Append("a", 1, entry(3)),
            Remove("a", 1, 1),
            InboundClose("a", 1, 1),
        ]
        for number in range(1, len(batch)):
            name = f"a{number}"
            its: list[QueueWrite] = [write._replace(client_id=name) for write in batch]
            self._apply(queue_store, drive, *its[:number])

            self._apply(queue_store, drive, *its)

            state = drive(queue_store.load(name))
            assert state.inflight == (InflightEntry(2, 20, Stage.SENT, entry(2)),)
            assert (state.inbound, state.last_sequence) == (frozenset(), 3)
            assert self._read(queue_store, drive, name) == [entry(3)]

    @behaviour("QUEUE-28")
    def test_queue_28_batches_are_kept_in_order(self, queue_store: QueueStore, drive: Driver) -> None:
        """Batches that are passed before the first is committed are committed in that order."""
        batches: list[list[QueueWrite]] = [
            [Append("a", 1, entry(1)), Append("a", 1, entry(2))],
            [Send("a", 1, 2, 20), Send("a", 1, 1, 10)],
            [Remove("a", 1, 2), Append("a", 1, entry(3))],
            [Requeue("a", 1)],
            [Send("a", 1, 1, 20)],
        ]
        answers = []
        for batch in batches:
            answers.append(queue_store.apply(batch))
            answers.append(queue_store.commit())

        for answer in answers:
            drive(answer)

        assert drive(queue_store.load("a")).inflight == (InflightEntry(1, 20, Stage.SENT, entry(1)),)
        assert self._read(queue_store, drive, "a") == [entry(3)]

    # Sizes

    @behaviour("QUEUE-29")
    def test_queue_29_sizes_are_right_after_each_write(self, queue_store: QueueStore, drive: Driver) -> None:
        """``sizes`` has the sizes of a queue as soon as a write of any type is committed; so has ``load``.

        A released entry is still in flight.
        """
        size = entry(1).size_bytes
        steps: list[tuple[QueueWrite, QueueSizes]] = [
            (Append("a", 1, entry(1)), QueueSizes(1, size, 0, 0)),
            (Append("a", 1, entry(2)), QueueSizes(2, 2 * size, 0, 0)),
            (Append("a", 1, entry(3), 30), QueueSizes(2, 2 * size, 1, 0)),
            (Send("a", 1, 1, 10), QueueSizes(1, size, 2, 0)),
            (Release("a", 1, 3), QueueSizes(1, size, 2, 0)),
            (InboundOpen("a", 1, 5), QueueSizes(1, size, 2, 1)),
            (InboundOpen("a", 1, 5), QueueSizes(1, size, 2, 1)),
            (Requeue("a", 1), QueueSizes(2, 2 * size, 1, 1)),
            (Remove("a", 1, 3), QueueSizes(2, 2 * size, 0, 1)),
            (Remove("a", 1, 3), QueueSizes(2, 2 * size, 0, 1)),
            (Remove("a", 1, 1), QueueSizes(1, size, 0, 1)),
            (InboundClose("a", 1, 5), QueueSizes(1, size, 0, 0)),
            (Append("a", 1, entry(4), 40), QueueSizes(1, size, 1, 0)),
            (Purge("a", 1), QueueSizes()),
        ]
        for write, expected in steps:
            self._apply(queue_store, drive, write)

            assert queue_store.sizes("a") == expected, write
            assert drive(queue_store.load("a")).sizes == expected, write

    @behaviour("QUEUE-30")
    def test_queue_30_totals_are_of_all_queues(self, queue_store: QueueStore, drive: Driver) -> None:
        """``totals`` is the sum of all queues; a shared message counts in each."""
        shared = entry(1)
        for name in ("a", "b", "c"):
            self._apply(queue_store, drive, Append(name, 1, shared), InboundOpen(name, 1, 1))
        self._apply(queue_store, drive, Send("a", 1, 1, 1))
        size = shared.size_bytes
        assert queue_store.totals() == QueueSizes(2, 2 * size, 1, 3)

        self._apply(queue_store, drive, Purge("b", 1), Remove("a", 1, 1))

        assert queue_store.totals() == QueueSizes(1, size, 0, 2)
        assert self._read(queue_store, drive, "c") == [shared]

    @behaviour("QUEUE-31")
    def test_queue_31_bytes_are_those_of_the_entries(self, queue_store: QueueStore, drive: Driver) -> None:
        """The bytes of a queue are the sum of its entries' ``Entry.size_bytes``: more than the messages'."""
        heavy, light = whole_entry(1), entry(2, "t")
        self._apply(queue_store, drive, Append("a", 1, heavy), Append("a", 1, light))
        assert queue_store.sizes("a").queued_bytes == heavy.size_bytes + light.size_bytes

        self._apply(queue_store, drive, Remove("a", 1, 1))

        assert queue_store.sizes("a").queued_bytes == queue_store.totals().queued_bytes == light.size_bytes

    # Expiry

    @behaviour("QUEUE-32")
    def test_queue_32_expired_entries_are_removed(self, queue_store: QueueStore, drive: Driver) -> None:
        """``expire`` removes queued entries that have expired, and returns them with their client ids.

        Entries that have not expired, or never expire, stay.
        """
        early, late, never = entry(1, expires_at=NOW + 10.5), entry(2, expires_at=NOW + 20), entry(3)
        for name in ("a", "b"):
            self._apply(queue_store, drive, *(Append(name, 1, each) for each in (early, late, never)))

        assert not drive(queue_store.expire(NOW + 10.4, 10))
        removed = drive(queue_store.expire(NOW + 10.5, 10))

        assert sorted(removed, key=lambda each: each[0]) == [("a", early), ("b", early)]
        assert not drive(queue_store.expire(NOW + 10.5, 10))
        for name in ("a", "b"):
            assert self._read(queue_store, drive, name) == [late, never]
            assert queue_store.sizes(name).queued == drive(queue_store.load(name)).sizes.queued == 2
        assert queue_store.totals().queued_bytes == 2 * (late.size_bytes + never.size_bytes)

    @behaviour("QUEUE-33")
    def test_queue_33_what_is_in_flight_does_not_expire(self, queue_store: QueueStore, drive: Driver) -> None:
        """``expire`` does not remove entries in flight (MQTT-4.3.3-7); requeued ones expire."""
        expiring = [entry(each, expires_at=NOW + each) for each in (1, 2, 3)]
        self._apply(queue_store, drive, *(Append("a", 1, each) for each in expiring[:2]))
        self._apply(queue_store, drive, Append("a", 1, expiring[2], 30), Send("a", 1, 1, 10), Send("a", 1, 2, 20))
        self._apply(queue_store, drive, Release("a", 1, 2))
        before = drive(queue_store.load("a"))

        assert not drive(queue_store.expire(NOW + 100, 10))
        assert drive(queue_store.load("a")) == before
        self._apply(queue_store, drive, Requeue("a", 1))
        removed = drive(queue_store.expire(NOW + 100, 10))

        assert sorted(each.sequence for _, each in removed) == [1, 3]
        assert [each.sequence for each in drive(queue_store.load("a")).inflight] == [2]

    @behaviour("QUEUE-34")
    def test_queue_34_expiring_has_a_limit(self, queue_store: QueueStore, drive: Driver) -> None:
        """``expire`` removes at most the limit; repeated calls remove each entry once."""
        expected = {(f"c{number % 3}", number) for number in range(1, 11)}
        for name, sequence in sorted(expected, key=lambda each: each[1]):
            self._apply(queue_store, drive, Append(name, 1, entry(sequence, expires_at=NOW + sequence)))

        removed: list[tuple[str, int]] = []
        for left in (7, 4, 1, 0, 0):
            page = drive(queue_store.expire(NOW + 100, 3))
            assert len(page) <= 3
            removed += [(name, each.sequence) for name, each in page]
            assert queue_store.totals().queued == left

        assert len(removed) == len(expected)
        assert set(removed) == expected

    @behaviour("QUEUE-35")
    def test_queue_35_only_what_is_there_expires(self, queue_store: QueueStore, drive: Driver) -> None:
        """A removed or purged entry does not expire, nor does a new entry with its number before its time."""
        old, new = entry(1, expires_at=NOW + 10), entry(1, "new", expires_at=NOW + 20)
        self._apply(queue_store, drive, Append("a", 1, old), Remove("a", 1, 1))
        self._apply(queue_store, drive, Append("b", 1, old), Purge("b", 1), Append("b", 1, new))

        assert not drive(queue_store.expire(NOW + 15, 10))
        assert list(drive(queue_store.expire(NOW + 25, 10))) == [("b", new)]

    # Failures and restarts

    @behaviour("QUEUE-36", needs="can_fail")
    def test_queue_36_a_failure_is_told(self, queue_store: QueueStore, drive: Driver) -> None:
        """While the store's backend fails, writes raise ServiceUnavailable; afterwards they work again.

        Entries that were committed before, and those that were reported as committed later, are there.
        """
        self._apply(queue_store, drive, Append("a", 1, entry(1)))
        mend = self.failing(queue_store)

        with pytest.raises(ServiceUnavailable):
            self._apply(queue_store, drive, Append("a", 1, entry(2)))
        mend()
        self._apply(queue_store, drive, Append("a", 1, entry(3)))

        found = _numbers(self._read(queue_store, drive, "a"))
        assert found in ([1, 3], [1, 2, 3])

    @behaviour("QUEUE-37", needs="can_fail")
    def test_queue_37_a_failed_batch_is_whole_or_not_there(self, queue_store: QueueStore, drive: Driver) -> None:
        """Of a failed batch either all or nothing is committed: an inbound identifier never without its entries."""
        self._apply(queue_store, drive, Append("a", 1, entry(1)), Append("b", 1, entry(1)))
        mend = self.failing(queue_store)
        batch: list[QueueWrite] = [InboundOpen("a", 1, 7), Append("a", 1, entry(2))]
        batch += [Append("b", 1, entry(2)), Remove("b", 1, 1)]

        with pytest.raises(ServiceUnavailable):
            self._apply(queue_store, drive, *batch)
        mend()

        found = (
            drive(queue_store.load("a")).inbound,
            _numbers(self._read(queue_store, drive, "a")),
            _numbers(self._read(queue_store, drive, "b")),
        )
        assert found in ((frozenset(), [1], [1]), ({7}, [1, 2], [2]))

    @behaviour("QUEUE-38", needs="survives_restart")
    def test_queue_38_queues_outlive_the_store(self, queue_store: QueueStore, drive: Driver) -> None:
        """After a restart committed data is there: entries, also in flight, inbound identifiers, last number."""
        self._apply(
            queue_store,
            drive,
            *(Append("ä", 1, whole_entry(each)) for each in (1, 2, 3)),
            Append("ä", 1, whole_entry(4), 40),
            Append("ä", 1, whole_entry(5), 50),
            Append("ä", 1, entry(6)),
            Remove("ä", 1, 6),
            Send("ä", 1, 1, 10),
            Release("ä", 1, 5),
            InboundOpen("ä", 1, 7),
            InboundOpen("ä", 1, 8),
            InboundClose("ä", 1, 7),
            Append("gone", 1, entry(1)),
            Purge("gone", 1),
        )
        before = drive(queue_store.load("ä"))

        again = self._reopened(queue_store, drive)

        assert drive(again.load("ä")) == before
        assert self._read(again, drive, "ä") == [whole_entry(2), whole_entry(3)]
        assert not drive(again.read("gone", 0, 10))
        assert again.sizes("ä") == again.totals() == before.sizes

    @behaviour("QUEUE-39", needs="survives_restart")
    def test_queue_39_the_order_of_sending_outlives_the_store(self, queue_store: QueueStore, drive: Driver) -> None:
        """After a restart entries in flight are loaded in the order in which they were sent."""
        self._apply(queue_store, drive, *(Append("a", 1, entry(each)) for each in (1, 2, 3, 4)))
        self._apply(queue_store, drive, Send("a", 1, 3, 9), Send("a", 1, 1, 5), Send("a", 1, 4, 7))
        self._apply(queue_store, drive, Release("a", 1, 1), Append("a", 1, entry(5), 1))

        again = self._reopened(queue_store, drive)

        assert [each.sequence for each in drive(again.load("a")).inflight] == [3, 1, 4, 5]

    @behaviour("QUEUE-40", needs="survives_restart")
    def test_queue_40_epochs_outlive_the_store(self, queue_store: QueueStore, drive: Driver) -> None:
        """After a restart a queue with entries has its epoch: a former owner is refused."""
        self._apply(queue_store, drive, Append("a", 9, entry(1)), InboundOpen("a", 10, 1))

        again = self._reopened(queue_store, drive)

        with pytest.raises(Fenced):
            self._apply(again, drive, Append("a", 9, entry(2)))
        self._apply(again, drive, Append("a", 10, entry(3)))
        assert _numbers(self._read(again, drive, "a")) == [1, 3]

    @behaviour("QUEUE-41", needs="survives_restart")
    def test_queue_41_expiry_outlives_the_store(self, queue_store: QueueStore, drive: Driver) -> None:
        """After a restart queued entries expire as before, and entries in flight do not."""
        self._apply(queue_store, drive, *(Append("a", 1, entry(each, expires_at=NOW + each)) for each in (1, 2, 3)))
        self._apply(queue_store, drive, Send("a", 1, 1, 1))

        again = self._reopened(queue_store, drive)

        assert [each.sequence for _, each in drive(again.expire(NOW + 2, 10))] == [2]
        assert _numbers(self._read(again, drive, "a")) == [3]

    @behaviour("QUEUE-48", needs="survives_restart")
    def test_queue_48_pending_identifiers_outlive_the_store(self, queue_store: QueueStore, drive: Driver) -> None:
        """After a restart pending identifiers are there, with their messages; what waits or is sent is known."""
        opened = [InboundOpen("a", 1, each, MessageId(2**64 - 1, each)) for each in (1, 2, 3)]
        self._apply(queue_store, drive, *opened, InboundOpen("a", 1, 1), InboundClose("a", 1, 3))
        self._apply(queue_store, drive, Append("a", 1, entry(1, qos=2)), Append("a", 1, entry(2, qos=2), 7))

        again = self._reopened(queue_store, drive)

        state = drive(again.load("a"))
        assert state.inbound == {1}
        assert dict(state.pending) == {2: MessageId(2**64 - 1, 2)}
        assert again.sizes("a").inbound == 2
        ids = {entry(each).message.id for each in (1, 2)}
        assert drive(again.known("a", ids)) == ids

    @behaviour("QUEUE-49")
    def test_queue_49_completed_exchanges_move_along(self, queue_store: QueueStore, drive: Driver) -> None:
        """``completed`` returns the QoS 2 messages that are released or just completed, and ``remember`` knows them.

        A store that nodes share need not.
        """
        entries = [entry(each, qos=2) for each in (1, 2, 3)]
        self._apply(queue_store, drive, *(Append("a", 1, each, each.sequence) for each in entries))
        self._apply(queue_store, drive, Release("a", 1, 1), Release("a", 1, 2), Remove("a", 1, 1))
        completed = list(drive(queue_store.completed("a")))
        queue_store.remember("b", completed)

        if not queue_store.is_shared:
            ids = {each.message.id for each in entries}
            assert completed == [entries[0].message.id, entries[1].message.id]
            assert drive(queue_store.known("b", ids)) == set(completed)
            assert list(drive(queue_store.completed("b"))) == completed

    @behaviour("QUEUE-42")
    def test_queue_42_as_a_plain_model_does(self, queue_store: QueueStore, drive: Driver) -> None:
        """With random writes and expiries of three clients the store holds what a simple model holds."""
        examples = iter(range(1_000_000))

        @settings(
            max_examples=50, database=None, suppress_health_check=list(HealthCheck), print_blob=False, deadline=None
        )
        @given(_steps())
        def run(steps: list[tuple[Any, ...]]) -> None:
            model = _Model(f"{next(examples)}-")
            for step in steps:
                if step[0] == "expire":
                    removed = drive(queue_store.expire(NOW + step[1], 1_000_000))
                    model.expired(NOW + step[1], [each for each in removed if each[0] in model.names])
                else:
                    writes = model.write(*step)
                    if writes:
                        self._apply(queue_store, drive, *writes)
            for name in model.names:
                model.compare(name, drive(queue_store.load(name)), self._read(queue_store, drive, name))
                assert queue_store.sizes(name) == model.sizes(name)

        run()

    # Within

    def _apply(self, store: QueueStore, drive: Driver, *writes: QueueWrite) -> None:
        self.persist(store, lambda: store.apply(writes), drive)

    def _read(self, store: QueueStore, drive: Driver, client_id: str) -> list[Entry]:
        """All queued entries."""
        return list(drive(store.read(client_id, 0, 1_000_000)))

    def _reopened(self, store: QueueStore, drive: Driver) -> QueueStore:
        again = self.reopened(store, drive)
        assert isinstance(again, QueueStore)
        return again


def whole_entry(sequence: int) -> Entry:
    """An entry with a value that is easily lost in every field."""
    its = message(
        "tö/pic \U0001f600",
        bytes(range(256)),
        number=2**40 + sequence,
        qos=2,
        retain=True,
        properties=Properties(
            payload_format_indicator=0,
            message_expiry_interval=0xFFFFFFFF,
            content_type="téxt",
            response_topic="a/b",
            correlation_data=bytes(range(256)),
            user_property=(("k", "v"), ("k", "v"), ("", "ü")),
        ),
        publisher=Publisher("püb", "us:er"),
        id=MessageId(2**64 - 1, 2**40 + sequence),
        received_at=NOW + 0.123456,
        expires_at=NOW + 1000.654321,
    )
    return Entry(sequence, its, 1, True, (268_435_455, 1, 1), "$share/grüppe/tö/+")


def _numbers(entries: Iterable[Entry]) -> list[int]:
    return [each.sequence for each in entries]


def _some_of_each(client_id: str, epoch: int = 1) -> list[QueueWrite]:
    """Writes that leave everything: two queued entries, one sent, one released, an inbound identifier."""
    return [
        *(Append(client_id, epoch, entry(each)) for each in (1, 2, 3)),
        Append(client_id, epoch, entry(4), 40),
        Send(client_id, epoch, 1, 10),
        Release(client_id, epoch, 4),
        InboundOpen(client_id, epoch, 5),
    ]


def _every_write(client_id: str, epoch: int) -> list[QueueWrite]:
    return [
        Append(client_id, epoch, entry(50)),
        Append(client_id, epoch, entry(51), 51),
        Send(client_id, epoch, 2, 20),
        Release(client_id, epoch, 1),
        Remove(client_id, epoch, 1),
        Remove(client_id, epoch, 2),
        Requeue(client_id, epoch),
        InboundOpen(client_id, epoch, 6),
        InboundClose(client_id, epoch, 5),
        Purge(client_id, epoch),
    ]


class _Model:
    """The expected contents of a store of these clients, in dicts."""

    def __init__(self, prefix: str) -> None:
        self.names = [prefix + name for name in "abc"]
        self.epochs = dict.fromkeys(self.names, 1)
        self._last = dict.fromkeys(self.names, 0)
        self._queued: dict[str, dict[int, Entry]] = {name: {} for name in self.names}
        self._inflight: dict[str, dict[int, tuple[int, Entry | None]]] = {name: {} for name in self.names}
        self._inbound: dict[str, set[int]] = {name: set() for name in self.names}
        self._pending: dict[str, dict[int, MessageId]] = {name: {} for name in self.names}

    def write(self, type_: str, client: int, number: int, more: int | None) -> list[QueueWrite]:
        """Apply a step; return the writes that do the same in a store."""
        name = self.names[client]
        make = cast(Callable[[str, int, int | None], list[QueueWrite]], getattr(self, f"_{type_}"))
        return make(name, number, more)

    def expired(self, now: float, removed: Sequence[tuple[str, Entry]]) -> None:
        """Compare the removed entries, and remove them here."""
        expected = {}
        for name, queued in self._queued.items():
            for number, each in list(queued.items()):
                if each.message.has_expired(now):
                    expected[name, number] = queued.pop(number)
        assert len(removed) == len(expected)
        assert {(name, each.sequence): each for name, each in removed} == expected

    def sizes(self, name: str) -> QueueSizes:
        """The expected sizes of a queue."""
        queued = self._queued[name].values()
        its_bytes = sum(each.size_bytes for each in queued)
        inbound = len(self._inbound[name]) + len(self._pending[name])
        return QueueSizes(len(queued), its_bytes, len(self._inflight[name]), inbound)

    def compare(self, name: str, state: QueueState, waiting: Sequence[Entry]) -> None:
        """Compare the store's state of a client."""
        assert list(waiting) == [each for _, each in sorted(self._queued[name].items())]
        assert list(state.inflight) == [
            InflightEntry(number, packet_id, Stage.RELEASED if each is None else Stage.SENT, each)
            for number, (packet_id, each) in self._inflight[name].items()
        ]
        assert state.inbound == self._inbound[name]
        assert dict(state.pending) == self._pending[name]
        assert state.last_sequence == self._last[name]
        assert state.sizes == self.sizes(name)

    def _append(self, name: str, number: int, more: int | None) -> list[QueueWrite]:
        self._last[name] += 1 + number % 2
        sequence = self._last[name]
        new = entry(sequence, f"t/{number}", expires_at=None if more is None else NOW + more)
        packet_id = self._free(name) if number > 6 else None
        if packet_id is None:
            self._queued[name][sequence] = new
        else:
            self._inflight[name][sequence] = (packet_id, new)
        return [Append(name, self.epochs[name], new, packet_id)]

    def _send(self, name: str, number: int, more: int | None) -> list[QueueWrite]:
        sequence = self._at(self._queued[name], number)
        if sequence is None:
            return []
        packet_id = self._free(name)
        self._inflight[name][sequence] = (packet_id, self._queued[name].pop(sequence))
        return [Send(name, self.epochs[name], sequence, packet_id)]

    def _release(self, name: str, number: int, more: int | None) -> list[QueueWrite]:
        sequence = self._at(self._inflight[name], number)
        if sequence is None:
            return []
        self._inflight[name][sequence] = (self._inflight[name][sequence][0], None)
        return [Release(name, self.epochs[name], sequence)]

    def _remove(self, name: str, number: int, more: int | None) -> list[QueueWrite]:
        sequence = self._at({**self._queued[name], **self._inflight[name]}, number)
        if sequence is None:
            return []
        self._queued[name].pop(sequence, None)
        self._inflight[name].pop(sequence, None)
        return [Remove(name, self.epochs[name], sequence)]

    def _requeue(self, name: str, number: int, more: int | None) -> list[QueueWrite]:
        self.epochs[name] += 1
        for sequence, (_, each) in list(self._inflight[name].items()):
            if each is not None:
                self._queued[name][sequence] = each
                del self._inflight[name][sequence]
        return [Requeue(name, self.epochs[name])]

    def _inbound_open(self, name: str, number: int, more: int | None) -> list[QueueWrite]:
        self._inbound[name].add(number)
        self._pending[name].pop(number, None)
        return [InboundOpen(name, self.epochs[name], number)]

    def _inbound_pending(self, name: str, number: int, more: int | None) -> list[QueueWrite]:
        self._inbound[name].discard(number)
        self._pending[name][number] = MessageId(1, more or 0)
        return [InboundOpen(name, self.epochs[name], number, MessageId(1, more or 0))]

    def _inbound_close(self, name: str, number: int, more: int | None) -> list[QueueWrite]:
        self._inbound[name].discard(number)
        self._pending[name].pop(number, None)
        return [InboundClose(name, self.epochs[name], number)]

    def _free(self, name: str) -> int:
        """The lowest free packet identifier."""
        used = {packet_id for packet_id, _ in self._inflight[name].values()}
        return next(each for each in range(1, 0xFFFF) if each not in used)

    def _at(self, entries: dict[int, Any], number: int) -> int | None:
        return sorted(entries)[number % len(entries)] if entries else None


def _steps() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """For each step the type with the client, a number and perhaps another; or when to expire what."""
    sorts = ("append", "append", "append", "send", "send", "release", "remove", "requeue")
    writes = st.tuples(
        st.sampled_from((*sorts, "inbound_open", "inbound_pending", "inbound_close")),
        st.integers(0, 2),
        st.integers(1, 9),
        st.none() | st.integers(0, 100),
    )
    return many(writes | st.tuples(st.just("expire"), st.integers(0, 110)))
