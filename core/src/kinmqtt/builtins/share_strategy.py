"""Which member of a shared subscription gets a message: by turns, at random, always the same, or by a hash."""

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
"""Publishers and groups whose member a sticky strategy remembers."""


class Strategy(Enum):
    """How a member is chosen."""

    ROUND_ROBIN = "round_robin"
    """The members take turns: what the core does by itself."""
    RANDOM = "random"
    STICKY = "sticky"
    """A publisher keeps its member as long as that is there."""
    HASH_CLIENT = "hash_client"
    """By the publisher's client id."""
    HASH_TOPIC = "hash_topic"
    """By the topic, so that one topic's messages stay in order."""


@frozen(slots=True)
class ShareStrategySettings:
    """``[plugins.share_strategy]``."""

    default: Strategy = setting(Strategy.ROUND_ROBIN, help="the strategy of every group that has none of its own")
    groups: dict[str, Strategy] = setting(factory=dict, help="group name to strategy")


class ShareStrategy:
    """Answers ``choose_member`` by the settings; abstains for ``round_robin``."""

    def __init__(self, choice: Callable[[Sequence[Subscriber]], Subscriber] = random.choice) -> None:
        """``choice`` picks one at random."""
        self._choice = choice
        self._settings = ShareStrategySettings()
        self._sticky: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    @hookimpl
    def settings_class(self) -> type[ShareStrategySettings]:
        """The strategies."""
        return ShareStrategySettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the strategies."""
        if context.settings.default is Strategy.ROUND_ROBIN and not context.settings.groups:
            raise NotConfigured("every group goes by turns")
        self._settings = context.settings

    @hookimpl
    def reload(self, settings: ShareStrategySettings) -> Sequence[str]:
        """Take new strategies."""
        self._settings = settings
        return ()

    @hookimpl
    def choose_member(
        self, group: str, filter: str, candidates: Sequence[Subscriber], message: Message
    ) -> Subscriber | None:
        """The member that gets the message."""
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
    """By rendezvous hashing: when a member comes or goes, only what was or becomes its own moves."""

    def weight(candidate: Subscriber) -> bytes:
        text = f"{len(key)}:{key}{candidate.client_id}"
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()

    return max(candidates, key=weight)
