"""Whether a password is right: what was verified lately, and everything else through the line for the threads."""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from kinmqtt_auth_file.hashes import PasswordHash
from kinmqtt_auth_file.line import Line
from kinmqtt_auth_file.passwords import Passwords

if TYPE_CHECKING:
    from kinmqtt_spi.services import metric
    from kinmqtt_spi.services.plugin import Clock


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
        """Whether it is; an unknown user costs what a wrong password does.

        Raises :class:`~kinmqtt_auth_file.line.TooBusy`.
        """
        while True:
            passwords = self._passwords()
            hash = passwords.get(username)
            digest = self._verified.digest(username, hash, password)
            if self._verified.knows(digest):
                self._hits.value += 1
                self._line.succeeded(address)
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
