"""When windows are closed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics.pipeline.watermarks import Node, Watermarks

RULE = Watermarks(window=10, watermark=5, idle_s=60)

batches = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000), max_size=3), st.floats(0, 1000)),
    max_size=20,
)


@given(batches)
def test_bounds_never_go_back(given: list[tuple[dict[str, int], float]]) -> None:
    """What was closed stays closed, whatever clocks do: a row is never written a second time."""
    nodes: dict[str, Node] = {}
    for newest, now_s in given:
        after = RULE.after(nodes, newest, now_s)

        assert all(
            after[name].bound >= node.bound and after[name].newest >= node.newest for name, node in nodes.items()
        )
        nodes = after


def test_a_window_is_closed_by_the_watermark_of_its_own_node() -> None:
    """A broker 60 s behind another loses nothing, and one that is ahead waits for nobody."""
    nodes = RULE.after({}, {"a": 1000, "b": 40}, 0)

    assert (nodes["a"].bound, nodes["b"].bound) == (995, 35)


def test_a_node_that_is_silent_has_its_windows_closed() -> None:
    """The last window of a broker that was shut down is in the tables after a while, not never."""
    nodes = RULE.after({}, {"a": 12}, 0)

    waiting = RULE.after(nodes, {"b": 1}, 59.9)
    closed = RULE.after(nodes, {"b": 1}, 60)

    assert waiting["a"].bound == 7
    assert closed["a"].bound == 20


def test_silence_is_counted_from_where_somebody_listens() -> None:
    """After an outage of the pipeline, or while it is behind, nodes are not silent: they were not heard."""
    nodes = RULE.after({}, {"a": 12}, 0)

    assert RULE.after(nodes, {"b": 1}, 500, since_s=480)["a"].bound == 7
    assert RULE.after(nodes, {"b": 1}, 540, since_s=480)["a"].bound == 20


def test_a_larger_watermark_opens_nothing_again() -> None:
    """Between runs --watermark-s may change; windows that are in the tables stay as they are."""
    nodes = RULE.after({}, {"a": 100}, 0)

    after = Watermarks(window=10, watermark=50, idle_s=60).after(nodes, {"a": 101}, 1)

    assert after["a"].bound == 95
