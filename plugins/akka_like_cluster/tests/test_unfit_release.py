"""A broker of a release that is too far from the cluster's."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attrs import evolve

from akka_harness.backends import is_up, made, two_backends
from akka_harness.relays import free_port
from kinmqtt_akka_like_cluster.net.network_config import NetworkConfig
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.cluster_base import News
from kinmqtt_spi.values import NodeIdentity

NEW = NodeIdentity("new", 3)
WORDS = "the protocol's versions differ: "


async def knocks(folder: Path) -> tuple[list[str], list[str], bool]:
    """Let a broker of versions 2 to 3 ask to join; returns both logs' warnings, and whether the cluster is whole."""
    of = NetworkConfig.of

    def newer(*given: Any) -> NetworkConfig:
        return evolve(of(*given), versions=(2, 3))

    async with two_backends(folder, downing="keep_majority") as ((here, here_context), (there, _)):
        seed = here_context.settings.listen
        new, new_context = made(folder, NEW, f"127.0.0.1:{free_port()}", seed, downing="keep_majority")
        with patch.object(NetworkConfig, "of", newer):
            starting = asyncio.get_running_loop().create_task(new.start(NEW, News()))
            while not (new_context.log.texts("warn") and here_context.log.texts("warn")):
                await asyncio.sleep(0.01)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        await new.stop()
        is_whole = is_up(here, THERE) and is_up(there, HERE) and len(here.members()) == len(there.members()) == 2
        return new_context.log.texts("warn"), here_context.log.texts("warn"), is_whole


def test_a_broker_of_other_versions_is_refused_and_the_cluster_is_untouched(tmp_path: Path) -> None:
    """Both logs name both ranges."""
    new, here, is_whole = asyncio.run(knocks(tmp_path))

    assert WORDS + f"1 to 1 of {HERE.name!r}, 2 to 3 of the other broker" in here[0]
    assert "2 to 3" in new[0] and "1 to 1" in new[0]
    assert is_whole
