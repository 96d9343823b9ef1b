"""The contract of every authenticator."""

from __future__ import annotations

import pytest
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.authentication import ConnectRequest
from kinmqtt_spi.testing.authentication import AuthenticationCase, AuthenticatorContract
from kinmqtt_spi.testing.build import connect_request

from kinmqtt_device_token import DeviceToken, DeviceTokenSettings
from kinmqtt_device_token._plugin import token

KEY = "a key of thirty-two characters!!"


def device(client_id: str, password: str) -> ConnectRequest:
    """A device with that token."""
    return connect_request(client_id, username="device", password=password.encode())


class TestAuthenticator(AuthenticatorContract):
    """With the tokens of one key."""

    knows_every_name = False
    """It accepts devices, and abstains for other clients."""

    @pytest.fixture
    def authentication(self) -> AuthenticationCase:
        plugin = DeviceToken()
        context = BareContext("device_token", DeviceTokenSettings(key=KEY))
        plugin.configure(context)
        return AuthenticationCase(
            plugin,
            accepted=[device("pump-1", token(KEY, "pump-1")), device("pump-2", token(KEY, "pump-2"))],
            refused=[device("pump-1", token(KEY, "pump-2")), device("pump-1", token("other key", "pump-1"))],
            foreign=[connect_request("ada", username="ada", password=b"secret"), connect_request("nobody")],
            context=context,
        )
