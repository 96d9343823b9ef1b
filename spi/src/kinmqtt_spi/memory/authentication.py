"""Authentication by a dict of users: for tests and for small setups."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

from kinmqtt_spi.markers import hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.values import ABSTAIN, ALLOW, Decision, deny


class StaticUsers:
    """A plugin that checks passwords. It abstains for a client without a user name.

    Passwords are stored as digests under a key of this process and compared in constant time. The check of an unknown
    user takes as long as that of a known one, so that the time of an answer does not reveal which users exist.
    """

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._key = secrets.token_bytes(32)
        self._digests = {user: self._digest(password) for user, password in users.items()}
        self._nobody = self._digest(secrets.token_bytes(32))

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        """Accept a client with the user's password; refuse one with a wrong password or none."""
        if request.username is None:
            return ABSTAIN
        # compare_digest takes constant time only for values of equal length, so digests are compared.
        expected = self._digests.get(request.username, self._nobody)
        same = hmac.compare_digest(self._digest(request.password or b""), expected)
        if same and request.password is not None:
            return ALLOW
        return deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown user or wrong password")

    def _digest(self, password: bytes) -> bytes:
        return hmac.digest(self._key, password, "sha256")
