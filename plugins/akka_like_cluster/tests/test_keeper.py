"""How often another broker is dialled that can't be reached, or that refuses this one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import pytest

from akka_harness.virtual_loop import run_virtually
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.keeper import LONGEST_PAUSE_S, Keeper
from kinmqtt_akka_like_cluster.net.opening import DialFailed
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused, Refusal
from kinmqtt_spi.memory.plugin import RecordingLog


async def dials(error: Exception, log: RecordingLog) -> list[float]:
    """Keep a connection that fails for a minute; returns when it was dialled."""
    times: list[float] = []

    async def dial() -> Established:
        times.append(asyncio.get_running_loop().time())
        raise error

    keeper = Keeper("n2", dial, lambda established: None, log)
    keeper.start()
    await asyncio.sleep(60.0)
    keeper.stop()
    await asyncio.sleep(60.0)
    return times


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (lambda: DialFailed("nobody listens"), ["can't connect to n2: nobody listens; it is tried again"]),
        (lambda: DialFailed("n2: refused"), ["can't connect to n2: refused; it is tried again"]),
        (lambda: HandshakeRefused(Refusal.CLUSTER, "another cluster", by_peer=True), []),
        (lambda: ValueError("no cheese"), None),
    ],
)
def test_who_can_not_be_connected_is_not_dialled_in_a_loop(
    error: Callable[[], Exception], said: list[str] | None
) -> None:
    """The pauses double up to the longest one, whatever the reason; it is said once, a refusal where it was made."""
    log = RecordingLog()

    times = run_virtually(dials(error(), log))

    pauses = [round(later - earlier, 6) for earlier, later in pairwise(times)]
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, LONGEST_PAUSE_S]
    assert set(pauses[6:]) == {LONGEST_PAUSE_S}
    assert times[-1] <= 60.0
    assert said is None or log.texts() == said
