"""What members note of themselves in the arbiter's store, and what newcomers read there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from kinmqtt_akka_like_cluster.noted_members import NOTE_AGAIN_S, NOTE_S, NotedMembers
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.cluster_arbiter import MemoryClusterArbiter
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock

OWN, OTHER = "10.0.0.1:4883", "10.0.0.2:4883"


class Store(MemoryClusterArbiter):
    """An arbiter whose store may be away."""

    is_away = False

    def members(self) -> Sequence[str]:
        self._check()
        return super().members()

    def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> bool:
        self._check()
        return super().note_member(address, limit_s, only_first=only_first)

    def _check(self) -> None:
        if self.is_away:
            raise ServiceUnavailable("the store is away")


class Stage:
    """A process, its arbiter, and the time."""

    def __init__(self) -> None:
        self.clock = TurnableClock()
        self.log = RecordingLog()
        self.arbiter = Store(self.clock.monotonic)
        self.noted = NotedMembers(self.arbiter, OWN, 7, self.clock, self.log)

    async def passes(self, seconds: float) -> None:
        """Let time pass, in small steps."""
        for _ in range(round(seconds / 0.5)):
            self.clock.advance(0.5)
            await idle()

    async def asked(self) -> list[int | None]:
        """Ask whether a cluster may be formed, and return the answer, if there is one."""
        answers: list[int | None] = []
        self.noted.ask_to_form(answers.append)
        await idle()
        return answers


async def idle() -> None:
    """Let all tasks run as far as they can."""
    for _ in range(5):
        await asyncio.sleep(0)


def on_a_stage(play: Callable[[Stage], Awaitable[None]]) -> Stage:
    """Run a test on an event loop; returns what is left."""
    stage = Stage()

    async def run() -> None:
        await play(stage)

    asyncio.run(run())
    return stage


def test_a_member_is_noted_until_it_ends() -> None:
    """It notes its address again before the note ends, and removes it when its process ends in good order."""

    async def play(stage: Stage) -> None:
        stage.noted.begin()
        await stage.passes(3 * NOTE_S)
        assert stage.arbiter.members() == (OWN,)

        await stage.noted.end()
        await stage.passes(2 * NOTE_AGAIN_S)
        assert stage.arbiter.members() == ()

    on_a_stage(play)


def test_a_member_is_noted_again_after_the_store_was_away() -> None:
    """Notes that could not be made are made later, without a word to the operator."""

    async def play(stage: Stage) -> None:
        stage.noted.begin()
        await idle()
        stage.arbiter.is_away = True
        await stage.passes(2 * NOTE_S)
        stage.arbiter.is_away = False
        assert stage.arbiter.members() == ()
        await stage.passes(NOTE_AGAIN_S)
        assert stage.arbiter.members() == (OWN,)
        await stage.noted.end()

    stage = on_a_stage(play)

    assert {line.level for line in stage.log.lines} == {"debug"}


def test_nobody_forms_a_cluster_beside_a_member() -> None:
    """While another member is noted the answer is no, said once with its address; and yes when its note has ended."""

    async def play(stage: Stage) -> None:
        stage.arbiter.note_member(OTHER, NOTE_S)
        assert [await stage.asked() for _ in range(2)] == [[None], [None]]
        assert await stage.noted.others() == [OTHER]
        await stage.passes(NOTE_S)
        assert await stage.asked() == [1]
        assert stage.arbiter.members() == (OWN,)

    stage = on_a_stage(play)

    [line] = stage.log.texts()
    assert f"members of the cluster are known at {OTHER}" in line


def test_its_own_former_life_is_no_other_member() -> None:
    """A process that has crashed and starts again at its address may form the cluster at once."""

    async def play(stage: Stage) -> None:
        stage.arbiter.note_member(OWN, NOTE_S)
        assert await stage.asked() == [1]

    on_a_stage(play)


def test_while_the_store_is_away_nobody_forms_a_cluster() -> None:
    """There is no answer, an error in the log, and nobody else to ask."""

    async def play(stage: Stage) -> None:
        stage.arbiter.is_away = True
        assert await stage.asked() == []
        assert await stage.noted.others() == ()

    stage = on_a_stage(play)

    assert "this broker forms no cluster yet" in stage.log.texts("error")[0]


def test_a_new_cluster_takes_a_term_of_its_own() -> None:
    """A member of an older cluster that stood still, and whose note has ended, asks for this term in vain."""

    async def play(stage: Stage) -> None:
        stage.arbiter.decide(4, 1)
        assert await stage.asked() == [5]
        assert not stage.arbiter.decide(5, 1)

    on_a_stage(play)
