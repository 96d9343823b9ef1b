"""Chooses the member of a shared subscription that gets a message: in turn, at random, sticky, or by a hash."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from attrs import frozen

from kinmqtt_spi import Message, hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.settings import setting

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.services.subscription import Subscriber

REMEMBERED: Final = 100_000
"""Number of pairs of publisher and group whose member the sticky strategy remembers."""


class Strategy(Enum):
    """How a member is chosen."""

    ROUND_ROBIN = "round_robin"
    """The members take turns: the core's default."""
    RANDOM = "random"
    STICKY = "sticky"
    """A publisher's messages go to the same member as long as it is a member."""
    HASH_CLIENT = "hash_client"
    """By the publisher's client id."""
    HASH_TOPIC = "hash_topic"
    """By the topic, so that one topic's messages stay in order."""


@frozen(slots=True)
class ShareStrategySettings:
    """``[plugins.share_strategy]``."""

    default: Strategy = setting(Strategy.ROUND_ROBIN, help="the strategy of groups that are not in groups")
    groups: dict[str, Strategy] = setting(factory=dict, help="group name to strategy")


class ShareStrategy:
    """Implements ``choose_member`` by the settings; abstains for ``round_robin``."""

    def __init__(self, choice: Callable[[Sequence[Subscriber]], Subscriber] = random.choice) -> None:
        """``choice`` picks a member at random."""
        self._choice = choice
        self._settings = ShareStrategySettings()
        self._sticky: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    @hookimpl
    def settings_class(self) -> type[ShareStrategySettings]:
        """Return the class of the settings."""
        return ShareStrategySettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Read the strategies."""
        if context.settings.default is Strategy.ROUND_ROBIN and not context.settings.groups:
            raise NotConfigured("all groups use round_robin")
        self._settings = context.settings

    @hookimpl
    def reload(self, settings: ShareStrategySettings) -> Sequence[str]:
        """Use new strategies."""
        self._settings = settings
        return ()

    @hookimpl
    def choose_member(
        self, group: str, filter: str, candidates: Sequence[Subscriber], message: Message
    ) -> Subscriber | None:
        """Return the member that gets the message."""
        strategy = self._settings.groups.get(group, self._settings.default)
        publisher = message.publisher.client_id
        if strategy is Strategy.RANDOM:
            return self._choice(candidates)
        if strategy is Strategy.STICKY:
            return self._stay((group, filter, publisher), candidates)
        if strategy is Strategy.HASH_CLIENT:
            return _by_hash(publisher, candidates)
        if strategy is Strategy.HASH_TOPIC:
            return _by_hash(message.topic, candidates)
        return None

    def _stay(self, key: tuple[str, str, str], candidates: Sequence[Subscriber]) -> Subscriber:
        held = self._sticky.get(key)
        for candidate in candidates:
            if candidate.client_id == held:
                return candidate
        chosen = self._choice(candidates)
        self._sticky[key] = chosen.client_id
        self._sticky.move_to_end(key)
        if len(self._sticky) > REMEMBERED:
            self._sticky.popitem(last=False)
        return chosen


def _by_hash(key: str, candidates: Sequence[Subscriber]) -> Subscriber:
    """Choose by rendezvous hashing: if a member comes or goes, only the keys of that member move."""

    def weight(candidate: Subscriber) -> bytes:
        text = f"{len(key)}:{key}{candidate.client_id}"
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()

    return max(candidates, key=weight)
