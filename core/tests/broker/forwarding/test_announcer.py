"""This node's routes, as it announces them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt.broker.forwarding.announcer import Announcer
from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.services.cluster import RouteChange


class Told(SingleNode):
    """A backend that holds what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[tuple[str, str | None], RouteChange] = {}
        self.versions: list[int] = []

    def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
        self.versions.append(version)
        for route in removed:
            assert self.routes.pop(route.key, None) is not None, f"{route} was never announced"
        self.routes.update({route.key: route for route in added})


@given(
    st.lists(st.tuples(st.sampled_from(("add", "replace", "remove", "turn")), st.integers(0, 2), st.integers(0, 2)))
)
def test_what_is_announced_is_what_there_is(steps: list[tuple[str, int, int]]) -> None:
    """A route for each filter with subscribers, with at least the highest QoS granted; in rising versions."""
    backend, later = Told(), list[Callable[[], object]]()
    announcer = Announcer(backend, later.append)
    held: dict[int, list[int]] = {}
    for what, number, qos in steps:
        its = held.setdefault(number, [])
        if what == "add":
            its.append(qos)
            announcer.subscribed(str(number), None, qos, True)
        elif what == "replace" and its:
            its[0] = qos
            announcer.subscribed(str(number), None, qos, False)
        elif what == "remove" and its:
            its.pop()
            announcer.unsubscribed(str(number), None)
        elif what == "turn":
            while later:
                later.pop()()
    announcer.flush()

    assert {int(route.filter) for route in backend.routes.values()} == {number for number, its in held.items() if its}
    assert all(route.qos >= max(held[int(route.filter)]) for route in backend.routes.values())
    assert backend.versions == sorted(set(backend.versions))


def test_a_route_that_is_announced_again_gets_a_version_of_its_own() -> None:
    """Batches that were sent by an earlier one were not sent for the session that came with it."""
    backend = Told()
    later: list[Callable[[], object]] = []
    announcer = Announcer(backend, later.append)
    announcer.subscribed("a", None, 1, True)
    announcer.flush()

    assert announcer.renew("a", None) == 2
    announcer.flush()
    assert backend.versions == [1, 2]


def test_after_the_end_nothing_is_announced() -> None:
    """A session that another node takes over while this one stops removes its routes, and the backend has ended."""
    backend = Told()
    later: list[Callable[[], object]] = []
    announcer = Announcer(backend, later.append)
    announcer.subscribed("a", None, 1, True)
    announcer.flush()
    announcer.close()
    announcer.unsubscribed("a", None)
    for call in later:
        call()

    assert backend.versions == [1]
