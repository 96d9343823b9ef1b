"""The metrics sink in whole brokers: what it costs messages, and what is left of its records after any end."""

from __future__ import annotations

import json
import random
import shlex
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from core_harness.brokers import BrokerProcess, broker_command, running_broker
from kinmqtt.testing import BrokerHarness, HarnessClient
from kinmqtt_metrics import MetricsSink
from kinmqtt_metrics.landing import OPEN, SegmentName, published
from kinmqtt_metrics.segments import Disk
from kinmqtt_metrics.settings import MetricsSettings
from root_harness.smallclient import SmallClient
from spi_harness.processes import free_port, needed, wait_until


def records(landing: Path) -> list[dict[str, Any]]:
    """All published records, in the order of the segments' names; every line must be whole."""
    found: list[dict[str, Any]] = []
    for path in sorted(published(landing), key=lambda path: SegmentName.parse(path.name)):
        content = path.read_bytes()
        assert content.endswith(b"\n"), path
        found += [json.loads(line) for line in content.splitlines()]
    return found


def check_whole(found: list[dict[str, Any]]) -> int:
    """Each life's records are there once and without a gap; answers how many lives there were."""
    lives: dict[str, list[int]] = {}
    for record in found:
        lives.setdefault(record["boot"], []).append(record["seq"])
    for boot, numbers in lives.items():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), boot
    return len(lives)


class Scene(BrokerHarness):
    """A broker in memory with the sink."""

    def __init__(self, landing: Path, disk: Disk | None = None, **settings: Any) -> None:
        self.sink = MetricsSink(disk)
        super().__init__(
            plugins={"metrics": self.sink},
            plugin_settings={"metrics": MetricsSettings(landing=landing, keep_free_bytes=0, **settings)},
            sys_interval_s=10,
        )

    def stop(self) -> None:
        """Stop the broker, and with it the sink."""
        self.result(self.broker.stop())


# What messages pay


def test_messages_pass_as_straight_as_without_it(tmp_path: Path) -> None:
    """Nothing of the sink makes the broker look at a message: those of captured topics alone are seen."""
    scene = Scene(tmp_path, capture=("archive/#",))
    scene.connect("sub").subscribe("#")
    pub = scene.connect("pub")
    for topic in ("plain/a", "archive/a"):
        for _ in range(3):
            pub.publish(topic)

    runtime = scene.broker.runtime
    routes = {route.topic: route for route in pub.connection.routes.values()}  # type: ignore[union-attr]
    scene.stop()
    assert routes["plain/a"].straight
    assert routes["plain/a"].intercept is None
    assert not routes["archive/a"].straight
    assert not runtime.notifies_published and not runtime.notifies_delivered and not runtime.notifies_acknowledged
    assert not runtime.hooks.dropped.active
    assert not runtime.hooks.retained.active and not runtime.hooks.message_unrouted.active
    captured = [record["topic"] for record in records(tmp_path) if record["kind"] == "message"]
    assert captured == ["archive/a"] * 3


def test_the_broker_tells_of_its_traffic_and_its_counters(tmp_path: Path) -> None:
    """What was published is in the traffic, and the deltas of each counter add up to its last value."""
    scene = Scene(tmp_path)
    pub = scene.connect("pub")
    for _ in range(3):
        for _ in range(5):
            pub.publish("a", b"x" * 10, qos=1)
        scene.advance(10)
    scene.stop()

    found = records(tmp_path)
    traffic = [record for record in found if record["kind"] == "traffic"]
    assert {(record["client"], record["topic"]) for record in traffic} == {("pub", "a")}
    assert sum(record["delta"] for record in traffic) == 15
    counters: dict[str, list[dict[str, Any]]] = {}
    for record in found:
        if record["kind"] == "counter":
            counters.setdefault(f"{record['name']} {record.get('labels')}", []).append(record)
    assert counters["messages.received None"][-1]["value"] == 15
    for each in counters.values():
        assert sum(record["delta"] for record in each) == each[-1]["value"]


def _come(scene: Scene, client_id: str) -> HarnessClient:
    peer = scene.connect(client_id).subscribe(f"t/{client_id}")
    # The harness looks at all it knows of after each step.
    scene.peers.clear()
    return peer


class WatchedDisk(Disk):
    """Notes on which threads the disk is asked for something that may take long."""

    def __init__(self) -> None:
        self.threads: Counter[int] = Counter()

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.threads[threading.get_ident()] += 1
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        self.threads[threading.get_ident()] += 1
        super().sync(fd)


def test_a_storm_of_reconnects_is_told_whole(tmp_path: Path) -> None:
    """Ten thousand clients come, subscribe, are lost and come again: no record is dropped, and no call waits."""
    number = 10_000
    disk = WatchedDisk()
    scene = Scene(tmp_path, disk)
    for _ in range(2):
        peers = [_come(scene, f"c{client}") for client in range(number)]
        for peer in peers:
            peer.drop()
    notices_dropped = scene.assembly.metrics.sum("plugin.notices_dropped")
    dropped = scene.assembly.metrics.sum("metrics.dropped")
    scene.stop()

    found = records(tmp_path)
    assert check_whole(found) == 1
    events = Counter(record["name"] for record in found if record["kind"] == "event")
    assert (notices_dropped, dropped) == (0, 0)
    assert events["connected"] == events["subscribed"] == 2 * number
    assert events["disconnected"] == 2 * number
    assert threading.get_ident() not in disk.threads


# Real processes


SETTINGS = """
[broker]
sys_interval_s = 0.2
[plugins.metrics]
landing = "{landing}"
roll_s = 2
roll_bytes = "64 KiB"
keep_free_bytes = {keep_free}
max_waiting_bytes = "{waiting}"
events = ["connected", "disconnected", "subscribed", "dropped", "retained"]
capture = ["t/#"]
"""


