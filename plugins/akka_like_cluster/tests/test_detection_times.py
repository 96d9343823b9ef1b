"""Detectors in simulated clusters: how soon a crash is seen, and how often a healthy node is marked.

``pytest -s`` prints the figures. The limits are those of the design. Gossip is not simulated: where not everybody
monitors everybody, a mark must still be told to the other nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final

import pytest
from attrs import Factory, define, evolve, field

from kinmqtt_akka_like_cluster.pure.detector import Ask, Beat, Detector, DetectorSettings, Marked

SETTINGS: Final = DetectorSettings()
WARM_UP_S: Final = 30.0


@define(slots=True, eq=False)
class _Node:
    """A simulated node. It works off its events late while it is stalled, and never after a crash."""

    detector: Detector
    stalled_until_s: float = 0.0
    crashed_s: float | None = None
    monitors: tuple[int, ...] = ()
    """Who monitored it when it crashed."""


@define(slots=True, eq=False)
class _Cluster:
    """Nodes whose messages take 0.2 to 5 ms, and are lost with the probability ``loss``."""

    random: Random
    size: int
    loss: float = 0.0
    settings: DetectorSettings = SETTINGS
    now: float = 0.0
    nodes: dict[int, _Node] = Factory(dict)
    marks: list[tuple[float, int, int]] = Factory(list)
    """When which node has marked which as unreachable."""
    _events: list[tuple[float, int, int, Callable[[], None]]] = Factory(list)
    _numbers: count[int] = field(factory=count)

    def __attrs_post_init__(self) -> None:
        uids = [self.random.getrandbits(64) for _ in range(self.size)]
        for uid in uids:
            self.nodes[uid] = _Node(Detector(uid, self.settings))
            self.nodes[uid].detector.watch(uids, 0.0)
            self.at(self.random.uniform(0, self.settings.tick_s), uid, lambda uid=uid: self._tick(uid))  # type: ignore[misc]

    def at(self, time_s: float, uid: int, event: Callable[[], None]) -> None:
        """Let a node do something at a time, or as soon after as it isn't stalled."""
        heappush(self._events, (time_s, next(self._numbers), uid, event))

    def run(self, until_s: float) -> None:
        """Work off all events up to a time."""
        while self._events[0][0] <= until_s:
            self.now, _, uid, event = heappop(self._events)
            node = self.nodes[uid]
            if node.crashed_s is not None:
                continue
            if self.now < node.stalled_until_s:
                self.at(node.stalled_until_s, uid, event)
            else:
                event()
        self.now = until_s

    def crash(self, uid: int) -> None:
        """Let a node end now."""
        self.nodes[uid].crashed_s = self.now
        self.nodes[uid].monitors = tuple(peer for peer, node in self.nodes.items() if uid in node.detector.monitored)

    def detected_after_s(self, uid: int) -> float:
        """Return how long after its crash all that monitored a node had marked it, but for those that crashed too."""
        crashed = self.nodes[uid]
        assert crashed.crashed_s is not None
        marked_s = {by: time_s for time_s, by, about in self.marks if about == uid and time_s > crashed.crashed_s}
        return max(marked_s[by] for by in crashed.monitors if self.nodes[by].crashed_s is None) - crashed.crashed_s

    def _send(self, to: int, event: Callable[[], None]) -> None:
        if self.loss == 0 or self.random.random() >= self.loss:
            self.at(self.now + 0.0002 + 0.0048 * self.random.random(), to, event)

    def _tick(self, uid: int) -> None:
        self.at(self.now + self.settings.tick_s * self.random.uniform(0.95, 1.05), uid, lambda: self._tick(uid))
        for effect in self.nodes[uid].detector.tick(self.now):
            match effect:
                case Beat(to):
                    self._beat(uid, to)
                case Ask(witness, about):
                    self._ask(uid, witness, about)
                case Marked(about, reachable):
                    if not reachable:
                        self.marks.append((self.now, uid, about))

    def _beat(self, uid: int, to: int) -> None:
        self._send(to, lambda: self._send(uid, lambda: self.nodes[uid].detector.heard(to, self.now)))

    def _ask(self, uid: int, witness: int, about: int) -> None:
        def answer() -> None:
            is_alive = self.nodes[witness].detector.is_alive(about, self.now)
            if is_alive is not None:
                self._send(uid, lambda: self.nodes[uid].detector.witnessed(about, witness, is_alive, self.now))

        self._send(witness, answer)


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def detection_times_s(random: Random, size: int, crashes: int, clusters: int, loss: float = 0.0) -> list[float]:
    """Return for each crash how long it took until all nodes that monitor the crashed one have marked it."""
    times_s: list[float] = []
    for _ in range(clusters):
        cluster = _Cluster(random, size, loss)
        cluster.run(WARM_UP_S)
        crashed = random.sample(sorted(cluster.nodes), crashes)
        for uid in crashed:
            cluster.run(cluster.now + random.uniform(0.5, 1.5))
            cluster.crash(uid)
        cluster.run(cluster.now + 20)
        times_s += [cluster.detected_after_s(uid) for uid in crashed]
    return times_s


