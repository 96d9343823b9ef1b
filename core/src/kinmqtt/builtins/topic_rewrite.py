"""Rewrites topics and filters of clients by the rules of the settings."""

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
"""References in a target to a part of the client's topic, or to its name."""
_NO_TOPICS = ("$share", "$plugin")

LONGEST_LOGGED = 100
"""Characters of a client's text in the log."""


def _check_pattern(instance: object, attribute: Any, value: str) -> None:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None


@frozen(slots=True)
class RewriteSettings:
    """One rule."""

    pattern: str = setting(
        help="a regular expression that the whole topic or filter must match", validator=_check_pattern
    )
    target: str = setting(help="the new topic; $1 is the first group, ${clientid} and ${username} are replaced")
    action: Literal["all", "publish", "subscribe"] = setting("all", help="the packets that are rewritten")

    def __attrs_post_init__(self) -> None:
        groups = re.compile(self.pattern).groups
        for reference in _REFERENCE.findall(self.target):
            if int(reference) > groups:
                raise ValueError(f"target has ${reference}, but the pattern has only {groups} groups")
        _check_beginning(self.target)


def _check_beginning(target: str) -> None:
    """Raise ``ValueError`` if clients could choose a part of the first level of a target that begins with ``$``."""
    first = target.split("/", 1)[0]
    if not first.startswith("$") or _FROM_CLIENTS.match(target):
        return
    if _FROM_CLIENTS.search(first):
        raise ValueError(
            f"target {target!r} begins with $, and clients could choose what follows: write its first level in full"
        )
    if first in _NO_TOPICS:
        raise ValueError(
            f"target {target!r} begins with {first}/, which is reserved: no message or subscription can use it"
        )


@frozen(slots=True)
class TopicRewriteSettings:
    """``[plugins.topic_rewrite]``."""

    rules: tuple[RewriteSettings, ...] = setting((), help="the rules; the first that matches is used")


@frozen(slots=True)
class _Rule:
    """One compiled rule."""

    pattern: re.Pattern[str]
    target: str

    @property
    def may_begin_with_dollar(self) -> bool:
        """Whether the target itself begins with ``$``, so that a client can't add it."""
        return self.target.startswith("$") and _FROM_CLIENTS.match(self.target) is None


class _Refused(Exception):
    """A rule and a client's text together made a topic that begins with ``$``."""


class TopicRewrite:
    """Rewrites after authorization: rights are checked for the name that the client used.

    So clients must not reach topics that begin with ``$`` through a rewrite, unless the rule's target says so. Other
    such results are refused instead of left unchanged, because the rule may be meant to separate clients.
    """

    def __init__(self) -> None:
        self._publish: list[_Rule] = []
        self._subscribe: list[_Rule] = []
        self._context: Context | None = None
        self._logged: set[str] = set()
        """The patterns of rules whose refused topics have been logged."""

    @hookimpl
    def settings_class(self) -> type[TopicRewriteSettings]:
        """Return the class of the settings."""
        return TopicRewriteSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Read the rules."""
        if not context.settings.rules:
            raise NotConfigured("there are no rules")
        self._context = context
        self._take(context.settings)

    @hookimpl
    def reload(self, settings: TopicRewriteSettings) -> Sequence[str]:
        """Use new rules; existing subscriptions keep their filters."""
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
            return Reject(ReasonCode.TOPIC_NAME_INVALID, "the rewritten topic is not a topic name")
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
        """Rewrite a filter in UNSUBSCRIBE as it was rewritten in SUBSCRIBE."""
        prefix = ""
        if filter.startswith("$share/"):
            _, group, filter = filter.split("/", 2)
            prefix = f"$share/{group}/"
        try:
            rewritten = self._rewritten(self._subscribe, filter, client)
        except _Refused:
            # No subscription came from the rule, but one to the unchanged filter may be older than the rule.
            return None
        return None if rewritten is None else prefix + rewritten

    def _take(self, settings: TopicRewriteSettings) -> None:
        rules = [(rule.action, _Rule(re.compile(rule.pattern), rule.target)) for rule in settings.rules]
        self._publish = [rule for action, rule in rules if action != "subscribe"]
        self._subscribe = [rule for action, rule in rules if action != "publish"]
        self._logged.clear()

    def _rewritten(self, rules: Sequence[_Rule], name: str, client: Client) -> str | None:
        """Apply the first rule that matches; raise :class:`_Refused` for a result that clients must not choose."""
        for rule in rules:
            match = rule.pattern.fullmatch(name)
            if match is not None:
                made = _filled_in(rule.target, match, client)
                if made is not None and made != name and made.startswith("$") and not rule.may_begin_with_dollar:
                    self._log_refused(rule, made, client)
                    raise _Refused("the rewritten name begins with $")
                return made
        return None

    def _log_refused(self, rule: _Rule, made: str, client: Client) -> None:
        pattern = rule.pattern.pattern
        if self._context is not None and pattern not in self._logged:
            self._logged.add(pattern)
            self._context.log.warn(
                "the rule {pattern!r} rewrote a name of client {client!r} to {made!r}, which is refused: only a "
                "target that itself begins with $ may lead there. This is logged once for each rule",
                pattern=pattern,
                made=made[:LONGEST_LOGGED],
                client=client.client_id[:LONGEST_LOGGED],
            )


def _filled_in(target: str, match: re.Match[str], client: Client) -> str | None:
    # Each part of the target is replaced separately, so that a reference in a client's name is not replaced.
    parts = [fill_in(part, client, begins=False) for part in _REFERENCE.split(target)[::2]]
    references = _REFERENCE.findall(target)
    if None in parts:
        return None
    groups = [match[int(reference)] or "" for reference in references]
    return "".join(f"{part}{group}" for part, group in zip(parts, [*groups, ""], strict=True))
