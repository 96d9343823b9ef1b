"""The parts of ``cluster.py`` that put load on a cluster: what a message costs, how long it takes, who is held up."""

from __future__ import annotations

import argparse
import signal
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from cluster_clients import forget
from cluster_nodes import Cluster
from load import Load, Tick, Watched

CPU_LOADS: Final = {
    "one_q0": ("-P 1 -S 1 -T 1 -q 0 -w 1000", 0.70),
    "pairs_q0": ("-P 10 -S 10 -T 10 -q 0 -w 200", 0.70),
    "one_q1": ("-P 1 -S 1 -T 1 -q 1 -w 1000", 0.60),
    "pairs_q1": ("-P 10 -S 10 -T 10 -q 1 -w 100", 0.60),
}
FANOUT_LOADS: Final = {
    "fanout_q0": ("-P 1 -S 200 -T 1 -q 0 -w 50", 0.90),
    "fanout_q1": ("-P 1 -S 200 -T 1 -q 1 -w 50", 0.90),
}
"""Options of mqload, and the goal for the CPU time of a message at one node ÷ that across two."""
PACED: Final = "-P 10 -S 10 -T 10 -q {} -r 2000"
RING: Final = "-P 8 -S 8 -T 8 -q 1 -w 50"
KEPT: Final = "-P 12 -S 12 -T 12 -q 1 -w 100 -c"
SUBSCRIBERS_OF_KEPT: Final = 12


class Bench:
    """What every part works with."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.load = Load()
        self.rounds: int = options.rounds
        self.seconds: float = options.seconds
        self.quick: bool = options.quick
        """Whether only the plumbing is looked at."""
        self.figures: dict[str, Any] = {}
        """Every single figure, by part."""


class Outcome(NamedTuple):
    """A table of a part: its heads and its rows."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def verdict(value: float, goal: float, at_most: bool = False) -> str:
    """Return a goal, and whether it is met."""
    met = value <= goal if at_most else value >= goal
    return f"{'≤' if at_most else '≥'} {goal:g}: {'met' if met else '**missed**'}"


def spread(values: Sequence[float]) -> str:
    """Return the least and the greatest of the rounds' values."""
    return f"{min(values):.2f}–{max(values):.2f}"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values is."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# What a message costs


def part_efficiency(bench: Bench) -> Outcome:
    """CPU time of all brokers for each message received: both clients at one node, and at two."""
    return _cpu(bench, "efficiency", CPU_LOADS)


def part_fanout(bench: Bench) -> Outcome:
    """The same for one publisher and 200 subscribers, all of them at the publisher's node, and all at another."""
    return _cpu(bench, "fanout", FANOUT_LOADS)


def _cpu(bench: Bench, part: str, loads: dict[str, tuple[str, float]]) -> Outcome:
    rows = []
    with ExitStack() as stack:
        cluster = Cluster(stack, 2)
        first, second = cluster.ports
        for name, (options, goal) in loads.items():
            rounds = [
                tuple(_watch(bench, cluster, [first], [there], options).cpu_us() for there in (first, second))
                for _ in range(bench.rounds)
            ]
            bench.figures.setdefault(part, {})[name] = rounds
            local, across = (statistics.median(each) for each in zip(*rounds, strict=True))
            ratios = [here / there for here, there in rounds]
            ratio = statistics.median(ratios)
            rows.append([name, f"{local:.2f}", f"{across:.2f}", f"{ratio:.2f}", spread(ratios), verdict(ratio, goal)])
    return Outcome(["load", "local, µs", "across, µs", "local ÷ across", "rounds", "goal"], rows)


def _watch(
    bench: Bench, cluster: Cluster, publishers: Sequence[int], subscribers: Sequence[int], options: str
) -> Watched:
    return bench.load.watch(
        publishers, subscribers, options, bench.seconds, lambda _: (cluster.cpu_s, cluster.redis.cpu_s)
    )


# How long a message takes


def part_latency(bench: Bench) -> Outcome:
    """Time from publisher to subscriber at 2,000 messages a second, at one node and across two."""
    rows = []
    with ExitStack() as stack:
        cluster = Cluster(stack, 2)
        first, second = cluster.ports
        for qos in (0, 1):
            options = PACED.format(qos)
            rounds = [
                [_watch(bench, cluster, [first], [there], options).row for there in (first, second)]
                for _ in range(bench.rounds)
            ]
            bench.figures.setdefault("latency", {})[f"q{qos}"] = rounds
            for key in ("p50_us", "p99_us"):
                local, across = (statistics.median(row[key] for row in side) for side in zip(*rounds, strict=True))
                ratios = [there[key] / here[key] for here, there in rounds]
                ratio = statistics.median(ratios)
                goal = verdict(ratio, 2.5, at_most=True) if key == "p99_us" else ""
                name = f"QoS {qos}, {key.removesuffix('_us')}"
                rows.append([name, f"{local:.0f}", f"{across:.0f}", f"{ratio:.2f}", spread(ratios), goal])
    return Outcome(["", "local, µs", "across, µs", "across ÷ local", "rounds", "goal"], rows)


