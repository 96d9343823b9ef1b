"""Lets everybody in, where the settings or a loopback-only listener allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi import ALLOW, Decision, hookimpl
from kinmqtt_spi.services.authentication import ALLOW_ANONYMOUS

if TYPE_CHECKING:
    from kinmqtt_spi.services.authentication import ConnectRequest


class Anonymous:
    """The authenticator of last resort.

    The composition root decides whether it is active (:mod:`kinmqtt.broker.assembly`): it is where
    ``broker.allow_anonymous`` is true, or where nothing else authenticates and every listener is on loopback.
    """

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision | None:
        """Allow a client for which no other plugin spoke, without the user name that it gives.

        Nobody has verified that, unless it is a certificate's.
        """
        return ALLOW if request.username_verified else ALLOW_ANONYMOUS
