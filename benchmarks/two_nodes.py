"""What a message costs that goes to a subscriber of another node, beside one that stays: CPU time of all brokers.

Three brokers run at once: one alone, and two that are joined by a link (``linked_plugin``). The same load goes to the
one, and then to the pair: publishers at the first node, subscribers at the second. The CPU time of the brokers'
processes is divided by the messages received. The medians of all rounds are printed as a table.

    python benchmarks/two_nodes.py [--rounds N] [--seconds S] [--only NAME,NAME]
"""

from __future__ import annotations

import argparse
import os
import statistics
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from brokers import Broker, Failed, Kind, _free_ports, found, start
from load import Load

PLUGIN = Path(__file__).with_name("linked_plugin")

ROWS = {
    "one_q0": "-P 1 -S 1 -T 1 -q 0 -w 200",
    "one_q1": "-P 1 -S 1 -T 1 -q 1 -w 500",
    "pairs_q0": "-P 50 -S 50 -T 50 -q 0 -w 50",
    "pairs_q1": "-P 50 -S 50 -T 50 -q 1 -w 20",
    "pairs_q2": "-P 50 -S 50 -T 50 -q 2 -w 20",
    "fanout_q0": "-P 1 -S 200 -T 1 -q 0 -w 20",
    "fanout_q1": "-P 1 -S 200 -T 1 -q 1 -w 20",
}
"""The loads, as options of mqload."""


class Nodes:
    """Some brokers that a load goes to, as one."""

    def __init__(self, publishers: Broker, subscribers: Broker) -> None:
        self.name = f"{publishers.name} to {subscribers.name}"
        self.ports = publishers.ports
        self.subscribers_port = subscribers.port
        self._brokers = {publishers, subscribers}

    @property
    def cpu_s(self) -> float:
        """The CPU time of all of them."""
        return sum(broker.cpu_s for broker in self._brokers)


def linked(kind: Kind, stack: ExitStack) -> tuple[Broker, Broker]:
    """Start two brokers that are joined."""
    [port] = _free_ports(1)
    os.environ["LINKED_PORT"] = str(port)
    nodes = []
    for side in ("listen", "connect"):
        os.environ["LINKED_SIDE"] = side
        named = kind._replace(command=partial(_command_of_node, kind, side))
        nodes.append(start(named, stack, path=PLUGIN, settings='[services]\ncluster = "linked"\n'))
    return nodes[0], nodes[1]


def _command_of_node(kind: Kind, name: str, folder: Path, ports: dict[str, int], keeps: str) -> list[str]:
    command = kind.command(folder, ports, keeps)
    settings = folder / "kinmqtt.toml"
    settings.write_text(settings.read_text().replace("[broker]", f'[broker]\nnode_name = "{name}"'))
    return command


def measure(load: Load, nodes: Nodes, options: str, seconds: float) -> float:
    """The CPU time of a message, in microseconds."""
    row = load.run(nodes, f"{options} -A {nodes.subscribers_port}", seconds)  # type: ignore[arg-type]
    if row["lost"] or row["reordered"]:
        raise Failed(f"{nodes.name}: {options}: {row['lost']} lost, {row['reordered']} reordered")
    return float(row["cpu_us"])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", help="the rows to measure, separated by commas")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(ROWS)
    load = Load()
    with ExitStack() as stack:
        kind = found()[0]
        alone = start(kind, stack)
        first, second = linked(kind, stack)
        print("| load | one node, µs | two nodes, µs | ratio |\n|---|---|---|---|")
        for name in names:
            figures: tuple[list[float], list[float]] = ([], [])
            for _ in range(arguments.rounds):
                for into, nodes in zip(figures, (Nodes(alone, alone), Nodes(first, second)), strict=True):
                    into.append(measure(load, nodes, ROWS[name], arguments.seconds))
            here, there = (statistics.median(each) for each in figures)
            print(f"| {name} | {here:.2f} | {there:.2f} | {there / here:.2f} |", flush=True)


if __name__ == "__main__":
    main()
