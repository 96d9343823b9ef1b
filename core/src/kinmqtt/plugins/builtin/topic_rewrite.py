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


@frozen(slots=True)
class TopicRewriteSettings:
    """``[plugins.topic_rewrite]``."""

    rules: tuple[RewriteSettings, ...] = setting((), help="the rules; the first that fits is used")


class TopicRewrite:
    """Rewrites after authorization: rights are asked for the name that the client used."""

    def __init__(self) -> None:
        self._publish: list[tuple[re.Pattern[str], str]] = []
        self._subscribe: list[tuple[re.Pattern[str], str]] = []

    @hookimpl
    def settings_class(self) -> type[TopicRewriteSettings]:
        """The rules."""
        return TopicRewriteSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the rules."""
        if not context.settings.rules:
            raise NotConfigured("there are no rules")
        self._take(context.settings)

    @hookimpl
    def reload(self, settings: TopicRewriteSettings) -> Sequence[str]:
        """Take new rules; subscriptions that were made keep their filters."""
        self._take(settings)
        return ()

    @hookimpl
    def publish_received(self, client: Client, message: Message) -> Message | Reject | None:
        """Rewrite the topic of a message."""
        topic = _rewritten(self._publish, message.topic, client)
        if topic is None or topic == message.topic:
            return None
        if not topic or "+" in topic or "#" in topic or "\0" in topic:
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "the rewritten topic is no topic name")
        return message.replace(topic=topic)

    @hookimpl
    def subscribing(self, client: Client, subscription: Subscription) -> Subscription | None:
        """Rewrite the filter of a subscription."""
        filter = _rewritten(self._subscribe, subscription.filter, client)
        return None if filter is None else evolve(subscription, filter=filter)

    @hookimpl
    def unsubscribing(self, client: Client, filter: str) -> str | None:
        """Rewrite a filter that is given up, so that it is the one that was made."""
        prefix = ""
        if filter.startswith("$share/"):
            _, group, filter = filter.split("/", 2)
            prefix = f"$share/{group}/"
        rewritten = _rewritten(self._subscribe, filter, client)
        return None if rewritten is None else prefix + rewritten

    def _take(self, settings: TopicRewriteSettings) -> None:
        rules = [(rule.action, re.compile(rule.pattern), rule.target) for rule in settings.rules]
        self._publish = [(pattern, target) for action, pattern, target in rules if action != "subscribe"]
        self._subscribe = [(pattern, target) for action, pattern, target in rules if action != "publish"]


def _rewritten(rules: Sequence[tuple[re.Pattern[str], str]], name: str, client: Client) -> str | None:
    for pattern, target in rules:
        match = pattern.fullmatch(name)
        if match is not None:
            # Each part of the target for itself: what a client is called must not be read as a reference.
            parts = [fill_in(part, client) for part in _REFERENCE.split(target)[::2]]
            references = _REFERENCE.findall(target)
            if None in parts:
                return None
            groups = [match[int(reference)] or "" for reference in references]
            return "".join(f"{part}{group}" for part, group in zip(parts, [*groups, ""], strict=True))
    return None
