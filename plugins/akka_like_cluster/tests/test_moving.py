"""Sessions that a member hands off: outdated ones, and all when it leaves."""

from __future__ import annotations

import asyncio

import pytest

from akka_harness.loop_clock import LoopClock
from akka_harness.virtual_loop import run_virtually
from kinmqtt_akka_like_cluster.register.moving import HANDED_AT_ONCE, RESOLVE_RETRY_S, Moving
from kinmqtt_akka_like_cluster.tasks import Tasks
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import RecordingLog
from kinmqtt_spi.services.cluster import Located
from kinmqtt_spi.values import NodeIdentity

HERE, THERE = NodeIdentity("n1", 1), NodeIdentity("n2", 2)


class Sessions:
    """The sessions of a node, and its claims, which all are granted."""

    def __init__(self, count: int, owner: NodeIdentity | None) -> None:
        self.epochs = {f"c{number}": number + 1 for number in range(count)}
        self.located = Located(owner, 1000)
        self.log = RecordingLog()
        self.tasks = Tasks(self.log)
        self.moving = Moving(HERE, self, self, LoopClock(asyncio.get_running_loop()), self.log, self.tasks)  # type: ignore[arg-type]
        self.errors: list[Exception] = []
        self.takes_s = 1.0
        self.claims = self.most = 0
        self.told: list[tuple[str, int]] = []

    # Claims

    async def claim(self, client_id: str) -> tuple[int, Located]:
        self.claims += 1
        self.most = max(self.most, self.claims)
        await asyncio.sleep(0.0)
        return 1, self.located

    def end(self, number: int) -> None:
        self.claims -= 1

    def register(self, client_id: str, epoch: int) -> None:
        self.told.append((client_id, epoch))

    def announce_moved(self, client_id: str, epoch: int, owner: NodeIdentity) -> None:
        assert owner == THERE

    # The core

    def owned(self) -> list[tuple[str, int]]:
        return list(self.epochs.items())

    def epoch_of(self, client_id: str) -> int | None:
        return self.epochs.get(client_id)

    async def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> None:
        await asyncio.sleep(self.takes_s)
        if self.errors:
            raise self.errors.pop()
        del self.epochs[client_id]


def test_outdated_sessions_are_handed_off_some_at_a_time() -> None:
    """However many are outdated at once, only some claims are under way; each is handed off once."""

    async def run() -> Sessions:
        node = Sessions(1000, THERE)
        for client_id in [*node.epochs, *node.epochs, "none"]:
            node.moving.outdated(client_id)
        await asyncio.sleep(1000 / HANDED_AT_ONCE + 1.0)
        return node

    node = run_virtually(run())

    assert node.most == HANDED_AT_ONCE
    assert node.moving.moved == 1000
    assert node.epochs == {}


@pytest.mark.parametrize("error", [ServiceUnavailable("busy"), RuntimeError("a mistake")])
def test_an_outdated_session_that_can_t_be_handed_off_is_tried_again(error: Exception) -> None:
    """Others go on meanwhile, and one line in a minute says why, whatever it was."""

    async def run() -> tuple[Sessions, int]:
        node = Sessions(20, THERE)
        node.errors = [error] * 10
        for client_id in node.epochs:
            node.moving.outdated(client_id)
        await asyncio.sleep(RESOLVE_RETRY_S - 0.5)
        left = len(node.epochs)
        await asyncio.sleep(RESOLVE_RETRY_S)
        return node, left

    node, left = run_virtually(run())

    assert left == 10
    assert node.epochs == {}
    assert node.claims == 0
    (line,) = node.log.texts("warn")
    assert str(error) in line


def test_an_outdated_session_counts_again_when_the_newer_one_is_gone() -> None:
    """It is registered: the client finds it wherever it connects."""

    async def run() -> Sessions:
        node = Sessions(1, None)
        node.moving.outdated("c0")
        await asyncio.sleep(60.0)
        return node

    node = run_virtually(run())

    assert node.told == [("c0", 1)]
    assert node.claims == 0


@pytest.mark.parametrize(("limit_s", "left"), [(30.0, 0), (4.5, 100 - 4 * HANDED_AT_ONCE)])
def test_a_member_that_leaves_says_how_many_sessions_stay(limit_s: float, left: int) -> None:
    """What there was no time for is told as a warning."""

    async def run() -> Sessions:
        node = Sessions(100, HERE)
        await node.moving.hand_all_over({2: THERE}, limit_s)
        return node

    node = run_virtually(run())

    assert len(node.epochs) == left
    assert node.log.texts("info") == [f"handed {100 - left} sessions off"]
    expected = f"{left} sessions stay on this broker: until it is back their clients begin anew elsewhere"
    assert node.log.texts("warn") == ([expected] if left else [])


def test_a_task_that_fails_is_logged() -> None:
    """Nobody awaits it, so the log says what has failed; a cancelled one is no failure."""
    log = RecordingLog()

    async def fail() -> None:
        raise ValueError("a mistake")

    async def wait() -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        tasks = Tasks(log)
        tasks.spawn(fail(), "counting")
        tasks.spawn(wait(), "waiting")
        await asyncio.sleep(1.0)
        tasks.cancel()
        await asyncio.sleep(1.0)

    run_virtually(run())

    assert log.texts() == ["counting has failed: ValueError: a mistake"]
