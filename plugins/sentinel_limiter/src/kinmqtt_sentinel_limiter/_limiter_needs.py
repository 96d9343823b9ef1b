"""Derives what the broker must report for the rules to work; it is fixed when the broker starts."""

from __future__ import annotations

from typing import Final

from kinmqtt_sentinel_limiter._settings import (
    COUNTED,
    AnswerSettings,
    FlowSettings,
    MatchSettings,
    Rules,
    SentinelSettings,
    SystemSettings,
)
from kinmqtt_spi.services.limiter import LimiterNeeds, ResourceKind

_PUBLISH: Final = ResourceKind.PUBLISH
_LASTING: Final = frozenset((ResourceKind.CONNECTION, ResourceKind.CONNECT))
_PASSING: Final = frozenset((ResourceKind.PUBLISH, ResourceKind.SUBSCRIBE))


def kinds_of(settings: AnswerSettings) -> frozenset[ResourceKind]:
    """The kinds of resources that a rule must see."""
    if isinstance(settings, SystemSettings):
        counted = settings.metric in COUNTED or settings.adaptive
        return frozenset((*settings.kinds, _PUBLISH) if counted else settings.kinds)
    assert isinstance(settings, MatchSettings)
    return frozenset((settings.kind,))


def releases_of(settings: AnswerSettings) -> frozenset[ResourceKind]:
    """The kinds of resources whose releases a rule must see."""
    if isinstance(settings, FlowSettings) and settings.grade == "concurrency":
        return frozenset((settings.kind,))
    if isinstance(settings, SystemSettings) and (settings.metric == "publish_concurrency" or settings.adaptive):
        return frozenset((_PUBLISH,))
    return frozenset()


def needs_topics(settings: AnswerSettings) -> bool:
    """Whether a rule must see each packet with its topic."""
    return isinstance(settings, MatchSettings) and settings.needs_topics


def needs_of(rules: Rules, settings: SentinelSettings) -> LimiterNeeds:
    """What these rules need. If a rules file may add others, also everything that is cheap to report."""
    answering: list[AnswerSettings] = [*rules.flow, *rules.param, *rules.system]
    kinds = frozenset(kind for rule in answering for kind in kinds_of(rule))
    releases = frozenset(kind for rule in answering for kind in releases_of(rule))
    topics = any(needs_topics(rule) for rule in answering)
    if settings.rules is not None:
        kinds |= frozenset(ResourceKind)
        releases |= _LASTING
    if settings.watch_concurrency is not None:
        releases = (releases | _PASSING) if settings.watch_concurrency else (releases - _PASSING)
        kinds |= releases
    if settings.watch_topics is not None:
        topics = settings.watch_topics
        kinds |= {_PUBLISH} if topics else frozenset()
    return LimiterNeeds(kinds, topics, releases)


def unmet_need(settings: AnswerSettings, needs: LimiterNeeds) -> str | None:
    """Why a rule can't be in force with these needs; ``None`` if it can."""
    kinds = kinds_of(settings) - needs.kinds
    releases = releases_of(settings) - needs.releases
    if kinds:
        return f"no rule was about {_words(kinds)} at the start"
    if needs_topics(settings) and not needs.topics:
        return "topics are not watched (watch_topics)"
    if releases:
        return f"the broker does not report when {_words(releases)} is over (watch_concurrency)"
    return None


def _words(kinds: frozenset[ResourceKind]) -> str:
    return ", ".join(sorted(kind.value for kind in kinds))
