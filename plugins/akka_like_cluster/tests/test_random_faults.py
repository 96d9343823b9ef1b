"""Random faults on a virtual clock: splits, one-way cuts, loss, stalls, crashes and restarts, one after the other."""

from __future__ import annotations

from random import Random

import pytest

from akka_harness.world import Node, World, agree

SIZE = 5


def is_expelled(node: Node, by: Node) -> bool:
    """Whether one node counts another one as DOWN or REMOVED."""
    return any(
        member.node.uid == node.uid and not member.reachable and member.state.value in ("down", "removed")
        for _, member in by.changes
    )


def check_one_cluster(world: World) -> None:
    """Fail if two running nodes have expelled each other: then each of them goes on, in a cluster of its own."""
    for one in world.running:
        for other in world.running:
            if one.uid < other.uid:
                assert not (is_expelled(one, other) and is_expelled(other, one)), (
                    one.number,
                    other.number,
                    world.now,
                )


def split(world: World, random: Random) -> None:
    """Cut some nodes off."""
    world.sides = (frozenset(random.sample(range(1, SIZE + 1), random.randint(1, SIZE - 1))),)


def cut(world: World, random: Random) -> None:
    """Cut a node's paths to some others, or their paths to it."""
    one = random.randint(1, SIZE)
    others = [number for number in range(1, SIZE + 1) if number != one and random.random() < 0.6]
    world.cut = {(one, other) if random.random() < 0.5 else (other, one) for other in others}


def lose(world: World, random: Random) -> None:
    """Lose some messages."""
    world.loss = random.choice((0.1, 0.3))


def stall(world: World, random: Random) -> None:
    """Let one or two nodes stand still."""
    for node in random.sample(world.running, min(len(world.running), random.randint(1, 2))):
        node.stalled_until_s = world.now + random.choice((1.0, 3.0, 6.0, 15.0, 40.0))


def crash(world: World, random: Random) -> None:
    """Kill a node, if most are left."""
    if len(world.running) > SIZE // 2 + 1:
        world.crash(random.choice(world.running))


def restart(world: World, random: Random) -> None:
    """Start a node again, if a seed is there to join; the first seed would form a cluster of its own in a split."""
    running = {node.number for node in world.running}
    absent = [number for number in range(2, SIZE + 1) if number not in running]
    if absent and running & {1, 2}:
        world.start(random.choice(absent))


@pytest.mark.parametrize("seed", [*range(10), 39, 77])
def test_random_faults_never_make_two_clusters(seed: int) -> None:
    """No two members expel each other; when the faults are over, those that are left agree on who is a member.

    Seed 39 has two halves that a third node reaches; in seed 77 heavy loss hides a split from the minority.
    """
    random = Random(seed)
    world = World(seed)
    world.cluster(SIZE)

    for _ in range(12):
        random.choice((split, cut, lose, stall, crash, restart))(world, random)
        for _ in range(random.choice((2, 8, 20, 40))):
            world.run(random.choice((0.25, 1.0)))
            check_one_cluster(world)
        if random.random() < 0.5:
            world.heal()
    world.heal()
    world.run(120.0)
    check_one_cluster(world)

    members = [node for node in world.running if node.coordinator.members]
    assert not members or agree(members, {node.number for node in members})
