"""Verifies passwords: recently verified ones from a cache, all others in the verification pool."""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from kinmqtt_auth_file.hashes import PasswordHash
from kinmqtt_auth_file.passwords import Passwords
from kinmqtt_auth_file.verification_pool import VerificationPool

if TYPE_CHECKING:
    from kinmqtt_spi.services import metric
    from kinmqtt_spi.services.plugin import Clock


class Verified:
    """A cache of recently verified passwords, so that reconnecting costs little.

    Only right passwords are cached, so wrong ones evict nothing. An entry is a digest of the user, the verified hash
    and the password, under a key of this process.
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
        """The keyed digest of the three, each prefixed with its length, so that different triples never collide."""
        parts = (username.encode(errors="surrogatepass"), str(hash).encode(), password)
        message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return hmac.digest(self._key, message, "sha256")

    def knows(self, digest: bytes) -> bool:
        """Whether the digest was added recently."""
        until = self._until.get(digest)
        return until is not None and self._clock.monotonic() < until

    def add(self, digest: bytes) -> None:
        """Add a digest; evicts the oldest beyond the limit."""
        if not self._entries or not self._keep_s:
            return
        self._until.pop(digest, None)
        self._until[digest] = self._clock.monotonic() + self._keep_s
        while len(self._until) > self._entries:
            self._until.popitem(last=False)

    def set_limits(self, entries: int, keep_s: float) -> None:
        """Change the limits, for later additions."""
        self._entries, self._keep_s = entries, keep_s

    def clear(self) -> None:
        """Forget all digests and the key."""
        self._until.clear()
        self._key = secrets.token_bytes(32)


class Verifier:
    """Verifies users' passwords by the current contents of the file."""

    def __init__(
        self, line: VerificationPool, verified: Verified, passwords: Callable[[], Passwords], hits: metric.Counter
    ) -> None:
        """``hits`` counts the cache hits."""
        self._pool = line
        self._verified = verified
        self._passwords = passwords
        self._hits = hits

    async def is_right(self, username: str, password: bytes, address: str) -> bool:
        """Whether the password is right; an unknown user takes as long as a wrong password.

        Raises :class:`~kinmqtt_auth_file.verification_pool.TooBusy`.
        """
        while True:
            passwords = self._passwords()
            hash = passwords.get(username)
            digest = self._verified.digest(username, hash, password)
            if self._verified.knows(digest):
                self._hits.value += 1
                self._pool.succeeded(address)
                return True
            right = await self._pool.verify(hash, password, address)
            now = self._passwords()
            if username in now.users and now.users[username] != hash:
                continue  # The file has changed meanwhile, so verify again with the new hash.
            if username not in now.users or username not in passwords.users:
                return False
            if right:
                # Compute the digest again, because a reload may have changed the key.
                self._verified.add(self._verified.digest(username, hash, password))
            return right
