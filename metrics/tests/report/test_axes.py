"""Marks of an axis: even, round, each with a label of its own that says exactly where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics import formatting
from kinmqtt_metrics import tables as t
from kinmqtt_metrics.report.axes import lengths, times, values
from kinmqtt_metrics.report.plots import Painter
from metrics_harness.report_facts import facts_of
from metrics_harness.table_data import START, World, write

UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
TIMES = {"": 1, "ps": 1e-12, "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400}


def said(label: str, units: dict[str, float]) -> float:
    """What a label says."""
    label = re.sub("(?<=[0-9])\u202f(?=[0-9])", "", label).replace("\u202f", " ")
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.e-]+) ?([a-zµA-Z]*)", label))


def moment(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> float:
    """Of a date in UTC; seconds."""
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()


@given(st.integers(0, 4_000_000_000), st.integers(1, 19_353_600))
def test_marks_of_time_are_even_and_each_has_its_own_label(start_s: int, length_s: int) -> None:
    """Whatever the span: a few marks within it, as far apart as each other, on round times of UTC."""
    marks = times(start_s, start_s + length_s)

    apart = {after - before for (before, _), (after, _) in pairwise(marks)}
    assert 1 <= len(marks) <= 9
    assert len(apart) <= 1
    assert len({label for _, label in marks}) == len(marks)
    assert all(start_s <= at_s <= start_s + length_s and at_s == int(at_s) for at_s, _ in marks)


@given(st.integers(0, 4_000_000_000), st.integers(19_353_601, 3_000_000_000))
def test_marks_of_long_spans_are_the_first_days_of_months(start_s: int, length_s: int) -> None:
    """Months are as even as the calendar is."""
    marks = times(start_s, start_s + length_s)

    months = [datetime.fromtimestamp(at_s, UTC) for at_s, _ in marks]
    assert all((when.day, when.hour, when.minute, when.second) == (1, 0, 0, 0) for when in months)
    assert len({(b.year - a.year) * 12 + b.month - a.month for a, b in pairwise(months)}) <= 1
    assert len({label for _, label in marks}) == len(marks)


@pytest.mark.parametrize(
    ("start_s", "length_s", "labels"),
    [
        (moment(2026, 11, 22, 21, 32, 30), 50, "21:32:30 21:32:40 21:32:50 21:33:00 21:33:10 21:33:20"),
        (moment(2026, 11, 22, 21, 7), 3600, "21:10 21:20 21:30 21:40 21:50 22:00"),
        (moment(2026, 11, 22, 22), 4 * 3600, "22:00 22:30 23:00 23:30 23|Nov 00:30 01:00 01:30 02:00"),
        (moment(2026, 11, 22), 2 * 86400, "22|Nov 22|Nov|06:00 22|Nov|12:00 22|Nov|18:00 23|Nov 23|Nov|06:00 "
         "23|Nov|12:00 23|Nov|18:00 24|Nov"),
        (moment(2026, 12, 30), 5 * 86400, "30|Dec 31|Dec 1|Jan|2027 2|Jan 3|Jan 4|Jan"),
        (moment(2026, 1, 15), 400 * 86400, "Mar|2026 May|2026 Jul|2026 Sep|2026 Nov|2026 Jan|2027"),
    ],
)  # fmt: skip
def test_marks_of_time_are_those_that_people_name(start_s: float, length_s: float, labels: str) -> None:
    """Seconds, minutes, hours, days and months."""
    assert [label.replace(" ", "|") for _, label in times(start_s, start_s + length_s)] == labels.split()


@given(
    st.floats(1e-9, 1e14),
    st.sampled_from([(formatting.short, UNITS), (formatting.size, UNITS), (formatting.duration, TIMES)]),
)
def test_marks_of_values_are_even_and_say_where_they_stand(
    highest: float, how: tuple[Callable[[float], str], dict[str, float]]
) -> None:
    """From 0, as far apart as each other: no label is rounded to what would look uneven."""
    write, units = how
    marks = values(highest, write)

    assert marks[0] == (0.0, "0")
    assert 2 <= len(marks) <= 6
    assert len({label for _, label in marks}) == len(marks)
    for number, (value, label) in enumerate(marks):
        assert value == pytest.approx(marks[1][0] * number)
        assert said(label, units) == pytest.approx(value, rel=1e-9)


def test_what_is_counted_has_whole_marks() -> None:
    """There is no half of a message."""
    assert [label for _, label in values(1.0, formatting.short, whole=True)] == ["0", "1"]


@given(st.floats(1e-9, 1e9), st.floats(1, 1e12))
def test_marks_of_lengths_that_differ_much_are_a_power_of_ten_apart(least_s: float, times_more: float) -> None:
    """They hold all values between them, and labels say exactly where they stand."""
    marks = lengths(least_s, least_s * times_more)

    ratios = [after / before for (before, _), (after, _) in pairwise(marks)]
    assert 2 <= len(marks) <= 6
    assert ratios == pytest.approx([ratios[0]] * len(ratios))
    assert np.log10(ratios[0]) == pytest.approx(round(np.log10(ratios[0])))
    assert marks[0][0] <= least_s * (1 + 1e-6)
    assert least_s * times_more <= marks[-1][0]
    for value, label in marks:
        assert said(label, TIMES) == pytest.approx(value)


# As they are drawn


def texts(axis: Any) -> list[str]:
    """What is written into a panel."""
    return [text.get_text() for text in axis.texts]


def gauges(samples: Sequence[float], name: str = "queued.count") -> list[dict[str, Any]]:
    """Rows whose sketch is gone: nothing but their sums can be told."""
    row = {"window_start": START, "window_s": 10, "node": "a", "name": name, "unit": "messages", "labels": {}}
    return [row | {"samples": 1, "min": value, "max": value, "mean": value} for value in samples]


def test_every_plot_has_even_marks(tmp_path: Path) -> None:
    """Of a world of hours: no axis has a label twice, or marks that are apart unevenly."""
    World(windows=60).write(tmp_path)
    painter = Painter(facts_of(tmp_path))
    plots = [painter.messages(), painter.bytes(), *painter.latencies(), painter.queues(), painter.clients()]
    plots += [painter.lengths(), painter.connects(), painter.drops(), painter.refusals(), painter.shadow()]

    for plot in plots:
        assert plot is not None
        for axis in plot.figure.axes:
            for along, scale in ((axis.xaxis, "linear"), (axis.yaxis, axis.get_yscale())):
                at = np.array(along.get_ticklocs())
                labels = [label.get_text() for label in along.get_ticklabels()]
                apart = np.diff(np.log10(at)) if scale == "log" else np.diff(at)
                assert np.allclose(apart, apart[:1]), (plot.name, labels)
                # Of panels that lie above each other the last has the times.
                hidden = along is axis.xaxis and axis is not plot.figure.axes[-1]
                assert hidden or len(set(labels)) == len(labels) >= 2, (plot.name, labels)


def test_a_plot_without_a_value_says_so(tmp_path: Path) -> None:
    """An empty frame looks like a fault of the page: it is said whether nothing was told, or there was nothing."""
    counted = {"bounds": [0.1, 1.0], "counts": [0, 0, 0], "sum": 0.0, "unit": "seconds", "labels": {}}
    write(tmp_path, t.HISTOGRAMS, [{"window_start": START, "window_s": 10, "node": "a", "name": "h"} | counted])
    write(tmp_path, t.GAUGES, gauges([0.0], "clients.connected"))
    painter = Painter(facts_of(tmp_path))

    [latency] = painter.latencies()
    clients = painter.clients()

    assert [texts(axis)[0] for axis in latency.figure.axes] == ["No data in this span: no sample tells of it."] * 3
    assert clients is not None
    assert texts(clients.figure.axes[0])[0] == "0 throughout this span."
    assert not list(clients.figure.axes[0].get_yticks())


def test_labels_of_times_stay_inside(tmp_path: Path) -> None:
    """One at the end of an axis would be cut off in a picture."""
    row = {
        "window_s": 10,
        "node": "a",
        "name": "messages.received",
        "unit": "",
        "labels": {},
        "delta": 1,
        "samples": 1,
    }
    starts = [START.replace(second=second) for second in range(0, 60, 10)]
    write(tmp_path, t.RATES, [row | {"window_start": start} for start in starts])

    plot = Painter(facts_of(tmp_path)).messages()

    assert plot is not None
    places = [label.get_horizontalalignment() for label in plot.figure.axes[-1].get_xticklabels()]
    assert (places[0], places[-1], set(places[1:-1])) == ("left", "right", {"center"})
