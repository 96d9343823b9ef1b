"""Rules in force: which resources they match, and which cells count their use."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from attrs import frozen

from kinmqtt_sentinel_limiter._base_rule import BaseRule
from kinmqtt_sentinel_limiter._cells import (
    Cell,
    DelayCell,
    RateCell,
    WindowCell,
)
from kinmqtt_sentinel_limiter._concurrency import ClientCell, ClientsCell, ConcurrencyCell
from kinmqtt_sentinel_limiter._hot_parameters import HotCell, HotValues
from kinmqtt_sentinel_limiter._key_table import KeyTable, key_of
from kinmqtt_sentinel_limiter._pacing import PaceCell
from kinmqtt_sentinel_limiter._settings import (
    FlowSettings,
    MatchSettings,
    Names,
    ParamSettings,
    names_of,
)
from kinmqtt_sentinel_limiter._warm_up import WarmUp, WarmUpCell, WarmUpPaceCell
from kinmqtt_spi.services.limiter import Resource, ResourceKind
from kinmqtt_spi.services.metric import Metrics
from kinmqtt_spi.topics import matches

WARM_UP_SPAN_S: Final = 1.0
"""How much unused time ``warm_up`` lets a burst use, like Sentinel's window of a second."""

SWEEP_KEYS: Final = 2000
"""How many keys of a rule are checked in one tick, in well below a millisecond."""

DELAYED_BURST_S: Final = 0.1
"""How many seconds' worth pass before the verdict ``delay`` takes effect: early packets do no harm."""

_ATTRIBUTES: Final = {
    "client": "client_id",
    "username": "username",
    "address": "address",
    "listener": "listener",
    "topic": "topic",
}


@frozen(slots=True)
class Environment:
    """What rules are created with."""

    metrics: Metrics
    max_keys: int


class Rule(BaseRule):
    """A rule that finds the cell which counts a resource's use."""

    def cell(self, resource: Resource, now: float) -> Cell | None:
        """The cell that counts this resource's use; ``None`` if the rule does not match."""
        raise NotImplementedError

    def sweep(self, now: float) -> None:
        """Forget some keys without recent use; called at each tick."""

    def age(self, now: float) -> None:
        """Reduce the weights of hot values; called from time to time."""

    def retire(self) -> None:
        """Clean up: the rule was removed or replaced."""


class Matcher:
    """Tests whether a rule matches a resource; a resource without a required attribute never matches."""

    def __init__(self, settings: MatchSettings) -> None:
        self._kind = settings.kind
        wanted: list[tuple[str, Names]] = [
            ("listener", settings.listener),
            ("client_id", settings.client),
            ("username", settings.user),
            ("address", settings.address),
        ]
        self._wanted = [(name, frozenset(names_of(names))) for name, names in wanted if names_of(names)]
        self._filters = names_of(settings.topic)

    def __call__(self, resource: Resource) -> bool:
        if resource.kind is not self._kind:
            return False
        if any(getattr(resource, attribute) not in names for attribute, names in self._wanted):
            return False
        if not self._filters:
            return True
        topic = resource.topic
        return topic is not None and any(matches(filter, topic) for filter in self._filters)


class FlowRule(Rule):
    """A flow rule: one cell for each value of ``per``."""

    def __init__(self, settings: FlowSettings, environment: Environment) -> None:
        super().__init__(settings, environment.metrics)
        self.settings = settings
        self.concurrency = settings.grade == "concurrency"
        self._concerns = Matcher(settings)
        self._attribute = _ATTRIBUTES.get(settings.per)
        self._make = _cell_maker(self, settings)
        self.table = KeyTable(environment.max_keys, self._make)
        self._counts_clients = self.concurrency and settings.kind is ResourceKind.CONNECT

    def cell(self, resource: Resource, now: float) -> Cell | None:
        if not self._concerns(resource):
            return None
        key = "" if self._attribute is None else getattr(resource, self._attribute)
        if key is None:
            return None
        cell = self.table.cell(key_of(key), now)
        if self._counts_clients and resource.client_id:
            assert isinstance(cell, ClientsCell)
            return ClientCell(self, cell, key_of(resource.client_id))
        return cell

    def sweep(self, now: float) -> None:
        self.table.sweep(now, SWEEP_KEYS)


def reject_cell(rule: Rule, count: float, burst: float | None, delays: bool) -> Cell:
    """A cell of the control behaviour ``reject``; it delays if the verdict says so."""
    # In shadow mode no one waits, so a deficit would only grow: count the delays as refusals instead.
    if delays and not rule.shadow:
        return DelayCell(rule, count, max(count * DELAYED_BURST_S, 1.0) if burst is None else burst)
    return WindowCell(rule, count) if burst is None else RateCell(rule, count, burst)


def _cell_maker(rule: Rule, settings: FlowSettings) -> Callable[[float], Cell]:
    """A factory of a flow rule's cells; it takes the time."""
    count = settings.count
    delays = settings.verdict == "delay"
    if settings.grade == "concurrency":
        of = ClientsCell if settings.kind is ResourceKind.CONNECT else ConcurrencyCell
        return lambda now: of(rule, count)
    if settings.behaviour == "reject":
        return lambda now: reject_cell(rule, count, settings.burst, delays)
    max_queueing_s = inf if delays and not settings.shadow else settings.max_queueing_s
    if settings.behaviour == "pace":
        return lambda now: PaceCell(rule, count, max_queueing_s)
    curve = WarmUp(count, settings.warm_up_s, settings.cold_factor)
    if settings.behaviour == "warm_up_pace" or delays:
        return lambda now: WarmUpPaceCell(rule, curve, max_queueing_s, now)
    return lambda now: WarmUpCell(rule, curve, WARM_UP_SPAN_S, now)


class ParamRule(Rule):
    """A hot-parameter rule: cells for the heaviest values and for the exceptions."""

    def __init__(self, settings: ParamSettings, environment: Environment) -> None:
        super().__init__(settings, environment.metrics)
        self.settings = settings
        self._concerns = Matcher(settings)
        self._attribute = _ATTRIBUTES[settings.param]
        pinned = {key_of(value): self._make(count) for value, count in settings.items.items()}
        self.values = HotValues(settings.max_values, lambda: self._make(settings.count), pinned)

    def cell(self, resource: Resource, now: float) -> Cell | None:
        value = getattr(resource, self._attribute) if self._concerns(resource) else None
        return None if value is None else HotCell(self, self.values, key_of(value))

    def age(self, now: float) -> None:
        self.values.sweep(now)

    def _make(self, count: float) -> Cell:
        settings = self.settings
        delays = settings.verdict == "delay" and not settings.shadow
        if settings.behaviour == "pace":
            return PaceCell(self, count, inf if delays else settings.max_queueing_s)
        # A configured burst applies to the rule's own count; exceptions have none.
        return reject_cell(self, count, settings.burst if count == settings.count else None, delays)
