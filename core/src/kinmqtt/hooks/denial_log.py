"""Log lines about denied clients: their names and the plugin that decided."""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from kinmqtt.hooks.dispatch import HookVerdict
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest

log = Logger("kinmqtt.denials")

LONGEST: Final = 100
"""Characters of a name that are logged, so that denied clients can't fill the log."""

_DOES: Final = {
    Action.PUBLISH: "publish to",
    Action.SUBSCRIBE: "subscribe to",
    Action.RECEIVE: "receive",
    Action.WILL: "leave a will on",
}


class DenialLogger:
    """Logs each denial of an authorizer at level debug, where enabled: by `kinmqtt run --log-level debug`."""

    __slots__ = ("enabled",)

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled

    def log(self, request: AuthorizationRequest, ruling: HookVerdict) -> None:
        """Log one denial at level debug; while disabled, return before formatting anything."""
        if not self.enabled:
            return
        client, decision = request.client, ruling.decision
        log.debug(
            "client {client} at {address}, {user}, may not {does} {topic}: {text} (0x{code:02X} {reason}, {by})",
            client=shown(client.client_id),
            address=client.address,
            user=user(client.username),
            does=_DOES[request.action],
            topic=shown(request.topic),
            text=decision.text or "denied",
            code=decision.reason,
            reason=decision.reason.name,
            by=ruling.by or "the broker itself",
        )


def applicant(client_id: str, username: str | None) -> str:
    """Returns the names of a client that is not accepted yet, for the log; never the password."""
    return f"client {shown(client_id)}, {user(username)}" if client_id else f"no client id, {user(username)}"


def user(name: str | None) -> str:
    """Returns a user name for the log."""
    return "no user name" if name is None else f"user {shown(name)}"


def shown(text: str) -> str:
    """Returns a client's text for the log: quoted, on one line and cut to :data:`LONGEST` characters."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}…"
