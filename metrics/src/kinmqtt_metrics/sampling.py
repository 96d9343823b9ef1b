"""Samples as records: what a counter or a histogram has counted since the sample that was taken before."""

from __future__ import annotations

from itertools import accumulate, chain, pairwise
from math import isfinite
from operator import lt
from typing import Final, Protocol, TypeAlias

from kinmqtt_metrics.record import COUNTER, GAUGE, HISTOGRAM, Record
from kinmqtt_spi.services.metric import CounterSample, GaugeSample, HistogramSample, Snapshot


class Offer(Protocol):
    """Takes a record of a moment (microseconds), with so much in it that is long; ``False`` where it was dropped."""

    def __call__(self, t: int, record: Record, more_bytes: int = 0, /) -> bool: ...


_LARGEST: Final = (1 << 63) - 1
"""Of Spark's ``bigint``."""

_Key: TypeAlias = tuple[str, frozenset[tuple[str, str]]]


class Sampling:
    """What the samples said that were taken last, so that the sum of all deltas is the last value.

    A sample that was dropped is as if it had not been: the next one that is taken makes up for it. What goes back has
    begun anew, from 0: no delta is negative.
    """

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._counters: dict[_Key, int] = {}
        self._histograms: dict[_Key, tuple[tuple[float, ...], tuple[int, ...], float]] = {}

    def take(self, snapshot: Snapshot, t: int) -> None:
        """Offer a record for each sample that says something; ``t`` in microseconds.

        A counter or a histogram that has counted nothing yet says nothing, nor does a gauge that is no number.
        """
        for sample in snapshot.samples:
            if isinstance(sample, CounterSample):
                self._counter(sample, t)
            elif isinstance(sample, GaugeSample):
                _gauge(sample, t, self._offer)
            else:
                self._histogram(sample, t)

    def _counter(self, sample: CounterSample, t: int) -> None:
        value = max(0, min(int(sample.value), _LARGEST))
        key = (sample.name, frozenset(sample.labels.items()))
        last = self._counters.get(key, 0)
        if not value and not last:
            return
        if value < last:
            # It has begun anew; known from now on, whether or not this sample is taken.
            last = self._counters[key] = 0
        record = _record(COUNTER, sample)
        record["value"] = value
        record["delta"] = value - last
        if self._offer(t, record):
            self._counters[key] = value

    def _histogram(self, sample: HistogramSample, t: int) -> None:
        key = (sample.name, frozenset(sample.labels.items()))
        bounds, counts = _finite(sample.bounds, sample.counts)
        before = self._histograms.get(key)
        if before is None or before[0] != bounds or any(map(lt, counts, before[1])):
            # As of a counter: it begins, or has begun anew.
            before = self._histograms[key] = bounds, (0,) * len(counts), 0.0
        if not any(counts):
            return
        record = _record(HISTOGRAM, sample)
        record["bounds"] = bounds
        record["counts"] = tuple(now - then for now, then in zip(counts, before[1], strict=True))
        total = sample.sum - before[2]
        if isfinite(total):
            record["sum"] = total
        if self._offer(t, record):
            self._histograms[key] = bounds, counts, sample.sum


def _gauge(sample: GaugeSample, t: int, offer: Offer) -> None:
    if isfinite(sample.value):
        record = _record(GAUGE, sample)
        record["number"] = float(sample.value)
        offer(t, record)


def _record(kind: str, sample: CounterSample | GaugeSample | HistogramSample) -> Record:
    record: Record = {"kind": kind, "name": sample.name, "unit": sample.unit}
    if sample.labels:
        # A copy that nobody changes: it is written later, by another thread.
        record["labels"] = dict(sample.labels)
    return record


def _finite(bounds: tuple[float, ...], counts: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Without bounds that JSON can't tell of: what lies between two of them is of one bucket then."""
    if all(map(isfinite, bounds)):
        return tuple(bounds), tuple(counts)
    up_to = list(accumulate(counts))
    kept = [number for number, bound in enumerate(bounds) if isfinite(bound)]
    marks = list(chain([0], (up_to[number] for number in kept), up_to[-1:]))
    return tuple(bounds[number] for number in kept), tuple(b - a for a, b in pairwise(marks))
