"""What one QoS 1 message costs the broker, without sockets: CPU time from PUBLISH to the subscriber's PUBACK.

A publisher and a subscriber are connected to a :class:`~kinmqtt.testing.harness.BrokerHarness`. A round is one read
with ``--burst`` PUBLISH packets, the turns that it causes, and one read with the subscriber's PUBACK packets. Frames
are prepared and only cut by length, so that the generator costs next to nothing. The median of all rounds is printed.

    python benchmarks/in_process.py
    KINMQTT_PURE=1 python benchmarks/in_process.py --rounds 300

Two commits are compared by two checkouts that run in turns: the machine's noise is larger than most changes.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence

from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V311, Publish
from kinmqtt.testing.harness import BrokerHarness, HarnessClient
from kinmqtt_spi import hookimpl
from kinmqtt_spi.services.outbox import OutboxEntry
from kinmqtt_spi.services.plugin import Context

TOPIC = "plant/one/temperature"


def microseconds_a_message(persistent: bool, rounds: int, burst: int, payload_bytes: int) -> float:
    """The median CPU time of a message, in microseconds."""
    harness = BrokerHarness()
    subscriber = harness.connect("subscriber", clean_start=not persistent)
    subscriber.subscribe(TOPIC, qos=1)
    publisher = harness.connect("publisher")
    harness.peers.clear()
    published = publishes(burst, payload_bytes)
    frame_bytes = len(published) // burst
    times: list[float] = []
    for _ in range(rounds):
        began = time.process_time_ns()
        publisher.connection.receive(published)
        settle(harness)
        answers = acknowledgements(subscriber, frame_bytes, burst)
        subscriber.connection.receive(answers)
        settle(harness)
        times.append((time.process_time_ns() - began) / 1_000 / burst)
        assert len(publisher.link.written) == 4 * burst, "not every message was acknowledged"
        publisher.link.written.clear()
    return statistics.median(times)


class NullShipper:
    """A plugin that acknowledges what comes into its outbox."""

    taken = 0

    @hookimpl
    def start(self, context: Context) -> None:
        """Consume an outbox."""
        self._outbox = context.outbox("out", filters=[TOPIC])
        self._outbox.consume(self._take)

    def _take(self, entries: Sequence[OutboxEntry]) -> None:
        self.taken += len(entries)
        self._outbox.acknowledge([entry.number for entry in entries])


def microseconds_to_an_outbox(rounds: int, burst: int, payload_bytes: int) -> float:
    """The median CPU time of a message that only an outbox gets, in microseconds."""
    shipper = NullShipper()
    harness = BrokerHarness(plugins={"shipper": shipper})
    publisher = harness.connect("publisher")
    harness.peers.clear()
    published = publishes(burst, payload_bytes)
    times: list[float] = []
    for _ in range(rounds):
        began = time.process_time_ns()
        publisher.connection.receive(published)
        settle(harness)
        times.append((time.process_time_ns() - began) / 1_000 / burst)
        assert len(publisher.link.written) == 4 * burst, "not every message was acknowledged"
        publisher.link.written.clear()
    assert shipper.taken == rounds * burst, "not every message left"
    return statistics.median(times)


def publishes(burst: int, payload_bytes: int) -> bytes:
    """PUBLISH packets in one read."""
    payload = bytes(payload_bytes)
    return b"".join(
        encode(Publish.build(TOPIC, payload, qos=1, packet_id=number), V311) for number in range(1, burst + 1)
    )


def settle(harness: BrokerHarness) -> None:
    """Run the turns that are due."""
    while harness._soon:
        harness._soon.popleft()()


def acknowledgements(subscriber: HarnessClient, frame_bytes: int, burst: int) -> bytes:
    """PUBACK packets for what the subscriber has received, which must be ``burst`` messages."""
    written = subscriber.link.written
    assert len(written) == frame_bytes * burst, "not every message was delivered"
    at = 4 + len(TOPIC)
    answers = b"".join(b"\x40\x02" + written[i + at : i + at + 2] for i in range(0, len(written), frame_bytes))
    written.clear()
    return answers


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3_000)
    parser.add_argument("--burst", type=int, default=20, help="messages in one read (default: %(default)s)")
    parser.add_argument("--payload", type=int, default=64, help="bytes of a payload (default: %(default)s)")
    arguments = parser.parse_args()
    gc.disable()  # the broker collects between turns, not inside them
    for name, persistent in (("QoS 1, nothing stored", False), ("QoS 1 to a persistent session", True)):
        cost = microseconds_a_message(persistent, arguments.rounds, arguments.burst, arguments.payload)
        print(f"{name}: {cost:.2f} µs a message")
    cost = microseconds_to_an_outbox(arguments.rounds, arguments.burst, arguments.payload)
    print(f"QoS 1 to an outbox, which is consumed: {cost:.2f} µs a message")


if __name__ == "__main__":
    main()
