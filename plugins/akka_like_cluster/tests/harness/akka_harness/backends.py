"""Two real backends of one cluster, on the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from akka_harness.loop_clock import LoopClock
from akka_harness.relays import free_port
from kinmqtt_akka_like_cluster.backend import AkkaBackend
from kinmqtt_akka_like_cluster.settings import AkkaSettings
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.cluster import Member, MemberState
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.cluster_base import News
from kinmqtt_spi.values import NodeIdentity

Broker = tuple[AkkaBackend, BareContext]


def is_up(backend: AkkaBackend, node: NodeIdentity) -> bool:
    """Tell whether a backend has a node as UP, and can reach it."""
    return Member(node, MemberState.UP) in backend.members()


def made(folder: Path, node: NodeIdentity, address: str, seed: str, **settings: Any) -> Broker:
    """Return a backend that is not started; the cookie is in the folder."""
    chosen = AkkaSettings(
        listen=address, seeds=(seed,), cookie_file=folder / "cookie", heartbeat_s=0.05, pause_s=20.0, **settings
    )
    context = BareContext("akka_like_cluster", chosen, node=node, clock=LoopClock(asyncio.get_running_loop()))
    return AkkaBackend(context, chosen), context


@asynccontextmanager
async def two_backends(folder: Path, **settings: Any) -> AsyncIterator[tuple[Broker, Broker]]:
    """Start the backends of HERE, which forms the cluster, and of THERE; both see each other UP."""
    cookie = folder / "cookie"
    cookie.write_bytes(b"c" * 32)
    cookie.chmod(0o600)
    seed = f"127.0.0.1:{free_port()}"
    brokers: list[Broker] = []
    try:
        for node, address in ((HERE, seed), (THERE, f"127.0.0.1:{free_port()}")):
            brokers.append(made(folder, node, address, seed, **settings))
            await brokers[-1][0].start(node, News())
            await brokers[-1][0].up()
        async with asyncio.timeout(20.0):
            while not (is_up(brokers[0][0], THERE) and is_up(brokers[1][0], HERE)):
                await asyncio.sleep(0.01)
            yield brokers[0], brokers[1]
    finally:
        for backend, _ in brokers:
            await backend.stop()
