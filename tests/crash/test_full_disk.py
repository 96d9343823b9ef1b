"""A data directory on a disk that is full, and has room again: a small tmpfs in a mount namespace of its own."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core_harness.brokers import BrokerProcess
from core_harness.wire import wire
from kinmqtt.mqtt.packets import DisconnectPacket, Puback, Publish
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode
from spi_harness.processes import free_port, needed, wait_until

KEPT: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval=3600)}
SIZE = "2m"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose data directory has two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    port = free_port()
    kinmqtt = [
        sys.executable, "-m", "kinmqtt", "run", "--listen", f"tcp:{port}:interface=127.0.0.1",
        "--data", str(disk / "data"),
    ]  # fmt: skip
    mounted = f"mount -t tmpfs -o size={SIZE} tmpfs {shlex.quote(str(disk))} && exec {shlex.join(kinmqtt)}"
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [needed("unshare", "util-linux"), "--mount", *as_root, "sh", "-c", mounted]
    broker = BrokerProcess(command, port)
    try:
        broker.wait_for_line("listening on ")
        yield broker
    finally:
        broker.end()


def test_a_full_disk_refuses_with_a_reason_and_recovers(broker: BrokerProcess, tmp_path: Path) -> None:
    """Nothing is acknowledged that can't be kept, who asks is told 0x97, and everything acknowledged is there."""
    ballast = Path(f"/proc/{broker.pid}/root{tmp_path}/disk/data/plugins")
    ballast.mkdir()
    (ballast / "ballast").write_bytes(b"x" * 1_200_000)
    with wire(broker.port, "s", **KEPT) as sub:
        sub.subscribe("a", 1)

    acknowledged, reason = _publish_until_refused(broker.port, 0)
    with wire(broker.port) as late:
        refused = late.connect("late", **KEPT)
    with wire(broker.port, "lively") as lively:
        lively.subscribe("b")
        lively.publish("b", b"still here")
        alive = lively.expect(Publish)
    (ballast / "ballast").unlink()
    more: list[int] = []

    def goes_on() -> bool:
        again, _ = _publish_until_refused(broker.port, 10_000 + 100 * len(more), most=10)
        more.extend(again)
        return len(again) == 10

    wait_until(goes_on, "the broker keeps messages again")
    with wire(broker.port) as sub:
        assert sub.connect("s", **KEPT).session_present
        received: list[int] = []
        while not set(more) <= set(received):
            publish = sub.expect(Publish)
            received.append(int(publish.payload[:8]))
            sub.send(Puback(publish.packet_id))

    assert reason is ReasonCode.QUOTA_EXCEEDED
    assert refused.reason is ReasonCode.QUOTA_EXCEEDED
    assert alive.payload == b"still here"
    assert len(acknowledged) > 100
    assert set(acknowledged) | set(more) <= set(received)
    assert received == sorted(received)
    broker.wait_for_line("can't write: database or disk is full")
    broker.wait_for_line("can write again")


def _publish_until_refused(port: int, first: int, most: int = 100_000) -> tuple[list[int], ReasonCode | None]:
    """Numbers that were acknowledged, and why the next was not."""
    acknowledged: list[int] = []
    with wire(port, "p") as pub:
        for number in range(first, first + most):
            pub.publish("a", b"%08d" % number + b"x" * 1000, 1, packet_id=number % 65_535 + 1)
            answer = pub.receive()
            if isinstance(answer, DisconnectPacket):
                return acknowledged, answer.reason
            assert isinstance(answer, Puback)
            acknowledged.append(number)
    return acknowledged, None
