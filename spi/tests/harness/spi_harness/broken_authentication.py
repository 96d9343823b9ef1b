"""Authenticators that break one promise each."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from fnmatch import fnmatchcase
from typing import Any
from unicodedata import normalize

import pytest
from attrs import evolve

from kinmqtt_spi.markers import hookimpl
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest, Continue, ExchangeStep, Identity, allow_as
from kinmqtt_spi.testing.authentication import AuthenticationCase, AuthenticatorContract, Exchange
from kinmqtt_spi.testing.build import connect_request
from kinmqtt_spi.values import ALLOW, Decision, deny

USERS = {"alice": b"Secret-1", "bob": b"Other:22"}
WRONG = deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown user or wrong password")


class Users:
    """A sound authenticator: by password, and by a method that shows its password step by step."""

    def __init__(self) -> None:
        self.context = BareContext("users")
        self.down = False

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Any:
        if request.username is None:
            return None
        right = self.known(request.username)
        return ALLOW if right is not None and request.password == right else WRONG

    def known(self, username: str) -> bytes | None:
        return USERS.get(username)

    @hookimpl
    def exchange(self, step: ExchangeStep) -> Any:
        if step.method != "TWO-STEPS":
            return None
        if step.state is None:
            if not step.data:
                return WRONG
            return Continue(b"password?", step.data.decode(errors="replace"))
        assert isinstance(step.state, str)
        if USERS.get(step.state) != step.data or step.data is None:
            return WRONG
        return allow_as(Identity(username=step.state))


class Remembering(Users):
    """Remembers whom it has let in, by a key that leaves something out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Hashable] = set()

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Any:
        if request.username is None or request.password is None:
            return super().authenticate(request)
        key = self.key(request.username, request.password)
        if key in self.seen:
            return ALLOW
        answer = super().authenticate(request)
        if answer is ALLOW:
            self.seen.add(key)
        return answer

    def key(self, username: str, password: bytes) -> Hashable:
        return username, password


def exchange(user: bytes, password: bytes) -> Exchange:
    return Exchange("TWO-STEPS", user, lambda data: password if data == b"password?" else None)


class SoundUsers(AuthenticatorContract):
    """``double`` is the plugin, which breaks nothing here."""

    exchanges = True
    double: type[Users] = Users

    @pytest.fixture
    def authentication(self) -> AuthenticationCase:
        plugin = self.double()
        return AuthenticationCase(
            plugin,
            [
                connect_request("a", username="alice", password=USERS["alice"]),
                connect_request("b", username="bob", password=USERS["bob"]),
            ],
            [
                connect_request("a", username="alice", password=b"wrong-pass"),
                connect_request("e", username="eve", password=b"whatever"),
            ],
            [connect_request("x")],
            [exchange(b"alice", USERS["alice"]), exchange(b"bob", USERS["bob"])],
            [exchange(b"alice", b"wrong-pass"), exchange(b"eve", b"whatever")],
            plugin.context,
        )


class TestAUTHENTICATION_01_LetsNobodyIn(SoundUsers):
    class double(Users):
        def known(self, username: str) -> bytes | None:
            return None


