"""Logs denied clients: the name they claim, and the plugin that decided."""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from kinmqtt.hooks.dispatch import HookVerdict
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest

log = Logger("kinmqtt.denials")

LONGEST: Final = 100
"""Characters of a name in the log, so that a denied client can't fill the log."""

_DOES: Final = {
    Action.PUBLISH: "publish to",
    Action.SUBSCRIBE: "subscribe to",
    Action.RECEIVE: "receive",
    Action.WILL: "leave a will on",
}


class Denials:
    """Logs each denial of an authorizer, with `kinmqtt run --log-level debug`."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        self.told = False

    def tell(self, request: AuthorizationRequest, ruling: HookVerdict) -> None:
        """Log a denial at level debug; if that is off, nothing is formatted."""
        if not self.told:
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


DENIALS: Final = Denials()
"""The only instance of this process, because the process has one log."""


def applicant(client_id: str, username: str | None) -> str:
    """Describe a client that was not accepted by the names it claims, never by its password."""
    return f"client {shown(client_id)}, {user(username)}" if client_id else f"no client id, {user(username)}"


def user(name: str | None) -> str:
    """A user name for the log."""
    return "no user name" if name is None else f"user {shown(name)}"


def shown(text: str) -> str:
    """A client's text for the log: quoted, on one line, and cut to :data:`LONGEST` characters."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}…"
