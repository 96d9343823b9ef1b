"""What rules cost a QoS 1 message, without sockets: rates as ratios, from PUBLISH to the subscriber's PUBACK.

Brokers with other rules take turns, so that the machine's noise is in all of them: no plugin, 100 rules about other
topics, one rule that does not match, and ten of them. The median of all rounds is compared.

    python benchmarks/rules.py
    KINMQTT_PURE=1 python benchmarks/rules.py --rounds 300
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from typing import Any, Final

from in_process import TOPIC, acknowledgements, settle

from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V311, Publish
from kinmqtt.testing.harness import BrokerHarness
from kinmqtt_rules import Rules

PAYLOAD: Final = json.dumps({"temp": 21.5, "humidity": 40, "site": "north", "id": "s00017"}).encode()
AIMS: Final = (
    ("topics without rules, 100 rules elsewhere ÷ no plugin", "elsewhere", "none", 0.98),
    ("one rule that does not match ÷ no plugin", "one", "none", 0.65),
    ("ten rules that do not match ÷ one", "ten", "one", 0.35),
)
"""Each figure with the brokers that it compares, and what is aimed at."""


def rules(count: int, filter: str) -> str:
    """Return settings with so many rules about a filter, none of which matches."""
    return "".join(
        f"[plugins.rules.r{number}]\n"
        f"sql = 'SELECT payload.site AS site FROM \"{filter}\" WHERE payload.temp > {30 + number}'\n"
        'actions = [{ republish = { topic = "hot" } }]\n'
        for number in range(count)
    )


class Side:
    """A broker with a publisher and a subscriber."""

    def __init__(self, config: str, burst: int) -> None:
        plugins: dict[str, Any] = {"rules": Rules()} if config else {}
        self.harness = BrokerHarness(plugins=plugins, config=config)
        self.subscriber = self.harness.connect("subscriber")
        self.subscriber.subscribe(TOPIC, qos=1)
        self.publisher = self.harness.connect("publisher")
        self.harness.peers.clear()
        frames = [encode(Publish.build(TOPIC, PAYLOAD, qos=1, packet_id=n), V311) for n in range(1, burst + 1)]
        self.published = b"".join(frames)
        self.burst = burst
        self.times: list[float] = []

    def round(self) -> None:
        """Send one burst, and take its CPU time in µs a message."""
        began = time.process_time_ns()
        self.publisher.connection.receive(self.published)
        settle(self.harness)
        answers = acknowledgements(self.subscriber, len(self.published) // self.burst, self.burst)
        self.subscriber.connection.receive(answers)
        settle(self.harness)
        self.times.append((time.process_time_ns() - began) / 1_000 / self.burst)
        assert len(self.publisher.link.written) == 4 * self.burst, "not every message was acknowledged"
        self.publisher.link.written.clear()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--burst", type=int, default=20, help="messages in one read (default: %(default)s)")
    arguments = parser.parse_args()
    gc.disable()  # the broker collects between turns, not inside them
    sides = {
        "none": Side("", arguments.burst),
        "elsewhere": Side(rules(100, "elsewhere/#"), arguments.burst),
        "one": Side(rules(1, "plant/+/temperature"), arguments.burst),
        "ten": Side(rules(10, "plant/+/temperature"), arguments.burst),
    }
    for _ in range(arguments.rounds):
        for side in sides.values():
            side.round()
    medians = {name: statistics.median(side.times) for name, side in sides.items()}
    for name, cost in medians.items():
        print(f"{name}: {cost:.2f} µs a message")
    for text, which, base, aim in AIMS:
        print(f"{text}: {medians[base] / medians[which]:.2f} (aim {aim})")


if __name__ == "__main__":
    main()
