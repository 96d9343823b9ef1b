"""Arbiters that break one promise each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.cluster_arbiter import MemoryClusterArbiter
from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter
from kinmqtt_spi.testing.cluster_arbiter import LAST_SIDE, ClusterArbiterContract
from kinmqtt_spi.testing.cluster_base import Late
from kinmqtt_spi.testing.driving import Driver


class ArbiterStore(MemoryClusterArbiter):
    """A store that may fail, and outlives the processes of nodes."""

    is_away = False

    def term(self) -> Any:
        self._check()
        return super().term()

    def decide(self, term: int, side: int) -> Any:
        self._check()
        return super().decide(term, side)

    def members(self) -> Any:
        self._check()
        return super().members()

    def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
        self._check()
        return super().note_member(address, limit_s, only_first=only_first)

    def forget_member(self, address: str) -> Any:
        self._check()
        return super().forget_member(address)

    def _check(self) -> None:
        if self.is_away:
            raise ServiceUnavailable("the store is away")


class SoundArbiter(ClusterArbiterContract):
    """``double`` is the arbiter of all nodes, which breaks nothing here."""

    can_fail = survives_restart = True
    double: type[ArbiterStore] = ArbiterStore

    @pytest.fixture
    def cluster_arbiter(self) -> ClusterArbiter:
        return self.double()

    def failing(self, cluster_arbiter: Any) -> Callable[[], object]:
        cluster_arbiter.is_away = True
        return lambda: setattr(cluster_arbiter, "is_away", False)

    def reopened(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> ClusterArbiter:
        return cluster_arbiter


class TestARBITER_01_BeginsAtOne(SoundArbiter):
    class double(ArbiterStore):
        def term(self) -> Any:
            return max(super().term(), 1)


class TestARBITER_02_RefusesTheFirst(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            is_later = term > self._term
            return super().decide(term, side) and not is_later


class TestARBITER_02_AnswersTheSide(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return super().decide(term, side) and side


class TestARBITER_02_ForgetsTheTerm(SoundArbiter):
    class double(ArbiterStore):
        def term(self) -> Any:
            return max(super().term() - 1, 0)


class TestARBITER_03_GoesToTheLast(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            if term == self._term:
                self._side = side
            return super().decide(term, side)


class TestARBITER_03_GivesInToWhoInsists(SoundArbiter):
    class double(ArbiterStore):
        refusals = 0

        def decide(self, term: int, side: int) -> Any:
            has_it = super().decide(term, side)
            self.refusals += not has_it
            return has_it or self.refusals > 2


class TestARBITER_03_IsLostByAQuarrel(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            has_it = super().decide(term, side)
            if not has_it:
                self._side = -1
            return has_it


class TestARBITER_04_IsGivenOnce(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return term > self._term and super().decide(term, side)


class TestARBITER_04_CountsEachQuestion(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            if (term, side) == (self._term, self._side):
                self._term += 1
                return True
            return super().decide(term, side)


class TestARBITER_05_LooksFirst(SoundArbiter):
    class double(ArbiterStore):
        async def decide(self, term: int, side: int) -> bool:  # type: ignore[override]
            if term <= self._term:
                return (term, side) == (self._term, self._side)
            await Late(lambda: None)
            self._term, self._side = term, side
            return True


class TestARBITER_05_AnswersForTheLast(SoundArbiter):
    class double(ArbiterStore):
        asked = 0

        async def decide(self, term: int, side: int) -> bool:  # type: ignore[override]
            self.asked = side
            await Late(lambda: None)
            return bool(super().decide(term, self.asked))


class TestARBITER_06_StaysWithTheFirst(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return (self._term == 0 or side == self._side) and super().decide(term, side)


class TestARBITER_06_TakesTurns(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return not (term > self._term > 0 and side == self._side) and super().decide(term, side)


class TestARBITER_06_LeavesNoTermOut(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return term <= self._term + 1 and super().decide(term, side)


class TestARBITER_06_CountsDecisions(SoundArbiter):
    class double(ArbiterStore):
        decisions = 0

        def decide(self, term: int, side: int) -> Any:
            self.decisions += term > self._term
            return super().decide(term, side)

        def term(self) -> Any:
            return self.decisions


class TestARBITER_07_RemembersEachTerm(SoundArbiter):
    class double(ArbiterStore):
        def __init__(self) -> None:
            super().__init__()
            self.decided: dict[int, int] = {}

        def decide(self, term: int, side: int) -> Any:
            if term < self._term and self.decided.get(term) == side:
                return True
            has_it = super().decide(term, side)
            if has_it:
                self.decided[term] = side
            return has_it


class TestARBITER_07_GivesWhatWasLeftOut(SoundArbiter):
    class double(ArbiterStore):
        def __init__(self) -> None:
            super().__init__()
            self.decided: dict[int, int] = {}

        def decide(self, term: int, side: int) -> Any:
            if term >= self._term:
                self.decided.setdefault(term, side)
                return super().decide(term, side)
            return term not in self.decided and self.decided.setdefault(term, side) == side


class TestARBITER_07_GoesBack(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            has_it = super().decide(term, side)
            self._term = min(term, self._term)
            return has_it


class TestARBITER_08_RoundsSides(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return super().decide(term, min(int(float(side)), LAST_SIDE))


class TestARBITER_08_RoundsTerms(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return super().decide(term if term < 1 << 32 else term | 1, side)


class TestARBITER_08_TakesZeroForNobody(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            if term == self._term and not self._side:
                self._side = side
            return super().decide(term, side)


class TestARBITER_09_TakesAnyTerm(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return super().decide(max(term, 1), side)


class TestARBITER_09_TakesAnySide(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return super().decide(term, side & LAST_SIDE)


class TestARBITER_09_DecidesBeforeItLooks(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            self._term = max(self._term, term)
            return super().decide(term, side)


class TestARBITER_10_SaysNo(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return not self.is_away and super().decide(term, side)


class TestARBITER_10_BelievesWhoHasIt(SoundArbiter):
    class double(ArbiterStore):
        def decide(self, term: int, side: int) -> Any:
            return (term, side) == (self._term, self._side) or super().decide(term, side)


class TestARBITER_10_KnowsTheTerm(SoundArbiter):
    class double(ArbiterStore):
        def term(self) -> Any:
            return self._term


class TestARBITER_10_IsFreeAfterwards(SoundArbiter):
    class double(ArbiterStore):
        def _check(self) -> None:
            if self.is_away:
                self._term = 0
            super()._check()


class TestARBITER_11_EndsWithItsProcess(SoundArbiter):
    def reopened(self, cluster_arbiter: ClusterArbiter, drive: Driver) -> ClusterArbiter:
        return self.double()


class TestARBITER_11_ForgetsTheSide(SoundArbiter):
    def reopened(self, cluster_arbiter: Any, drive: Driver) -> ClusterArbiter:
        cluster_arbiter._side = -1
        return cluster_arbiter  # type: ignore[no-any-return]


class TestARBITER_12_GivesInToTheThird(SoundArbiter):
    class double(ArbiterStore):
        questions = 0

        def decide(self, term: int, side: int) -> Any:
            self.questions += 1
            has_it = super().decide(term, side)
            return has_it or (self.questions > 3 and side == 3)


class TestARBITER_12_GoesBackAfterThreeLeaps(SoundArbiter):
    class double(ArbiterStore):
        leaps = 0

        def decide(self, term: int, side: int) -> Any:
            self.leaps += term > self._term + 1
            has_it = super().decide(term, side)
            if self.leaps > 2:
                self._term, self.leaps = self._term - 1, 0
            return has_it


class TestARBITER_10_ForgetsWithoutTheStore(SoundArbiter):
    class double(ArbiterStore):
        def forget_member(self, address: str) -> Any:
            self._ends_s.pop(address, None)


class TestARBITER_10_KnowsTheMembers(SoundArbiter):
    class double(ArbiterStore):
        def members(self) -> Any:
            return tuple(self._ends_s)


class TestARBITER_13_NotesTwice(SoundArbiter):
    class double(ArbiterStore):
        def __init__(self) -> None:
            super().__init__()
            self.noted: list[str] = []

        def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
            self.noted.append(address)
            return super().note_member(address, limit_s, only_first=only_first)

        def members(self) -> Any:
            return [address for address in self.noted if address in super(type(self), self).members()]


class TestARBITER_13_KeepsTheLast(SoundArbiter):
    class double(ArbiterStore):
        def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
            is_noted = super().note_member(address, limit_s, only_first=only_first)
            if is_noted:
                self._ends_s = {address: self._ends_s[address]}
            return is_noted


class TestARBITER_14_ForgetsNobody(SoundArbiter):
    class double(ArbiterStore):
        def forget_member(self, address: str) -> Any:
            self._check()


class TestARBITER_14_ForgetsAll(SoundArbiter):
    class double(ArbiterStore):
        def forget_member(self, address: str) -> Any:
            self._ends_s.clear()


class TestARBITER_14_InsistsOnANote(SoundArbiter):
    class double(ArbiterStore):
        def forget_member(self, address: str) -> Any:
            self._check()
            del self._ends_s[address]


class TestARBITER_15_NeverEnds(SoundArbiter):
    class double(ArbiterStore):
        def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
            return super().note_member(
                address, max(limit_s, 3600.0) if limit_s < 1 else limit_s, only_first=only_first
            )


class TestARBITER_15_LastsAsTheFirst(SoundArbiter):
    class double(ArbiterStore):
        def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
            end_s = self._ends_s.get(address)
            is_noted = super().note_member(address, limit_s, only_first=only_first)
            if end_s is not None and limit_s > 1:
                self._ends_s[address] = end_s
            return is_noted


class TestARBITER_15_StandsInTheWay(SoundArbiter):
    class double(ArbiterStore):
        def __init__(self) -> None:
            super().__init__()
            self.ever: set[str] = set()

        def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
            if only_first and self.ever - {address}:
                return False
            self.ever.add(address)
            return super().note_member(address, limit_s, only_first=only_first)


class TestARBITER_16_LooksFirst(SoundArbiter):
    class double(ArbiterStore):
        async def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> bool:  # type: ignore[override]
            self._check()
            if only_first and set(self.members()) - {address}:
                return False
            await Late(lambda: None)
            return MemoryClusterArbiter.note_member(self, address, limit_s)


class TestARBITER_16_IsFirstOnce(SoundArbiter):
    class double(ArbiterStore):
        def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
            if only_first and self.members():
                return False
            return super().note_member(address, limit_s, only_first=only_first)


class TestARBITER_16_StaysTheFirst(SoundArbiter):
    class double(ArbiterStore):
        def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
            if only_first and address in self.members():
                return True
            return super().note_member(address, limit_s, only_first=only_first)


class TestARBITER_17_TakesAnyTime(SoundArbiter):
    class double(ArbiterStore):
        def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
            return super().note_member(address, limit_s if 0.001 <= limit_s <= 3600 else 1.0, only_first=only_first)


class TestARBITER_17_CutsAddresses(SoundArbiter):
    class double(ArbiterStore):
        def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
            return super().note_member((address or "?")[:512], limit_s, only_first=only_first)


class TestARBITER_17_KnowsAsciiOnly(SoundArbiter):
    class double(ArbiterStore):
        def note_member(self, address: str, limit_s: float, *, only_first: bool = False) -> Any:
            plain = address.encode("ascii", "replace").decode()
            return super().note_member(plain, limit_s, only_first=only_first)
