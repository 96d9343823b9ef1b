"""What brokers of a cluster have acknowledged leaves them, whichever of them is killed, and stays away."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from itertools import chain
from pathlib import Path

from root_harness.cluster_redis import Redis
from root_harness.cluster_run import ClusterRun
from root_harness.file_shipper import installed, shipped

SHIPPER = """
[plugins.file_shipper]
file = "{file}"
filter = "crash/#"
delay_s = 0.1
outbox = {{ window = 50 }}
"""
"""It takes some time to ship, so that there is something to leave behind."""


class ShippingRun(ClusterRun):
    """Each broker ships to a file of its own."""

    def __init__(self, folder: Path, redis: tuple[str, int], seed: int) -> None:
        super().__init__(folder, redis, seed)
        path = installed(folder / "site")
        self.files = [folder / f"{node.name}.shipped" for node in self.nodes]
        for node, file in zip(self.nodes, self.files, strict=True):
            node.variables["PYTHONPATH"] = path
            node.more_settings = SHIPPER.format(file=file)

    def says(self, text: str) -> bool:
        """Whether any broker has logged this."""
        return any(text in node.output for node in self.nodes)

    @property
    def has_left(self) -> bool:
        """Whether all that was acknowledged has left, by any of them."""
        out: dict[str, set[int]] = {}
        for topic, numbers in chain.from_iterable(shipped(file).items() for file in self.files if file.exists()):
            out.setdefault(topic, set()).update(numbers)
        return self.notes.have_come_to(out)


def test_a_broker_that_is_killed_for_good_leaves_its_outbox_to_another(tmp_path: Path, redis: Redis) -> None:
    """B12: nothing acknowledged is lost; another broker drains what it had."""
    run = ShippingRun(tmp_path, redis.at, seed=4)

    async def go() -> None:
        async with run.traffic():
            await run.calm()
            for node in run.nodes[:2]:
                await run.end(node, signal.SIGKILL)
                await run.until(run.progress(40))
                await run.until(
                    partial(run.says, f"outbox '$outbox/{node.name}/file_shipper/file' of a node that is gone")
                )
                await run.start(node)
            await run.calm()
            for publisher in run.publishers:
                publisher.stopping = True
            await run.until(lambda: all(publisher.is_idle for publisher in run.publishers))
            await run.until(lambda: run.has_left)

    asyncio.run(go())

    run.check()
