"""Session stores that break one promise each."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

import pytest
from attrs import evolve

from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.services.session import (
    Claim,
    Claimant,
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    RemoveSubscriptions,
    ResumeSession,
    SaveSubscriptions,
    SessionPage,
    SessionStore,
    StoredSession,
)
from kinmqtt_spi.testing.build import HERE
from kinmqtt_spi.testing.session import FAR, SessionStoreContract
from kinmqtt_spi.values import NodeIdentity
from spi_harness.homed import HomedSessionStore, Shared


class _Broken(SessionStoreContract):
    """``double`` is the store."""

    double: type[SessionStore]

    @pytest.fixture
    def session_store(self) -> SessionStore:
        return self.double()


class TestSESSION_01_FindsAnOwnerAtOnce(_Broken):
    class double(MemorySessionStore):
        def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
            claim = super().claim(client_id, node, above)
            return evolve(claim, previous_owner=claim.previous_owner or node)


class TestSESSION_02_EpochsStandStill(_Broken):
    class double(MemorySessionStore):
        def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
            return evolve(super().claim(client_id, node, above), epoch=1)


class TestSESSION_03_ForgetsItself(_Broken):
    class double(MemorySessionStore):
        def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
            claim = super().claim(client_id, node, above)
            return evolve(claim, previous_owner=None) if claim.previous_owner == node else claim


class TestSESSION_04_SharesSessions(_Broken):
    class double(MemorySessionStore):
        def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
            claim = super().claim(client_id, node, above)
            held = self.iterate().sessions
            return evolve(claim, session=held[-1][1]) if held and claim.session else claim


class TestSESSION_05_TakesOlderEpochs(_Broken):
    class double(MemorySessionStore):
        def apply(self, writes: Sequence[Any]) -> None:
            for write in writes:
                try:
                    super().apply([write])
                except Fenced:
                    record = self._records[write.client_id]
                    self._handlers[type(write)](record, write)
                    self._settle(write.client_id, record)
                    raise


class TestSESSION_06_DropsTheWholeBatch(_Broken):
    class double(MemorySessionStore):
        def apply(self, writes: Sequence[Any]) -> None:
            fenced = self.take_fenced(list(writes))
            if fenced:
                raise Fenced(fenced)
            super().apply(writes)


class TestSESSION_06_NamesOneOfThem(_Broken):
    class double(MemorySessionStore):
        def apply(self, writes: Sequence[Any]) -> None:
            try:
                super().apply(writes)
            except Fenced as error:
                raise Fenced([min(error.client_ids)]) from None


class TestSESSION_07_GivesBackUnderAnyEpoch(_Broken):
    class double(MemorySessionStore):
        def release(self, client_id: str, epoch: int) -> None:
            record = self._records.get(client_id)
            super().release(client_id, epoch if record is None else record.epoch)


class TestSESSION_08_LosesOptions(_Broken):
    class double(MemorySessionStore):
        def _open(self, record: Any, write: OpenSession) -> None:
            plain = tuple(evolve(each, no_local=False) for each in write.session.subscriptions)
            super()._open(record, evolve(write, session=evolve(write.session, subscriptions=plain)))

        def __init__(self) -> None:
            super().__init__()
            self._handlers = {**self._handlers, OpenSession: self._open}


class TestSESSION_09_KeepsOldSubscriptions(_Broken):
    class double(MemorySessionStore):
        def _open(self, record: Any, write: OpenSession) -> None:
            old = dict(record.subscriptions)
            super()._open(record, write)
            record.subscriptions = {**old, **record.subscriptions}

        def __init__(self) -> None:
            super().__init__()
            self._handlers = {**self._handlers, OpenSession: self._open}


class TestSESSION_10_ForgetsSubscriptionsOnResuming(_Broken):
    class double(MemorySessionStore):
        def _resume(self, record: Any, write: ResumeSession) -> None:
            super()._resume(record, write)
            record.subscriptions = {}

        def __init__(self) -> None:
            super().__init__()
            self._handlers = {**self._handlers, ResumeSession: self._resume}


class TestSESSION_11_TakesSharedForPlain(_Broken):
    class double(MemorySessionStore):
        def _save(self, record: Any, write: SaveSubscriptions) -> None:
            record.subscriptions.update((each.filter, each) for each in write.subscriptions)

        def __init__(self) -> None:
            super().__init__()
            self._handlers = {**self._handlers, SaveSubscriptions: self._save}


class TestSESSION_12_RemovesNothing(_Broken):
    class double(MemorySessionStore):
        def __init__(self) -> None:
            super().__init__()
            self._handlers = {**self._handlers, RemoveSubscriptions: lambda record, write: None}


class TestSESSION_13_LeavesTheWill(_Broken):
    class double(MemorySessionStore):
        def __init__(self) -> None:
            super().__init__()
            self._handlers = {**self._handlers, ClearWill: lambda record, write: None}


class TestSESSION_14_LeavesTheOwner(_Broken):
    class double(MemorySessionStore):
        def _release(self, record: Any, write: ReleaseSession) -> None:
            owner = record.owner
            super()._release(record, write)
            record.owner = owner

        def __init__(self) -> None:
            super().__init__()
            self._handlers = {**self._handlers, ReleaseSession: self._release}


class TestSESSION_15_ForgetsTheEpoch(_Broken):
    class double(MemorySessionStore):
        def apply(self, writes: Sequence[Any]) -> None:
            super().apply(writes)
            for write in writes:
                if isinstance(write, DiscardSession):
                    self._past_epochs.pop(write.client_id, None)


class TestSESSION_16_SortsTheBatch(_Broken):
    class double(MemorySessionStore):
        def apply(self, writes: Sequence[Any]) -> None:
            super().apply(sorted(writes, key=lambda write: type(write).__name__))


class TestSESSION_17_ExpiresTooEarly(_Broken):
    class double(MemorySessionStore):
        def expired(self, now: float, limit: int) -> Sequence[tuple[int, StoredSession]]:
            return super().expired(now + 1, limit)


class TestSESSION_17_RemovesWhatItFinds(_Broken):
    class double(MemorySessionStore):
        def expired(self, now: float, limit: int) -> Sequence[tuple[int, StoredSession]]:
            found = super().expired(now, limit)
            self.apply([DiscardSession(stored.client_id, epoch) for epoch, stored in found])
            return found


class TestSESSION_18_FindsNoWills(_Broken):
    class double(MemorySessionStore):
        def due_wills(self, now: float, limit: int) -> Sequence[tuple[int, StoredSession]]:
            return ()


class TestSESSION_19_AnswersEverything(_Broken):
    class double(MemorySessionStore):
        def expired(self, now: float, limit: int) -> Sequence[tuple[int, StoredSession]]:
            return super().expired(now, 1_000_000)


class TestSESSION_20_ExpiresWhoIsBack(_Broken):
    class double(MemorySessionStore):
        def _resume(self, record: Any, write: ResumeSession) -> None:
            left = record.session.expires_at
            super()._resume(record, write)
            record.session = evolve(record.session, expires_at=left)
            record.owner = None

        def __init__(self) -> None:
            super().__init__()
            self._handlers = {**self._handlers, ResumeSession: self._resume}


class TestSESSION_21_PagesByPosition(_Broken):
    class double(MemorySessionStore):
        def iterate(self, cursor: object = None, limit: int = 1000) -> SessionPage:
            whole = super().iterate(None, 1_000_000).sessions
            first = cursor if isinstance(cursor, int) else 0
            more = first + limit < len(whole)
            return SessionPage(whole[first : first + limit], first + limit if more else None)


class TestSESSION_22_EverybodyIsAnOrphan(_Broken):
    class double(MemorySessionStore):
        def owned_by(self, node: NodeIdentity, limit: int) -> Sequence[str]:
            return tuple(stored.client_id for _, stored in self.iterate(None, limit).sessions)


class TestSESSION_23_CountsClaims(_Broken):
    class double(MemorySessionStore):
        def count(self) -> int:
            return len(self._records)


class TestSESSION_24_RefusesWhatItKnows(_Broken):
    class double(MemorySessionStore):
        def apply(self, writes: Sequence[Any]) -> None:
            if any(isinstance(w, OpenSession) and w.client_id in self._by_serial.values() for w in writes):
                raise ServiceUnavailable("the session is there already")
            super().apply(writes)


class TestSESSION_25_AppendsForEver(_Broken):
    class double(MemorySessionStore):
        def _open(self, record: Any, write: OpenSession) -> None:
            old = dict(record.subscriptions)
            super()._open(record, write)
            record.subscriptions |= {f"{number}": each for number, each in enumerate(old.values())}

        def __init__(self) -> None:
            super().__init__()
            self._handlers = {**self._handlers, OpenSession: self._open}


class TestSESSION_26_KeepsTheLastFirst(_Broken):
    class double(MemorySessionStore):
        """Holds what it is handed until it is asked, then begins at the end."""

        def __init__(self) -> None:
            super().__init__()
            self._handed: list[Sequence[Any]] = []

        def apply(self, writes: Sequence[Any]) -> Any:
            self._handed.append(writes)
            return self._done()

        async def _done(self) -> None:
            handed, self._handed = self._handed, []
            for writes in reversed(handed):
                super().apply(writes)


class _Failing(MemorySessionStore):
    down = False


class TestSESSION_27_FailsInSilence(_Broken):
    can_fail = True

    class double(_Failing):
        def apply(self, writes: Sequence[Any]) -> None:
            if not self.down:
                super().apply(writes)

    def failing(self, store: Any) -> Callable[[], object]:
        store.down = True
        return lambda: setattr(store, "down", False)


class TestSESSION_28_ForgetsEverything(_Broken):
    survives_restart = True
    double = MemorySessionStore

    def reopened(self, store: Any, drive: Any) -> Any:
        return MemorySessionStore()


class TestSESSION_29_MixesUpExpiryAndVersion(_Broken):
    class double(MemorySessionStore):
        def _resume(self, record: Any, write: ResumeSession) -> None:
            super()._resume(record, write)
            if record.session is not None and write.expiry_s % 2:
                record.session = evolve(record.session, expiry_s=write.expiry_s + 1)

        def __init__(self) -> None:
            super().__init__()
            self._handlers = {**self._handlers, ResumeSession: self._resume}


class TestSESSION_30_SaysWhatIsConnectedAlone(Shared, _Broken):
    class double(HomedSessionStore):
        def is_elsewhere(self, client_id: str) -> bool:
            return super().is_elsewhere(client_id) and self._records[client_id].owner is not None


class TestSESSION_30_TakesAllForLiving(Shared, _Broken):
    class double(HomedSessionStore):
        def is_elsewhere(self, client_id: str) -> bool:
            return self.homes.get(client_id, HERE) != HERE


class TestSESSION_31_NamesWhatIsOwnedAlone(Shared, _Broken):
    class double(HomedSessionStore):
        def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
            named = super().orphaned(node, limit)
            return tuple(name for name in named if self._records[name].owner is not None)


class TestSESSION_31_NamesWhatLives(Shared, _Broken):
    class double(HomedSessionStore):
        def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
            self.gone.update({FAR} if self.gone else ())
            return super().orphaned(node, limit)


class TestSESSION_32_TellsEverybodyTheSame(Shared, _Broken):
    class double(HomedSessionStore):
        def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
            homes = dict(self.homes)
            named = super().orphaned(node, limit)
            self.homes = homes
            return named


class TestSESSION_32_KnowsNoLimit(Shared, _Broken):
    class double(HomedSessionStore):
        def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
            return super().orphaned(node, 1000)


class TestSESSION_33_NamesOnce(Shared, _Broken):
    class double(HomedSessionStore):
        def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
            before = set(self.handed)
            return tuple(name for name in super().orphaned(node, limit) if name not in before)


class TestSESSION_34_HandsOverForGood(Shared, _Broken):
    class double(HomedSessionStore):
        def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
            others = {name for name, its in self.handed.items() if its != node}
            return tuple(name for name in super().orphaned(node, limit) if name not in others)


class TestSESSION_35_ClaimsWhateverHasHappened(Shared, _Broken):
    class double(HomedSessionStore):
        def adopt(self, client_id: str, node: NodeIdentity) -> Claim | None:
            return self.claim(client_id, node)


class TestSESSION_35_ClaimsFromItself(Shared, _Broken):
    class double(HomedSessionStore):
        def adopt(self, client_id: str, node: NodeIdentity) -> Claim | None:
            return self.claim(client_id, node) if self.homes[client_id] == node else None


class TestSESSION_36_TellsNobody(Shared, _Broken):
    class double(HomedSessionStore):
        def on_taken_over(self, call: Callable[[str, int], object]) -> None:
            pass


class TestSESSION_36_TellsOfEveryClaim(Shared, _Broken):
    class double(HomedSessionStore):
        def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
            held = self.held.get(client_id)
            if node == HERE and held is not None:
                self.taken(client_id, held)
            return super().claim(client_id, node, above)


class TestSESSION_36_TellsTheNewEpoch(Shared, _Broken):
    class double(HomedSessionStore):
        def on_taken_over(self, call: Callable[[str, int], object]) -> None:
            super().on_taken_over(lambda client_id, epoch: call(client_id, epoch + 1))


class TestSESSION_37_AsksNobody(_Broken):
    class double(MemorySessionStore):
        def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0) -> Claim | None:
            return self.claim(client_id, node)


class TestSESSION_37_ClaimsBeforeItLooks(_Broken):
    class double(MemorySessionStore):
        def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0) -> Claim | None:
            claim = self.claim(client_id, node)
            return claim if claim.session is None or claimant.may_use(claim.session) else None


class TestSESSION_37_BelievesConnect(_Broken):
    class double(MemorySessionStore):
        def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0) -> Any:
            named = claimant if claimant.username is not None else Claimant(claimant.said)
            return super().claim_for(client_id, node, named, above)


class TestSESSION_37_TakesNobodyForEverybody(_Broken):
    class double(MemorySessionStore):
        def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0) -> Any:
            stored = next((its for _, its in self.iterate().sessions if its.client_id == client_id), None)
            if stored is not None and stored.username is None:
                return self.claim(client_id, node)
            return super().claim_for(client_id, node, claimant, above)


class TestSESSION_38_LooksAtStoredSessionsAlone(_Broken):
    class double(MemorySessionStore):
        def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0) -> Any:
            if all(its.client_id != client_id for _, its in self.iterate().sessions):
                return self.claim(client_id, node)
            return super().claim_for(client_id, node, claimant, above)


class TestSESSION_38_NeverForgetsWho(_Broken):
    class double(MemorySessionStore):
        def __init__(self) -> None:
            super().__init__()
            self.users: dict[str, str | None] = {}

        def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0) -> Any:
            if self.users.setdefault(client_id, claimant.username) != claimant.username:
                return None
            return super().claim_for(client_id, node, claimant, above)


class TestSESSION_39_HoldsForTheDead(Shared, _Broken):
    class double(HomedSessionStore):
        def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0) -> Any:
            return MemorySessionStore.claim_for(self, client_id, node, claimant)


class TestSESSION_39_GivesAwayWhatTheDeadHeld(Shared, _Broken):
    class double(HomedSessionStore):
        def claim_for(self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0) -> Any:
            if self.homes.get(client_id) in self.gone:
                return self.claim(client_id, node)
            return super().claim_for(client_id, node, claimant, above)


class TestSESSION_40_ForgetsThatItIsUnverified(_Broken):
    class double(MemorySessionStore):
        def apply(self, writes: Sequence[Any]) -> None:
            super().apply([self._verified(write) for write in writes])

        def _verified(self, write: Any) -> Any:
            if not isinstance(write, OpenSession):
                return write
            return evolve(write, session=evolve(write.session, username_unverified=False))


class TestSESSION_40_NeverForgetsThatItWas(_Broken):
    class double(MemorySessionStore):
        def apply(self, writes: Sequence[Any]) -> None:
            super().apply(
                [
                    evolve(write, username="ha", username_unverified=True)
                    if isinstance(write, ResumeSession)
                    else write
                    for write in writes
                ]
            )


class TestSESSION_41_KnowsItsOwnEpochsOnly(_Broken):
    class double(MemorySessionStore):
        def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
            return super().claim(client_id, node)


class TestSESSION_42_BuriesNobody(Shared, _Broken):
    class double(HomedSessionStore):
        def bury(self, node: NodeIdentity) -> None:
            pass


class TestSESSION_43_TakesAllForAlive(Shared, _Broken):
    class double(HomedSessionStore):
        def living(self, uids: Set[int]) -> Set[int]:
            return uids


class TestSESSION_44_LetsTheDeadClaim(Shared, _Broken):
    class double(HomedSessionStore):
        def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
            gone, self.gone = self.gone, set()
            try:
                return super().claim(client_id, node, above)
            finally:
                self.gone = gone


class TestSESSION_45_TakesClaimsForSessions(Shared, _Broken):
    class double(HomedSessionStore):
        def is_stored(self, client_id: str) -> bool:
            return client_id in self._records
