"""The routes of other nodes, compared with a list of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt.broker.filter_table import FilterTable
from kinmqtt.broker.forwarding.route_table import RouteTable
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.cluster import MAX_OTHER_NODES, RouteChange
from kinmqtt_spi.topics import matches

levels = st.sampled_from(("a", "b", "", "$SYS", "+"))
filters = st.builds(
    lambda several, rest: "/".join([*several, *(["#"] if rest else [])]),
    st.lists(levels, min_size=1, max_size=4),
    st.booleans(),
) | st.just("#")
topics = st.lists(st.sampled_from(("a", "b", "", "$SYS")), min_size=1, max_size=5).map("/".join)


@given(st.lists(st.tuples(filters, st.none() | st.integers(0, 3)), max_size=20), st.lists(topics, min_size=1))
def test_a_table_finds_what_matches(steps: list[tuple[str, int | None]], asked: list[str]) -> None:
    """The values of exactly the filters that match, after any additions, replacements and removals."""
    table = FilterTable()
    oracle: dict[str, int] = {}
    for filter, value in steps:
        table.put(filter, value)
        if value is None:
            oracle.pop(filter, None)
        else:
            oracle[filter] = value

    assert len(table) == len(oracle)
    assert sorted(table.filters()) == sorted(oracle)
    assert {filter: table.get(filter) for filter in oracle} == oracle
    for topic in asked:
        found = [value for value in table.match(topic) if isinstance(value, int)]
        assert sorted(found) == sorted(value for filter, value in oracle.items() if matches(filter, topic))


@given(st.lists(filters, max_size=12))
def test_a_table_that_was_emptied_holds_nothing(several: list[str]) -> None:
    """No level of a removed filter stays."""
    table = FilterTable()
    for filter in several:
        table.put(filter, 1)
    for filter in several:
        table.put(filter, None)

    assert len(table) == 0
    assert table._root.is_empty


routes = st.builds(
    RouteChange, filters, st.none() | st.sampled_from(("g", "h")), st.integers(0, 2), st.integers(0, 3)
)
steps = st.lists(st.tuples(st.sampled_from(("put", "put", "remove", "gone", "sweep")), st.integers(0, 2), routes))


@given(steps, topics)
def test_routes_are_those_of_the_living(changes: list[tuple[str, int, RouteChange]], topic: str) -> None:
    """The nodes and groups for a topic are those of the routes put and not removed, of nodes that are there."""
    table = RouteTable()
    numbers = {node: table.add_node() for node in range(3)}
    oracle: dict[int, dict[tuple[str, str | None], RouteChange]] = {number: {} for number in numbers.values()}
    for what, node, route in changes:
        number = numbers[node]
        if what == "put":
            table.put(number, route)
            oracle[number][route.key] = route
        elif what == "remove":
            table.remove(number, route)
            oracle[number].pop(route.key, None)
        elif what == "sweep":
            table.sweep()
        else:
            table.remove_node(number)
            del oracle[number]
            numbers[node] = table.add_node()
            oracle[numbers[node]] = {}

    plain: dict[int, bool] = {}
    groups: dict[tuple[str, str], dict[int, tuple[int, int]]] = {}
    for number, its in oracle.items():
        assert table.routes[number] == len(its)
        for route in its.values():
            if matches(route.filter, topic):
                if route.share_group is None:
                    plain[number] = plain.get(number, False) or route.qos > 0
                else:
                    members = groups.setdefault((route.share_group, route.filter), {})
                    members[number] = (route.qos, route.weight)
    assert dict(table.nodes_for(topic)) == plain
    assert table.groups_for(topic) == groups


def test_a_cluster_has_an_end() -> None:
    """There are as many numbers as bits; those of nodes that are gone are used again."""
    table = RouteTable()
    numbers = [table.add_node() for _ in range(MAX_OTHER_NODES)]
    table.put(numbers[7], RouteChange("a"))
    with pytest.raises(ServiceUnavailable, match="64 other nodes"):
        table.add_node()

    table.remove_node(numbers[7])

    assert table.add_node() == numbers[7]
    assert table.nodes_for("a") == []
