"""Queue stores that break one promise each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from heapq import heappop
from math import nextafter
from typing import Any

import pytest
from attrs import evolve

from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.services.queue import (
    Append,
    Entry,
    InboundClose,
    InboundOpen,
    Purge,
    QueueSizes,
    QueueState,
    QueueStore,
    Release,
    Remove,
    Requeue,
    Send,
)
from kinmqtt_spi.testing.queue import QueueStoreContract
from kinmqtt_spi.values import MessageId, Publisher


class _Broken(QueueStoreContract):
    """``double`` is the store."""

    double: type[QueueStore]

    @pytest.fixture
    def queue_store(self) -> QueueStore:
        return self.double()


class TestQUEUE_01_AnswersForAllWhereOneIsUnknown(_Broken):
    class double(MemoryQueueStore):
        def sizes(self, client_id: str) -> QueueSizes:
            return super().sizes(client_id) if client_id in self._queues else self.totals()


class TestQUEUE_02_SortsNumbersAsText(_Broken):
    class double(MemoryQueueStore):
        def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
            return sorted(super().read(client_id, after, limit), key=lambda each: str(each.sequence))


class TestQUEUE_03_BeginsWithTheNumber(_Broken):
    class double(MemoryQueueStore):
        def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
            return super().read(client_id, after - 1, limit)


class TestQUEUE_03_LooksForTheNumber(_Broken):
    class double(MemoryQueueStore):
        def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
            if after and after not in self._queues[client_id].queued:
                return ()
            return super().read(client_id, after, limit)


class TestQUEUE_04_AnswersOneMore(_Broken):
    class double(MemoryQueueStore):
        def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
            return super().read(client_id, after, limit + 1)


class TestQUEUE_05_PagesByPosition(_Broken):
    class double(MemoryQueueStore):
        def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
            return super().read(client_id, 0, 1_000_000)[after : after + limit]


class TestQUEUE_06_TakesWhatItReads(_Broken):
    """Messages that waited are gone before they are delivered."""

    class double(MemoryQueueStore):
        def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
            found = super().read(client_id, after, limit)
            for each in found:
                self._take(self._queues[client_id], each.sequence, each)
            return found


class TestQUEUE_07_ForgetsWhoPublished(_Broken):
    class double(MemoryQueueStore):
        def _append(self, queue: Any, write: Append) -> None:
            message = evolve(write.entry.message, publisher=Publisher(write.client_id))
            super()._append(queue, write._replace(entry=write.entry._replace(message=message)))


class TestQUEUE_07_TakesTheQosOfTheMessage(_Broken):
    class double(MemoryQueueStore):
        def _append(self, queue: Any, write: Append) -> None:
            super()._append(queue, write._replace(entry=write.entry._replace(qos=write.entry.message.qos)))


class TestQUEUE_07_ForgetsTheSharedFilter(_Broken):
    class double(MemoryQueueStore):
        def _append(self, queue: Any, write: Append) -> None:
            super()._append(queue, write._replace(entry=write.entry._replace(shared_filter=None)))


class TestQUEUE_08_HasEverythingWait(_Broken):
    class double(MemoryQueueStore):
        def _append(self, queue: Any, write: Append) -> None:
            super()._append(queue, write._replace(packet_id=None))


class TestQUEUE_09_SendsTheOldest(_Broken):
    class double(MemoryQueueStore):
        def _send(self, queue: Any, write: Send) -> None:
            super()._send(queue, write._replace(sequence=next(iter(queue.queued), 0)))


class TestQUEUE_10_SortsByNumber(_Broken):
    class double(MemoryQueueStore):
        def load(self, client_id: str) -> QueueState:
            state = super().load(client_id)
            return evolve(state, inflight=tuple(sorted(state.inflight, key=lambda each: each.sequence)))


class TestQUEUE_10_SortsByPacketIdentifier(_Broken):
    class double(MemoryQueueStore):
        def load(self, client_id: str) -> QueueState:
            state = super().load(client_id)
            return evolve(state, inflight=tuple(sorted(state.inflight, key=lambda each: each.packet_id)))


class TestQUEUE_11_KeepsTheMessage(_Broken):
    class double(MemoryQueueStore):
        def _release(self, queue: Any, write: Release) -> None:
            pass


class TestQUEUE_11_ForgetsTheIdentifier(_Broken):
    class double(MemoryQueueStore):
        def _release(self, queue: Any, write: Release) -> None:
            self._remove(queue, Remove(*write))


class TestQUEUE_12_RemovesOnlyWhatIsInFlight(_Broken):
    class double(MemoryQueueStore):
        def _remove(self, queue: Any, write: Remove) -> None:
            if write.sequence in queue.inflight:
                super()._remove(queue, write)


class TestQUEUE_13_KeysByPacketIdentifier(_Broken):
    class double(MemoryQueueStore):
        def _remove(self, queue: Any, write: Remove) -> None:
            self.identifiers: dict[int, int] = getattr(self, "identifiers", {})
            for sequence, (packet_id, _) in list(queue.inflight.items()):
                self.identifiers.setdefault(sequence, packet_id)
                if packet_id == self.identifiers.get(write.sequence):
                    write = write._replace(sequence=sequence)
            super()._remove(queue, write)


class TestQUEUE_14_RequeuesBehindAllOthers(_Broken):
    class double(MemoryQueueStore):
        def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
            queue = self._queues.get(client_id)
            return () if queue is None else list(queue.queued.values())

        def _requeue(self, queue: Any, write: Requeue) -> None:
            before = dict(queue.queued)
            super()._requeue(queue, write)
            queue.queued = before | queue.queued


class TestQUEUE_14_RequeuesWhatIsReleased(_Broken):
    class double(MemoryQueueStore):
        def _requeue(self, queue: Any, write: Requeue) -> None:
            super()._requeue(queue, write)
            queue.inflight.clear()


class TestQUEUE_15_CountsOpenings(_Broken):
    class double(MemoryQueueStore):
        def __init__(self) -> None:
            super().__init__()
            self.opened: Counter[int] = Counter()

        def _inbound_open(self, queue: Any, write: InboundOpen) -> None:
            self.opened[write.packet_id] += 1
            super()._inbound_open(queue, write)

        def _inbound_close(self, queue: Any, write: InboundClose) -> None:
            self.opened[write.packet_id] -= 1
            if self.opened[write.packet_id] <= 0:
                super()._inbound_close(queue, write)


class TestQUEUE_16_ClosesForEverybody(_Broken):
    class double(MemoryQueueStore):
        def _inbound_close(self, queue: Any, write: InboundClose) -> None:
            for each in self._queues.values():
                super()._inbound_close(each, write)


class TestQUEUE_16_KeysInflightByThePublishersIdentifier(_Broken):
    class double(MemoryQueueStore):
        def _inbound_close(self, queue: Any, write: InboundClose) -> None:
            super()._inbound_close(queue, write)
            queue.inflight = {key: each for key, each in queue.inflight.items() if each[0] != write.packet_id}


class TestQUEUE_17_LeavesInboundIdentifiers(_Broken):
    class double(MemoryQueueStore):
        def apply(self, writes: Sequence[Any]) -> None:
            for write in writes:
                left = self.load(write.client_id).inbound if isinstance(write, Purge) else ()
                super().apply([write, *(InboundOpen(write.client_id, write.epoch, each) for each in left)])


class TestQUEUE_17_ForgetsEverybody(_Broken):
    class double(MemoryQueueStore):
        def apply(self, writes: Sequence[Any]) -> None:
            super().apply(writes)
            if any(isinstance(write, Purge) for write in writes):
                super().apply([Purge(name, queue.epoch) for name, queue in list(self._queues.items())])


class TestQUEUE_18_TakesNewNumbersForOld(_Broken):
    class double(MemoryQueueStore):
        def _purge(self, queue: Any, write: Purge) -> None:
            super()._purge(queue, write)
            self._resting[write.client_id] = (queue.epoch, queue.last, queue.last)


class TestQUEUE_19_CountsWhatIsLeft(_Broken):
    class double(MemoryQueueStore):
        def load(self, client_id: str) -> QueueState:
            state = super().load(client_id)
            held: list[Any] = [*state.inflight, *self.read(client_id, 0, 1_000_000)]
            left = [each.sequence for each in held]
            return evolve(state, last_sequence=max(left, default=0))


class TestQUEUE_20_TakesOlderEpochs(_Broken):
    class double(MemoryQueueStore):
        def apply(self, writes: Sequence[Any]) -> None:
            for write in writes:
                try:
                    super().apply([write])
                except Fenced:
                    super().apply([write._replace(epoch=self._queues[write.client_id].epoch)])
                    raise


class TestQUEUE_20_RefusesInSilence(_Broken):
    class double(MemoryQueueStore):
        def apply(self, writes: Sequence[Any]) -> None:
            try:
                super().apply(writes)
            except Fenced:
                pass


class TestQUEUE_21_OnlyAppendsRaiseTheEpoch(_Broken):
    class double(MemoryQueueStore):
        def apply(self, writes: Sequence[Any]) -> None:
            for write in writes:
                queue = self._queues.get(write.client_id)
                if queue is not None and not isinstance(write, Append):
                    write = write._replace(epoch=min(write.epoch, queue.epoch))
                super().apply([write])


class TestQUEUE_21_ComparesEpochsAsText(_Broken):
    class double(MemoryQueueStore):
        def apply(self, writes: Sequence[Any]) -> None:
            for write in writes:
                queue = self._queues.get(write.client_id)
                if queue is not None and str(write.epoch) < str(queue.epoch):
                    raise Fenced([write.client_id])
                super().apply([write])


class TestQUEUE_22_DropsTheWholeBatch(_Broken):
    class double(MemoryQueueStore):
        def apply(self, writes: Sequence[Any]) -> None:
            epochs = {name: queue.epoch for name, queue in self._queues.items()}
            fenced = {each.client_id for each in writes if each.epoch < epochs.get(each.client_id, 0)}
            if fenced:
                raise Fenced(fenced)
            super().apply(writes)


class TestQUEUE_22_NamesOneOfThem(_Broken):
    class double(MemoryQueueStore):
        def apply(self, writes: Sequence[Any]) -> None:
            try:
                super().apply(writes)
            except Fenced as error:
                raise Fenced([min(error.client_ids)]) from None


class TestQUEUE_23_ForgetsTheEpoch(_Broken):
    class double(MemoryQueueStore):
        def _purge(self, queue: Any, write: Purge) -> None:
            super()._purge(queue, write)
            del self._resting[write.client_id]


class TestQUEUE_24_CountsWhatIsNotThere(_Broken):
    class double(MemoryQueueStore):
        def _remove(self, queue: Any, write: Remove) -> None:
            if write.sequence not in queue.queued and write.sequence not in queue.inflight:
                self._queued -= 1
            super()._remove(queue, write)


class TestQUEUE_24_RaisesForWhatIsNotThere(_Broken):
    class double(MemoryQueueStore):
        def _send(self, queue: Any, write: Send) -> None:
            if write.sequence not in queue.queued:
                raise ServiceUnavailable("no such entry")
            super()._send(queue, write)


class TestQUEUE_25_SortsTheBatch(_Broken):
    class double(MemoryQueueStore):
        def apply(self, writes: Sequence[Any]) -> None:
            super().apply(sorted(writes, key=lambda write: type(write).__name__))


class TestQUEUE_26_AppendsAgain(_Broken):
    class double(MemoryQueueStore):
        def _append(self, queue: Any, write: Append) -> None:
            queue.floor = 0
            super()._append(queue, write)


class TestQUEUE_27_RefusesWhatItKnows(_Broken):
    class double(MemoryQueueStore):
        def _append(self, queue: Any, write: Append) -> None:
            if write.entry.sequence <= queue.floor:
                raise ServiceUnavailable("the entry is there already")
            super()._append(queue, write)


class TestQUEUE_28_KeepsTheLastFirst(_Broken):
    class double(MemoryQueueStore):
        """Holds what it is handed until it is asked, then begins at the end."""

        def __init__(self) -> None:
            super().__init__()
            self._handed: list[Sequence[Any]] = []

        def apply(self, writes: Sequence[Any]) -> Any:
            self._handed.append(writes)
            return self._done()

        async def _done(self) -> None:
            handed, self._handed = self._handed, []
            for writes in reversed(handed):
                super().apply(writes)


class TestQUEUE_29_LosesBytesThatComeBack(_Broken):
    class double(MemoryQueueStore):
        def _requeue(self, queue: Any, write: Requeue) -> None:
            before = queue.bytes
            super()._requeue(queue, write)
            queue.bytes = before


class TestQUEUE_29_CountsOnlyWhatIsSent(_Broken):
    class double(MemoryQueueStore):
        def sizes(self, client_id: str) -> QueueSizes:
            sent = [each for each in self.load(client_id).inflight if each.entry is not None]
            return evolve(super().sizes(client_id), inflight=len(sent))


class TestQUEUE_30_CountsSharedMessagesOnce(_Broken):
    class double(MemoryQueueStore):
        def totals(self) -> QueueSizes:
            held = {each.message.id: each for queue in self._queues.values() for each in queue.queued.values()}
            return evolve(super().totals(), queued_bytes=sum(each.size_bytes for each in held.values()))


class TestQUEUE_31_CountsPayloadsOnly(_Broken):
    class double(MemoryQueueStore):
        def sizes(self, client_id: str) -> QueueSizes:
            payloads = [each.message.payload for each in self.read(client_id, 0, 1_000_000)]
            return evolve(super().sizes(client_id), queued_bytes=sum(map(len, payloads)))


class TestQUEUE_31_CountsMessagesOnly(_Broken):
    class double(MemoryQueueStore):
        def sizes(self, client_id: str) -> QueueSizes:
            messages = [each.message for each in self.read(client_id, 0, 1_000_000)]
            return evolve(super().sizes(client_id), queued_bytes=sum(each.size_bytes for each in messages))


class TestQUEUE_32_ExpiresTooLate(_Broken):
    class double(MemoryQueueStore):
        def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
            return super().expire(nextafter(now, 0), limit)


class TestQUEUE_32_LeavesTheTotals(_Broken):
    class double(MemoryQueueStore):
        def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
            before = self._bytes
            removed = super().expire(now, limit)
            self._bytes = before
            return removed


class TestQUEUE_33_ExpiresWhatIsInFlight(_Broken):
    class double(MemoryQueueStore):
        def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
            removed = list(super().expire(now, limit))
            for name, queue in self._queues.items():
                for number, (_, each) in list(queue.inflight.items()):
                    if each is not None and each.message.has_expired(now):
                        del queue.inflight[number]
                        removed.append((name, each))
            return removed


class TestQUEUE_34_ExpiresEverything(_Broken):
    class double(MemoryQueueStore):
        def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
            return super().expire(now, 1_000_000)


class TestQUEUE_34_AnswersLessThanItRemoves(_Broken):
    class double(MemoryQueueStore):
        def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
            return super().expire(now, 1_000_000)[:limit]


class TestQUEUE_35_ExpiresByNumber(_Broken):
    class double(MemoryQueueStore):
        def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
            removed: list[tuple[str, Entry]] = []
            while self._expiry and self._expiry[0][0] <= now and len(removed) < limit:
                _, client_id, sequence = heappop(self._expiry)
                queue = self._queues.get(client_id)
                entry = None if queue is None else queue.queued.get(sequence)
                if queue is not None and entry is not None:
                    self._take(queue, sequence, entry)
                    removed.append((client_id, entry))
            return removed


class _Failing(_Broken):
    can_fail = True

    def failing(self, store: Any) -> Callable[[], object]:
        store.down = True
        return lambda: setattr(store, "down", False)


class TestQUEUE_36_FailsInSilence(_Failing):
    class double(MemoryQueueStore):
        down = False

        def apply(self, writes: Sequence[Any]) -> None:
            if not self.down:
                super().apply(writes)


class TestQUEUE_37_KeepsOneHalf(_Failing):
    class double(MemoryQueueStore):
        down = False

        def apply(self, writes: Sequence[Any]) -> None:
            super().apply(writes[: len(writes) // 2] if self.down else writes)
            if self.down:
                raise ServiceUnavailable("the rest was not kept")


class _Restarting(_Broken):
    """``double.start`` is called at the beginning of its second life."""

    survives_restart = True

    def reopened(self, store: Any, drive: Any) -> Any:
        store.start()
        return store


class TestQUEUE_38_ForgetsEverything(_Restarting):
    class double(MemoryQueueStore):
        def start(self) -> None:
            self.__init__()  # type: ignore[misc]


class TestQUEUE_38_ForgetsInboundIdentifiers(_Restarting):
    class double(MemoryQueueStore):
        def start(self) -> None:
            for queue in self._queues.values():
                queue.inbound.clear()


class TestQUEUE_39_LoadsByNumber(_Restarting):
    class double(MemoryQueueStore):
        def start(self) -> None:
            for queue in self._queues.values():
                queue.inflight = dict(sorted(queue.inflight.items()))


class TestQUEUE_40_ForgetsEpochs(_Restarting):
    class double(MemoryQueueStore):
        def start(self) -> None:
            for queue in self._queues.values():
                queue.epoch = 0


class TestQUEUE_41_ForgetsWhatExpires(_Restarting):
    class double(MemoryQueueStore):
        def start(self) -> None:
            self._expiry.clear()


class TestQUEUE_42_CountsWhatIsAppended(_Broken):
    class double(MemoryQueueStore):
        def _append(self, queue: Any, write: Append) -> None:
            before = queue.last
            super()._append(queue, write)
            queue.last = min(queue.last, before + 1)


class TestQUEUE_43_OpensWhatIsPending(_Broken):
    class double(MemoryQueueStore):
        def _inbound_open(self, queue: Any, write: InboundOpen) -> None:
            super()._inbound_open(queue, write._replace(message=None))


class TestQUEUE_43_KeepsWhatIsConfirmed(_Broken):
    class double(MemoryQueueStore):
        @staticmethod
        def _confirm(queue: Any, packet_id: int) -> None:
            pass


class TestQUEUE_44_ForgetsWhatIsReleased(_Broken):
    class double(MemoryQueueStore):
        def known(self, client_id: str, ids: Set[MessageId]) -> Set[MessageId]:
            queue = self._queues.get(client_id)
            released = set() if queue is None else set((queue.released or {}).values())
            return set(super().known(client_id, ids)) - released


class TestQUEUE_44_KnowsWhatOthersHave(_Broken):
    class double(MemoryQueueStore):
        def known(self, client_id: str, ids: Set[MessageId]) -> Set[MessageId]:
            known: set[MessageId] = set()
            for name in [*self._queues, client_id]:
                known |= super().known(name, ids)
            return known


class TestQUEUE_45_ForgetsWhatIsDone(_Broken):
    class double(MemoryQueueStore):
        def _remember(self, client_id: str, id: MessageId) -> None:
            pass


class TestQUEUE_46_ForgetsWithTheFirstTime(_Broken):
    class double(MemoryQueueStore):
        """Takes the time before the first call for 1970."""

        told = False

        def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
            if not self.told:
                self.told = True
                super().expire(0.0, 0)
            return super().expire(now, limit)


class TestQUEUE_46_KnowsWhatWasPurged(_Broken):
    class double(MemoryQueueStore):
        def _purge(self, queue: Any, write: Purge) -> None:
            known = dict(self._removed._by_client)
            super()._purge(queue, write)
            self._removed._by_client = known


class TestQUEUE_47_KnowsTheOldest(_Broken):
    class double(MemoryQueueStore):
        def _remember(self, client_id: str, id: MessageId) -> None:
            if len(self._removed) < 1000:
                super()._remember(client_id, id)


class TestQUEUE_47_ForgetsNone(_Broken):
    class double(MemoryQueueStore):
        def _remember(self, client_id: str, id: MessageId) -> None:
            self._removed._by_client.setdefault(client_id, {})[id] = None


class TestQUEUE_49_KeepsWhatIsReleased(_Broken):
    class double(MemoryQueueStore):
        def completed(self, client_id: str) -> Sequence[MessageId]:
            return self._removed.of(client_id)


class TestQUEUE_49_RemembersNothing(_Broken):
    class double(MemoryQueueStore):
        def remember(self, client_id: str, ids: Sequence[MessageId]) -> None:
            pass


class TestQUEUE_48_CompletesWhatIsPending(_Restarting):
    class double(MemoryQueueStore):
        def start(self) -> None:
            for queue in self._queues.values():
                queue.pending = None