def wrong_marks_per_node_hour(random: Random, size: int, hours: float, loss: float, witnesses: int = 3) -> float:
    """Return how often a node marks a healthy one, per hour and node, where messages get lost."""
    cluster = _Cluster(random, size, loss, evolve(SETTINGS, witnesses=witnesses))
    cluster.run(hours * 3600)
    return len(cluster.marks) / (size * hours)


def marks_around_stalls(random: Random, size: int, stalled: int, stall_s: float, witnesses: int) -> tuple[int, int]:
    """Return how many marks of healthy nodes, and of stalled ones, some nodes that stall together lead to."""
    cluster = _Cluster(random, size, settings=evolve(SETTINGS, witnesses=witnesses))
    cluster.run(WARM_UP_S)
    victims = random.sample(sorted(cluster.nodes), stalled)
    for uid in victims:
        cluster.nodes[uid].stalled_until_s = cluster.now + stall_s
    cluster.run(cluster.now + 30)
    wrong = sum(about not in victims for _, _, about in cluster.marks)
    return wrong, len(cluster.marks) - wrong


@pytest.mark.parametrize(
    ("size", "crashes", "clusters", "limit_s"), [(3, 1, 120, 5.0), (10, 1, 100, 6.5), (100, 30, 4, 10.0)]
)
def test_a_crash_is_seen_in_time(size: int, crashes: int, clusters: int, limit_s: float) -> None:
    """All nodes that monitor a crashed one have marked it within the design's time, in 99 of 100 cases."""
    random = Random(f"crash {size}")

    times_s = detection_times_s(random, size, crashes, clusters)

    median_s, p99_s = _percentile(times_s, 0.5), _percentile(times_s, 0.99)
    print(f"\n{size} nodes, {len(times_s)} crashes: p50 {median_s:.2f} s, p99 {p99_s:.2f} s, limit {limit_s} s")
    assert p99_s <= limit_s


def test_lost_messages_mark_hardly_anybody() -> None:
    """With 10 % of all messages lost, a node marks a healthy one less than once in ten hours."""
    random = Random("loss")

    rate = wrong_marks_per_node_hour(random, size=10, hours=2.4, loss=0.1)

    print(f"\n10 nodes, 24 node-hours, 10 % loss: {rate:.2f} wrong marks per node-hour, limit 0.1")
    assert rate <= 0.1


def test_witnesses_are_what_prevents_wrong_marks() -> None:
    """Without witnesses the same loss leads to more wrong marks than the design allows."""
    random = Random("loss")

    rate = wrong_marks_per_node_hour(random, size=10, hours=0.5, loss=0.1, witnesses=0)

    print(f"\n10 nodes, 5 node-hours, 10 % loss, no witnesses: {rate:.2f} wrong marks per node-hour")
    assert rate > 0.1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("witnesses", [3, 0])
def test_nodes_that_stall_mark_no_healthy_node(witnesses: int, seed: int) -> None:
    """Four of 32 nodes that stall for 5 s mark no healthy node when they go on, even if they ask nobody."""
    random = Random(f"stall {seed}")

    wrong, right = marks_around_stalls(random, size=32, stalled=4, stall_s=5.0, witnesses=witnesses)

    print(f"\n4 of 32 nodes stall for 5 s, {witnesses} witnesses: {wrong} healthy ones marked, {right} stalled ones")
    assert wrong == 0
    assert right > 0
