"""Verifying passwords beside the broker's work: a few at a time, in threads, with a line in front that has an end."""

from __future__ import annotations

import hmac
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from attrs import define, field
from twisted.internet.defer import Deferred

from kinmqtt_auth_file.hashes import PasswordHash
from kinmqtt_auth_file.passwords import Passwords

if TYPE_CHECKING:
    from kinmqtt_spi.services import metric
    from kinmqtt_spi.services.plugin import Clock, Context

SHARE_OF_ONE_ADDRESS: Final = 4
"""The part of the line, one in so many, that connections from one address may fill."""


class TooBusy(Exception):
    """So many verifications are waiting that another would not have its turn in time."""


class Verified:
    """Who has shown the right password a short while ago, so that coming again costs little.

    Only right passwords get in, so that wrong ones push nothing out. What is kept is a digest under a key of this
    process: of the user, the hash that was verified, and the password.
    """

    def __init__(self, clock: Clock, entries: int, keep_s: float) -> None:
        self._clock = clock
        self._entries = entries
        self._keep_s = keep_s
        self._key = secrets.token_bytes(32)
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def digest(self, username: str, hash: PasswordHash, password: bytes) -> bytes:
        """What stands for the three, each with its length in front so that no two triples look the same."""
        parts = (username.encode(errors="surrogatepass"), str(hash).encode(), password)
        told = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._key, told, "sha256")

    def knows(self, digest: bytes) -> bool:
        """Whether it was verified lately."""
        until = self._until.get(digest)
        return until is not None and self._clock.monotonic() < until

    def add(self, digest: bytes) -> None:
        """Remember it; the oldest goes where there are too many."""
        if not self._entries or not self._keep_s:
            return
        self._until.pop(digest, None)
        self._until[digest] = self._clock.monotonic() + self._keep_s
        while len(self._until) > self._entries:
            self._until.popitem(last=False)

    def bound(self, entries: int, keep_s: float) -> None:
        """New bounds, for what comes from now on."""
        self._entries, self._keep_s = entries, keep_s

    def clear(self) -> None:
        """Forget all, also the key."""
        self._until.clear()
        self._key = secrets.token_bytes(32)


@define(slots=True, eq=False)
class _Job:
    """One verification that waits or runs."""

    hash: PasswordHash
    password: bytes = field(repr=False)
    address: str
    answer: Deferred[bool]


class Line:
    """Runs so many verifications at once and lets so many wait, those of one address in a part of the line only."""

    def __init__(self, context: Context, at_once: int, waiting: int) -> None:
        self._context = context
        self._at_once = at_once
        self._waiting = waiting
        self._running = 0
        self._jobs: deque[_Job] = deque()
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._jobs)

    def resize(self, at_once: int, waiting: int) -> None:
        """New bounds; those who wait already go on waiting."""
        self._at_once, self._waiting = at_once, waiting
        self._next()

    def verify(self, hash: PasswordHash, password: bytes, address: str) -> Deferred[bool]:
        """Whether it is the password; raises :class:`TooBusy` where the line is full."""
        if self._running >= self._at_once:
            share = max(self._waiting // SHARE_OF_ONE_ADDRESS, 1)
            if len(self._jobs) >= self._waiting or self._of_address[address] >= share:
                raise TooBusy(f"{len(self._jobs)} verifications are waiting")
        job = _Job(hash, password, address, Deferred(self._give_up))
        self._jobs.append(job)
        self._of_address[address] += 1
        self._next()
        return job.answer

    def _give_up(self, answer: Deferred[bool]) -> None:
        """Nobody waits for the answer any more. What runs is a thread's and goes on to its end."""
        for job in self._jobs:
            if job.answer is answer:
                self._jobs.remove(job)
                self._left(job)
                return

    def _left(self, job: _Job) -> None:
        self._of_address[job.address] -= 1
        if not self._of_address[job.address]:
            del self._of_address[job.address]

    def _next(self) -> None:
        while self._jobs and self._running < self._at_once:
            job = self._jobs.popleft()
            self._left(job)
            self._running += 1
            Deferred.fromCoroutine(self._run(job))

    async def _run(self, job: _Job) -> None:
        """One verification; its place is free when the thread is done, not when somebody stopped waiting."""
        hash, password = job.hash, job.password
        right, error = False, None
        try:
            right = await self._context.in_thread(lambda: hash.verify(password))
        except Exception as failure:
            error = failure
        self._running -= 1
        if not job.answer.called:
            if error is None:
                job.answer.callback(right)
            else:
                job.answer.errback(error)
        self._next()


class Verifier:
    """Whether a user's password is right, by whatever the file says at the end."""

    def __init__(
        self, line: Line, verified: Verified, passwords: Callable[[], Passwords], hits: metric.Counter
    ) -> None:
        """``hits`` counts the answers that were found among those verified lately."""
        self._line = line
        self._verified = verified
        self._passwords = passwords
        self._hits = hits

    async def is_right(self, username: str, password: bytes, address: str) -> bool:
        """Whether it is; an unknown user costs what a wrong password does. Raises :class:`TooBusy`."""
        while True:
            passwords = self._passwords()
            hash = passwords.get(username)
            digest = self._verified.digest(username, hash, password)
            if self._verified.knows(digest):
                self._hits.value += 1
                return True
            right = await self._line.verify(hash, password, address)
            now = self._passwords()
            if username in now.users and now.users[username] != hash:
                continue  # The file has changed meanwhile: what counts is what it says now.
            if username not in now.users or username not in passwords.users:
                return False
            if right:
                # Anew: a reload has changed the key.
                self._verified.add(self._verified.digest(username, hash, password))
            return right
