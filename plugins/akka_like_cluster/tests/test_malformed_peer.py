"""A member whose bytes can't be read, on connections of both kinds, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from akka_harness.backends import is_up, two_backends
from kinmqtt_akka_like_cluster.backend import AkkaBackend
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_spi.testing.build import HERE, THERE

NOISE = b"\xff" * 64


def control(backend: AkkaBackend) -> Established | None:
    """The control connection that a backend keeps with HERE."""
    keeper = None if backend.driver is None else backend.driver.links._members.get(HERE.uid)
    return None if keeper is None else keeper.connection


def bulk(backend: AkkaBackend) -> Established | None:
    """The bulk connection of a backend with HERE."""
    transport = backend._peers[HERE.uid].transport
    assert transport is None or isinstance(transport, Established)
    return transport


async def noise(folder: Path, connection_of: Callable[[AkkaBackend], Established | None]) -> list[bool]:
    """Let THERE send noise to HERE three times; returns for each whether HERE can still reach it."""
    reached = []
    async with two_backends(folder, downing="keep_majority", stable_after_s=60.0) as ((here, _), (there, _)):
        for number in range(1, 4):
            while (connection := connection_of(there)) is None:
                await asyncio.sleep(0.01)
            connection.write(NOISE)
            while here.malformed_input < number or connection_of(there) is connection:
                await asyncio.sleep(0.01)
            reached.append(is_up(here, THERE))
    return reached


@pytest.mark.parametrize("connection_of", [control, bulk])
def test_the_third_malformed_message_in_a_minute_makes_a_member_unreachable(
    tmp_path: Path, connection_of: Callable[[AkkaBackend], Established | None]
) -> None:
    """The connection is closed and counted each time, and made anew; the broker goes on."""
    assert asyncio.run(noise(tmp_path, connection_of)) == [True, True, False]
