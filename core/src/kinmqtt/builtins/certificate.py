"""Accepts clients with a TLS certificate on listeners with ``authenticators = ["certificate"]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi import ALLOW, Decision, hookimpl
from kinmqtt_spi.services.authentication import ALLOW_ANONYMOUS

if TYPE_CHECKING:
    from kinmqtt_spi.services.authentication import ConnectRequest


@hookimpl
def authenticate(request: ConnectRequest) -> Decision | None:
    """Allow a client with a certificate, which TLS has verified; abstain otherwise.

    The user name is the certificate's if the listener has ``username_from``. Otherwise CONNECT's user name is
    dropped, because any holder of a certificate could claim any name.
    """
    if request.certificate_subject is None:
        return None
    return ALLOW if request.username_verified else ALLOW_ANONYMOUS
