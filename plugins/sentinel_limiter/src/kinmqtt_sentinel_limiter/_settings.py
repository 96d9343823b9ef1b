"""The settings of rules, from the settings section or a rules file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs

from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.limiter import ResourceKind
from kinmqtt_spi.settings import setting

Names: TypeAlias = str | tuple[str, ...] | None
"""One exact name, several names, or ``"*"`` (the default) for all."""

REASONS: Final[Mapping[str, ReasonCode]] = {
    "quota_exceeded": ReasonCode.QUOTA_EXCEEDED,
    "message_rate_too_high": ReasonCode.MESSAGE_RATE_TOO_HIGH,
    "connection_rate_exceeded": ReasonCode.CONNECTION_RATE_EXCEEDED,
    "server_busy": ReasonCode.SERVER_BUSY,
}

COUNTED: Final = ("publish_rate", "publish_concurrency")
"""Metrics of system rules that are counted by packet instead of measured."""


class RuleError(ValueError):
    """The settings of a rule contradict each other."""


def _check_filters(_: object, attribute: attrs.Attribute[Names], names: Names) -> None:
    """Refuse a filter that matches no topic: a limit with a mistyped filter would limit nothing."""
    for filter in names_of(names):
        levels = filter.split("/")
        whole = all(level in ("#", "+") or not {"#", "+"} & set(level) for level in levels)
        if not filter or "\0" in filter or not whole or "#" in levels[:-1] or levels[0] == "$share":
            raise RuleError(f"{filter!r} is not a topic filter that a topic can match")


def _check_name(_: object, attribute: attrs.Attribute[str], name: str) -> None:
    if not name or not name.isprintable():
        raise RuleError("a rule needs a name that metrics and logs can show")


def _check_kinds(_: object, attribute: attrs.Attribute[Any], kinds: tuple[ResourceKind, ...]) -> None:
    if not kinds:
        raise RuleError("a rule needs at least one kind")


def names_of(names: Names) -> tuple[str, ...]:
    """The names as a tuple; an empty one stands for all names."""
    if names is None or names == "*":
        return ()
    return (names,) if isinstance(names, str) else names


@attrs.frozen(slots=True)
class RuleSettings:
    """The settings that all rules have."""

    name: str = setting(help="what metrics and logs call the rule; no two rules share it", validator=_check_name)
    shadow: bool = setting(False, help="count what the rule would have refused, and refuse nothing")


@attrs.frozen(slots=True)
class AnswerSettings(RuleSettings):
    """The settings of rules that limit requests."""

    verdict: Literal["reject", "drop", "disconnect", "delay"] = setting("reject", help="what happens to an excess")
    reason: Literal["quota_exceeded", "message_rate_too_high", "connection_rate_exceeded", "server_busy"] = setting(
        "quota_exceeded", help="the reason code for `reject` and `disconnect`: 0x97, 0x96, 0x9F or 0x89"
    )


@attrs.frozen(slots=True)
class MatchSettings(AnswerSettings):
    """The settings of rules that match some resources only."""

    kind: ResourceKind = setting(ResourceKind.PUBLISH, help="what is used")
    listener: Names = setting(None, help="only by these listeners")
    client: Names = setting(None, help="only for these client ids")
    user: Names = setting(None, help="only for these user names")
    address: Names = setting(None, help="only for these addresses")
    topic: Names = setting(
        None, help="only for topics that match one of these filters; for publish", validator=_check_filters
    )

    def __attrs_post_init__(self) -> None:
        if self.needs_topics and self.kind is not ResourceKind.PUBLISH:
            raise RuleError("only a rule for publish can use topics")
        personal = bool(names_of(self.client) or names_of(self.user)) or self.counted_by in ("client", "username")
        if self.kind is ResourceKind.CONNECTION and personal:
            raise RuleError("a connection only has a listener and an address")

    @property
    def counted_by(self) -> str:
        """The attribute by which the use is counted."""
        return "all"

    @property
    def needs_topics(self) -> bool:
        """Whether the rule must see each packet with its topic."""
        return bool(names_of(self.topic))


@attrs.frozen(slots=True)
class FlowSettings(MatchSettings):
    """``[[flow]]``: limits the rate or the concurrency of a resource."""

    count: float = setting(help="how many a second, or at once", minimum=0.001)
    grade: Literal["rate", "concurrency"] = setting("rate", help="what `count` counts")
    per: Literal["client", "username", "address", "listener", "topic", "all"] = setting(
        "client", help="whose use is counted together"
    )
    behaviour: Literal["reject", "warm_up", "pace", "warm_up_pace"] = setting(
        "reject", help="the control behaviour: how a rate is kept"
    )
    burst: float | None = setting(
        None, help="for `reject`: the size of a token bucket; by default `count` in each second", minimum=1
    )
    warm_up_s: float = setting(10.0, help="for `warm_up`: how long from cold to warm", unit="s", minimum=0.1)
    cold_factor: float = setting(
        3.0, help="for `warm_up`: how many times slower it starts", minimum=1.1, maximum=1000
    )
    max_queueing_s: float = setting(
        0.5, help="for `pace`: requests that would have to wait longer are refused", unit="s", minimum=0
    )

    def __attrs_post_init__(self) -> None:
        MatchSettings.__attrs_post_init__(self)
        if self.grade == "concurrency":
            if self.count < 1 or self.count != int(self.count):
                raise RuleError("the count of a concurrency rule must be a whole number")
            if self.behaviour != "reject" or self.burst is not None:
                raise RuleError("a concurrency rule only has the behaviour reject, and no burst")
            if self.verdict == "delay":
                raise RuleError("a concurrency rule can't delay: delayed requests are carried out anyway")

    @property
    def counted_by(self) -> str:
        return self.per

    @property
    def needs_topics(self) -> bool:
        return self.per == "topic" or bool(names_of(self.topic))


@attrs.frozen(slots=True)
class ParamSettings(MatchSettings):
    """``[[param]]``: limits the rate for each value of a parameter; only the heaviest values are remembered."""

    param: Literal["topic", "client", "username", "address"] = setting(help="the parameter")
    count: float = setting(help="how many a second for each value", minimum=0.001)
    burst: float | None = setting(
        None, help="the size of a token bucket; by default `count` in each second", minimum=1
    )
    behaviour: Literal["reject", "pace"] = setting("reject", help="the control behaviour")
    max_queueing_s: float = setting(
        0.5, help="for `pace`: requests that would have to wait longer are refused", unit="s", minimum=0
    )
    max_values: int = setting(1000, help="how many values are remembered", minimum=1, maximum=100_000)
    items: dict[str, float] = setting(
        factory=dict, help="values with a count of their own; they are always remembered", minimum=0.001
    )

    @property
    def counted_by(self) -> str:
        return self.param

    @property
    def needs_topics(self) -> bool:
        return self.param == "topic" or bool(names_of(self.topic))


@attrs.frozen(slots=True)
class SystemSettings(AnswerSettings):
    """``[[system]]``: refuses requests while the machine or the broker is overloaded."""

    metric: Literal[
        "lag", "cpu", "process_cpu", "memory", "process_memory", "publish_rate", "publish_concurrency"
    ] = setting(help="what is measured")
    threshold: float = setting(
        help="the upper limit of the metric: seconds of lag, 0 to 1 of all processors or of memory, processors or "
        "bytes of the process, packets a second or at once",
        minimum=0.000001,
    )
    kinds: tuple[ResourceKind, ...] = setting(
        (ResourceKind.CONNECT, ResourceKind.PUBLISH), help="what is refused above it", validator=_check_kinds
    )
    adaptive: bool = setting(False, help="above it, accept as many PUBLISH packets as the broker handled at its best")
    delay_s: float = setting(1.0, help='for `verdict = "delay"`: how long', unit="s", minimum=0.001)

    def __attrs_post_init__(self) -> None:
        if self.metric in COUNTED and self.adaptive:
            raise RuleError("adaptive is for lag, processors and memory")
        if self.metric == "publish_concurrency" and self.verdict == "delay":
            raise RuleError("a concurrency rule can't delay: delayed requests are carried out anyway")
        if self.metric == "publish_concurrency" and (self.threshold < 1 or self.threshold != int(self.threshold)):
            raise RuleError("the threshold of publish_concurrency must be a whole number")
        if self.metric in ("cpu", "memory") and self.threshold > 1:
            raise RuleError(f"{self.metric} is a share, from 0 to 1")


@attrs.frozen(slots=True)
class DegradeSettings(RuleSettings):
    """``[[degrade]]``: a circuit breaker that stops calls of other plugins' hooks while they are slow or fail."""

    plugin: Names = setting(None, help="only calls of these plugins")
    hook: Names = setting(None, help="only calls of these hooks")
    strategy: Literal["slow_ratio", "error_ratio", "error_count"] = setting(help="what opens the breaker")
    slow_call_ms: float | None = setting(None, help="for `slow_ratio`: a call that takes longer is slow", minimum=0)
    ratio: float | None = setting(
        None, help="for the ratios: more slow or failed calls than this share open it", minimum=0, maximum=1
    )
    count: int | None = setting(None, help="for `error_count`: more failed calls than this open it", minimum=0)
    min_request_amount: int = setting(5, help="with fewer calls in the window it stays closed", minimum=1)
    stat_interval_s: float = setting(1.0, help="how long the window is", unit="s", minimum=0.01)
    open_s: float = setting(
        10.0, help="the time window: how long it stays open before a probe", unit="s", minimum=0.01
    )

    def __attrs_post_init__(self) -> None:
        wanted = {"slow_ratio": ("slow_call_ms", "ratio"), "error_ratio": ("ratio",), "error_count": ("count",)}
        for key in ("slow_call_ms", "ratio", "count"):
            given = getattr(self, key) is not None
            if given != (key in wanted[self.strategy]):
                raise RuleError(f"{self.strategy} {'has no' if given else 'needs'} {key}")


