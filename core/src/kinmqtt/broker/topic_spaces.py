"""Topics that begin with ``$``: whose they are, and what clients may do there before any authorizer is asked.

MQTT leaves these topics to the server (section 4.7.2). The first level decides: some spaces are the broker's own,
some are closed until a plugin claims them, a plugin may claim others, and what is left is a topic as any other.
docs/message.md has the table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.services.plugin import TopicClaim
from kinmqtt_spi.values import Decision, deny


class _Space(NamedTuple):
    """A space of the broker's own."""

    allows: frozenset[Action]
    """What clients may do there."""
    text: str
    """What others are told."""
    exists: bool = True
    """Whether messages are found there at all; otherwise its names are no topics."""


_OWN: Final = {
    "$SYS": _Space(frozenset({Action.SUBSCRIBE}), "$SYS topics are the broker's own"),
    "$share": _Space(frozenset({Action.SUBSCRIBE}), "$share/ begins a shared subscription, and no topic", False),
    "$plugin": _Space(frozenset(), "below $plugin/ plugins keep values of their own", False),
}

NEED_A_CLAIM: Final = frozenset({"$CONTROL", "$delayed", "$p2p"})
"""Spaces that are closed where no plugin claims them: a client that writes there wants something to be done."""

_INVALID: Final = {Action.SUBSCRIBE: ReasonCode.TOPIC_FILTER_INVALID}


class Claims:
    """What the plugins claim as they are configured."""

    def __init__(self) -> None:
        self._claims: list[tuple[str, TopicClaim]] = []

    def take(self, plugin: str, claim: TopicClaim) -> None:
        """A plugin claims a space."""
        self._claims.append((plugin, claim))

    def settled(self, active: Collection[str]) -> TopicSpaces:
        """The spaces as those plugins have claimed them that are still there.

        Raises :class:`~kinmqtt_spi.errors.AssemblyError` where two claims share topics.
        """
        claims = [(plugin, claim) for plugin, claim in self._claims if plugin in active]
        for position, (plugin, claim) in enumerate(claims):
            for other, earlier in claims[:position]:
                if claim.covers(earlier.filter) or earlier.covers(claim.filter):
                    raise AssemblyError(_clash(other, earlier, plugin, claim))
        return TopicSpaces(claims)


def _clash(one: str, claim: TopicClaim, other: str, its: TopicClaim) -> str:
    if one == other:
        return f"plugin {one!r} claims the same topics twice: {claim.filter} and {its.filter}"
    return (
        f"plugins {one!r} and {other!r} both claim topics: {claim.filter} and {its.filter}; use one of them: "
        f'plugins.disabled = ["{other}"]'
    )


class TopicSpaces:
    """The one rule about topics that begin with ``$``."""

    def __init__(self, claims: Sequence[tuple[str, TopicClaim]] = ()) -> None:
        """``claims`` are those of the active plugins, each with its plugin's name."""
        self._claims = tuple(claims)

    def claimed_by(self, plugin: str) -> list[str]:
        """The filters of a plugin's claims."""
        return [claim.filter for claimant, claim in self._claims if claimant == plugin]

    def refusal(self, action: Action, name: str) -> Decision | None:
        """Why a client may not do this with a topic or filter, whatever its rights; ``None`` where it may."""
        if name[:1] != "$" or action is Action.RECEIVE:
            return None
        first = name.split("/", 1)[0]
        own = _OWN.get(first)
        if own is not None:
            if action in own.allows:
                return None
            reason = ReasonCode.NOT_AUTHORIZED
            return deny(reason if own.exists else _INVALID.get(action, ReasonCode.TOPIC_NAME_INVALID), own.text)
        claimed = False
        for plugin, claim in self._claims:
            if claim.covers(name):
                if action in claim.actions:
                    return None
                return deny(text=f"plugin {plugin} does not let clients {action.value} below {claim.filter}")
            claimed |= action is Action.SUBSCRIBE and claim.lies_within(name)
        if claimed or first in NEED_A_CLAIM:
            return deny(text=f"no plugin claims {'all of ' if claimed else ''}{name[:100]!r}")
        return None

    def check(self, topic: str, came_to: str) -> None:
        """Raise ``ValueError`` for a topic that a plugin gave a client's message, where it can't go.

        Where nobody gets messages; and where another plugin takes what clients send: it saw only what came to its own
        topics.
        """
        if topic[:1] != "$":
            return
        first = topic.split("/", 1)[0]
        own = _OWN.get(first)
        if own is not None:
            if not own.exists:
                raise ValueError(own.text)
            return
        for plugin, claim in self._claims:
            if claim.covers(topic):
                if not claim.covers(came_to):
                    raise ValueError(
                        f"plugin {plugin} takes what clients send to {claim.filter}, and has not seen it"
                    )
                return
        if first in NEED_A_CLAIM:
            raise ValueError(f"no plugin claims {topic[:100]!r}")
