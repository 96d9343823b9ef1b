"""The reference authenticator keeps its contract."""

from __future__ import annotations

import pytest
from broken_authentication import SoundUsers

from kinmqtt_spi.reference.authentication import StaticUsers
from kinmqtt_spi.testing.authentication import AuthenticationCase, AuthenticatorContract
from kinmqtt_spi.testing.build import connect_request


class TestStaticUsers(AuthenticatorContract):
    """Users from a dict."""

    @pytest.fixture
    def authentication(self) -> AuthenticationCase:
        return AuthenticationCase(
            StaticUsers({"alice": b"Secret-1", "bob": b"secret-2"}),
            accepted=[
                connect_request("a", username="alice", password=b"Secret-1"),
                connect_request("b", username="bob", password=b"secret-2"),
            ],
            refused=[
                connect_request("a", username="alice", password=b"secret-2"),
                connect_request("e", username="eve", password=b"Secret-1"),
            ],
            foreign=[connect_request("a"), connect_request("a", certificate_subject="alice")],
        )


class TestSoundUsers(SoundUsers):
    """By password and by an exchange: what the doubles are made from."""
