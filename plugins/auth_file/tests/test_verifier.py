"""Verifying passwords: what is remembered, and what an unknown user costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from attrs import evolve, frozen
from twisted.internet.defer import Deferred

from kinmqtt_auth_file.hashes import Kind, PasswordHash
from kinmqtt_auth_file.passwords import Passwords
from kinmqtt_auth_file.verification_pool import VerificationPool
from kinmqtt_auth_file.verifier import Verified, Verifier
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock

WORK: list[str] = []
"""Which hashes were verified, in order."""


@frozen(slots=True)
class Counted(PasswordHash):
    """A hash that is the password itself, and counts."""

    password: bytes
    effort: int = 1

    kind = Kind.SHA512

    def verify(self, password: bytes) -> bool:
        WORK.append("nobody" if self.password == b"\0" else "somebody")
        return password == self.password

    def dummy(self) -> Counted:
        return evolve(self, password=b"\0")

    @property
    def cost(self) -> tuple[object, ...]:
        return (self.effort,)


class Threads(BareContext):
    """A context whose threads do nothing until they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def in_thread(self, call: Callable[[], Any]) -> Awaitable[Any]:
        """Remember the call."""
        answer: Deferred[Any] = Deferred()
        self.calls.append((call, answer))
        return answer

    def finish(self) -> None:
        """Let the oldest call come to its end."""
        call, answer = self.calls.pop(0)
        try:
            result = call()
        except Exception as error:
            answer.errback(error)
        else:
            if not answer.called:
                answer.callback(result)


class Bench:
    """A verifier with its parts, over threads that are told when."""

    def __init__(self, at_once: int = 1, waiting: int = 100, entries: int = 10, keep_s: float = 60.0) -> None:
        WORK.clear()
        self.context = Threads()
        self.clock: TurnableClock = self.context.clock
        self.line = VerificationPool(self.context, at_once, waiting, 0.0)
        self.verified = Verified(self.clock, entries, keep_s)
        self.hits = self.context.metrics.counter("hits", "clients")
        self.passwords = Passwords.of({"ann": Counted(b"a"), "bob": Counted(b"b")})
        self.verifier = Verifier(self.line, self.verified, lambda: self.passwords, self.hits)

    def ask(self, user: str, password: bytes, address: str = "here") -> Deferred[bool]:
        """Ask whether a password is right."""
        return Deferred.fromCoroutine(self.verifier.is_right(user, password, address))

    def answer(self, user: str, password: bytes, address: str = "here") -> bool:
        """Ask, and let the threads come to their end."""
        asked = self.ask(user, password, address)
        while self.context.calls:
            self.context.finish()
        return bool(asked.result)


def test_an_unknown_user_costs_what_a_wrong_password_does() -> None:
    """One verification each, of hashes with the same cost, and each time anew."""
    bench = Bench()

    for _ in range(2):
        assert not bench.answer("ann", b"wrong")
        assert not bench.answer("stranger", b"wrong")

    assert WORK == ["somebody", "nobody"] * 2
    assert bench.passwords.dummy.cost == bench.passwords.users["ann"].cost


def test_an_unknown_user_never_comes_in() -> None:
    """Not even with what would fit nobody's hash."""
    assert not Bench().answer("stranger", b"\0")


def test_a_right_password_is_remembered_for_a_while() -> None:
    """No work is done again until then, and the digest that is kept is not the password's own."""
    bench = Bench(keep_s=60.0)

    assert bench.answer("ann", b"a")
    bench.clock.advance(59.0)
    assert bench.answer("ann", b"a")
    assert len(WORK) == 1
    bench.clock.advance(1.0)
    assert bench.answer("ann", b"a")

    assert len(WORK) == 2
    assert bench.hits.value == 1


def test_what_is_remembered_lets_in_nobody_else() -> None:
    """Another password, another user, and a password that runs on into the name are other digests."""
    bench = Bench()
    bench.answer("ann", b"a")

    assert not bench.answer("ann", b"b")
    assert not bench.answer("bob", b"a")
    assert bench.verified.digest("ab", Counted(b""), b"c") != bench.verified.digest("a", Counted(b""), b"bc")


def test_two_processes_have_different_digests() -> None:
    """The key is made anew in each, and at each reload."""
    one, other = (Verified(TurnableClock(), 10, 60.0) for _ in range(2))
    before = one.digest("ann", Counted(b"a"), b"a")

    assert before != other.digest("ann", Counted(b"a"), b"a")
    one.clear()
    assert before != one.digest("ann", Counted(b"a"), b"a")


def test_wrong_passwords_push_nothing_out() -> None:
    """However many come; right ones push out the oldest."""
    bench = Bench(entries=1)
    bench.answer("ann", b"a")

    for number in range(20):
        bench.answer("ann", str(number).encode())
    WORK.clear()
    assert bench.answer("ann", b"a")
    assert WORK == []

    bench.answer("bob", b"b")
    assert bench.answer("ann", b"a")
    assert len(WORK) == 2
    assert len(bench.verified) == 1


def test_nothing_is_remembered_where_that_is_asked_for() -> None:
    """With 0 entries every CONNECT is verified."""
    bench = Bench(entries=0)

    assert bench.answer("ann", b"a")
    assert bench.answer("ann", b"a")

    assert len(WORK) == 2


@pytest.mark.parametrize(
    ("users", "expected"),
    [({"ann": Counted(b"new")}, False), ({"ann": Counted(b"a", 2)}, True), ({"bob": Counted(b"b")}, False)],
)
def test_what_the_file_says_at_the_end_counts(users: dict[str, PasswordHash], expected: bool) -> None:
    """A user who is changed or removed while the password is verified is judged by the new file."""
    bench = Bench()
    asked = bench.ask("ann", b"a")

    bench.passwords = Passwords.of(users)
    bench.verified.clear()
    while bench.context.calls:
        bench.context.finish()

    assert asked.result is expected
