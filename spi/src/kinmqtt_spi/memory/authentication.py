"""Users from a dict: for tests, and for setups small enough to name everybody in one place."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

from kinmqtt_spi.markers import hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.values import ABSTAIN, ALLOW, Decision, deny


class StaticUsers:
    """A plugin that knows each user's password; it abstains where no user name is given.

    Passwords are held as digests under a key of this process and compared in constant time. An unknown user
    costs what a known one does, so that the time an answer takes does not tell which names exist.
    """

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._key = secrets.token_bytes(32)
        self._digests = {user: self._digest(password) for user, password in users.items()}
        self._nobody = self._digest(secrets.token_bytes(32))

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        """Let in whoever knows a user's password; a user without one in CONNECT is refused."""
        if request.username is None:
            return ABSTAIN
        # The digests have one length, which compare_digest needs to take the same time for every password.
        expected = self._digests.get(request.username, self._nobody)
        same = hmac.compare_digest(self._digest(request.password or b""), expected)
        if same and request.password is not None:
            return ALLOW
        return deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown user or wrong password")

    def _digest(self, password: bytes) -> bytes:
        return hmac.digest(self._key, password, "sha256")
