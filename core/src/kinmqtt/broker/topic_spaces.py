"""Topics that begin with ``$``: who owns them, and what clients may do there, checked before authorizers are asked.

MQTT leaves these topics to the server (section 4.7.2). The first level decides: some spaces belong to the broker,
some are closed until a plugin claims them, plugins may claim others, and the rest are ordinary topics.
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
    """A space that belongs to the broker."""

    allows: frozenset[Action]
    """What clients may do there."""
    text: str
    """The text of a denial."""
    exists: bool = True
    """Whether the space has messages; otherwise its names are not valid topics."""


_OWN: Final = {
    "$SYS": _Space(frozenset({Action.SUBSCRIBE}), "$SYS topics are the broker's own"),
    "$share": _Space(frozenset({Action.SUBSCRIBE}), "$share/ begins a shared subscription, and no topic", False),
    "$plugin": _Space(frozenset(), "below $plugin/ plugins keep values of their own", False),
}

NEED_A_CLAIM: Final = frozenset({"$CONTROL", "$delayed", "$p2p"})
"""Spaces that are closed unless a plugin claims them: a message there is a request for an action."""

_INVALID: Final = {Action.SUBSCRIBE: ReasonCode.TOPIC_FILTER_INVALID}


class ClaimedSpaces:
    """Collects the claims of plugins while they are configured."""

    def __init__(self) -> None:
        self._claims: list[tuple[str, TopicClaim]] = []

    def take(self, plugin: str, claim: TopicClaim) -> None:
        """Add a plugin's claim."""
        self._claims.append((plugin, claim))

    def settled(self, active: Collection[str]) -> TopicSpaces:
        """Return the topic spaces with the claims of the ``active`` plugins.

        Raises :class:`~kinmqtt_spi.errors.AssemblyError` if two claims share topics.
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
    """The rules for topics that begin with ``$``."""

    def __init__(self, claims: Sequence[tuple[str, TopicClaim]] = ()) -> None:
        """``claims`` has the claims of the active plugins, each with its plugin's name."""
        self._claims = tuple(claims)

    def claimed_by(self, plugin: str) -> list[str]:
        """Return the filters of a plugin's claims."""
        return [claim.filter for claimant, claim in self._claims if claimant == plugin]

    def refusal(self, action: Action, name: str) -> Decision | None:
        """Return a denial if clients may not do this with a topic or filter, whatever their rights; else ``None``."""
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
        """Raise ``ValueError`` if a plugin changed the topic of a client's message to one that is not allowed.

        Not allowed are spaces without messages, and topics that another plugin claims: it has not seen the message.
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
