"""Keeps clients from publishing below ``$SYS/``, which is the broker's own voice (section 4.7.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi import Decision, deny, hookimpl
from kinmqtt_spi.services.authorization import Action

if TYPE_CHECKING:
    from kinmqtt_spi.services.authorization import AuthorizationRequest


@hookimpl
def authorize(request: AuthorizationRequest) -> Decision | None:
    """Deny publishing, and leaving a will, on the broker's own topics."""
    if request.action in (Action.PUBLISH, Action.WILL) and request.topic.split("/", 1)[0] == "$SYS":
        return deny(text="$SYS topics are the broker's own")
    return None
