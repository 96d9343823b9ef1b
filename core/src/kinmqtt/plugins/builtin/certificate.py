"""Lets in clients that have shown a certificate, where a listener names it: ``authenticators = ["certificate"]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi import ALLOW, Decision, hookimpl

if TYPE_CHECKING:
    from kinmqtt_spi.services.authentication import ConnectRequest


@hookimpl
def authenticate(request: ConnectRequest) -> Decision | None:
    """Allow who came with a certificate: TLS has verified it by then. Abstain otherwise."""
    return None if request.certificate_subject is None else ALLOW
