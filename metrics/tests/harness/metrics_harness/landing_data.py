"""Landing folders for tests and benchmarks: what brokers could have written, from a seeded random.

Numbers that are added up are multiples of an eighth, so that sums of doubles are exact in any order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random

from attrs import define, field

from kinmqtt_metrics.landing import SegmentName, open_path, published_path
from kinmqtt_metrics.record import FORMAT, OTHERS, Record

START_US = 1_790_000_000_000_000
"""In September 2026."""

SECOND_US = 1_000_000

BOUNDS = (0.5, 1.0, 2.5, 10.0)

COUNTERS = [
    ("bytes.received", "bytes", {}),
    ("messages.received", "messages", {}),
    ("messages.dropped", "messages", {"reason": "queue_full"}),
    ("messages.dropped", "messages", {"reason": "offline"}),
    ("plugin.calls", "calls", {"plugin": "guard", "hook": "authorize"}),
    ("plugin.calls", "calls", {"plugin": "größe", "hook": 'a"b\\'}),
]
GAUGES = [("clients.connected", "clients", {}), ("listeners.connections", "connections", {"listener": "tls"})]


@define
class Life:
    """One life of a broker, which says what happens at each tick."""

    node: str
    boot: str
    random: Random
    t: int = START_US
    clients: int = 6
    _seq: Iterator[int] = field(factory=lambda: count(1))
    _values: dict[int, int] = field(factory=dict)

    def tick(self, step_us: int = SECOND_US) -> list[Record]:
        """The records of an interval, in the order of their ``seq``; time goes on."""
        self.t += self.random.randint(1, step_us)
        said = [*self._samples(), *self._events(), *self._traffic()]
        return [self._record(record) for record in said]

    def ticks(self, number: int, step_us: int = SECOND_US) -> list[Record]:
        """Of several intervals."""
        return [record for _ in range(number) for record in self.tick(step_us)]

    def _record(self, said: Record) -> Record:
        head = {"v": FORMAT, "t": self.t, "node": self.node, "boot": self.boot, "seq": next(self._seq)}
        return head | {key: value for key, value in said.items() if value not in (None, {})}

    def _samples(self) -> Iterator[Record]:
        random = self.random
        for number, (name, unit, labels) in enumerate(COUNTERS):
            delta = random.choice((0, 1, random.randint(0, 5000)))
            self._values[number] = value = self._values.get(number, 0) + delta
            # In another order it is the same series.
            turned = dict(reversed(labels.items())) if random.random() < 0.3 else labels
            yield {"kind": "counter", "name": name, "unit": unit, "labels": turned, "value": value, "delta": delta}
        for name, unit, labels in GAUGES:
            level = random.randint(-80, 800) / 8
            yield {"kind": "gauge", "name": name, "unit": unit, "labels": labels, "number": level}
        if random.random() < 0.7:
            counts = [random.choice((0, 0, 1, random.randint(0, 9))) for _ in range(len(BOUNDS) + 1)]
            total = random.randint(0, 400) / 8
            yield {
                "kind": "histogram",
                "name": "turn.duration",
                "unit": "seconds",
                "bounds": BOUNDS,
                "counts": counts,
                "sum": total,
            }

    def _events(self) -> Iterator[Record]:
        random = self.random
        client = f"c{random.randrange(self.clients)}"
        name = random.choice(
            ("connected", "disconnected", "subscribed", "limited", "authentication_refused", "dropped")
        )
        event: Record = {"kind": "event", "name": name, "client": client}
        if name == "disconnected":
            event |= {"number": random.randint(0, 800) / 8, "reason": random.choice(("normal", "keep_alive_timeout"))}
        elif name == "limited":
            reason, verdict = random.choice((("quota", "reject"), ("drop", "drop"), ("delay", "delay")))
            event |= {"delta": random.randint(1, 9), "reason": reason, "labels": {"by": "r1", "verdict": verdict}}
        elif name == "authentication_refused":
            event |= {"delta": 2, "reason": "not_authorized", "labels": random.choice(({}, {"by": "auth"}))}
        elif name == "dropped":
            event |= {"delta": 3, "reason": "queue_full", "client": OTHERS}
        yield event
        if random.random() < 0.1:
            yield {"kind": "message", "client": client, "topic": "ä/b", "bytes": 3, "payload": "YWJj"}

    def _traffic(self) -> Iterator[Record]:
        for number in self.random.sample(range(self.clients), 2):
            size = self.random.randint(1, 10_000)
            topic = f"t/{self.random.randrange(4)}"
            yield {"kind": "traffic", "client": f"c{number}", "topic": topic, "delta": size % 17 + 1, "bytes": size}
        if self.random.random() < 0.2:
            yield {"kind": "traffic", "client": OTHERS, "topic": OTHERS, "delta": 5, "bytes": 50}


def line(record: Record) -> bytes:
    """As the sink writes it."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


@define
class Landing:
    """Publishes segments; of each life they count up."""

    folder: Path
    _numbers: dict[tuple[str, str], Iterator[int]] = field(factory=dict)
    _published: Iterator[int] = field(factory=lambda: count(1))

    def publish(self, records: Sequence[Record], extra: Iterable[bytes] = ()) -> Path:
        """Publish records of one life as a segment, and these lines after them."""
        node, boot, t = records[0]["node"], records[0]["boot"], records[0]["t"]
        number = next(self._numbers.setdefault((node, boot), count(1)))
        return self.write(SegmentName(node, boot, number), t, b"".join([*map(line, records), *extra]))

    def write(self, name: SegmentName, t: int, content: bytes) -> Path:
        """Publish a segment of such content."""
        date = datetime.fromtimestamp(t / SECOND_US, UTC).date().isoformat()
        path = published_path(self.folder, name, date)
        path.parent.mkdir(parents=True, exist_ok=True)
        making = open_path(self.folder, name)
        making.write_bytes(content)
        # Readers take segments in the order in which they were written.
        at = START_US // SECOND_US + next(self._published)
        os.utime(making, (at, at))
        making.rename(path)
        return path


def pieces(records: Sequence[Record], random: Random, most: int = 60) -> Iterator[Sequence[Record]]:
    """Cut into what segments could hold."""
    at = 0
    while at < len(records):
        size = random.randint(1, most)
        yield records[at : at + size]
        at += size
