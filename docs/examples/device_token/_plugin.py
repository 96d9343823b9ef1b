"""The plugin itself."""

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
"""The user name by which a client says that it has a token."""


@attrs.frozen(slots=True)
class DeviceTokenSettings:
    """``[plugins.device_token]``."""

    key: str | None = setting(None, help="the key that tokens are made with, 32 characters at least", secret=True)


class DeviceToken:
    """Lets devices in whose password is the HMAC of their client id: no list of devices has to be kept."""

    @hookimpl
    def requirements(self) -> Requirements:
        """Written for version 1 of the SPI."""
        return Requirements(spi_version=1)

    @hookimpl
    def settings_class(self) -> type[DeviceTokenSettings]:
        """What the section is parsed into."""
        return DeviceTokenSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings; abstain from everything where there is no key."""
        self._take(context.settings)
        self._let_in = context.metrics.counter("let_in", "clients")

    @hookimpl
    def reload(self, settings: DeviceTokenSettings) -> Sequence[str]:
        """Take a new key; where this raises the old one goes on."""
        self._take(settings)
        return ()

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        """Whether the client may come in: ALLOW, DENY, or ABSTAIN for whom others should be asked."""
        if request.username != DEVICE:
            return ABSTAIN
        expected = token(self._key, request.client_id).encode()
        # In constant time: how long an answer takes must not tell how much of a guess was right.
        if not hmac.compare_digest(expected, request.password or b""):
            return deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "the token is not of this client id")
        self._let_in.value += 1
        return allow_as(Identity(attributes={"kind": "device"}))

    def _take(self, settings: DeviceTokenSettings) -> None:
        if settings.key is None:
            raise NotConfigured("plugins.device_token has no key")
        if len(settings.key) < 32:
            raise ValueError("plugins.device_token.key is too short: 32 characters at least")
        self._key = settings.key


def token(key: str, client_id: str) -> str:
    """The token of a client id."""
    return hmac.digest(key.encode(), client_id.encode("utf-8", "surrogatepass"), "sha256").hex()
