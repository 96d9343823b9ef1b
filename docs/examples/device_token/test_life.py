"""The contract of every plugin, whatever its family."""

from __future__ import annotations

import pytest
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract

from kinmqtt_device_token import DeviceToken


class TestLife(PluginContract):
    """From settings to stop."""

    reloads = True
    refuses_settings = True

    @pytest.fixture
    def plugin(self) -> PluginCase:
        return PluginCase(
            DeviceToken,
            section='key = "a key of thirty-two characters!!"',
            changed='key = "another key of thirty characters."',
            refused='key = "short"',
            name="device_token",
        )
