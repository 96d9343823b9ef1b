"""The contract of a retain store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.retain import RetainStore, RetainVersion, RetainWrite, retained_bytes
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import NOW, message
from kinmqtt_spi.testing.contract import StoreContract, many
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import Message, MessageId, Publisher

TOPICS = (
    "a",
    "a/b",
    "a/b/c",
    "a/bb",
    "a/B",
    "ab",
    "A",
    "b",
    "b/b",
    "/",
    "/a",
    "a/",
    "a//b",
    "a/b/",
    " ",
    "a/ b",
    "é",
    "e\u0301",
    "a.b",
    "a_b",
    "a%b",
    "a*b",
    "a/[b]/c",
    "a\\b",
    "a/'b\"",
    "sport/tennis/player1",
    "sport/tennis/player1/ranking",
    "sport",
    "$SYS",
    "$SYS/a",
    "$SYS/a/b",
    "$other/a",
    "a/$SYS/b",
)
"""Topics that matchers confuse: empty levels, letters that have two forms, signs that mean something elsewhere."""

FILTERS = (
    "#",
    "+",
    "+/+",
    "+/#",
    "/#",
    "/+",
    "+/b",
    "+/b/#",
    "a/#",
    "a/+",
    "a/+/c",
    "a/b/#",
    "a/+/#",
    "a/+/b",
    "a/+/+",
    "+/+/+",
    "b/#",
    "sport/#",
    "sport/+",
    "sport/tennis/+",
    "sport/tennis/player1/#",
    "+/a",
    "$SYS/#",
    "$SYS/+",
    "$SYS/a/+",
    "$other/#",
    "+/+/b",
    "a_b/#",
    "a/[b]/+",
    "none/#",
    "none/+",
)
"""Filters with wildcards."""


class RetainStoreContract(StoreContract):
    """Override the fixture ``retain_store``: an empty store, opened with ``drive`` if it must be awaited."""

    @pytest.fixture
    def retain_store(self) -> RetainStore:
        """The store under test, empty."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture retain_store")

    # Writes

    @behaviour("RETAIN-01")
    def test_retain_01_an_empty_store_has_nothing(self, retain_store: RetainStore, drive: Driver) -> None:
        """In an empty store nothing matches, and all counts are zero."""
        for filter in ("a", "a/b", "#", "$SYS/#"):
            assert not self._match(retain_store, drive, filter)
        assert not self._everything(retain_store, drive)
        assert (retain_store.count(), retain_store.size_bytes()) == (0, 0)
        assert not drive(retain_store.expire(NOW, 10))

    @behaviour("RETAIN-02")
    def test_retain_02_a_message_is_found_by_its_topic(self, retain_store: RetainStore, drive: Driver) -> None:
        """A filter without wildcards finds the message of exactly that topic, in the first page."""
        self._put(retain_store, drive, *(_write(topic) for topic in TOPICS))

        for topic in TOPICS:
            assert _topics(drive(retain_store.match(topic)).messages) == [topic]
        for topic in ("none", "a/", "aa", "a/b/c/d", "$sys", "/b"):
            expected = [topic] if topic in TOPICS else []
            assert _topics(drive(retain_store.match(topic)).messages) == expected

    @behaviour("RETAIN-03")
    def test_retain_03_a_newer_message_replaces(self, retain_store: RetainStore, drive: Driver) -> None:
        """A topic has one retained message: a newer write replaces it (MQTT-3.3.1-5), also in wildcard matches."""
        self._put(retain_store, drive, _write("a/b", 1, b"old"), _write("a/c", 1, b"other"))

        self._put(retain_store, drive, _write("a/b", 2, b"new"))

        assert self._payloads(retain_store, drive, "a/b") == [b"new"]
        assert sorted(self._payloads(retain_store, drive, "a/#")) == [b"new", b"other"]
        assert retain_store.count() == 2

    @behaviour("RETAIN-04")
    def test_retain_04_an_empty_payload_deletes(self, retain_store: RetainStore, drive: Driver) -> None:
        """A message with an empty payload deletes the topic's message and is not retained (MQTT-3.3.1-6)."""
        self._put(retain_store, drive, _write("a/b"), _write("a"), _write("a/b/c"))

        self._put(retain_store, drive, _write("a/b", 2, b""), _write("never/there", 1, b""))

        assert sorted(_topics(self._match(retain_store, drive, "#"))) == ["a", "a/b/c"]
        assert not drive(retain_store.match("a/b")).messages
        assert not drive(retain_store.match("never/there")).messages
        assert sorted(_topics(write.message for write in self._everything(retain_store, drive))) == ["a", "a/b/c"]
        assert retain_store.count() == 2

    @behaviour("RETAIN-05")
    def test_retain_05_an_older_write_is_skipped(self, retain_store: RetainStore, drive: Driver) -> None:
        """A write or deletion with an older version than the topic's changes nothing, and is no error."""
        self._put(retain_store, drive, _write("a", 5, b"five"))

        self._put(retain_store, drive, _write("a", 4, b"four"), _write("a", 3, b""), _write("b", 1, b"b"))

        assert self._payloads(retain_store, drive, "a") == [b"five"]
        assert self._payloads(retain_store, drive, "b") == [b"b"]

    @behaviour("RETAIN-06")
    def test_retain_06_versions_are_numbers(self, retain_store: RetainStore, drive: Driver) -> None:
        """A later time wins, then a higher node, then a higher counter: compared as numbers, never as text."""
        rising = [
            RetainVersion(9.5, 2**64 - 1, 10**12),
            RetainVersion(10.25, 9, 10),
            RetainVersion(10.25, 10, 9),
            RetainVersion(10.25, 10, 10),
            RetainVersion(10.25, 2**63 + 1, 1),
            RetainVersion(10.25, 2**63 + 2, 1),
            RetainVersion(100.0, 1, 1),
            RetainVersion(1_700_000_000.000001, 1, 1),
            RetainVersion(1_700_000_000.000002, 1, 1),
        ]
        for place, (older, newer) in enumerate(pairwise(rising)):
            for topic, order in ((f"up/{place}", (older, newer)), (f"down/{place}", (newer, older))):
                for version in order:
                    payload = b"newer" if version is newer else b"older"
                    self._put(retain_store, drive, RetainWrite(message(topic, payload), version))

                assert self._payloads(retain_store, drive, topic) == [b"newer"], (older, newer)

    @behaviour("RETAIN-07")
    def test_retain_07_a_deletion_is_remembered(self, retain_store: RetainStore, drive: Driver) -> None:
        """A deletion wins over an older write that arrives later, even if there was nothing to delete.

        A newer write is accepted.
        """
        self._put(retain_store, drive, _write("a", 5, b"x"), _write("a", 10, b""), _write("b", 10, b""))

        self._put(retain_store, drive, _write("a", 9, b"late"), _write("b", 9, b"late"))
        assert retain_store.count() == 0
        assert not self._match(retain_store, drive, "#")
        self._put(retain_store, drive, _write("a", 11, b"new"), _write("b", 11, b"new"))

        assert self._payloads(retain_store, drive, "#") == [b"new", b"new"]

    @behaviour("RETAIN-08")
    def test_retain_08_an_older_deletion_forgets_nothing(self, retain_store: RetainStore, drive: Driver) -> None:
        """Of two deletions that arrive in the wrong order the newer one counts."""
        self._put(retain_store, drive, _write("a", 10, b""), _write("a", 5, b""))

        self._put(retain_store, drive, _write("a", 7, b"late"))

        assert not drive(retain_store.match("a")).messages

    @behaviour("RETAIN-09")
    def test_retain_09_writes_of_a_batch_are_in_order(self, retain_store: RetainStore, drive: Driver) -> None:
        """The writes of a batch are applied in order: of several to a topic the last one counts."""
        self._put(
            retain_store,
            drive,
            _write("a", 1, b"1"),
            _write("b", 1, b"1"),
            _write("a", 2, b""),
            _write("c", 1, b"1"),
            _write("b", 2, b"2"),
            _write("a", 3, b"3"),
            _write("c", 2, b""),
        )

        assert self._payloads(retain_store, drive, "a") == [b"3"]
        assert self._payloads(retain_store, drive, "b") == [b"2"]
        assert not drive(retain_store.match("c")).messages
        assert retain_store.count() == 2

    @behaviour("RETAIN-10")
    def test_retain_10_everything_comes_back(self, retain_store: RetainStore, drive: Driver) -> None:
        """A message is returned unchanged, with every field, by ``match``, ``iterate`` and ``expire``."""
        whole = message(
            "tö/pic \U0001f600",
            bytes(range(256)),
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
            id=MessageId(2**64 - 1, 2**40),
            received_at=NOW + 0.123456,
            expires_at=NOW + 1000.654321,
        )
        version = RetainVersion(NOW + 0.123456, 2**64 - 1, 2**40)
        self._put(retain_store, drive, RetainWrite(whole, version))

        assert list(drive(retain_store.match(whole.topic)).messages) == [whole]
        assert self._match(retain_store, drive, "+/+") == [whole]
        assert self._everything(retain_store, drive) == [RetainWrite(whole, version)]
        assert list(drive(retain_store.expire(NOW + 1e9, 10))) == [whole]

    # Matching

    @behaviour("RETAIN-11")
    def test_retain_11_wildcards_match(self, retain_store: RetainStore, drive: Driver) -> None:
        """``+`` matches one level, also an empty one; ``#`` the parent and all below it (section 4.7.1)."""
        topics = [topic for topic in TOPICS if not topic.startswith("$")]
        self._put(retain_store, drive, *(_write(topic) for topic in topics))

        for filter in FILTERS:
            expected = sorted(topic for topic in topics if matches(filter, topic))
            assert sorted(_topics(self._match(retain_store, drive, filter))) == expected, filter

    @behaviour("RETAIN-12")
    def test_retain_12_dollar_topics_are_asked_for_by_name(self, retain_store: RetainStore, drive: Driver) -> None:
        """A wildcard in the first level matches no topic that begins with ``$`` (MQTT-4.7.2-1)."""
        self._put(retain_store, drive, *(_write(topic) for topic in TOPICS))

        for filter in FILTERS:
            expected = sorted(topic for topic in TOPICS if matches(filter, topic))
            assert sorted(_topics(self._match(retain_store, drive, filter))) == expected, filter

    @behaviour("RETAIN-13")
    def test_retain_13_what_was_deleted_matches_nothing(self, retain_store: RetainStore, drive: Driver) -> None:
        """After a deletion wildcards match neither the topic nor its empty levels, but still topics below it."""
        self._put(retain_store, drive, _write("a/b"), _write("a/b/c/d"), _write("x/y/z"))

        self._put(retain_store, drive, _write("a/b", 2, b""), _write("x/y/z", 2, b""))

        found = {filter: _topics(self._match(retain_store, drive, filter)) for filter in ("#", "a/+", "x/#", "a/b/#")}
        assert found == {"#": ["a/b/c/d"], "a/+": [], "x/#": [], "a/b/#": ["a/b/c/d"]}

    @behaviour("RETAIN-14")
    def test_retain_14_pages_show_each_message_once(self, retain_store: RetainStore, drive: Driver) -> None:
        """All pages of a match together have each message exactly once; none has more than the limit."""
        topics = [f"t/{number % 5}/{number}" for number in range(23)]
        self._put(retain_store, drive, *(_write(topic) for topic in topics), _write("other"))

        for limit in (1, 2, 7, 23, 100):
            assert sorted(_topics(self._match(retain_store, drive, "t/#", limit))) == sorted(topics)
            assert sorted(_topics(self._match(retain_store, drive, "+/3/+", limit))) == sorted(topics[3::5])

    @behaviour("RETAIN-15")
    def test_retain_15_a_match_goes_on_while_all_changes(self, retain_store: RetainStore, drive: Driver) -> None:
        """A message that stays is seen exactly once, however many are put and deleted between pages.

        Messages that are put, replaced or deleted meanwhile may be seen or not.
        """
        staying, going = self._fill(retain_store, drive)

        def page(cursor: object) -> tuple[list[str], object]:
            found = drive(retain_store.match("t/#", cursor, 4))
            assert len(found.messages) <= 4
            return _topics(found.messages), found.cursor

        self._see_each_once(retain_store, drive, page, staying, going)

    @behaviour("RETAIN-16")
    def test_retain_16_several_walks_at_once(self, retain_store: RetainStore, drive: Driver) -> None:
        """Concurrent matches and iterations each have their own cursor, and see everything."""
        topics = sorted(f"t/{number}" for number in range(12))
        self._put(retain_store, drive, *(_write(topic) for topic in topics))
        walks: dict[str, tuple[list[str], object]] = {name: ([], None) for name in ("t/#", "t/+", "copy")}

        left = set(walks)
        for _ in range(1000):
            for name in sorted(left):
                seen, cursor = walks[name]
                if name == "copy":
                    contents = drive(retain_store.iterate(cursor, 3))
                    its, cursor = _topics(write.message for write in contents.writes), contents.cursor
                else:
                    page = drive(retain_store.match(name, cursor, 2))
                    its, cursor = _topics(page.messages), page.cursor
                walks[name] = ([*seen, *its], cursor)
                if cursor is None:
                    left.discard(name)

        assert not left
        assert [sorted(seen) for seen, _ in walks.values()] == [topics] * 3

    # All that there is

    @behaviour("RETAIN-17")
    def test_retain_17_everything_can_be_copied(self, retain_store: RetainStore, drive: Driver) -> None:
        """``iterate`` returns everything once, also below ``$``, as writes that restore it.

        A page has no more than the limit.
        """
        writes = [_write(topic, number) for number, topic in enumerate(TOPICS, 1)]
        self._put(retain_store, drive, *writes, _write("deleted"), _write("deleted", 2, b""))

        for limit in (1, 4, 1000):
            found = self._everything(retain_store, drive, limit)
            assert sorted(found, key=lambda write: write.version) == writes

    @behaviour("RETAIN-18")
    def test_retain_18_a_copy_goes_on_while_all_changes(self, retain_store: RetainStore, drive: Driver) -> None:
        """``iterate`` returns messages that stay exactly once, however many are put and deleted between pages."""
        staying, going = self._fill(retain_store, drive)

        def page(cursor: object) -> tuple[list[str], object]:
            contents = drive(retain_store.iterate(cursor, 4))
            assert len(contents.writes) <= 4
            return _topics(write.message for write in contents.writes), contents.cursor

        self._see_each_once(retain_store, drive, page, staying, going)

    @behaviour("RETAIN-19")
    def test_retain_19_counts_topics(self, retain_store: RetainStore, drive: Driver) -> None:
        """``count`` is the number of topics with a message, as soon as a write of any type is committed."""
        counts = []
        for write in (
            _write("a", 1),
            _write("$SYS/b", 1),
            _write("a", 2),
            _write("a", 1, b"older"),
            _write("c", 1, b""),
            _write("a", 3, b""),
            _write("a", 4, b""),
            _write("a", 5),
            _write("$SYS/b", 2, b""),
        ):
            self._put(retain_store, drive, write)
            counts.append(retain_store.count())

        assert counts == [1, 2, 2, 2, 2, 1, 1, 2, 1]

    @behaviour("RETAIN-20")
    def test_retain_20_bytes_are_those_of_the_messages(self, retain_store: RetainStore, drive: Driver) -> None:
        """``size_bytes`` is the sum of ``retained_bytes`` of all retained messages."""
        heavy = message(
            "é/\U0001f600", b"12345", properties=Properties(content_type="t", user_property=(("k", "v"),))
        )
        light = message("t/of/many/levels", b"1")
        heavier = heavy.replace(payload=b"1234567890")
        sizes = []
        for number, each in enumerate((heavy, light, heavier, heavy, heavy.replace(payload=b"")), 1):
            self._put(retain_store, drive, RetainWrite(each, RetainVersion(NOW + number, 1, number)))
            sizes.append(retain_store.size_bytes())
        self._put(retain_store, drive, RetainWrite(light.replace(payload=b"older"), RetainVersion(NOW, 1, 1)))

        expected = [(heavy,), (heavy, light), (heavier, light), (heavy, light), (light,)]
        assert sizes == [sum(map(retained_bytes, held)) for held in expected]
        assert retain_store.size_bytes() == retained_bytes(light)

    # Expiry

    @behaviour("RETAIN-21")
    def test_retain_21_expired_messages_are_removed(self, retain_store: RetainStore, drive: Driver) -> None:
        """``expire`` removes the messages that have expired, and returns them.

        Messages that have not expired, or never expire, stay.
        """
        early, late = _write("a/early", expires_at=NOW + 10.5), _write("a/late", expires_at=NOW + 20)
        self._put(retain_store, drive, early, late, _write("a/never"))

        assert not drive(retain_store.expire(NOW + 10.4, 10))
        assert list(drive(retain_store.expire(NOW + 10.5, 10))) == [early.message]

        assert not drive(retain_store.expire(NOW + 10.5, 10))
        assert sorted(_topics(self._match(retain_store, drive, "#"))) == ["a/late", "a/never"]
        assert not drive(retain_store.match("a/early")).messages
        assert retain_store.count() == 2
        assert retain_store.size_bytes() == retained_bytes(late.message) + retained_bytes(_write("a/never").message)

    @behaviour("RETAIN-22")
    def test_retain_22_expiring_has_a_limit(self, retain_store: RetainStore, drive: Driver) -> None:
        """``expire`` removes at most the limit; repeated calls remove each message once."""
        topics = [f"t/{number}" for number in range(10)]
        self._put(retain_store, drive, *(_write(topic, expires_at=NOW + 1) for topic in topics))

        removed: list[str] = []
        for left in (7, 4, 1, 0, 0):
            page = drive(retain_store.expire(NOW + 100, 3))
            assert len(page) <= 3
            removed += _topics(page)
            assert retain_store.count() == left

        assert sorted(removed) == topics

    @behaviour("RETAIN-23")
    def test_retain_23_only_what_is_there_expires(self, retain_store: RetainStore, drive: Driver) -> None:
        """A message that was deleted, or replaced by one with another expiry, does not expire at its old time."""
        self._put(retain_store, drive, *(_write(topic, 1, expires_at=NOW + 10) for topic in ("a", "b", "c", "d")))
        self._put(retain_store, drive, _write("a", 2, b""), _write("b", 2), _write("c", 2, expires_at=NOW + 20))

        assert _topics(drive(retain_store.expire(NOW + 15, 10))) == ["d"]
        assert _topics(drive(retain_store.expire(NOW + 25, 10))) == ["c"]
        assert _topics(self._match(retain_store, drive, "#")) == ["b"]

    # Repeated and half-done calls

    @behaviour("RETAIN-24")
    def test_retain_24_a_repeated_batch_changes_nothing(self, retain_store: RetainStore, drive: Driver) -> None:
        """A batch that is put twice has the effect of one: deleted messages do not come back."""
        batch = [_write("a", 1), _write("b", 1), _write("a", 2, b""), _write("b", 2, b"two"), _write("c", 3)]
        self._put(retain_store, drive, *batch)
        before = self._everything(retain_store, drive)

        self._put(retain_store, drive, *batch)

        assert _sorted(self._everything(retain_store, drive)) == _sorted(before)
        assert retain_store.count() == 2
        assert retain_store.size_bytes() == sum(retained_bytes(write.message) for write in before)

    @behaviour("RETAIN-25")
    def test_retain_25_a_half_done_batch_can_be_done_whole(self, retain_store: RetainStore, drive: Driver) -> None:
        """After half of a batch was put, putting the whole batch has the same effect as once."""
        for number in range(1, 4):
            a, b = f"a{number}", f"b{number}"
            batch = [_write(a, 1), _write(b, 1, b"old"), _write(a, 2, b""), _write(b, 2, b"new")]
            self._put(retain_store, drive, *batch[:number])

            self._put(retain_store, drive, *batch)

            assert not drive(retain_store.match(a)).messages
            assert self._payloads(retain_store, drive, b) == [b"new"]
            assert retain_store.count() == number

    @behaviour("RETAIN-26")
    def test_retain_26_batches_may_follow_at_once(self, retain_store: RetainStore, drive: Driver) -> None:
        """Batches that are put before the first is committed are all committed."""
        answers = []
        for number in range(1, 4):
            answers.append(
                retain_store.put(
                    [_write("a", number, b"%d" % number), _write(f"b/{number}"), _write("c", number, b"")]
                )
            )
            answers.append(retain_store.commit())

        for answer in answers:
            drive(answer)

        assert self._payloads(retain_store, drive, "a") == [b"3"]
        assert sorted(_topics(self._match(retain_store, drive, "b/#"))) == ["b/1", "b/2", "b/3"]
        assert retain_store.count() == 4

    # Failures and restarts

    @behaviour("RETAIN-27", needs="can_fail")
    def test_retain_27_a_failure_is_told(self, retain_store: RetainStore, drive: Driver) -> None:
        """While the store's backend fails, writes raise ServiceUnavailable; afterwards they work again.

        Messages that were committed before, and those that were reported as committed later, are there.
        """
        self._put(retain_store, drive, _write("before"))
        mend = self.failing(retain_store)

        with pytest.raises(ServiceUnavailable):
            self._put(retain_store, drive, _write("meanwhile"))
        mend()
        self._put(retain_store, drive, _write("after"))

        found = set(_topics(self._match(retain_store, drive, "#")))
        assert {"before", "after"} <= found <= {"before", "meanwhile", "after"}
        assert retain_store.count() == len(found)

    @behaviour("RETAIN-28", needs="survives_restart")
    def test_retain_28_messages_outlive_the_store(self, retain_store: RetainStore, drive: Driver) -> None:
        """After a restart committed messages are there, with versions and expiries, and all counts are right."""
        writes = [
            _write("a/b", 5),
            _write("tö/pic", 7, bytes(range(256)), expires_at=NOW + 10.5),
            _write("$other/a", 3),
        ]
        self._put(retain_store, drive, *writes, _write("gone"), _write("gone", 2, b""))

        again = self.reopened(retain_store, drive)
        assert isinstance(again, RetainStore)

        assert _sorted(self._everything(again, drive)) == _sorted(writes)
        assert _topics(self._match(again, drive, "a/+")) == ["a/b"]
        assert again.count() == 3
        assert again.size_bytes() == sum(retained_bytes(write.message) for write in writes)
        self._put(again, drive, _write("a/b", 4, b"older"))
        assert self._payloads(again, drive, "a/b") == [writes[0].message.payload]
        assert _topics(drive(again.expire(NOW + 11, 10))) == ["tö/pic"]

    @behaviour("RETAIN-29")
    def test_retain_29_as_a_plain_model_does(self, retain_store: RetainStore, drive: Driver) -> None:
        """With random writes and expiries the store equals a dict of topics, and matches as in section 4.7."""
        examples = iter(range(1_000_000))

        @settings(
            max_examples=50, database=None, suppress_health_check=list(HealthCheck), print_blob=False, deadline=None
        )
        @given(_steps(), st.integers(1, 5))
        def run(steps: list[tuple[Any, ...]], limit: int) -> None:
            prefix = f"{next(examples)}"
            held: dict[str, RetainWrite] = {}
            known: dict[str, RetainVersion] = {}
            expired: set[str] = set()
            for number, step in enumerate(steps):
                if step[0] == "expire":
                    removed = drive(retain_store.expire(NOW + step[1], 1_000_000))
                    due = [name for name, write in held.items() if write.message.has_expired(NOW + step[1])]
                    assert sorted(each.topic for each in removed if each.topic in held) == sorted(due)
                    for name in due:
                        del held[name]
                        expired.add(name)
                else:
                    topic, at, payload, expires = step[1:]
                    name = f"{prefix}/{topic}"
                    write = RetainWrite(
                        message(name, payload, expires_at=None if expires is None else NOW + expires),
                        RetainVersion(NOW + at, 1, number),
                    )
                    older = name in known and write.version < known[name]
                    if older and name in expired:
                        continue  # What has expired may be remembered as a deletion is, or not.
                    self._put(retain_store, drive, write)
                    if older:
                        continue
                    expired.discard(name)
                    known[name] = write.version
                    held.pop(name, None)
                    if payload:
                        held[name] = write
            for filter in ("#", "+", "+/#", "a/#", "a/+", "+/b", "a/b"):
                whole = f"{prefix}/{filter}"
                expected = sorted(name for name in held if matches(whole, name))
                assert sorted(_topics(self._match(retain_store, drive, whole, limit))) == expected
            ours = [w for w in self._everything(retain_store, drive) if w.message.topic.startswith(f"{prefix}/")]
            assert _sorted(ours) == _sorted(held.values())

        run()

    @behaviour("RETAIN-30")
    def test_retain_30_the_newest_is_known(self, retain_store: RetainStore, drive: Driver) -> None:
        """``newest`` is not below the time of any written version, also of deletions, or always 0."""
        known = [retain_store.newest()]
        for write in (_write("a", 5), _write("b", 4), _write("a", 7, b""), _write("a", 6), _write("c", 9, b"")):
            self._put(retain_store, drive, write)
            known.append(retain_store.newest())

        least = [0.0, *(NOW + at for at in (5, 5, 7, 7, 9))]
        assert not any(known) or all(one >= other for one, other in zip(known, least, strict=True))

    @behaviour("RETAIN-32")
    def test_retain_32_a_condition_is_kept(self, retain_store: RetainStore, drive: Driver) -> None:
        """A write that expects a version is carried out only if the topic has that one; others of its batch are."""
        self._put(retain_store, drive, _write("a", 1), _write("b", 1))
        missed = (_at(_write("a", 5, b"late"), 2), _at(_write("nothing", 5), 3))
        self._put(retain_store, drive, missed[0], _at(_write("b", 5, b"new"), 1), missed[1], _write("c", 5))
        self._put(retain_store, drive, _at(_write("b", 6, b""), 1), _at(_write("c", 7, b""), 5))

        found = {each.topic: each.payload for each in drive(retain_store.match("#")).messages}
        assert found == {"a": b"payload", "b": b"new"}

    @behaviour("RETAIN-33")
    def test_retain_33_a_condition_is_about_what_is_there(self, retain_store: RetainStore, drive: Driver) -> None:
        """A condition is about the version that the topic has by then; skipped writes of its batch change none.

        A deletion's version meets it while the deletion is remembered.
        """
        self._put(retain_store, drive, _write("a", 5), _write("b", 5), _write("c", 5))
        self._put(retain_store, drive, _write("c", 6, b""))

        self._put(retain_store, drive, _write("a", 3, b"older"), _at(_write("a", 7, b"new"), 5))
        self._put(retain_store, drive, _write("b", 6, b"newer"), _at(_write("b", 7, b"late"), 5))
        self._put(retain_store, drive, _at(_write("c", 7, b"again"), 6))

        found = {each.topic: each.payload for each in drive(retain_store.match("#")).messages}
        assert found == {"a": b"new", "b": b"newer", "c": b"again"}

    @behaviour("RETAIN-34")
    def test_retain_34_deletions_are_returned_or_none(self, retain_store: RetainStore, drive: Driver) -> None:
        """``deletions`` returns each remembered deletion once, with its version, page by page; or always nothing.

        A topic that has a message again is not among them.
        """
        topics = [f"t/{number}" for number in range(5)]
        self._put(retain_store, drive, *[_write(topic, 1) for topic in topics], _write("a", 1))
        self._put(retain_store, drive, *[_write(topic, 10 + at, b"") for at, topic in enumerate(topics)])
        self._put(retain_store, drive, _write("t/4", 20))

        found: list[tuple[str, bytes, RetainVersion]] = []
        cursor: object = None
        while True:
            page = drive(retain_store.deletions(cursor, 2))
            found += [(each.message.topic, each.message.payload, each.version) for each in page.writes]
            cursor = page.cursor
            if cursor is None:
                break
        expected = [(topic, b"", _write(topic, 10 + at, b"").version) for at, topic in enumerate(topics[:4])]
        assert sorted(found) in ([], expected)

    @behaviour("RETAIN-31")
    def test_retain_31_what_a_user_holds_is_right(self, retain_store: RetainStore, drive: Driver) -> None:
        """``held_by`` is right for each user after every write and expiry, or always ``None``.

        A message belongs to the user who published it; without a user name, to nobody.
        """
        held: dict[str, Message] = {}
        steps = [
            ("a/b", "one", b"x", None),
            ("b", "one", b"payload", 10.0),
            ("c", "other", b"x", None),
            ("a/b", "one", b"longer", None),
            ("c", "one", b"x", None),
            ("d", None, b"x", None),
            ("d", "other", b"x", 20.0),
            ("a/b", "other", b"", None),
            ("c", None, b"x", None),
        ]
        for number, (topic, user, payload, expires_at) in enumerate(steps, 1):
            each = message(
                topic,
                payload,
                publisher=Publisher("c", user),
                expires_at=None if expires_at is None else NOW + expires_at,
            )
            self._put(retain_store, drive, RetainWrite(each, RetainVersion(NOW + number, 1, number)))
            held.pop(topic, None)
            if payload:
                held[topic] = each
            self._holds(retain_store, held)
        late = message("b", b"late", publisher=Publisher("c", "other"))
        self._put(retain_store, drive, RetainWrite(late, RetainVersion(NOW, 1, 99)))
        self._holds(retain_store, held)
        for after_s in (15.0, 25.0):
            drive(retain_store.expire(NOW + after_s, 10))
            held = {topic: each for topic, each in held.items() if not each.has_expired(NOW + after_s)}
            self._holds(retain_store, held)

    # Within

    @staticmethod
    def _holds(store: RetainStore, held: Mapping[str, Message]) -> None:
        """Compare the store's counts by user with its retained messages."""
        for user in ("one", "other", "nobody"):
            theirs = [retained_bytes(each) for each in held.values() if each.publisher.username == user]
            assert store.held_by(user) in (None, (len(theirs), sum(theirs)))

    def _put(self, store: RetainStore, drive: Driver, *writes: RetainWrite) -> None:
        self.persist(store, lambda: store.put(writes), drive)

    def _match(self, store: RetainStore, drive: Driver, filter: str, limit: int = 100) -> list[Message]:
        """All pages of a match."""
        found: list[Message] = []
        cursor: object = None
        while True:
            page = drive(store.match(filter, cursor, limit))
            assert len(page.messages) <= limit
            found += page.messages
            cursor = page.cursor
            if cursor is None:
                return found

    def _payloads(self, store: RetainStore, drive: Driver, filter: str) -> list[bytes]:
        return [each.payload for each in self._match(store, drive, filter)]

    def _everything(self, store: RetainStore, drive: Driver, limit: int = 1000) -> list[RetainWrite]:
        found: list[RetainWrite] = []
        cursor: object = None
        while True:
            contents = drive(store.iterate(cursor, limit))
            assert len(contents.writes) <= limit
            found += contents.writes
            cursor = contents.cursor
            if cursor is None:
                return found

    def _fill(self, store: RetainStore, drive: Driver) -> tuple[list[str], list[str]]:
        """Retain many messages; return topics that stay (a walk replaces the first), and those that are deleted."""
        staying = sorted(f"t/{number % 3}/s{number}" for number in range(25))
        going = [f"t/{number % 3}/g{number}" for number in range(16)]
        self._put(store, drive, *(_write(topic) for topic in [*going[:8], *staying, *going[8:]]))
        return staying, going

    def _see_each_once(
        self,
        store: RetainStore,
        drive: Driver,
        page: Callable[[object], tuple[list[str], object]],
        staying: list[str],
        going: list[str],
    ) -> None:
        seen: list[str] = []
        left = list(going)
        cursor: object = None
        for number in range(1000):
            topics, cursor = page(cursor)
            seen += topics
            if left:  # Those that were seen go first: who pages by position now leaves something out.
                left.sort(key=lambda topic: topic not in seen)
                self._put(store, drive, *(_write(topic, 2, b"") for topic in left[:2]))
                del left[:2]
            elif number < 20:
                self._put(
                    store,
                    drive,
                    _write(f"t/{number % 3}/!{number}"),
                    _write(f"t/{number % 3}/z{number}"),
                    _write(staying[number % 8], number, b"replaced"),
                )
            if cursor is None:
                break
        assert cursor is None
        assert sorted(topic for topic in seen if topic in staying[8:]) == staying[8:]


def _at(write: RetainWrite, second: int | None) -> RetainWrite:
    """The same write, on condition that the topic has the version of that second."""
    return evolve(write, expected=None if second is None else RetainVersion(NOW + second, 1, second))


def _write(topic: str, at: int = 1, payload: bytes = b"payload", **fields: Any) -> RetainWrite:
    """A write with a version at that second; ``fields`` are those of its message."""
    its = message(topic, payload, retain=True, number=at, **fields)
    return RetainWrite(its, RetainVersion(NOW + at, 1, at))


def _topics(messages: Iterable[Message]) -> list[str]:
    return [each.topic for each in messages]


def _sorted(writes: Iterable[RetainWrite]) -> list[RetainWrite]:
    return sorted(writes, key=lambda write: write.message.topic)


def _steps() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """For each write the topic, version, payload and expiry; or when to expire what."""
    writes = st.tuples(
        st.just("put"),
        st.sampled_from(("a", "b", "a/b", "/", "a/")),
        st.integers(1, 20),
        st.sampled_from((b"", b"x", b"yy")),
        st.none() | st.integers(0, 100),
    )
    return many(writes | st.tuples(st.just("expire"), st.integers(0, 110)))