# Who is held up


def part_stall(bench: Bench) -> Outcome:
    """One of five nodes is stopped (SIGSTOP) while traffic goes round among the other four: QoS 1, eight pairs.

    Each round is run without a stop as well: what the machine does meanwhile is in both.
    """
    times = Times(0.4, 0.4, 0.2) if bench.quick else Times(5.0, 20.0, 1.0)
    rows, ratios = [], []
    for number in range(bench.rounds):
        with ExitStack() as stack:
            cluster = Cluster(stack, 5)
            undisturbed = _ring(bench, cluster, times, stops=False)
            stopped = _ring(bench, cluster, times, stops=True)
        bench.figures.setdefault("stall", []).append((undisturbed.ticks, stopped.ticks))
        (before, after, worst), (same_before, same_after, _) = (
            _rates(watched.ticks, times) for watched in (stopped, undisturbed)
        )
        ratios.append(after / before / (same_after / same_before))
        cells = [f"{rate:,.0f}" for rate in (before, after, worst)]
        cells += [f"{after / before:.2f}", f"{same_after / same_before:.2f}", f"{ratios[-1]:.2f}"]
        rows.append([str(number + 1), *cells, ""])
    ratio = statistics.median(ratios)
    rows.append(["median", "", "", "", "", "", f"{ratio:.2f}", verdict(ratio, 0.9)])
    heads = ["round", "before, /s", "stopped, /s", "worst second", "stopped ÷ before"]
    return Outcome([*heads, "the same without a stop", "quotient", "goal"], rows)


class Times(NamedTuple):
    """How long a run lasts before a node is stopped and afterwards, and how often it is looked at."""

    before_s: float
    stopped_s: float
    pace_s: float


def _ring(bench: Bench, cluster: Cluster, times: Times, stops: bool) -> Watched:
    """Run the load among all nodes but the last, which is stopped in the midst of it."""
    *living, last = cluster.nodes

    def look(at_s: float) -> tuple[float, ...]:
        if stops and at_s >= times.before_s - times.pace_s / 2:
            last.broker.send(signal.SIGSTOP)
        return (cluster.cpu_s,)

    ports = [node.port for node in living]
    seconds = times.before_s + times.stopped_s
    return bench.load.watch(ports, [*ports[1:], ports[0]], RING, seconds, look, times.pace_s)


def _rates(ticks: Sequence[Tick], times: Times) -> tuple[float, float, float]:
    """Return the messages per second before the stop, after it, and in the worst interval after it."""
    middle = next(place for place, tick in enumerate(ticks) if tick.at_s >= times.before_s - times.pace_s / 2)
    worst = min(map(_rate, ticks[middle:], ticks[middle + 1 :]))
    return _rate(ticks[0], ticks[middle]), _rate(ticks[middle], ticks[-1]), worst


def _rate(first: Tick, last: Tick) -> float:
    return (last.received - first.received) / (last.at_s - first.at_s)


# Brokers on one Redis


def part_redis(bench: Bench) -> Outcome:
    """Messages to persistent sessions (QoS 1, twelve pairs) that 1, 2 and 3 brokers get through one Redis."""
    kinds = {f"{count}, {place}": (count, place) for count in (1, 2, 3) for place in ("local", "across")[:count]}
    runs: dict[str, list[Watched]] = {name: [] for name in kinds}
    with ExitStack() as stack:
        cluster = Cluster(stack, 3)
        for _ in range(bench.rounds):
            for name, (count, place) in kinds.items():
                ports = cluster.ports[:count]
                there = ports if place == "local" else [*ports[1:], ports[0]]
                watched = _watch(bench, cluster, ports, there, KEPT)
                runs[name].append(watched)
                for number in range(SUBSCRIBERS_OF_KEPT):
                    # Where it is: messages would be sent after a session that ends elsewhere.
                    forget(there[number % count], f"s{number}-{watched.pid}")
    rows = []
    bench.figures["redis"] = runs
    alone = [watched.row["recv_per_s"] for watched in runs["1, local"]]
    for name, several in runs.items():
        rates = [watched.row["recv_per_s"] for watched in several]
        brokers, redis = (statistics.median(watched.cpu_us(whose) for watched in several) for whose in (0, 1))
        ratio = statistics.median(rate / one for rate, one in zip(rates, alone, strict=True))
        cells = [f"{statistics.median(rates):,.0f}", f"{ratio:.2f}", f"{brokers:.1f}", f"{redis:.1f}"]
        rows.append([name, *cells, f"{1e6 / redis:,.0f}" if redis else "–"])
    heads = ["brokers, clients of a pair", "received/s", "÷ one broker", "brokers, CPU µs", "Redis, CPU µs"]
    return Outcome([*heads, "a Redis' limit, /s"], rows)
