"""What the log says of clients that are refused: who they say they are, and which plugin has decided."""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from kinmqtt.hooks.dispatch import HookVerdict
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest

log = Logger("kinmqtt.denials")

LONGEST: Final = 100
"""Characters of a name that stand in the log: whoever is refused must not fill it."""

_DOES: Final = {
    Action.PUBLISH: "publish to",
    Action.SUBSCRIBE: "subscribe to",
    Action.RECEIVE: "receive",
    Action.WILL: "leave a will on",
}


class Denials:
    """Whether each denial of an authorizer gets a line in the log: with `kinmqtt run --log-level debug`."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        self.told = False

    def tell(self, request: AuthorizationRequest, ruling: HookVerdict) -> None:
        """A line at level debug; where nobody wants it nothing is put together."""
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
"""This process's: it has one log."""


def applicant(client_id: str, username: str | None) -> str:
    """Who somebody says to be that has not been let in; never what the password was."""
    return f"client {shown(client_id)}, {user(username)}" if client_id else f"no client id, {user(username)}"


def user(name: str | None) -> str:
    """A user name for the log."""
    return "no user name" if name is None else f"user {shown(name)}"


def shown(text: str) -> str:
    """A text of a client's for the log: in quotes, on one line, and not too long."""
    return repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}…"
