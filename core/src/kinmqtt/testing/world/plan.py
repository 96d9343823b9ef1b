"""The plan of a run: what goes wrong, where and when, decided by the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from attrs import frozen

FAULTS_BEGIN_S: Final = 8.0
FAULTS_END_S: Final = 60.0
"""When everything is mended."""

CUT: Final = "cut"
BLOCK: Final = "block"
ONE_WAY: Final = "one_way"
STALL: Final = "stall"
ISOLATE: Final = "isolate"
SPLIT: Final = "split"
CRASH: Final = "crash"
RESTART: Final = "restart"
WRONGLY_DOWN: Final = "wrongly_down"
SLOW: Final = "slow"
AWAY: Final = "away"
CLOCK: Final = "clock"
FREEZE: Final = "freeze"
LOSE: Final = "lose"
DROP: Final = "drop"
MOVE: Final = "move"

WEIGHTS: Final = {
    CUT: 6,
    BLOCK: 3,
    ONE_WAY: 3,
    STALL: 4,
    ISOLATE: 2,
    SPLIT: 2,
    CRASH: 4,
    RESTART: 2,
    WRONGLY_DOWN: 1,
    SLOW: 3,
    AWAY: 1,
    CLOCK: 1,
    DROP: 8,
    MOVE: 8,
}
"""How often each goes wrong where the world tells who is a member. FREEZE and LOSE are for other links."""
LONGEST_S: Final = 8.0

KEEPS_SESSIONS: Final = frozenset({CUT, BLOCK, ONE_WAY, STALL, ISOLATE, SPLIT, SLOW, CLOCK, LOSE})
"""What moves no session and ends no node: then order holds, and each message of a shared subscription goes once."""


@frozen
class Step:
    """One thing that goes wrong."""

    at_s: float
    kind: str
    node: int
    """The number of a node, or of a device for ``drop`` and ``move``."""
    other: int
    duration_s: float

    def __str__(self) -> str:
        return f"{self.at_s:.3f} {self.kind} {self.node} {self.other} {self.duration_s:.3f}"


@frozen
class Plan:
    """A world and what happens to it."""

    seed: int
    nodes: int
    link_delay_s: float
    client_delay_s: float
    steps: tuple[Step, ...]

    def only(self, steps: Sequence[Step]) -> Plan:
        """Return the same world with fewer steps."""
        return Plan(self.seed, self.nodes, self.link_delay_s, self.client_delay_s, tuple(steps))

    @property
    def keeps_sessions(self) -> bool:
        """Whether all sessions stay where they are, and all nodes live."""
        return all(step.kind in KEEPS_SESSIONS for step in self.steps)


def make_plan(seed: int, all_weights: Mapping[str, int] = WEIGHTS, longest_s: float = LONGEST_S) -> Plan:
    """Return the plan of a seed; ``longest_s`` is how long a fault may last."""
    random = Random(f"plan {seed}")
    nodes = random.choice((2, 3, 3, 4, 5))
    # Some plans only break links: there the stricter promises hold.
    kinds = [kind for kind in all_weights if random.random() < 0.9 or kind == CUT]
    if random.random() < 0.3:
        kinds = [kind for kind in kinds if kind in KEEPS_SESSIONS]
    weights = [all_weights[kind] for kind in kinds]
    steps = []
    for _ in range(random.randint(3, 14)):
        kind = random.choices(kinds, weights)[0]
        node = random.randrange(nodes)
        other = random.choice([each for each in range(nodes) if each != node])
        if kind in (DROP, MOVE):
            node = random.randrange(100)
        at_s = random.uniform(FAULTS_BEGIN_S, FAULTS_END_S - 10.0)
        steps.append(Step(round(at_s, 3), kind, node, other, round(random.uniform(0.2, longest_s), 3)))
    steps.sort(key=lambda step: step.at_s)
    return Plan(seed, nodes, random.choice((0.0005, 0.005, 0.05)), random.choice((0.0002, 0.002)), tuple(steps))
