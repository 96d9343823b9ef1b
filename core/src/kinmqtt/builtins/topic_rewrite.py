"""Other names for topics: what clients publish and subscribe to, rewritten by the rules of the settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve, frozen

from kinmqtt_spi import Message, Reject, Subscription, hookimpl
from kinmqtt_spi.errors import NotConfigured
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.settings import setting
from kinmqtt_spi.templates import fill_in

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.values import Client

_REFERENCE = re.compile(r"\$(\d+)")
_FROM_CLIENTS = re.compile(r"\$(\d+|\{(?:clientid|username)\})")
"""What stands in a target for a part of the client's topic, or for its name."""
_NO_TOPICS = ("$share", "$plugin")

LONGEST_TOLD = 100
"""Characters of a client's words that stand in the log."""


def _check_pattern(instance: object, attribute: Any, value: str) -> None:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression: {error}") from None


@frozen(slots=True)
class RewriteSettings:
    """One rule."""

    pattern: str = setting(
        help="a regular expression that the whole topic or filter must fit", validator=_check_pattern
    )
    target: str = setting(help="what it becomes; $1 is the first group, ${clientid} and ${username} are filled in")
    action: Literal["all", "publish", "subscribe"] = setting("all", help="what is rewritten")

    def __attrs_post_init__(self) -> None:
        groups = re.compile(self.pattern).groups
        for reference in _REFERENCE.findall(self.target):
            if int(reference) > groups:
                raise ValueError(f"target has ${reference}, and the pattern only {groups} groups")
        _check_beginning(self.target)


def _check_beginning(target: str) -> None:
    """Raise ``ValueError`` for a target in whose first level clients would complete a name that begins with ``$``."""
    first = target.split("/", 1)[0]
    if not first.startswith("$") or _FROM_CLIENTS.match(target):
        return
    if _FROM_CLIENTS.search(first):
        raise ValueError(
            f"target {target!r} begins with $, and clients would choose what follows: write its first level in full"
        )
    if first in _NO_TOPICS:
        raise ValueError(f"target {target!r} begins with {first}/, where no message goes and no filter leads")


@frozen(slots=True)
class TopicRewriteSettings:
    """``[plugins.topic_rewrite]``."""

    rules: tuple[RewriteSettings, ...] = setting((), help="the rules; the first that fits is used")


@frozen(slots=True)
class _Rule:
    """One rule, ready for use."""

    pattern: re.Pattern[str]
    target: str

    @property
    def may_begin_with_dollar(self) -> bool:
        """Whether the operator has written a topic that begins with ``$``, rather than that a client makes one."""
        return self.target.startswith("$") and _FROM_CLIENTS.match(self.target) is None


class _Refused(Exception):
    """A rule made a topic of the broker's out of what a client said."""


class TopicRewrite:
    """Rewrites after authorization: rights are asked for the name that the client used.

    So a client must not get into the topics that begin with ``$`` in this way: only a rule that says so itself leads
    there. What another makes there is refused, not left as it was: the rule may be what keeps clients apart.
    """

    def __init__(self) -> None:
        self._publish: list[_Rule] = []
        self._subscribe: list[_Rule] = []
        self._context: Context | None = None
        self._told: set[str] = set()
        """The patterns of rules of which the log has said that they made such a topic."""

    @hookimpl
    def settings_class(self) -> type[TopicRewriteSettings]:
        """The rules."""
        return TopicRewriteSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the rules."""
        if not context.settings.rules:
            raise NotConfigured("there are no rules")
        self._context = context
        self._take(context.settings)

    @hookimpl
    def reload(self, settings: TopicRewriteSettings) -> Sequence[str]:
        """Take new rules; subscriptions that were made keep their filters."""
        self._take(settings)
        return ()

    @hookimpl
    def publish_received(self, client: Client, message: Message) -> Message | Reject | None:
        """Rewrite the topic of a message."""
        try:
            topic = self._rewritten(self._publish, message.topic, client)
        except _Refused as refused:
            return Reject(ReasonCode.TOPIC_NAME_INVALID, str(refused))
        if topic is None or topic == message.topic:
            return None
        if not topic or "+" in topic or "#" in topic or "\0" in topic:
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "the rewritten topic is no topic name")
        return message.replace(topic=topic)

    @hookimpl
    def subscribing(self, client: Client, subscription: Subscription) -> Subscription | Reject | None:
        """Rewrite the filter of a subscription."""
        try:
            filter = self._rewritten(self._subscribe, subscription.filter, client)
        except _Refused as refused:
            return Reject(ReasonCode.TOPIC_FILTER_INVALID, str(refused))
        return None if filter is None else evolve(subscription, filter=filter)

    @hookimpl
    def unsubscribing(self, client: Client, filter: str) -> str | None:
        """Rewrite a filter that is given up, so that it is the one that was made."""
        prefix = ""
        if filter.startswith("$share/"):
            _, group, filter = filter.split("/", 2)
            prefix = f"$share/{group}/"
        try:
            rewritten = self._rewritten(self._subscribe, filter, client)
        except _Refused:
            return None  # Nobody has subscribed by the rule; by the name itself somebody may have, before the rule.
        return None if rewritten is None else prefix + rewritten

    def _take(self, settings: TopicRewriteSettings) -> None:
        rules = [(rule.action, _Rule(re.compile(rule.pattern), rule.target)) for rule in settings.rules]
        self._publish = [rule for action, rule in rules if action != "subscribe"]
        self._subscribe = [rule for action, rule in rules if action != "publish"]
        self._told.clear()

    def _rewritten(self, rules: Sequence[_Rule], name: str, client: Client) -> str | None:
        """What the first rule that fits makes of a name; raises :class:`_Refused` for what no client may choose."""
        for rule in rules:
            match = rule.pattern.fullmatch(name)
            if match is not None:
                made = _filled_in(rule.target, match, client)
                if made is not None and made != name and made.startswith("$") and not rule.may_begin_with_dollar:
                    self._notify_refused(rule, made, client)
                    raise _Refused("the rewritten name begins with $")
                return made
        return None

    def _notify_refused(self, rule: _Rule, made: str, client: Client) -> None:
        pattern = rule.pattern.pattern
        if self._context is not None and pattern not in self._told:
            self._told.add(pattern)
            self._context.log.warn(
                "the rule {pattern!r} made {made!r} of a name that client {client!r} used, which is refused: only a "
                "target that is written with a $ in front leads there. This is logged once for each rule",
                pattern=pattern,
                made=made[:LONGEST_TOLD],
                client=client.client_id[:LONGEST_TOLD],
            )


def _filled_in(target: str, match: re.Match[str], client: Client) -> str | None:
    # Each part of the target for itself: what a client is called must not be read as a reference.
    parts = [fill_in(part, client, begins=False) for part in _REFERENCE.split(target)[::2]]
    references = _REFERENCE.findall(target)
    if None in parts:
        return None
    groups = [match[int(reference)] or "" for reference in references]
    return "".join(f"{part}{group}" for part, group in zip(parts, [*groups, ""], strict=True))
