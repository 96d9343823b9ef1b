"""A broker that the others have given up, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

from akka_harness.backends import two_backends
from kinmqtt_akka_like_cluster.backend import AkkaBackend
from kinmqtt_akka_like_cluster.net.established import CLOSE_LIMIT_S, Established
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.values import NodeIdentity

LARGE = bytes(30 << 20)
"""More than sockets buffer."""


def bulk(backend: AkkaBackend, node: NodeIdentity) -> Established:
    """A backend's bulk connection with a node."""
    transport = backend._peers[node.uid].transport
    assert isinstance(transport, Established)
    return transport


async def stop_as_expelled(folder: Path) -> float:
    """Stop a broker that is expelled while another one does not read; returns how long that took, in seconds."""
    async with two_backends(folder, downing="keep_majority", stable_after_s=60.0) as ((here, _), (there, _)):
        bulk(here, THERE)._transport.pause_reading()
        connection = bulk(there, HERE)
        connection.write(LARGE)
        assert connection.buffered_bytes
        assert there.driver is not None
        there.driver.coordinator.stop()  # One that is DOWN says nothing more.
        began = asyncio.get_running_loop().time()
        there.expelled("the others can't reach it")
        await there.stop()
        return asyncio.get_running_loop().time() - began


def test_an_expelled_broker_does_not_wait_for_who_cannot_be_reached(tmp_path: Path) -> None:
    """It starts again as a new member, and nobody needs what is unsent."""
    assert asyncio.run(stop_as_expelled(tmp_path)) < CLOSE_LIMIT_S / 2