def settings_file(folder: Path, landing: Path, keep_free: int = 0, waiting: str = "64 MiB") -> str:
    """A settings file; the option that names it."""
    path = folder / "kinmqtt.toml"
    path.write_text(SETTINGS.format(landing=landing, keep_free=keep_free, waiting=waiting))
    return f"--config={path}"


def test_an_orderly_stop_publishes_everything(tmp_path: Path) -> None:
    """From the first record of that life to the last, the end of connections included."""
    landing = tmp_path / "landing"
    with ExitStack() as stack:
        with running_broker(settings_file(tmp_path, landing)) as broker:
            with SmallClient(broker.port, "a") as client:
                client.publish("t/1", b"x")
            stack.enter_context(SmallClient(broker.port, "b"))

    found = records(landing)
    assert check_whole(found) == 1
    names = [record.get("name") for record in found if record["kind"] == "event"]
    assert (found[0]["name"], found[-1]["name"]) == ("started", "stopped")
    assert names.count("connected") == names.count("disconnected") == 2
    assert not list(landing.glob(f"{OPEN}*"))


def test_killed_at_any_moment_nothing_is_double_and_nothing_is_missing(tmp_path: Path) -> None:
    """Six lives that end under traffic, and one that stops: of each a beginning without a gap, each row once."""
    landing = tmp_path / "landing"
    chance = random.Random(20261121)
    option = settings_file(tmp_path, landing)
    for _ in range(6):
        port = free_port()
        broker = BrokerProcess(broker_command(port, option), port)
        try:
            broker.wait_for_line("listening on ")
            # A life that ends before its first record is written leaves nothing, and would not count below.
            wait_until(lambda: any(path.stat().st_size for path in landing.glob(f"{OPEN}*")), "it writes")
            # Counted, not timed: how far the writing has come by then is as the machine has it.
            for number in range(chance.randrange(5, 60)):
                with SmallClient(port, f"c{number}") as client:
                    for _ in range(chance.randrange(40)):
                        client.publish(f"t/{number}", b"x" * 500)
            wait_until(lambda: any(b'"message"' in segment for segment in opened(landing)), "messages are written")
            with SmallClient(port, "last") as client:
                for _ in range(chance.randrange(200)):
                    client.publish("t/last", b"x" * 500)
            broker.signal(signal.SIGKILL)
            broker.wait()
        finally:
            broker.end()
    with running_broker(option):
        pass

    found = records(landing)
    assert check_whole(found) == 7
    assert not list(landing.glob(f"{OPEN}*"))
    lasts = [list(life)[-1] for _, life in groupby(sorted(found, key=lambda r: (r["boot"], r["seq"])), _boot)]
    assert sum(record.get("name") == "stopped" for record in lasts) == 1
    assert sum(record["kind"] == "message" for record in found) >= 6


def opened(landing: Path) -> Iterator[bytes]:
    """What stands in segments that are being written; one may be published meanwhile."""
    for path in [*landing.glob(f"{OPEN}*"), *published(landing)[-1:]]:
        with suppress(FileNotFoundError):
            yield path.read_bytes()


def _boot(record: dict[str, Any]) -> str:
    boot: str = record["boot"]
    return boot


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[list[str], Path]]:
    """What stands before a command so that the folder is a disk of four megabytes, and the folder."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = f'mount -t tmpfs -o size=4m tmpfs {shlex.quote(str(disk))} && exec "$@"'
    yield [needed("unshare", "util-linux"), "--mount", "--map-root-user", "sh", "-c", mounted, "sh"], disk


@pytest.mark.parametrize("keep_free", [0, 1 << 20], ids=["full", "kept-free"])
def test_a_full_disk_is_told_and_left_alone(
    tmp_path: Path, small_disk: tuple[list[str], Path], keep_free: int
) -> None:
    """Clients notice nothing, the operator is told, and when there is room writing goes on without a gap."""
    before, disk = small_disk
    port = free_port()
    command = broker_command(port, settings_file(tmp_path, disk / "landing", keep_free, "2 MiB"))
    broker = BrokerProcess([*before, *command], port)
    try:
        broker.wait_for_line("listening on ")
        inside = Path(f"/proc/{broker.pid}/root{disk}")
        (inside / "ballast").write_bytes(b"x" * 2_800_000)
        with SmallClient(port, "c") as client:
            until_told = threading.Thread(
                target=broker.wait_for_line, args=("records can't be written: .*(No space|keep_free_bytes)",)
            )
            until_told.start()
            while until_told.is_alive():
                assert client.publish("t/1", b"x" * 500) in (0, 16)
            (inside / "ballast").unlink()
            for path in published(inside / "landing"):
                path.unlink()
            broker.wait_for_line("records are written again")
            assert client.publish("t/last", b"x") in (0, 16)
        landing = inside / "landing"
        wait_until(
            lambda: any("t/last" in path.read_text() for path in published(landing)), "the last message is there"
        )
        found = records(landing)
        numbers = [record["seq"] for record in found]
        broker.tell_to_stop()
        broker.wait()
    finally:
        broker.end()

    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert "Traceback" not in broker.output


def test_a_second_broker_of_the_same_name_says_why_it_does_not_start(tmp_path: Path) -> None:
    """In one sentence, with what to do."""
    option = settings_file(tmp_path, tmp_path / "landing")
    with running_broker(option):
        port = free_port()
        second = BrokerProcess(broker_command(port, option), port)
        try:
            status = second.wait()
        finally:
            second.end()

    assert status not in (0, None)
    assert "plugins.metrics.landing: another broker named" in second.output
    assert "Traceback" not in second.output
