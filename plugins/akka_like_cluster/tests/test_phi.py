"""Phi: the suspicion that a peer's silence gives rise to."""

from __future__ import annotations

from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.pure.phi import HIGHEST_PHI, WINDOW, Intervals, deviations

INTERVALS = st.lists(st.floats(0.01, 10), max_size=60)
SILENCES = st.floats(0, 200)


def intervals_of(values: list[float], pause_s: float = 2.0) -> Intervals:
    """Return the statistics of a peer with a heartbeat of one second after these intervals."""
    intervals = Intervals(expected_s=1.0, pause_s=pause_s)
    for value in values:
        intervals.add(value)
    return intervals


@given(INTERVALS, SILENCES, SILENCES)
def test_suspicion_never_falls_while_a_peer_is_silent(values: list[float], one_s: float, other_s: float) -> None:
    """A longer silence is never less suspect, and phi stays in its range."""
    intervals = intervals_of(values)

    shorter, longer = intervals.phi(min(one_s, other_s)), intervals.phi(max(one_s, other_s))

    assert 0 <= shorter <= longer + 1e-9
    assert longer <= HIGHEST_PHI


def test_a_peer_that_has_just_answered_is_not_suspected() -> None:
    """Phi is then 0, as it is shown: without a sign."""
    assert f"{intervals_of([]).phi(0.0):.1f}" == "0.0"


@given(
    st.floats(0.15, 0.9), st.floats(0.15, 0.9), st.integers(WINDOW // 2, WINDOW), st.floats(3.1, 20), st.floats(1, 20)
)
def test_an_irregular_peer_is_suspected_later(
    one: float, other: float, pairs: int, silence_s: float, threshold: float
) -> None:
    """Of two peers with the same mean interval the one with more variance needs a longer silence."""
    regular = intervals_of([1 - min(one, other), 1 + min(one, other)] * pairs)
    irregular = intervals_of([1 - max(one, other), 1 + max(one, other)] * pairs)

    sigmas = deviations(threshold)

    assert regular.longest_silence_s(sigmas) <= irregular.longest_silence_s(sigmas)
    assert regular.phi(silence_s) >= irregular.phi(silence_s) - 1e-9


@given(INTERVALS, st.floats(0.05, 250))
def test_phi_reaches_the_threshold_at_the_longest_silence(values: list[float], threshold: float) -> None:
    """The silence that makes a suspect is the one at which phi is the threshold."""
    intervals = intervals_of(values)

    silence_s = intervals.longest_silence_s(deviations(threshold))

    assert intervals.phi(silence_s) == pytest.approx(threshold, rel=1e-6)


@given(st.lists(st.floats(0.01, 1e6), min_size=WINDOW + 1, max_size=WINDOW + 80))
def test_only_the_last_intervals_count(values: list[float]) -> None:
    """The window is bounded, and its statistics are those of what is in it, whatever has left it."""
    intervals = intervals_of([1e9, *values])

    last = [round(value, 6) for value in values[-WINDOW:]]
    assert len(intervals) == WINDOW
    assert intervals.mean_s == pytest.approx(fmean(last), rel=1e-9)
    assert intervals.deviation_s == pytest.approx(max(0.1, pstdev(last)), rel=1e-6)


def test_the_first_heartbeats_are_estimated() -> None:
    """Without any answer a peer is suspect after the mean, the pause and the deviation of two estimated intervals."""
    intervals = intervals_of([])

    silence_s = intervals.longest_silence_s(deviations(8))

    assert intervals.mean_s == 1.0
    assert intervals.deviation_s == 0.25
    assert silence_s == pytest.approx(1 + 2 + 5.612 * 0.25, abs=0.001)


def test_a_very_regular_peer_keeps_some_deviation() -> None:
    """A peer without any variance is not suspected at the first delay."""
    intervals = intervals_of([1.0] * WINDOW)

    silence_s = intervals.longest_silence_s(deviations(8))

    assert intervals.deviation_s == 0.1
    assert silence_s == pytest.approx(3.561, abs=0.001)


@pytest.mark.parametrize("pause_s", [0.5, 2.0, 10.0])
def test_the_pause_is_acceptable(pause_s: float) -> None:
    """At the mean interval plus the pause the odds are even, so phi is the logarithm of two."""
    intervals = intervals_of([1.0] * WINDOW, pause_s)

    assert intervals.phi(1 + pause_s) == pytest.approx(0.30103, abs=1e-5)


def test_a_time_that_runs_backwards_is_no_interval() -> None:
    """A negative interval counts as none, so the mean can't become negative."""
    intervals = intervals_of([-5.0] * WINDOW)

    assert intervals.mean_s == 0


@pytest.mark.parametrize("threshold", [0.0, -1.0, 300.0, float("nan")])
def test_a_threshold_out_of_range_is_refused(threshold: float) -> None:
    """A threshold that no silence reaches, or that every one does, is an error which names it."""
    with pytest.raises(ValueError, match="threshold is"):
        deviations(threshold)
