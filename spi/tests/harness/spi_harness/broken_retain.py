"""Retain stores that break one promise each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import nextafter
from typing import Any
from unicodedata import normalize

import pytest
from attrs import evolve

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.properties import NO_PROPERTIES
from kinmqtt_spi.services.retain import (
    RetainContents,
    RetainPage,
    RetainStore,
    RetainVersion,
    RetainWrite,
    retained_bytes,
)
from kinmqtt_spi.testing.retain import RetainStoreContract
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import Message, Publisher

ALL = 1_000_000


def is_exact(filter: str) -> bool:
    return "+" not in filter and "#" not in filter


class _Broken(RetainStoreContract):
    """``double`` is the store."""

    double: type[RetainStore]

    @pytest.fixture
    def retain_store(self) -> RetainStore:
        return self.double()


class _Scanning(MemoryRetainStore):
    """Looks at all topics, one by one."""

    def fits(self, filter: str, topic: str) -> bool:
        return matches(filter, topic)

    def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
        found = [node.message for topic, node in self._topics.items() if node.message and self.fits(filter, topic)]
        return RetainPage(tuple(found)[:limit]) if len(found) <= limit else super().match(filter, cursor, limit)


class TestRETAIN_01_CountsItsRoot(_Broken):
    class double(MemoryRetainStore):
        def count(self) -> int:
            return super().count() + 1


class TestRETAIN_02_IgnoresCase(_Broken):
    class double(_Scanning):
        def fits(self, filter: str, topic: str) -> bool:
            return matches(filter.lower(), topic.lower())


class TestRETAIN_02_NormalizesLetters(_Broken):
    class double(_Scanning):
        def fits(self, filter: str, topic: str) -> bool:
            return matches(normalize("NFC", filter), normalize("NFC", topic))


class TestRETAIN_02_HasItsAnswerLater(_Broken):
    class double(MemoryRetainStore):
        def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
            return RetainPage((), 1) if cursor is None else super().match(filter, None, limit)


class TestRETAIN_03_KeepsTheFirst(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            for write in writes:
                if write.message.topic not in self._topics or not write.message.payload:
                    super().put([write])


class TestRETAIN_04_KeepsEmptyPayloads(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            for write in writes:
                topic = write.message.topic
                self._hold(topic, self._topics.get(topic), write.message, write.version)


class TestRETAIN_04_KeepsThemWhereNothingWas(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            for write in writes:
                topic = write.message.topic
                if write.message.payload or topic in self._topics:
                    super().put([write])
                else:
                    self._hold(topic, None, write.message, write.version)


class _AsTheyCome(MemoryRetainStore):
    """Whatever comes later wins."""

    counter = 0

    def put(self, writes: Sequence[RetainWrite]) -> None:
        for write in writes:
            self.counter += 1
            super().put([evolve(write, version=RetainVersion(0, 0, self.counter))])


class TestRETAIN_05_TakesWhatComes(_Broken):
    double = _AsTheyCome


class TestRETAIN_05_RaisesForOlderWrites(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            for write in writes:
                node = self._topics.get(write.message.topic)
                if node is not None and node.version is not None and write.version < node.version:
                    raise ServiceUnavailable("an older write")
                super().put([write])


class TestRETAIN_06_ComparesVersionsAsText(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            for write in writes:
                node = self._topics.get(write.message.topic)
                version = write.version
                if node is not None and node.version is not None:
                    if str(version) < str(node.version):
                        continue
                    node.version = version
                super().put([write])


class TestRETAIN_06_ComparesTimesOnly(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            super().put([evolve(each, version=RetainVersion(each.version.received_at, 0, 0)) for each in writes])


class TestRETAIN_07_ForgetsDeletions(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            super().put(writes)
            self.forget_deletions()


class TestRETAIN_07_ForgetsDeletionsOfNothing(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            for write in writes:
                if write.message.payload or write.message.topic in self._topics:
                    super().put([write])


class TestRETAIN_08_RemembersTheLastDeletion(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            super().put(writes)
            for write in writes:
                if write.message.topic in self._tombstones and not write.message.payload:
                    self._tombstones[write.message.topic] = write.version


class TestRETAIN_09_KeepsTheFirstOfATopic(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            first: dict[str, RetainWrite] = {}
            for write in writes:
                first.setdefault(write.message.topic, write)
            super().put(list(first.values()))


class _Changing(MemoryRetainStore):
    """Changes what it is handed."""

    def changed(self, message: Message) -> Message:
        raise NotImplementedError

    def put(self, writes: Sequence[RetainWrite]) -> None:
        super().put([evolve(write, message=self.changed(write.message)) for write in writes])


class TestRETAIN_10_ForgetsProperties(_Broken):
    class double(_Changing):
        def changed(self, message: Message) -> Message:
            return evolve(message, properties=NO_PROPERTIES)


class TestRETAIN_10_ForgetsWhoPublished(_Broken):
    class double(_Changing):
        def changed(self, message: Message) -> Message:
            return evolve(message, publisher=Publisher(""))


class TestRETAIN_10_RoundsTimes(_Broken):
    class double(_Changing):
        def changed(self, message: Message) -> Message:
            return evolve(message, received_at=round(message.received_at, 3))


class TestRETAIN_11_LooksUpTheFilter(_Broken):
    class double(MemoryRetainStore):
        def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
            node = self._topics.get(filter)
            return RetainPage(() if node is None or node.message is None else (node.message,))


class TestRETAIN_11_HashLeavesOutTheParent(_Broken):
    class double(_Scanning):
        def fits(self, filter: str, topic: str) -> bool:
            return matches(filter, topic) and not (filter.endswith("/#") and filter[:-2] == topic)


class TestRETAIN_11_PlusNeedsALetter(_Broken):
    class double(_Scanning):
        def fits(self, filter: str, topic: str) -> bool:
            pattern = re.escape(filter).replace(r"\+", "[^/]+").replace(r"/\#", "(/.*)?").replace(r"\#", ".*")
            return matches(filter, topic) and bool(re.fullmatch(pattern, topic))


class TestRETAIN_11_TakesSignsForPatterns(_Broken):
    class double(_Scanning):
        def fits(self, filter: str, topic: str) -> bool:
            if is_exact(filter):
                return filter == topic
            pattern = re.escape(filter).replace("_", ".").replace(r"\+", "[^/]*").replace(r"/\#", "(/.*)?")
            return matches(filter, topic) or ("_" in filter and bool(re.fullmatch(pattern, topic)))


class TestRETAIN_12_WildcardsTakeDollar(_Broken):
    class double(MemoryRetainStore):
        def _root_of(self, topic: str) -> Any:
            return self._root


class TestRETAIN_12_NobodyFindsDollar(_Broken):
    class double(_Scanning):
        def fits(self, filter: str, topic: str) -> bool:
            return matches(filter, topic) and (is_exact(filter) or not topic.startswith("$"))


class TestRETAIN_13_FindsWhatWasDeleted(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            self.gone = [each.message for each in writes if not each.message.payload]
            super().put(writes)

        def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
            page = super().match(filter, cursor, limit)
            gone = [] if is_exact(filter) else [each for each in self.gone if matches(filter, each.topic)]
            return evolve(page, messages=(*page.messages, *gone))


class TestRETAIN_13_CutsTheBranch(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            for write in writes:
                super().put([write])
                if not write.message.payload:
                    for topic in [each for each in self._topics if each.startswith(f"{write.message.topic}/")]:
                        super().put([evolve(write, message=evolve(write.message, topic=topic))])


class TestRETAIN_14_AnswersMoreThanTheLimit(_Broken):
    class double(MemoryRetainStore):
        def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
            return super().match(filter, cursor, limit + 1)


class TestRETAIN_14_SkipsBetweenPages(_Broken):
    class double(MemoryRetainStore):
        def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
            page = super().match(filter, cursor, limit)
            if page.cursor is None:
                return page
            return evolve(page, cursor=super().match(filter, page.cursor, 1).cursor)


class TestRETAIN_15_PagesByPosition(_Broken):
    class double(MemoryRetainStore):
        def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
            whole = super().match(filter, None, ALL).messages
            first = cursor if isinstance(cursor, int) else 0
            return RetainPage(whole[first : first + limit], first + limit if first + limit < len(whole) else None)


class TestRETAIN_16_HasOneCursor(_Broken):
    class double(MemoryRetainStore):
        where: object = None

        def match(self, filter: str, cursor: object = None, limit: int = 100) -> RetainPage:
            page = super().match(filter, cursor if cursor is None else self.where, limit)
            self.where = page.cursor
            return page


class TestRETAIN_17_LeavesOutDollar(_Broken):
    class double(MemoryRetainStore):
        def iterate(self, cursor: object = None, limit: int = 1000) -> RetainContents:
            contents = super().iterate(cursor, limit)
            plain = tuple(each for each in contents.writes if not each.message.topic.startswith("$"))
            return evolve(contents, writes=plain)


class TestRETAIN_17_MakesUpVersions(_Broken):
    class double(MemoryRetainStore):
        def iterate(self, cursor: object = None, limit: int = 1000) -> RetainContents:
            contents = super().iterate(cursor, limit)
            made = [evolve(each, version=RetainVersion(each.message.received_at, 0, 0)) for each in contents.writes]
            return evolve(contents, writes=tuple(made))


class TestRETAIN_18_CopiesByPosition(_Broken):
    class double(MemoryRetainStore):
        def iterate(self, cursor: object = None, limit: int = 1000) -> RetainContents:
            whole = super().iterate(None, ALL).writes
            first = cursor if isinstance(cursor, int) else 0
            return RetainContents(whole[first : first + limit], first + limit if first + limit < len(whole) else None)


class TestRETAIN_19_CountsDeletions(_Broken):
    class double(MemoryRetainStore):
        def count(self) -> int:
            return len(self._topics) + len(self._tombstones)


class TestRETAIN_19_CountsReplacements(_Broken):
    class double(MemoryRetainStore):
        replaced = 0

        def put(self, writes: Sequence[RetainWrite]) -> None:
            self.replaced += sum(each.message.topic in self._topics for each in writes if each.message.payload)
            super().put(writes)

        def count(self) -> int:
            return super().count() + self.replaced


class TestRETAIN_20_KeepsTheBytesOfWhatWasReplaced(_Broken):
    class double(MemoryRetainStore):
        def _hold(self, topic: str, node: Any, message: Message, version: RetainVersion) -> None:
            before = self._bytes
            super()._hold(topic, node, message, version)
            self._bytes = before + retained_bytes(message)


class TestRETAIN_20_CountsPayloads(_Broken):
    class double(MemoryRetainStore):
        def size_bytes(self) -> int:
            return sum(len(node.message.payload) for node in self._topics.values() if node.message)


class TestRETAIN_20_CountsMessagesOnly(_Broken):
    class double(MemoryRetainStore):
        def size_bytes(self) -> int:
            return sum(node.message.size_bytes for node in self._topics.values() if node.message)


class TestRETAIN_21_ExpiresTooLate(_Broken):
    class double(MemoryRetainStore):
        def expire(self, now: float, limit: int) -> Sequence[Message]:
            return super().expire(nextafter(now, 0), limit)


class TestRETAIN_21_LeavesWhatHasExpired(_Broken):
    class double(MemoryRetainStore):
        def expire(self, now: float, limit: int) -> Sequence[Message]:
            held = [node.message for node in self._topics.values() if node.message]
            return [each for each in held if each.has_expired(now)][:limit]


class TestRETAIN_22_ExpiresEverything(_Broken):
    class double(MemoryRetainStore):
        def expire(self, now: float, limit: int) -> Sequence[Message]:
            return super().expire(now, ALL)


class TestRETAIN_22_AnswersLessThanItRemoves(_Broken):
    class double(MemoryRetainStore):
        def expire(self, now: float, limit: int) -> Sequence[Message]:
            return super().expire(now, ALL)[:limit]


class TestRETAIN_23_ExpiresAtTheOldTime(_Broken):
    class double(MemoryRetainStore):
        def _hold(self, topic: str, node: Any, message: Message, version: RetainVersion) -> None:
            before = None if node is None or node.message is None else node.message.expires_at
            super()._hold(topic, node, message, version)
            if before is not None:
                self._expiry.set(topic, before)


class TestRETAIN_24_RefusesWhatItKnows(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            for write in writes:
                node = self._topics.get(write.message.topic)
                if node is not None and node.version == write.version:
                    raise ServiceUnavailable("the message is there already")
                super().put([write])


class TestRETAIN_25_TakesABegunBatchForDone(_Broken):
    class double(MemoryRetainStore):
        def __init__(self) -> None:
            super().__init__()
            self.begun: set[tuple[str, RetainVersion]] = set()

        def put(self, writes: Sequence[RetainWrite]) -> None:
            key = writes[0].message.topic, writes[0].version
            if key not in self.begun:
                self.begun.add(key)
                super().put(writes)


class TestRETAIN_26_KeepsTheLastBatch(_Broken):
    class double(MemoryRetainStore):
        """Holds what it is handed until it is asked, one batch at a time."""

        handed: Sequence[RetainWrite] = ()

        def put(self, writes: Sequence[RetainWrite]) -> Any:
            self.handed = writes
            return self.done()

        async def done(self) -> None:
            super().put(self.handed)


class TestRETAIN_27_FailsInSilence(_Broken):
    can_fail = True

    class double(MemoryRetainStore):
        down = False

        def put(self, writes: Sequence[RetainWrite]) -> None:
            if not self.down:
                super().put(writes)

    def failing(self, store: Any) -> Callable[[], object]:
        store.down = True
        return lambda: setattr(store, "down", False)


class _Restarting(_Broken):
    """``double.start`` is called at the beginning of its second life."""

    survives_restart = True

    def reopened(self, store: Any, drive: Any) -> Any:
        store.start()
        return store


class TestRETAIN_28_ForgetsEverything(_Restarting):
    class double(MemoryRetainStore):
        def start(self) -> None:
            self.__init__()  # type: ignore[misc]


class TestRETAIN_28_ForgetsVersions(_Restarting):
    class double(MemoryRetainStore):
        def start(self) -> None:
            for node in self._topics.values():
                node.version = RetainVersion(0, 0, 0)


class TestRETAIN_28_ForgetsWhatExpires(_Restarting):
    class double(MemoryRetainStore):
        def start(self) -> None:
            for topic in self._topics:
                self._expiry.set(topic, None)


class TestRETAIN_29_KeepsTheFirst(_Broken):
    class double(MemoryRetainStore):
        def _hold(self, topic: str, node: Any, message: Message, version: RetainVersion) -> None:
            held = message if node is None or node.message is None else node.message
            super()._hold(topic, node, held, version)


class TestRETAIN_30_ForgetsDeletions(_Broken):
    class double(MemoryRetainStore):
        def newest(self) -> float:
            nodes: Iterable[Any] = self._topics.values()
            return max((node.version.received_at for node in nodes if node.message), default=0.0)


class TestRETAIN_31_CountsWhatWasReplaced(_Broken):
    class double(MemoryRetainStore):
        def _count(self, message: Message, sign: int) -> None:
            before = dict(self._by_user)
            super()._count(message, sign)
            if sign < 0:
                self._by_user = before


class TestRETAIN_31_CountsForWhoeverWroteLast(_Broken):
    class double(MemoryRetainStore):
        """Takes off what is replaced from who replaces it."""

        def _hold(self, topic: str, node: Any, message: Message, version: RetainVersion) -> None:
            if node is not None and node.message is not None:
                node.message = evolve(node.message, publisher=message.publisher)
            super()._hold(topic, node, message, version)


class TestRETAIN_31_LeavesWhatHasExpired(_Broken):
    class double(MemoryRetainStore):
        def expire(self, now: float, limit: int) -> Sequence[Message]:
            before = dict(self._by_user)
            removed = super().expire(now, limit)
            self._by_user = before
            return removed


class TestRETAIN_32_WritesInAnyCase(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            super().put([evolve(write, expected=None) for write in writes])


class TestRETAIN_33_LooksBeforeTheBatch(_Broken):
    class double(MemoryRetainStore):
        def put(self, writes: Sequence[RetainWrite]) -> None:
            fit = [each for each in writes if each.expected in (None, self.version_of(each.message.topic))]
            super().put([evolve(write, expected=None) for write in fit])


class TestRETAIN_33_TakesWhatIsSkippedForTheVersion(_Broken):
    class double(MemoryRetainStore):
        def __init__(self) -> None:
            super().__init__()
            self.last: dict[str, RetainVersion] = {}

        def put(self, writes: Sequence[RetainWrite]) -> None:
            for write in writes:
                if write.expected in (None, self.last.get(write.message.topic)):
                    self.last[write.message.topic] = write.version
                    super().put([evolve(write, expected=None)])


class TestRETAIN_34_ReturnsTheFirstPageOnly(_Broken):
    class double(MemoryRetainStore):
        def deletions(self, cursor: object = None, limit: int = 1000) -> RetainContents:
            return evolve(super().deletions(cursor, limit), cursor=None)


class TestRETAIN_34_ReturnsWhatIsThereAgain(_Broken):
    class double(MemoryRetainStore):
        def __init__(self) -> None:
            super().__init__()
            self.deleted: dict[str, RetainWrite] = {}

        def put(self, writes: Sequence[RetainWrite]) -> None:
            super().put(writes)
            self.deleted.update({write.message.topic: write for write in writes if not write.message.payload})

        def deletions(self, cursor: object = None, limit: int = 1000) -> RetainContents:
            return RetainContents(tuple(self.deleted.values()))
