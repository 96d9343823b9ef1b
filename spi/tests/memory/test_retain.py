"""Retained messages in memory."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.memory.retain import TOMBSTONE_BYTES, VISITS, MemoryRetainStore
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.retain import DELETION_S, RetainVersion, RetainWrite, retained_bytes
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import Message


def write(topic: str, payload: bytes = b"x", at: float = 1.0, expires_at: float | None = None) -> RetainWrite:
    return RetainWrite(Message(topic, payload, retain=True, expires_at=expires_at), RetainVersion(at, 0, 0))


def filled(*topics: str) -> MemoryRetainStore:
    store = MemoryRetainStore()
    store.put([write(topic) for topic in topics])
    return store


def found(store: MemoryRetainStore, filter: str, limit: int = 2) -> list[str]:
    """The topics of all pages of a match, in no particular order."""
    topics: list[str] = []
    cursor: object = None
    while True:
        page = store.match(filter, cursor, limit)
        assert len(page.messages) <= limit
        topics += [message.topic for message in page.messages]
        if page.cursor is None:
            return sorted(topics)
        cursor = page.cursor


@pytest.mark.parametrize(
    ("filter", "topics"),
    [
        ("a", ["a"]),
        ("a/b", ["a/b"]),
        ("a/+", ["a/b", "a/c"]),
        ("+/b", ["a/b"]),
        ("a/#", ["a", "a/b", "a/c", "a/c/d"]),
        ("a/+/#", ["a/b", "a/c", "a/c/d"]),
        ("+/+/d", ["a/c/d"]),
        ("#", ["/", "a", "a/b", "a/c", "a/c/d"]),
        ("+", ["a"]),
        ("+/", ["/"]),
        ("$SYS/#", ["$SYS/up"]),
        ("$SYS/+", ["$SYS/up"]),
        ("+/up", []),
        ("nothing", []),
        ("a/b/c/d/e", []),
    ],
)
def test_filters_find_what_section_4_7_says(filter: str, topics: list[str]) -> None:
    """Wildcards match by levels, and none in the first place matches a topic with ``$`` (MQTT-4.7.2-1)."""
    store = filled("a", "a/b", "a/c", "a/c/d", "/", "$SYS/up")

    assert found(store, filter) == topics


LEVELS = st.sampled_from(["a", "b", "", "$x"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@given(
    topics=st.sets(TOPICS, max_size=12),
    gone=st.sets(TOPICS, max_size=6),
    filter=st.lists(st.sampled_from(["a", "b", "", "$x", "+"]), min_size=1, max_size=4).map("/".join).filter(bool),
    tail=st.sampled_from(["", "/#"]),
    limit=st.integers(1, 3),
)
def test_the_trie_agrees_with_the_plain_rules(
    topics: set[str], gone: set[str], filter: str, tail: str, limit: int
) -> None:
    """Whatever was put and deleted, a match finds what trying each topic finds, and counts are right."""
    store = filled(*topics, *gone)
    store.put([write(topic, b"", at=2.0) for topic in gone])

    left = topics - gone

    assert found(store, filter + tail, limit) == sorted(each for each in left if matches(filter + tail, each))
    assert store.count() == len(left)
    assert store.size_bytes() == sum(retained_bytes(write(each).message) for each in left)
    assert left or store._root.children is store._dollar.children is None


def test_a_newer_message_replaces_an_older_one() -> None:
    """A topic holds one message, the newest (MQTT-3.3.1-5)."""
    store = filled("a")

    store.put([write("a", b"new", at=2.0)])

    assert [message.payload for message in store.match("a").messages] == [b"new"]
    assert (store.count(), store.size_bytes()) == (1, retained_bytes(write("a", b"new").message))


def test_an_older_message_that_arrives_late_is_skipped() -> None:
    """Writes from several nodes end alike in whatever order they arrive."""
    store = MemoryRetainStore()

    store.put([write("a", b"new", at=2.0), write("a", b"old", at=1.0), write("a", b"", at=1.5)])

    assert [message.payload for message in store.match("a").messages] == [b"new"]


def test_an_empty_payload_deletes() -> None:
    """A retained message with an empty payload removes the topic and is not stored (MQTT-3.3.1-6)."""
    store = filled("a", "a/b")

    store.put([write("a", b"", at=2.0), write("never", b"", at=2.0)])

    assert (found(store, "#"), store.count(), store.size_bytes()) == (
        ["a/b"],
        1,
        retained_bytes(write("a/b").message),
    )


def test_a_deletion_leaves_the_levels_above() -> None:
    """Clearing a topic takes nothing from the topics on the way to it."""
    store = filled("a", "a/b/c")

    store.put([write("a/b/c", b"", at=2.0)])

    assert store._root.children is not None
    assert (found(store, "#"), store._root.children["a"].children) == (["a"], None)


def test_a_deletion_wins_over_older_messages_that_arrive_late() -> None:
    """A deleted message does not come back from a slower node; a newer one may take the topic."""
    store = MemoryRetainStore()
    store.put([write("a", b"", at=2.0)])

    store.put([write("a", b"old", at=1.0)])
    before = found(store, "a")
    store.put([write("a", b"new", at=3.0)])

    assert (before, found(store, "a")) == ([], ["a"])


def test_remembered_deletions_are_bounded() -> None:
    """Of more deletions than are remembered the oldest is forgotten."""
    store = MemoryRetainStore(tombstones=2)
    store.put([write(topic, b"", at=2.0) for topic in "abc"])

    store.put([write(topic, at=1.0) for topic in "abc"])

    assert found(store, "+") == ["a"]


def test_a_message_that_stays_is_seen_exactly_once() -> None:
    """Pages hold their place while other topics are put, replaced and deleted in between."""
    store = filled(*(f"a/{number}" for number in range(10)))

    first = store.match("a/#", None, 3)
    seen = {message.topic for message in first.messages}
    later = sorted({f"a/{number}" for number in range(10)} - seen)
    store.put([write(topic, b"", at=2.0) for topic in (next(iter(seen)), later[0])])
    store.put([write(f"a/{number}/x") for number in range(10)] + [write(later[1], b"new", at=2.0)])
    rest: list[str] = []
    cursor = first.cursor
    while cursor is not None:
        page = store.match("a/#", cursor, 3)
        rest += [message.topic for message in page.messages]
        cursor = page.cursor

    assert sorted(topic for topic in rest if topic.count("/") == 1) == later[1:]


@given(
    there=st.sets(TOPICS, max_size=12),
    turns=st.lists(st.lists(st.tuples(TOPICS, st.booleans()), max_size=6), max_size=12),
    filter=st.sampled_from(["#", "+", "+/#", "+/+", "a/#", "a/+", "$x/#", "+/+/+", None]),
    limit=st.integers(1, 3),
)
def test_whatever_is_done_between_pages_what_stays_is_seen_once(
    there: set[str], turns: list[list[tuple[str, bool]]], filter: str | None, limit: int
) -> None:
    """Topics that are put and deleted while a walk stands take nothing from it, and add nothing twice."""
    store = filled(*sorted(there))
    stay, seen = set(there), []
    cursor: object = None
    for number, turn in enumerate([*turns, *[[]] * 100], 2):
        if filter is None:
            contents = store.iterate(cursor, limit)
            seen += [each.message.topic for each in contents.writes]
            cursor = contents.cursor
        else:
            page = store.match(filter, cursor, limit)
            seen += [message.topic for message in page.messages]
            cursor = page.cursor
        if cursor is None:
            break
        for topic, put in turn:
            store.put([write(topic, b"x" if put else b"", at=float(number))])
            stay -= set() if put else {topic}

    assert cursor is None
    wanted = sorted(topic for topic in stay if filter is None or matches(filter, topic))
    assert sorted(topic for topic in seen if topic in stay) == wanted


def test_a_walk_ends_though_others_come_behind_it() -> None:
    """For every topic that is seen one is deleted and one is put, and still the pages have an end."""
    store = filled(*(f"a/{number}" for number in range(10)))
    pages = 0
    cursor: object = None

    while pages == 0 or cursor is not None:
        cursor = store.match("a/+", cursor, 1).cursor
        store.put([write(f"a/{pages}", b"", at=2.0), write(f"a/{pages + 10}")])
        pages += 1

    assert pages <= 11


def test_a_cursor_on_a_very_wide_level_is_small() -> None:
    """What a page keeps for the next one does not grow with the number of topics."""
    store = filled(*(f"a/{number}" for number in range(5000)))

    tracemalloc.start()
    cursor = store.match("a/+", None, 1).cursor
    size_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert cursor is not None
    assert size_bytes < 5000


def test_a_page_looks_at_a_bounded_number_of_topics() -> None:
    """A filter that finds little among very many topics gets short and empty pages, and in the end all of it."""
    store = filled(*(f"fleet/{number}" for number in range(3 * VISITS)), "fleet/last/x")

    pages = []
    cursor: object = None
    while True:
        page = store.match("fleet/+/x", cursor)
        pages.append([message.topic for message in page.messages])
        cursor = page.cursor
        if cursor is None:
            break

    assert pages == [[], [], [], ["fleet/last/x"]]


def test_everything_is_paged_through_though_pages_are_empty() -> None:
    """Going over everything passes levels where nothing is retained, a bounded number at a time."""
    store = filled("/" * (3 * VISITS), "$SYS/up", "a")

    topics: list[str] = []
    pages = 0
    cursor: object = None
    while pages == 0 or cursor is not None:
        contents = store.iterate(cursor)
        topics += [write.message.topic for write in contents.writes]
        cursor = contents.cursor
        pages += 1

    assert (sorted(topics), pages > 3) == (["$SYS/up", "/" * (3 * VISITS), "a"], True)


def test_a_page_may_be_asked_for_again() -> None:
    """A cursor holds its place for whoever repeats a request."""
    store = filled("a/1", "a/2", "a/3")
    cursor = store.match("a/+", None, 1).cursor

    assert store.match("a/+", cursor, 1).messages == store.match("a/+", cursor, 1).messages


def test_expired_messages_are_removed_in_order() -> None:
    """At most so many at once, the earliest first; what was replaced meanwhile lives by its new time."""
    store = MemoryRetainStore()
    store.put([write(topic, expires_at=at) for topic, at in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 1.0))])
    store.put([write("d", at=2.0)])

    pages = [[message.topic for message in store.expire(3.0, 2)] for _ in range(3)]

    assert pages == [["a", "b"], ["c"], []]
    assert (found(store, "#"), store.size_bytes()) == (["d"], retained_bytes(write("d").message))


def test_a_very_deep_topic_is_no_trouble() -> None:
    """A topic of as many levels as its length allows is kept, found and deleted (MQTT-4.7.3-3)."""
    topic = "/" * 65_534
    store = filled(topic)

    deep = found(store, "#")
    store.put([write(topic, b"", at=2.0)])

    assert (deep, found(store, "#"), store._root.children) == ([topic], [], None)


def test_a_retain_store_weighs_the_properties_of_its_messages() -> None:
    """What it says it holds is what its messages count for."""
    store = MemoryRetainStore()
    message = Message("t", b"x", retain=True, properties=Properties(user_property=(("k", "x" * 30_000),)))

    store.put([RetainWrite(message, RetainVersion(1.0, 0, 0))])

    assert store.size_bytes() == retained_bytes(message) > 30_000


def test_deletions_of_long_topics_are_remembered_in_so_many_bytes() -> None:
    """However long the topics are, what is remembered of them has a bound; the oldest goes first."""
    store = MemoryRetainStore()
    number = 3 * TOMBSTONE_BYTES // 4000

    for each in range(number):
        store.put([write(f"{each:05}".ljust(4000, "x"), b"", at=2.0)])
    remembered = sum(map(len, store._tombstones))
    store.put([write(f"{each:05}".ljust(4000, "x"), at=1.0) for each in (0, number - 1)])

    assert TOMBSTONE_BYTES - 4000 <= remembered <= TOMBSTONE_BYTES
    assert [topic[:5] for topic in found(store, "#")] == ["00000"]
    store.forget_deletions()
    assert (store._tombstone_bytes, len(store._tombstones)) == (0, 0)


def test_deletions_are_forgotten_after_a_day() -> None:
    """No later than other nodes forget them, which may then have an older message that is accepted everywhere."""
    store = MemoryRetainStore()
    store.put([write("a", b"", at=1000.0), write("b", b"", at=2000.0)])

    store.expire(1500.0 + DELETION_S, 10)

    assert [each.message.topic for each in store.deletions().writes] == ["b"]
    assert store.deletion_bytes == len("b")


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.booleans()), max_size=30))
def test_remembered_deletions_are_counted_right(steps: list[tuple[str, bool]]) -> None:
    """Whatever comes and goes, the bytes are those of the topics that are remembered."""
    store = MemoryRetainStore(tombstones=2)

    for at, (topic, deletes) in enumerate(steps, 1):
        store.put([write(topic * 3, b"" if deletes else b"x", at=float(at))])

    assert store._tombstone_bytes == sum(map(len, store._tombstones))
