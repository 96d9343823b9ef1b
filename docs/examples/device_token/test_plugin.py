"""The plugin in a whole broker."""

from __future__ import annotations

from typing import Any

import pytest

from kinmqtt_device_token import DeviceToken
from kinmqtt_device_token._plugin import token


KEY = "a key of thirty-two characters!!"


def test_a_device_is_accepted_with_its_own_token(kinmqtt_broker: Any) -> None:
    """With its own token, and no other."""
    broker = kinmqtt_broker(plugins={"device_token": DeviceToken()}, config=f'plugins.device_token.key = "{KEY}"')

    right = broker.connect("pump-1", 5, username="device", password=token(KEY, "pump-1").encode())
    wrong = broker.connect("pump-2", 5, username="device", password=token(KEY, "pump-1").encode())

    assert right.connack.reason == 0
    assert wrong.connack.reason == 0x86


def test_a_key_that_is_too_short_is_a_mistake(kinmqtt_broker: Any) -> None:
    """The broker does not start, and says why."""
    with pytest.raises(Exception, match=r"'device_token' can't be configured: .* 32 characters at least"):
        kinmqtt_broker(plugins={"device_token": DeviceToken()}, config='plugins.device_token.key = "short"')
