"""The plugin."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import attrs
from kinmqtt_spi import ABSTAIN, Decision, ReasonCode, deny, hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.services.authentication import ConnectRequest, Identity, allow_as
from kinmqtt_spi.services.plugin import Context, Requirements
from kinmqtt_spi.settings import setting

DEVICE = "device"
"""The user name of clients that authenticate with a token."""


@attrs.frozen(slots=True)
class DeviceTokenSettings:
    """``[plugins.device_token]``."""

    key: str | None = setting(None, help="the key that tokens are made with, 32 characters at least", secret=True)


class DeviceToken:
    """Accepts devices whose password is the HMAC of their client id, so it needs no list of devices."""

    @hookimpl
    def requirements(self) -> Requirements:
        """Return the requirements: SPI version 2."""
        return Requirements(spi_version=2)

    @hookimpl
    def settings_class(self) -> type[DeviceTokenSettings]:
        """Return the class that the settings section is parsed into."""
        return DeviceTokenSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Apply the settings; without a key the plugin is inactive."""
        self._take(context.settings)
        self._accepted = context.metrics.counter("accepted", "clients")

    @hookimpl
    def reload(self, settings: DeviceTokenSettings) -> Sequence[str]:
        """Apply a new key; if this raises, the old one stays."""
        self._take(settings)
        return ()

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        """Accept or deny a client, or abstain: then other plugins are asked."""
        if request.username != DEVICE:
            return ABSTAIN
        expected = token(self._key, request.client_id).encode()
        # In constant time: the time of an answer must not reveal how much of a guess was right.
        if not hmac.compare_digest(expected, request.password or b""):
            return deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the token is not of this client id")
        self._accepted.value += 1
        return allow_as(Identity(attributes={"kind": "device"}))

    def _take(self, settings: DeviceTokenSettings) -> None:
        if settings.key is None:
            raise NotConfigured("plugins.device_token has no key")
        if len(settings.key) < 32:
            raise ValueError("plugins.device_token.key is too short: 32 characters at least")
        self._key = settings.key


def token(key: str, client_id: str) -> str:
    """Return the token of a client id."""
    return hmac.digest(key.encode(), client_id.encode("utf-8", "surrogatepass"), "sha256").hex()
