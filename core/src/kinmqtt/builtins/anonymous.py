"""Accepts clients without credentials, if the settings or loopback-only listeners allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi import ALLOW, Decision, hookimpl
from kinmqtt_spi.services.authentication import ALLOW_ANONYMOUS

if TYPE_CHECKING:
    from kinmqtt_spi.services.authentication import ConnectRequest


class Anonymous:
    """The authenticator of last resort.

    :mod:`kinmqtt.broker.assembly` activates it if ``broker.allow_anonymous`` is true, or if there is no other
    authenticator and all listeners are on loopback.
    """

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision | None:
        """Allow a client that no other plugin decided on, and drop its user name.

        Nobody has verified the name, unless it comes from a certificate.
        """
        return ALLOW if request.username_verified else ALLOW_ANONYMOUS
