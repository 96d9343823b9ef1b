"""Which partition a record goes to: the one that Kafka's own clients choose for its key."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from aiokafka.partitioner import murmur2

CACHED_KEYS: Final = 16_384
"""Keys whose hash is cached: aiokafka computes it in Python, which takes as long as all else for a message."""

LONGEST_CACHED_KEY: Final = 128
"""Longer keys are hashed each time, so that the cache takes at most a few megabytes."""


def _positive(key: bytes) -> int:
    return int(murmur2(key)) & 0x7FFFFFFF


_cached = lru_cache(CACHED_KEYS)(_positive)


def partition_of(key: bytes, count: int) -> int:
    """Return the place of a key's partition among all ``count`` partitions of its topic, in ascending order."""
    return (_cached(key) if len(key) <= LONGEST_CACHED_KEY else _positive(key)) % count
