"""A sliding window as a ring of buckets; a bucket is reset when it is next used, so it needs no timer."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor


class LeapArray:
    """Sums of a few numbers over the last ``interval_s`` seconds, in ``sample_count`` buckets.

    A bucket covers ``interval_s / sample_count`` seconds and is emptied when it is used again. So the window covers
    the time since the start of its oldest bucket: between ``interval_s`` minus one bucket and ``interval_s``.
    ``fields`` is how many numbers are summed side by side. Time never goes back.
    """

    __slots__ = ("_bucket_s", "_buckets", "_fields", "_numbers", "sample_count")

    def __init__(self, sample_count: int, interval_s: float, fields: int = 1) -> None:
        if sample_count < 1 or interval_s <= 0 or fields < 1:
            raise ValueError("a window needs a bucket, a length and a number to sum")
        self.sample_count = sample_count
        self._bucket_s = interval_s / sample_count
        self._fields = fields
        self._buckets = [[0.0] * fields for _ in range(sample_count)]
        self._numbers: list[int | None] = [None] * sample_count
        """The number of the bucket, counted from time 0, at each place of the ring."""

    def add(self, now: float, *amounts: float) -> None:
        """Add one amount to each field, in the bucket of ``now``."""
        bucket = self._current(now)
        for field, amount in enumerate(amounts):
            bucket[field] += amount

    def total(self, now: float, field: int = 0) -> float:
        """The sum of a field over the window that ends now."""
        return sum(bucket[field] for bucket in self.buckets(now))

    def buckets(self, now: float) -> Iterator[list[float]]:
        """The non-empty buckets of the window that ends now, in no particular order."""
        newest = floor(now / self._bucket_s)
        for number, bucket in zip(self._numbers, self._buckets, strict=True):
            if number is not None and newest - self.sample_count < number <= newest:
                yield bucket

    def clear(self) -> None:
        """Forget everything."""
        self._numbers = [None] * self.sample_count

    @property
    def bucket_s(self) -> float:
        """The length of a bucket, in seconds."""
        return self._bucket_s

    def _current(self, now: float) -> list[float]:
        number = floor(now / self._bucket_s)
        place = number % self.sample_count
        bucket = self._buckets[place]
        if self._numbers[place] != number:
            self._numbers[place] = number
            bucket[:] = [0.0] * self._fields
        return bucket
