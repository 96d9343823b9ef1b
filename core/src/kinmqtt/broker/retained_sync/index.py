"""The versions of all topics, and a digest of them: what two nodes compare before they exchange anything."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final

from kinmqtt.broker.retained_sync.deletions import MAX_DELETION_BYTES, MAX_DELETIONS, Deletions
from kinmqtt_spi.services.retain import DELETION_S, RetainVersion

BUCKETS: Final = 1024
"""The topics are in as many buckets, by a hash of their names. A digest has 8 bytes for each: 8 KiB. Of a million
topics a bucket has a thousand, so one difference costs lists of 60 kB."""

_SUM: Final = (1 << 64) - 1

VERSION: Final = Struct(">dQQ")
"""A version: seconds since the epoch, the node's uid, and the counter."""

TABLE: Final = Struct(f">{BUCKETS}Q")
"""A digest: the sum of each bucket."""


def packed_version(version: RetainVersion) -> bytes:
    """Return a version as bytes."""
    return VERSION.pack(version.received_at, version.node, version.counter)


class VersionIndex:
    """By topic the version of its retained message, or of its deletion.

    It takes some 40 bytes for each topic, beside the topic and the version: a store in memory has these anyway.
    """

    __slots__ = ("_buckets", "_deletion_s", "_deletions", "_sorted", "_sums")

    def __init__(
        self, deletions: int = MAX_DELETIONS, deletion_bytes: int = MAX_DELETION_BYTES, deletion_s: float = DELETION_S
    ) -> None:
        """Deletions are remembered for ``deletion_s`` seconds, and at most so many, with so many bytes of topics."""
        self._buckets: list[dict[str, RetainVersion]] = [{} for _ in range(BUCKETS)]
        self._sums = [0] * BUCKETS
        """For each bucket the sum of the hashes of topics and versions, modulo 2**64."""
        self._deletions = Deletions(deletions, deletion_bytes)
        self._deletion_s = deletion_s
        self._sorted: tuple[int, list[str]] | None = None
        """The topics of the bucket that was listed last, in order."""

    def __len__(self) -> int:
        """Return the number of topics, those included that are deleted."""
        return sum([len(bucket) for bucket in self._buckets])

    @property
    def deletions(self) -> int:
        """The number of deletions that are remembered."""
        return len(self._deletions)

    def version_of(self, topic: str) -> RetainVersion | None:
        """Return the version of a topic, or of its deletion; ``None`` if there is none."""
        return self._buckets[bucket_of(topic)].get(topic)

    def is_deleted(self, topic: str) -> bool:
        """Whether a topic has no message any more: it was cleared, or has expired."""
        return topic in self._deletions

    def is_newer(self, topic: str, version: RetainVersion, is_deletion: bool, now: float) -> bool:
        """Whether a write would change the index at ``now``, in seconds since the epoch."""
        known = self.version_of(topic)
        if known is None:
            return not is_deletion or version.received_at >= now - self._deletion_s
        return version > known

    def take(self, topic: str, version: RetainVersion, is_deletion: bool, now: float) -> bool:
        """Note a write, unless a newer one is known; returns whether it is noted."""
        if not self.is_newer(topic, version, is_deletion, now):
            return False
        number = bucket_of(topic)
        bucket = self._buckets[number]
        known = bucket.get(topic)
        if known is None:
            self._forget_order(number)
        else:
            self._add(number, -_hash(topic, known))
        bucket[topic] = version
        self._add(number, _hash(topic, version))
        if is_deletion:
            self._deletions.add(topic, version)
            self.forget_old(now)
        else:
            self._deletions.discard(topic)
        return True

    def note_end(self, topic: str, version: RetainVersion, now: float) -> None:
        """Note that a message of this version has expired: it counts as deleted by its own version."""
        if self.version_of(topic) == version and topic not in self._deletions:
            self._deletions.add(topic, version)
            self.forget_old(now)

    def forget_old(self, now: float) -> None:
        """Forget the deletions that are too old at ``now``, or too many."""
        while (topic := self._deletions.pop_excess(now - self._deletion_s)) is not None:
            number = bucket_of(topic)
            version = self._buckets[number].pop(topic)
            self._add(number, -_hash(topic, version))
            self._forget_order(number)

    # Digests

    def table(self) -> bytes:
        """Return the digest of each bucket."""
        return TABLE.pack(*self._sums)

    def root(self) -> bytes:
        """Return a digest of everything, 16 bytes."""
        return root_of(self.table())

    def differing(self, table: bytes) -> list[int]:
        """Return the buckets that differ from those of another node's table."""
        return [number for number, other in enumerate(TABLE.unpack(table)) if other != self._sums[number]]

    def topics(self, bucket: int, after: str = "") -> Sequence[str]:
        """Return the topics of a bucket behind a topic, in order."""
        if self._sorted is None or self._sorted[0] != bucket:
            self._sorted = (bucket, sorted(self._buckets[bucket]))
        topics = self._sorted[1]
        return topics[bisect_right(topics, after) :] if after else topics

    def versions(self, bucket: int) -> Mapping[str, RetainVersion]:
        """Return the versions of a bucket, by topic."""
        return self._buckets[bucket]

    def _add(self, number: int, hash: int) -> None:
        self._sums[number] = (self._sums[number] + hash) & _SUM

    def _forget_order(self, number: int) -> None:
        if self._sorted is not None and self._sorted[0] == number:
            self._sorted = None


def root_of(table: bytes) -> bytes:
    """Return the digest of a table."""
    return blake2b(table, digest_size=16).digest()


def bucket_of(topic: str) -> int:
    """Return the number of a topic's bucket, the same on all nodes."""
    return int.from_bytes(blake2b(topic.encode(), digest_size=2).digest(), "big") % BUCKETS


def _hash(topic: str, version: RetainVersion) -> int:
    # A sum of hashes, and no exclusive or: of that, clients could find topics whose hashes cancel each other out.
    return int.from_bytes(blake2b(packed_version(version) + topic.encode(), digest_size=8).digest(), "big")
