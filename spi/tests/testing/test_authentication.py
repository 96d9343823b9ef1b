"""The reference authenticator keeps its contract."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kinmqtt_spi.markers import hookimpl
from kinmqtt_spi.memory.authentication import StaticUsers
from kinmqtt_spi.services.authentication import ConnectRequest, ExchangeStep
from kinmqtt_spi.testing.authentication import AuthenticationCase, AuthenticatorContract
from kinmqtt_spi.testing.build import connect_request
from spi_harness.broken_authentication import SoundUsers, Users


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


class TestSlowUsers(SoundUsers):
    """The same, answering later in an event loop of asyncio, and out of reach where the suite says so."""

    reactor = "asyncio"
    can_fail = True

    class double(Users):
        @hookimpl
        async def authenticate(self, request: ConnectRequest) -> Any:
            await asyncio.sleep(0)
            if self.down:
                raise ConnectionError("the users are out of reach")
            return super().authenticate(request)

        @hookimpl
        async def exchange(self, step: ExchangeStep) -> Any:
            await asyncio.sleep(0)
            return super().exchange(step)

    def failing(self, case: AuthenticationCase) -> None:
        case.plugin.down = True
