"""What a message to a sink costs, beside one to a subscriber with a persistent session."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from brokers import Broker, found, start
from load import Load

FAST: Final = "-P 4 -S {subscribers} -T 4 -q 1 -s 100 -w 200 -v 5"
PACED: Final = "-P 4 -S {subscribers} -T 4 -q 1 -s 100 -r {rate}"
"""Four publishers of 100 bytes, QoS 1: as fast as it goes, and at a rate."""

HEADINGS: Final = (
    "stored",
    "load",
    "to the sink, messages/s",
    "to a subscriber",
    "ratio",
    "CPU µs to the sink",
    "to a subscriber",
    "ratio",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is compared."""
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="that a measurement lasts")
    parser.add_argument("--stored", default="memory,commit", help="where the state is: memory, commit or both")
    parser.add_argument("--rate", type=int, default=20_000, help="messages a second where both have the same load")


def compare(
    load: Load,
    options: argparse.Namespace,
    sink_broker: Callable[[ExitStack, str], Broker],
    settle: Callable[[str, int], None] = lambda keeps, sent: None,
) -> tuple[list[str], dict[str, Any]]:
    """Measure both in turns; returns the rows of a table, and all figures.

    ``options`` are those of :func:`add_options`. ``sink_broker`` starts the broker with the sink, which keeps its
    state in ``memory`` or commits it.
    ``settle`` waits until the sink has got so many messages: the CPU time of a message is that until then.
    """
    rounds, seconds, rate = options.rounds, options.seconds, options.rate
    loads = {"as fast as it goes": FAST, f"{rate:,} messages/s": PACED}
    rows: list[str] = []
    figures: dict[str, Any] = {}
    for keeps in options.stored.split(","):
        with ExitStack() as stack:
            sink, subscriber = sink_broker(stack, keeps), start(found()[0], stack, keeps=keeps)
            sent = 0
            for text, arguments in loads.items():
                measured: dict[str, list[tuple[float, float]]] = {"sink": [], "subscriber": []}
                for number in range(rounds + 1):
                    for name, broker, count in (("sink", sink, 0), ("subscriber", subscriber, 1)):
                        before = broker.cpu_s
                        row = load.run(
                            broker, arguments.format(subscribers=count, rate=rate) + " -c -n" * count, seconds
                        )
                        if name == "sink":
                            sent += row["published"]
                            settle(keeps, sent)
                        cpu_us = (broker.cpu_s - before) * 1e6 / row["published"]
                        if number:  # The first round warms up.
                            measured[name].append((row["pub_per_s"], cpu_us))
                figures[f"{keeps}, {text}"] = measured
                rows.append(_row(keeps, text, measured))
    return rows, figures


def _row(keeps: str, text: str, measured: dict[str, list[tuple[float, float]]]) -> str:
    pairs = list(zip(measured["sink"], measured["subscriber"], strict=True))
    rate = statistics.median(sink[0] / subscriber[0] for sink, subscriber in pairs)
    cpu = statistics.median(subscriber[1] / sink[1] for sink, subscriber in pairs)
    sink, subscriber = (
        [statistics.median(each) for each in zip(*measured[name], strict=True)] for name in ("sink", "subscriber")
    )
    return (
        f"| {keeps} | {text} | {sink[0]:,.0f} | {subscriber[0]:,.0f} | {rate:.2f} | "
        f"{sink[1]:.1f} | {subscriber[1]:.1f} | {cpu:.2f} |"
    )


def show(rows: list[str], goal: str) -> None:
    """Print the table."""
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    print("\n".join(rows), end=f"\n\n{goal}\n\n", flush=True)
