"""The index of versions: its digest, and the deletions that it remembers."""

from __future__ import annotations

from kinmqtt.broker.retained_sync.index import VersionIndex, bucket_of
from kinmqtt_spi.services.retain import DELETION_S, RetainVersion

NOW = 1_700_000_000.0


def version(seconds: float, counter: int = 1, node: int = 1) -> RetainVersion:
    return RetainVersion(NOW + seconds, node, counter)


def test_the_same_versions_have_the_same_digest_in_whatever_order_they_came() -> None:
    """What was replaced leaves no trace."""
    one, other = VersionIndex(), VersionIndex()
    one.take("a", version(1), False, NOW)
    one.take("a", version(2), False, NOW)
    one.take("b", version(3), True, NOW)
    other.take("b", version(3), True, NOW)
    other.take("a", version(2), False, NOW)

    assert one.root() == other.root()
    assert one.differing(other.table()) == []


def test_one_version_that_differs_is_found_in_its_bucket() -> None:
    """No other bucket is compared further."""
    one, other = VersionIndex(), VersionIndex()
    for index in (one, other):
        for number in range(5000):
            index.take(f"t/{number}", version(number), False, NOW)
    other.take("t/17", version(9000), False, NOW)

    assert one.differing(other.table()) == [bucket_of("t/17")]


def test_an_older_write_changes_nothing() -> None:
    """Neither after a message nor after a deletion."""
    index = VersionIndex()
    index.take("a", version(2), False, NOW)
    index.take("b", version(2), True, NOW)
    before = index.root()

    assert not index.take("a", version(1), True, NOW)
    assert not index.take("b", version(1), False, NOW)
    assert index.root() == before


def test_an_expired_message_counts_as_deleted_without_another_digest() -> None:
    """Nodes notice the end at different moments; their digests must be the same meanwhile."""
    one, other = VersionIndex(), VersionIndex()
    for index in (one, other):
        index.take("a", version(1), False, NOW)

    one.note_end("a", version(1), NOW)

    assert one.is_deleted("a")
    assert one.root() == other.root()


def test_a_deletion_is_forgotten_after_a_day() -> None:
    """Then nothing of it is left, and a new one of that age is not remembered again."""
    index = VersionIndex()
    empty = index.root()
    index.take("a", version(0), True, NOW)
    index.forget_old(NOW + DELETION_S - 1)
    assert index.is_deleted("a")

    index.forget_old(NOW + DELETION_S + 1)

    assert (len(index), index.root()) == (0, empty)
    assert not index.take("a", version(0), True, NOW + DELETION_S + 1)
    assert index.root() == empty


def test_an_old_deletion_still_ends_an_older_message() -> None:
    """A node that was away for long must not keep what others deleted, if one of them remembers it."""
    index = VersionIndex()
    index.take("a", version(0), False, NOW)

    assert index.take("a", version(1), True, NOW + DELETION_S + 5)
    assert index.version_of("a") is None


def test_above_the_bound_the_oldest_deletions_are_forgotten_on_all_nodes_the_same() -> None:
    """By version, not by arrival: else digests would differ for ever."""
    one, other = (VersionIndex(deletions=10) for _ in range(2))
    versions = {f"t/{number}": version(number) for number in range(30)}
    for topic, each in versions.items():
        one.take(topic, each, True, NOW)
    for topic, each in reversed(versions.items()):
        other.take(topic, each, True, NOW)

    assert one.deletions == other.deletions == 10
    assert one.root() == other.root()
    assert one.is_deleted("t/20")
    assert not one.is_deleted("t/19")


def test_deletions_are_bounded_in_bytes() -> None:
    """Long topics must not fill the memory."""
    index = VersionIndex(deletion_bytes=1000)
    for number in range(100):
        index.take(f"{number:0100}", version(number), True, NOW)

    assert index.deletions == 10
    assert len(index) == 10


def test_topics_that_are_cleared_again_and_again_take_no_more_memory() -> None:
    """A deletion that is replaced leaves nothing that grows."""
    index = VersionIndex()
    for number in range(10_000):
        index.take("a", version(number), number % 2 == 1, NOW)

    assert index.deletions == 1
    assert len(index._deletions._heap) < 200


def test_topics_are_listed_in_order_after_changes() -> None:
    """The order that was made for one page is not used once the bucket has changed."""
    index = VersionIndex()
    topics = [f"t/{number}" for number in range(5000) if bucket_of(f"t/{number}") == 7]
    for topic in topics[1:]:
        index.take(topic, version(1), False, NOW)
    assert list(index.topics(7)) == sorted(topics[1:])

    index.take(topics[0], version(1), False, NOW)

    assert list(index.topics(7)) == sorted(topics)
    assert list(index.topics(7, sorted(topics)[1])) == sorted(topics)[2:]
