"""The parts of ``cluster.py`` in which something moves: a session to another node, a node into the cluster."""

from __future__ import annotations

import signal
import statistics
import time
from contextlib import ExitStack
from typing import Final

from brokers import Failed
from cluster_clients import Client
from cluster_loads import Bench, Outcome, quantile, spread, verdict
from cluster_nodes import Cluster

EXPIRY_S: Final = 3600
TAKEOVERS: Final = {100: 0.1, 10_000: 1.0}
"""The goal for CONNECT to CONNACK in seconds, by the number of queued messages."""
SESSIONS: Final = 5
"""How many sessions take turns, of each size."""
MOVES: Final = 40
"""How often sessions of one size move, in a round."""
ROUTES: Final = 100_000
CLIENT_ROUTES: Final = 10_000
"""How many subscriptions one client has."""
JOIN_GOAL_S: Final = 3.0


# Sessions


def part_takeover(bench: Bench) -> Outcome:
    """Time from CONNECT to CONNACK for a session with queued messages whose client is connected to another node."""
    sizes = {10: 1.0, 20: 1.0} if bench.quick else TAKEOVERS
    moves = 2 if bench.quick else MOVES
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    resumed: dict[int, list[float]] = {size: [] for size in sizes}
    with ExitStack() as stack:
        cluster = Cluster(stack, 2)
        roaming = {
            size: [Roaming(cluster, f"c{size}-{number}", size) for number in range(SESSIONS)] for size in sizes
        }
        for size in sizes:
            publisher = Client(cluster.ports[0], "publisher")
            publisher.publish(f"takeover/{size}", size)
            publisher.close()
        for _ in range(bench.rounds):
            for move in range(moves):
                for size, sessions in roaming.items():
                    session = sessions[move % SESSIONS]
                    resumed[size].append(session.connect(session.place))
                    taken[size].append(session.connect(1 - session.place))
        for sessions in roaming.values():
            for session in sessions:
                session.close()
    bench.figures["takeover"] = {"taken over": taken, "resumed": resumed}
    rows = []
    for size, goal_s in sizes.items():
        p99_s = quantile(taken[size], 0.99)
        figures = [quantile(times[size], share) * 1000 for times in (resumed, taken) for share in (0.5, 0.99)]
        goal = verdict(round(p99_s, 4), goal_s, at_most=True)
        rows.append([f"{size:,}", *(f"{figure:.1f}" for figure in figures), str(len(taken[size])), goal])
    heads = ["queued", "same node: p50, ms", "p99", "another node: p50, ms", "p99", "takeovers", "goal of p99, s"]
    return Outcome(heads, rows)


class Roaming:
    """A client with a persistent session, which connects to one node and another."""

    def __init__(self, cluster: Cluster, client_id: str, size: int) -> None:
        """Subscribe at the first node, and leave: the messages of this ``size`` are queued."""
        self._ports = cluster.ports
        self._client_id = client_id
        self._client: Client | None = None
        self.place = 0
        """The number of the node that has the session."""
        client = Client(self._ports[0], client_id, EXPIRY_S)
        client.subscribe([f"takeover/{size}"], 1)
        client.close()

    def connect(self, place: int) -> float:
        """Connect to a node while the last connection is still there; returns the time from CONNECT to CONNACK."""
        client = Client(self._ports[place], self._client_id, EXPIRY_S)
        self.close()
        if not client.is_resumed:
            raise Failed(f"the session of {self._client_id} was lost")
        self._client, self.place = client, place
        return client.connack_s

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None


# Nodes


def part_join(bench: Bench) -> Outcome:
    """Time from the start of a process until it is UP and takes clients, in a cluster with routes and without."""
    count = 2_000 if bench.quick else ROUTES
    times_s: list[tuple[float, float]] = []
    costs_s: list[tuple[float, float]] = []
    with ExitStack() as stack:
        empty, full = Cluster(stack, 1), Cluster(stack, 1)
        clients = [
            _subscriber(full, start, min(count, start + CLIENT_ROUTES)) for start in range(0, count, CLIENT_ROUTES)
        ]
        for _ in range(bench.rounds):
            (one_s, one_cpu_s), (other_s, other_cpu_s) = _join(empty), _join(full)
            times_s.append((one_s, other_s))
            costs_s.append((one_cpu_s, other_cpu_s))
        for client in clients:
            client.close()
    bench.figures["join"] = {"seconds": times_s, "cpu": costs_s}
    rows = []
    for name, values in (("time", times_s), ("CPU of both brokers", costs_s)):
        without, with_routes = (statistics.median(each) for each in zip(*values, strict=True))
        more = [there - here for here, there in values]
        goal = verdict(round(statistics.median(more), 2), JOIN_GOAL_S, at_most=True) if name == "time" else ""
        figures = [f"{without:.2f}", f"{with_routes:.2f}", f"{statistics.median(more):.2f}", spread(more)]
        rows.append([name, *figures, goal])
    return Outcome(["", "no routes, s", f"{count:,} routes, s", "more, s", "rounds", "goal, s"], rows)


def _subscriber(cluster: Cluster, start: int, end: int) -> Client:
    """Return a client that has subscribed: half of its filters have a wildcard."""
    client = Client(cluster.ports[0], f"subscriber-{start}")
    client.subscribe([f"join/{number}/{'+' if number % 2 else 'data'}" for number in range(start, end)], 1)
    return client


def _join(cluster: Cluster) -> tuple[float, float]:
    """Start another broker, and end it; returns how long it took to be UP, and the CPU time of both until then."""
    with ExitStack() as stack:
        before_s = cluster.cpu_s
        began = time.monotonic()
        node = cluster.start_node("joins", stack, 0.005)
        took_s = time.monotonic() - began
        cpu_s = cluster.cpu_s - before_s + node.broker.cpu_s
        node.broker.send(signal.SIGTERM)
    return took_s, cpu_s
