#!/usr/bin/env python3
"""Measures bridge_kafka with a real Kafka on this machine, and prints a table in Markdown for each part.

    python benchmarks/kafka.py                      both parts, about five minutes
    python benchmarks/kafka.py rate [--rounds N] [--seconds S] [--json FILE]
    python benchmarks/kafka.py stop --stopped 30

`rate`: QoS 1 to a sink ÷ QoS 1 to one subscriber with a persistent session, in messages a second that publishers get
acknowledged, and in CPU time of the broker for a message; as fast as it goes, and with the same load for both. The
sink's outbox is small and pauses, so it can't take more than Kafka does. Kafka shares the processors with the broker,
and the subscriber does not: compare the CPU time, under the same load.

`stop`: the 99th percentile of the latency of clients whose topics no sink has, while others publish to a sink: in
turns with a Kafka that runs and with one that is stopped (SIGSTOP), after which everything must come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests" / "harness"), str(ROOT / "spi" / "tests" / "harness")]

from brokers import Broker, Failed, found, start  # noqa: E402
from load import Load  # noqa: E402
from to_sink import add_options, compare, show  # noqa: E402

from root_harness.kafka import Kafka  # noqa: E402

SETTINGS = """[plugins]
only = ["embedded", "bridge_kafka"]
[plugins.bridge_kafka.connections.main]
servers = ["{address}"]
[plugins.bridge_kafka.sinks.out]
connection = "main"
filters = ["{filter}"]
topic = "{topic}"
outbox = {{ max_messages = {bound} }}
"""
OTHERS = "-P 4 -S 4 -T 4 -q 1 -s 100 -r {rate} -v 5"
TO_SINK = "-o sink -P 2 -S 0 -T 2 -q 1 -s 100 -r {rate} -v 5"
ARRIVES_S = 120.0
"""How long everything may take to come after Kafka goes on."""


def arrived(kafka: Kafka, topic: str) -> int:
    """How many records a topic has; 0 while Kafka does not say it, as after it has stood still."""
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from aiokafka.errors import KafkaError

    async def ask() -> int:
        async with AIOKafkaConsumer(bootstrap_servers=kafka.address) as consumer:
            numbers = (await consumer._client.fetch_all_metadata()).partitions_for_topic(topic) or ()
            ends = await consumer.end_offsets([TopicPartition(topic, number) for number in numbers])
            return sum(ends.values())

    try:
        return asyncio.run(asyncio.wait_for(ask(), ARRIVES_S / 4))
    except (KafkaError, TimeoutError):
        return 0


def wait_for(kafka: Kafka, topic: str, count: int) -> None:
    """Wait until so many records have come; raises :class:`Failed` if they do not."""
    until = time.monotonic() + ARRIVES_S
    while arrived(kafka, topic) < count:
        if time.monotonic() > until:
            raise Failed(f"{arrived(kafka, topic)} of {count} acknowledged messages have come to Kafka")
        time.sleep(0.1)


def part_rate(options: argparse.Namespace, load: Load, kafka: Kafka) -> dict[str, Any]:
    """QoS 1 to a sink in Kafka ÷ QoS 1 to one subscriber with a persistent session."""

    def sink_broker(stack: ExitStack, keeps: str) -> Broker:
        topic = kafka.create_topic(f"rate-{keeps}", partitions=3)
        settings = SETTINGS.format(address=kafka.address, filter="bench/#", topic=topic, bound=10_000)
        return start(found()[0], stack, keeps=keeps, settings=settings)

    rows, figures = compare(load, options, sink_broker, lambda keeps, sent: wait_for(kafka, f"rate-{keeps}", sent))
    show(rows, "The goal is a ratio of 0.6 or more.")
    return figures


def part_stop(options: argparse.Namespace, load: Load, kafka: Kafka) -> dict[str, Any]:
    """Latency of clients without a sink while Kafka is stopped ÷ the same while it runs."""
    topic = kafka.create_topic("stop", partitions=3)
    settings = SETTINGS.format(address=kafka.address, filter="sink/#", topic=topic, bound=1_000_000)
    p99: dict[str, list[float]] = {"runs": [], "stopped": []}
    with ExitStack() as stack:
        broker = start(found()[0], stack, keeps="commit", settings=settings)
        load.run(broker, OTHERS.format(rate=options.others), 1.0)
        sent = 0
        for number in range(options.rounds):
            turns = ("runs", "stopped") if number % 2 else ("stopped", "runs")
            for turn in turns:
                if turn == "stopped":
                    kafka.pause()
                try:
                    row, published = both(broker, load, options)
                finally:
                    kafka.restore()
                if row["lost"] or row["reordered"]:
                    raise Failed(f"{row['lost']} messages were lost and {row['reordered']} reordered")
                sent += published
                p99[turn].append(row["p99_us"] / 1000)
                wait_for(kafka, topic, sent)
        ids = {dict(record.headers)["mqtt-id"] for record in kafka.records(topic)}
        if len(ids) != sent:
            raise Failed(f"{sent} messages were acknowledged, and {len(ids)} have come")
    ratio = statistics.median(stopped / runs for stopped, runs in zip(p99["stopped"], p99["runs"], strict=True))
    print("| round | p99 in ms while Kafka runs | while it is stopped | ratio |\n|---|---|---|---|")
    for number, (runs, stopped) in enumerate(zip(p99["runs"], p99["stopped"], strict=True), 1):
        print(f"| {number} | {runs:.2f} | {stopped:.2f} | {stopped / runs:.2f} |")
    print(
        f"\nThe median ratio is {ratio:.2f}; the goal is 1.1 or less. "
        f"All {sent:,} messages for the sink have come.\n",
        flush=True,
    )
    return {**p99, "ratio": ratio, "arrived": sent}


def both(broker: Broker, load: Load, options: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Run clients with a sink and clients without one at a time; returns what the others measured, and how many."""
    command = [*load.command(broker), "-d", str(options.stopped), *TO_SINK.format(rate=options.others // 2).split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        row = load.run(broker, OTHERS.format(rate=options.others), options.stopped)
        said, _ = process.communicate(timeout=60)
    return row, int(json.loads(said)["published"])


PARTS = {"rate": part_rate, "stop": part_stop}


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all where none is named")
    add_options(parser)
    parser.add_argument("--stopped", type=float, default=30.0, help="how many seconds Kafka is stopped")
    parser.add_argument("--others", type=int, default=1000, help="messages a second of clients without a sink")
    parser.add_argument("--json", type=Path, help="write every figure there")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True) as folder:
        kafka = Kafka(Path(folder))
        try:
            load = Load()
            kafka.start()
            print(f"{os.cpu_count()} processors, kinmqtt {found()[0].version}, Kafka beside it\n")
            for name in options.parts or PARTS:
                print(f"## {name}\n\n{(PARTS[name].__doc__ or '').splitlines()[0]}\n", flush=True)
                figures[name] = PARTS[name](options, load, kafka)
        except Failed as error:
            print(f"kafka.py: {error}", file=sys.stderr)
            return 1
        finally:
            kafka.end()
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
