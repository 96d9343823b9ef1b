"""Whole lives of clusters on a virtual clock: joining, crashes, splits, stalls, restarts and leaving."""

from __future__ import annotations

import pytest

from akka_harness.world import World, agree, marked
from kinmqtt_akka_like_cluster.pure.downing import Strategy
from kinmqtt_akka_like_cluster.pure.effects import Downed, Downing, LeaveCompleted
from kinmqtt_spi.services.cluster import Member, MemberState


@pytest.mark.parametrize("size", [1, 3, 5, 10, 32])
def test_processes_that_start_together_form_one_cluster(size: int) -> None:
    """All become UP in one cluster, with one leader, the lowest address, and different numbers."""
    world = World(size)

    nodes = world.cluster(size)

    assert {node.coordinator.leader for node in nodes} == {nodes[0].uid}
    assert sorted(view.up_number for view in nodes[-1].coordinator.members) == list(range(1, size + 1))
    assert marked(nodes, nodes) == []


@pytest.mark.parametrize("size", [3, 5, 10, 32])
def test_a_crash_is_seen_by_all_and_the_member_is_removed(size: int) -> None:
    """All report it UNREACHABLE within 10 s, then DOWN, then REMOVED; nobody else is suspected."""
    world = World(size)
    *nodes, victim = world.cluster(size)
    begun_s = world.now

    world.crash(victim)
    world.until(lambda: all(node.first(victim, reachable=False) for node in nodes), 10.0)
    world.until(lambda: agree(nodes, range(1, size)), 40.0)

    for node in nodes:
        unreachable, down, removed = (
            node.first(victim, MemberState.UP, False),
            node.first(victim, MemberState.DOWN),
            node.first(victim, MemberState.REMOVED),
        )
        assert unreachable and down and removed and begun_s < unreachable < down < removed
    assert marked(nodes, nodes) == []


def test_a_tenth_of_the_messages_lost_downs_nobody() -> None:
    """In ten minutes with 10 % loss five nodes mark nobody DOWN, and agree in the end."""
    world = World(9)
    nodes = world.cluster(5)
    world.loss = 0.1

    world.run(600.0)
    world.loss = 0.0
    world.until(lambda: agree(nodes, range(1, 6)), 10.0)

    assert [effect for node in nodes for effect in node.saw(Downing)] == []


def test_a_split_leaves_the_majority() -> None:
    """Of three and two nodes the three go on as they are; the two end at nearly the same time, and early enough."""
    world = World(10)
    nodes = world.cluster(5)
    minority, majority = nodes[:2], nodes[2:]

    world.sides = (frozenset({1, 2}),)
    first_s = world.until(lambda: len(world.running) < 5, 20.0)
    rest_s = world.until(lambda: world.running == majority, 3.0)
    world.until(lambda: agree(majority, {3, 4, 5}), 10.0)

    assert first_s > 7.0
    assert rest_s < 2.0
    assert all(node.saw(Downed) for node in minority)
    assert marked(majority, majority) == []


def test_a_split_of_equal_sides_is_decided_by_the_arbiter() -> None:
    """Of two and two nodes those go on whose side gets the term first."""
    world = World(11, Strategy.ARBITER)
    nodes = world.cluster(4)

    world.sides = (frozenset({1, 4}),)
    world.until(lambda: len(world.running) == 2, 30.0)
    world.until(lambda: agree(world.running, {node.number for node in world.running}), 10.0)

    assert {node.number for node in world.running} in ({1, 4}, {2, 3})
    assert all(node.saw(Downed) for node in nodes if node not in world.running)


def test_each_split_has_a_term_of_its_own() -> None:
    """Those who went on after one split decide the next one too, by the next term."""
    world = World(22, Strategy.ARBITER)
    nodes = world.cluster(5)

    world.sides = (frozenset({4, 5}),)
    world.until(lambda: agree(world.running, {1, 2, 3}), 40.0)
    world.sides = (frozenset({4, 5}), frozenset({3}))
    world.until(lambda: agree(world.running, {1, 2}), 40.0)

    assert world.running == nodes[:2]
    assert world.arbiter.term() == 2


def test_a_short_split_heals_without_harm() -> None:
    """A split of 8 s is seen, and forgotten when it is over."""
    world = World(12)
    nodes = world.cluster(5)

    world.sides = (frozenset({1, 2}),)
    world.run(8.0)
    world.sides = ()
    world.until(lambda: agree(nodes, range(1, 6)), 10.0)
    world.run(30.0)

    assert marked(nodes, nodes) != []
    assert agree(nodes, range(1, 6))
    assert all(node.saw(Downing) == [] for node in nodes)


