"""Lets in clients that have shown a certificate, where a listener names it: ``authenticators = ["certificate"]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi import ALLOW, Decision, hookimpl
from kinmqtt_spi.services.authentication import ALLOW_ANONYMOUS

if TYPE_CHECKING:
    from kinmqtt_spi.services.authentication import ConnectRequest


@hookimpl
def authenticate(request: ConnectRequest) -> Decision | None:
    """Allow who came with a certificate: TLS has verified it by then. Abstain otherwise.

    The user name is the certificate's where the listener has ``username_from``. Left out, CONNECT's is dropped:
    whoever has a certificate could give any.
    """
    if request.certificate_subject is None:
        return None
    return ALLOW if request.username_verified else ALLOW_ANONYMOUS