@attrs.frozen(slots=True)
class Rules:
    """All tables of rules, in a rules file or in the settings section."""

    flow: tuple[FlowSettings, ...] = setting((), help="flow rules")
    degrade: tuple[DegradeSettings, ...] = setting((), help="circuit breakers")
    system: tuple[SystemSettings, ...] = setting((), help="system rules")
    param: tuple[ParamSettings, ...] = setting((), help="hot-parameter rules")

    def all(self) -> tuple[RuleSettings, ...]:
        """All rules, table by table."""
        return (*self.flow, *self.degrade, *self.system, *self.param)


@attrs.frozen(slots=True)
class SentinelSettings(Rules):
    """``[plugins.sentinel_limiter]``."""

    rules: Path | None = setting(None, help="a separate file with the same tables of rules; it is watched")
    watch_s: float = setting(5.0, help="how often to check the file; 0 for never", unit="s", minimum=0)
    watch_topics: bool | None = setting(
        None, help="check each PUBLISH packet with its topic; by default if rules at the start need it"
    )
    watch_concurrency: bool | None = setting(
        None, help="track when each PUBLISH and SUBSCRIBE is done; by default if rules at the start need it"
    )
    sample_s: float = setting(
        0.25, help="how often to measure lag, processors and memory", unit="s", minimum=0.01, maximum=60
    )
    max_keys: int = setting(100_000, help="how many clients, addresses, … a flow rule remembers", minimum=8)

    def __attrs_post_init__(self) -> None:
        for name in duplicates(rule.name for rule in self.all()):
            raise RuleError(f'two rules are called "{name}"')


def duplicates(names: Iterable[str]) -> list[str]:
    """The names that occur more than once."""
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]


def joined(settings: SentinelSettings, file: Rules) -> Rules:
    """The rules of the settings, then those of the file."""
    return Rules(
        flow=settings.flow + file.flow,
        degrade=settings.degrade + file.degrade,
        system=settings.system + file.system,
        param=settings.param + file.param,
    )