class TestAUTHENTICATION_02_SaysSuccess(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            answer = super().authenticate(request)
            return deny(ReasonCode.SUCCESS) if answer is WRONG else answer


class TestAUTHENTICATION_02_LeavesItToOthers(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            answer = super().authenticate(request)
            return None if answer is WRONG else answer


class TestAUTHENTICATION_03_RefusesStrangers(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            return super().authenticate(request) or WRONG


class TestAUTHENTICATION_04_AnswersABoolean(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            answer = super().authenticate(request)
            return answer.allowed if isinstance(answer, Decision) else None


class TestAUTHENTICATION_05_NamesNobody(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            answer = super().authenticate(request)
            return allow_as(Identity(client_id="")) if answer is ALLOW else answer


class TestAUTHENTICATION_05_ExpiresNever(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            answer = super().authenticate(request)
            return allow_as(Identity(expires_at=float("inf"))) if answer is ALLOW else answer


class TestAUTHENTICATION_06_TakesNoneForRight(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            known = request.username in USERS
            return ALLOW if known and request.password is None else super().authenticate(request)


class TestAUTHENTICATION_07_ComparesEightBytes(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            right = USERS.get(request.username or "")
            same = right is not None and request.password is not None and request.password[:8] == right[:8]
            return ALLOW if same else super().authenticate(request)


class TestAUTHENTICATION_07_IgnoresCase(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            right = USERS.get(request.username or "", b"").lower()
            return ALLOW if right and (request.password or b"").lower() == right else super().authenticate(request)


class TestAUTHENTICATION_07_StripsLineEnds(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            password = None if request.password is None else request.password.rstrip(b"\r\n")
            return super().authenticate(evolve(request, password=password))


class TestAUTHENTICATION_07_EndsAtANul(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            password = None if request.password is None else request.password.split(b"\0")[0]
            return super().authenticate(evolve(request, password=password))


class TestAUTHENTICATION_08_SaysWhoIsUnknown(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            if request.username is not None and request.username not in USERS:
                return deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "no such user")
            return super().authenticate(request)


class TestAUTHENTICATION_09_RepeatsThePassword(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            answer = super().authenticate(request)
            if answer is WRONG:
                return deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, f"{request.password!r} is wrong")
            return answer


class TestAUTHENTICATION_09_NamesTheRightOne(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            answer = super().authenticate(request)
            if answer is WRONG and request.username in USERS:
                return deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, f"expected {USERS[request.username].decode()}")
            return answer


class TestAUTHENTICATION_10_LogsThePassword(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            self.context.log.debug("{user} comes", user=request.username, password=request.password)
            return super().authenticate(request)


class TestAUTHENTICATION_11_CantReadBytes(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            (request.password or b"").decode()
            return super().authenticate(request)


class TestAUTHENTICATION_11_PutsNamesIntoPatterns(SoundUsers):
    class double(Users):
        def known(self, username: str) -> bytes | None:
            return b"\xff" if "*" in username or "1=1" in username else USERS.get(username)


class TestAUTHENTICATION_12_LocksOutForEver(SoundUsers):
    class double(Users):
        tries = 0

        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            answer = super().authenticate(request)
            self.tries += answer is WRONG
            return WRONG if self.tries > 3 and answer is ALLOW else answer


class TestAUTHENTICATION_12_KeepsTheFirstAnswer(SoundUsers):
    class double(Users):
        def __init__(self) -> None:
            super().__init__()
            self.answers: dict[str | None, Any] = {}

        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            return self.answers.setdefault(request.username, super().authenticate(request))


class TestAUTHENTICATION_12_RemembersWhoWasRefused(SoundUsers):
    class double(Users):
        def __init__(self) -> None:
            super().__init__()
            self.refused: set[str | None] = set()

        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            answer = WRONG if request.username in self.refused else super().authenticate(request)
            if answer is WRONG:
                self.refused.add(request.username)
            return answer


class TestAUTHENTICATION_13_SharesItsDesk(SoundUsers):
    class double(Users):
        asking: ConnectRequest

        @hookimpl
        async def authenticate(self, request: ConnectRequest) -> Any:
            self.asking = request
            await asyncio.sleep(0)
            return Users().authenticate(self.asking)


class TestAUTHENTICATION_13_SharesItsDeskOnAsyncio(TestAUTHENTICATION_13_SharesItsDesk):
    reactor = "asyncio"


class TestAUTHENTICATION_13_AnswersAllThatWait(SoundUsers):
    class double(Users):
        waiting = 0
        opened = False

        @hookimpl
        async def authenticate(self, request: ConnectRequest) -> Any:
            self.waiting += 1
            answer = Users().authenticate(request)
            self.opened = (self.opened and self.waiting > 1) or answer is ALLOW
            await asyncio.sleep(0)
            self.waiting -= 1
            return ALLOW if answer is WRONG and self.opened and self.waiting else answer


class TestAUTHENTICATION_13_RemembersTheLastAsker(SoundUsers):
    class double(Users):
        asking: ConnectRequest

        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            self.asking = request
            return self._answer()

        async def _answer(self) -> Any:
            return Users().authenticate(self.asking)


class TestAUTHENTICATION_14_OpensWhenItFails(SoundUsers):
    can_fail = True

    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            return ALLOW if self.down else super().authenticate(request)

    def failing(self, case: AuthenticationCase) -> None:
        case.plugin.down = True


class TestAUTHENTICATION_14_AbstainsWhenItFails(SoundUsers):
    can_fail = True

    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            return None if self.down else super().authenticate(request)

    def failing(self, case: AuthenticationCase) -> None:
        case.plugin.down = True


class TestAUTHENTICATION_15_AsksForEver(SoundUsers):
    class double(Users):
        @hookimpl
        def exchange(self, step: ExchangeStep) -> Any:
            answer = super().exchange(step)
            return Continue(b"password?", step.state) if answer is not None and step.state else answer


class TestAUTHENTICATION_16_AbstainsInTheEnd(SoundUsers):
    class double(Users):
        @hookimpl
        def exchange(self, step: ExchangeStep) -> Any:
            answer = super().exchange(step)
            return None if answer is WRONG else answer


class TestAUTHENTICATION_17_RefusesOtherMethods(SoundUsers):
    class double(Users):
        @hookimpl
        def exchange(self, step: ExchangeStep) -> Any:
            return super().exchange(step) or WRONG


class TestAUTHENTICATION_17_LooksAtTheBeginning(SoundUsers):
    class double(Users):
        @hookimpl
        def exchange(self, step: ExchangeStep) -> Any:
            method = step.method[:9]
            return super().exchange(ExchangeStep(method, step.data, step.state, step.request))


class TestAUTHENTICATION_18_RemembersOne(SoundUsers):
    class double(Users):
        user = ""

        @hookimpl
        def exchange(self, step: ExchangeStep) -> Any:
            if step.state is None:
                self.user = (step.data or b"").decode(errors="replace")
                return super().exchange(step)
            return super().exchange(ExchangeStep(step.method, step.data, self.user, step.request))


class TestAUTHENTICATION_18_SharesItsDesk(SoundUsers):
    class double(Users):
        data: bytes | None

        @hookimpl
        async def exchange(self, step: ExchangeStep) -> Any:
            self.data = step.data
            await asyncio.sleep(0)
            return Users().exchange(evolve(step, data=self.data))


class TestAUTHENTICATION_19_TakesNothingForRight(SoundUsers):
    class double(Users):
        @hookimpl
        def exchange(self, step: ExchangeStep) -> Any:
            if step.state is not None and not step.data:
                return allow_as(Identity(username="alice"))
            return super().exchange(step)


class TestAUTHENTICATION_20_LetsNobodyComeAgain(SoundUsers):
    class double(Users):
        @hookimpl
        def exchange(self, step: ExchangeStep) -> Any:
            return WRONG if step.reauthentication else super().exchange(step)


class TestAUTHENTICATION_21_RemembersTheName(SoundUsers):
    class double(Remembering):
        def key(self, username: str, password: bytes) -> Hashable:
            return username


class TestAUTHENTICATION_21_RemembersTheBeginning(SoundUsers):
    class double(Remembering):
        def key(self, username: str, password: bytes) -> Hashable:
            return username, password[:4]


class TestAUTHENTICATION_21_RemembersNone(SoundUsers):
    class double(Users):
        last: str | None = None

        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            if request.username is not None and request.password is None and request.username == self.last:
                return ALLOW
            answer = super().authenticate(request)
            self.last = request.username if answer is ALLOW else self.last
            return answer


class TestAUTHENTICATION_22_RemembersThePassword(SoundUsers):
    class double(Remembering):
        def key(self, username: str, password: bytes) -> Hashable:
            return password


class TestAUTHENTICATION_22_TakesAnybodysPassword(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            known = request.username in USERS and request.password in USERS.values()
            return ALLOW if known else super().authenticate(request)


class TestAUTHENTICATION_23_NamesHaveNoCase(SoundUsers):
    class double(Users):
        def known(self, username: str) -> bytes | None:
            return USERS.get(username.lower())


class TestAUTHENTICATION_23_NamesEndWithBlanks(SoundUsers):
    class double(Users):
        def known(self, username: str) -> bytes | None:
            return USERS.get(username.rstrip(" "))


class TestAUTHENTICATION_23_NamesEndAtANul(SoundUsers):
    class double(Users):
        def known(self, username: str) -> bytes | None:
            return USERS.get(username.split("\0")[0])


class TestAUTHENTICATION_23_NamesArePatterns(SoundUsers):
    class double(Users):
        def known(self, username: str) -> bytes | None:
            return next((USERS[name] for name in USERS if fnmatchcase(name, username)), None)


class TestAUTHENTICATION_23_NamesAreMadeAlike(SoundUsers):
    class double(Users):
        def known(self, username: str) -> bytes | None:
            return USERS.get(normalize("NFKC", username))


class TestAUTHENTICATION_23_RemembersNamesWithoutCase(SoundUsers):
    class double(Remembering):
        def key(self, username: str, password: bytes) -> Hashable:
            return username.casefold(), password


class TestAUTHENTICATION_24_JoinsNameAndPassword(SoundUsers):
    class double(Remembering):
        def key(self, username: str, password: bytes) -> Hashable:
            return username.encode(errors="replace") + password


class TestAUTHENTICATION_24_JoinsPasswordAndName(SoundUsers):
    class double(Remembering):
        def key(self, username: str, password: bytes) -> Hashable:
            return password + username.encode(errors="replace")


class TestAUTHENTICATION_24_JoinsThemByAColon(SoundUsers):
    class double(Remembering):
        def key(self, username: str, password: bytes) -> Hashable:
            return username.encode(errors="replace") + b":" + password


class TestAUTHENTICATION_25_RemembersTheName(SoundUsers):
    class double(Users):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[object] = set()

        @hookimpl
        def exchange(self, step: ExchangeStep) -> Any:
            if step.state is not None and step.state in self.seen:
                return allow_as(Identity(username=str(step.state)))
            answer = super().exchange(step)
            if isinstance(answer, Decision) and answer.allowed:
                self.seen.add(step.state)
            return answer


class TestAUTHENTICATION_25_RemembersTheClient(SoundUsers):
    class double(Users):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[str] = set()

        @hookimpl
        def exchange(self, step: ExchangeStep) -> Any:
            answer = super().exchange(step)
            if answer is WRONG and step.state is not None and step.request.client_id in self.seen:
                return allow_as()
            if isinstance(answer, Decision) and answer.allowed:
                self.seen.add(step.request.client_id)
            return answer


class TestAUTHENTICATION_26_TakesAnyName(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            return ALLOW if request.client_id in ("a", "b") else super().authenticate(request)


class TestAUTHENTICATION_26_LooksAtThePasswordAlone(SoundUsers):
    class double(Users):
        @hookimpl
        def authenticate(self, request: ConnectRequest) -> Any:
            return allow_as() if request.password in USERS.values() else super().authenticate(request)


class _Turn:
    """Something to wait for, for one turn."""

    def __await__(self) -> Any:
        yield


class TestAUTHENTICATION_27_StaysLocked(SoundUsers):
    class double(Users):
        busy = False

        @hookimpl
        async def authenticate(self, request: ConnectRequest) -> Any:
            if self.busy:
                return deny(ReasonCode.SERVER_BUSY, "one after the other")
            self.busy = True
            await _Turn()
            self.busy = False
            return super().authenticate(request)


class TestAUTHENTICATION_27_WillNotEnd(SoundUsers):
    class double(Users):
        @hookimpl
        async def authenticate(self, request: ConnectRequest) -> Any:
            while True:
                try:
                    await _Turn()
                    return super().authenticate(request)
                except asyncio.CancelledError:
                    continue
