"""What the log says of members."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from akka_harness.backends import two_backends
from kinmqtt_akka_like_cluster.member_log import MemberLog
from kinmqtt_akka_like_cluster.pure.effects import WaitingForSeeds
from kinmqtt_spi.memory.plugin import RecordingLog
from kinmqtt_spi.services.cluster import Member, MemberState
from kinmqtt_spi.testing.build import HERE, THERE

HERE_TEXT = f"{HERE.name} ({HERE.uid:016x}, this broker)"
THERE_TEXT = f"{THERE.name} ({THERE.uid:016x})"
ELSEWHERE = "another broker has decided so, and its log says why (downing is keep_majority)"


@pytest.fixture
def log() -> RecordingLog:
    """A log that keeps its lines."""
    return RecordingLog()


def lines(log: RecordingLog) -> list[str]:
    """The lines about members."""
    return [text for text in log.texts() if text.startswith((HERE_TEXT, THERE_TEXT))]


def test_a_whole_life_of_a_member(log: RecordingLog) -> None:
    """Each step is one line with the member's name; EXITING is none, and what has not changed is not said again."""
    said = MemberLog(HERE, log, "keep_majority")

    for state in MemberState:
        if state is not MemberState.DOWN:
            for _ in range(2 if state is not MemberState.REMOVED else 1):
                said.changed(Member(THERE, state, state is not MemberState.REMOVED), None, ())

    assert lines(log) == [
        f"{THERE_TEXT} has joined",
        f"{THERE_TEXT} is up",
        f"{THERE_TEXT} is leaving",
        f"{THERE_TEXT} is removed: it has left",
    ]


@pytest.mark.parametrize(
    ("reason", "said_reason"),
    [("an operator wants it", "an operator wants it"), (None, ELSEWHERE)],
)
def test_a_member_that_gets_lost(log: RecordingLog, reason: str | None, said_reason: str) -> None:
    """Who can't reach it is said, and why it is DOWN, where this broker knows."""
    said = MemberLog(HERE, log, "keep_majority")

    said.changed(Member(THERE, MemberState.UP, True), None, ())
    said.changed(Member(THERE, MemberState.UP, False), None, ["n1", "n3"])
    said.changed(Member(THERE, MemberState.UP, True), None, ())
    said.changed(Member(THERE, MemberState.UP, False), None, ())
    said.changed(Member(THERE, MemberState.DOWN, False), reason, ())
    said.changed(Member(THERE, MemberState.REMOVED, False), None, ())

    assert lines(log) == [
        f"{THERE_TEXT} is up",
        f"{THERE_TEXT} is unreachable: not reached by n1, n3",
        f"{THERE_TEXT} is reachable again",
        f"{THERE_TEXT} is unreachable",
        f"{THERE_TEXT} is down: {said_reason}",
        f"{THERE_TEXT} is removed: it was down",
    ]


@pytest.mark.parametrize(("reason", "said_reason"), [("by keep_majority", "by keep_majority"), (None, ELSEWHERE)])
def test_a_member_that_is_removed_in_the_moment_of_its_end(
    log: RecordingLog, reason: str | None, said_reason: str
) -> None:
    """With two brokers DOWN and REMOVED come together: the log still says that it was down, and why."""
    said = MemberLog(HERE, log, "keep_majority")
    said.changed(Member(THERE, MemberState.UP, False), None, ())

    said.changed(Member(THERE, MemberState.REMOVED, False), reason, ())

    assert lines(log)[-2:] == [f"{THERE_TEXT} is down: {said_reason}", f"{THERE_TEXT} is removed: it was down"]


def test_a_member_that_is_met_unreachable(log: RecordingLog) -> None:
    """A broker that joins while another one is lost says both: that there is one, and that it is lost."""
    MemberLog(HERE, log, "keep_majority").changed(Member(THERE, MemberState.LEAVING, False), None, ["n3"])

    assert lines(log) == [f"{THERE_TEXT} is leaving", f"{THERE_TEXT} is unreachable: not reached by n3"]


async def lives(folder: Path) -> list[str]:
    """Let two brokers meet, mark one DOWN at the other, and return the other's lines."""
    async with two_backends(folder, downing="keep_majority") as ((backend, context), _):
        driver = backend.driver
        assert driver is not None
        while f"{THERE_TEXT} is up" not in lines(context.log):
            await asyncio.sleep(0.01)
        driver.apply(driver.coordinator.down(THERE.uid))
        while f"{THERE_TEXT} is removed: it was down" not in lines(context.log):
            await asyncio.sleep(0.01)
        return lines(context.log)


def test_two_brokers_tell_of_each_other(tmp_path: Path) -> None:
    """The lines of a real broker: it forms a cluster, another one comes, and an operator marks that one DOWN."""
    assert asyncio.run(lives(tmp_path)) == [
        f"{HERE_TEXT} has joined",
        f"{HERE_TEXT} is up",
        f"{THERE_TEXT} has joined",
        f"{THERE_TEXT} is up",
        f"{THERE_TEXT} is down: an operator wants it",
        f"{THERE_TEXT} is removed: it was down",
    ]


async def waits(folder: Path) -> list[str]:
    """What the first seed, and then another broker, say while nobody lets them join."""
    async with two_backends(folder) as brokers:
        for backend, _ in brokers:
            assert backend.driver is not None
            backend.driver._report(WaitingForSeeds((), 30.0, 0))
        return [context.log.texts("warn")[-1] for _, context in brokers]


def test_a_first_seed_that_waits_does_not_ask_for_itself(tmp_path: Path) -> None:
    """The others name it as the one that may be missing; it says why it starts no cluster."""
    first, other = asyncio.run(waits(tmp_path))

    assert "This is the first seed" in first and "does it run?" not in first
    assert other.endswith("Only the first seed starts a cluster alone: does it run?")