def test_a_node_that_was_downed_learns_it_when_it_is_back() -> None:
    """A process that was cut off until it was removed ends when it reaches the others again."""
    world = World(13)
    *nodes, lonely = world.cluster(5)
    lonely.stalled_until_s = world.now + 60.0
    world.until(lambda: agree(nodes, range(1, 5)), 40.0)

    world.run(60.0)

    assert lonely.saw(Downed)
    assert agree(nodes, range(1, 5))


def test_a_restarted_node_rejoins_as_another_process() -> None:
    """A process that crashed and starts again at once, with a new uid, replaces the old one under its name."""
    world = World(14)
    *nodes, victim = world.cluster(5)

    world.crash(victim)
    world.run(0.5)
    restarted = world.start(victim.number)
    world.until(lambda: agree([*nodes, restarted], range(1, 6)), 20.0)

    assert all(node.first(victim, MemberState.REMOVED) for node in nodes)
    assert marked([*nodes, restarted], [*nodes, restarted]) == []


def test_the_first_seed_rejoins_those_who_went_on() -> None:
    """The first seed crashes and starts again: it joins the others, and does not form a second cluster."""
    world = World(15)
    first, *nodes = world.cluster(3)

    world.crash(first)
    restarted = world.start(1)
    world.until(lambda: agree([*nodes, restarted], range(1, 4)), 20.0)

    assert restarted.coordinator.digest == nodes[0].coordinator.digest


@pytest.mark.parametrize("number", [1, 3])
def test_a_leaving_member_is_removed_everywhere(number: int) -> None:
    """The leader or another one leaves: LEAVING, EXITING, REMOVED at all others, never DOWN, and it may end."""
    world = World(16)
    nodes = world.cluster(5)
    leaver = nodes.pop(number - 1)

    world.do(leaver, lambda coordinator: coordinator.leave())
    world.run(5.0)
    world.do(leaver, lambda coordinator: coordinator.drained())
    world.until(lambda: not leaver.is_running, 10.0)
    world.until(lambda: agree(nodes, set(range(1, 6)) - {number}), 10.0)

    assert leaver.saw(LeaveCompleted)
    for node in nodes:
        assert node.first(leaver, MemberState.LEAVING)
        assert node.first(leaver, MemberState.REMOVED)
        assert node.first(leaver, MemberState.DOWN) is None


def test_a_stopped_process_is_down_at_once() -> None:
    """A process that says that it ends is DOWN everywhere within 2 s: nobody needs to detect it."""
    world = World(17)
    *nodes, stopped = world.cluster(5)

    world.do(stopped, lambda coordinator: coordinator.stop())
    stopped.is_running = False
    took_s = world.until(lambda: all(node.first(stopped, MemberState.DOWN) for node in nodes), 5.0)

    assert took_s < 2.0


def test_stalled_nodes_mark_no_healthy_one() -> None:
    """Four of 32 nodes stand still for 5 s: nobody marks any of the other 28, then or after."""
    world = World(18)
    nodes = world.cluster(32)
    stalled = nodes[3::8]
    for node in stalled:
        node.stalled_until_s = world.now + 5.0

    world.run(15.0)

    healthy = [node for node in nodes if node not in stalled]
    assert len(stalled) == 4
    assert marked(nodes, healthy) == []
    assert agree(nodes, range(1, 33))


def test_a_node_that_wakes_up_downs_nobody_for_what_it_believed_before() -> None:
    """One node sees another stall, stalls itself for longer than a view must be stable, and finds it healthy."""
    world = World(19)
    nodes = world.cluster(5)

    nodes[1].stalled_until_s = world.now + 6.0
    world.run(5.5)
    assert nodes[0].first(nodes[1], reachable=False)
    nodes[0].stalled_until_s = world.now + 6.5
    world.run(30.0)

    assert agree(nodes, range(1, 6))


def test_a_newcomer_that_crashes_is_removed() -> None:
    """A process that ends while it is JOINING does not stay a member, and hinders nobody from joining later."""
    world = World(20)
    nodes = world.cluster(3)
    newcomer = world.start(4)
    world.until(lambda: all(4 in node.states() for node in nodes), 10.0)

    world.crash(newcomer)
    later = world.start(5)
    world.until(lambda: agree([*nodes, later], {1, 2, 3, 5}), 40.0)

    assert marked([*nodes, later], [*nodes, later]) == []


def test_the_same_seed_gives_the_same_run() -> None:
    """Two runs with one seed report the same changes at the same times."""

    def changes() -> list[list[tuple[float, Member]]]:
        world = World(21)
        nodes = world.cluster(5)
        world.loss = 0.2
        world.run(60.0)
        return [node.changes for node in nodes]

    assert changes() == changes()
