"""The rules in force: finds the cells that count a resource's use, and combines their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from sys import getsizeof
from typing import Final, TypeAlias

from attrs import evolve

from kinmqtt_sentinel_limiter._cells import Cell
from kinmqtt_sentinel_limiter._limiter_needs import kinds_of, releases_of, unmet_need
from kinmqtt_sentinel_limiter._rules import Environment, FlowRule, ParamRule, Rule
from kinmqtt_sentinel_limiter._settings import AnswerSettings, FlowSettings, ParamSettings, Rules, SystemSettings
from kinmqtt_sentinel_limiter._system_rules import Load, LoadCell, SystemRule
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.services.metric import Metrics

Cells: TypeAlias = tuple[Cell, ...]

MAX_PLANS: Final = 50_000
"""The most resources whose cells are cached."""

MAX_PLAN_BYTES: Final = 16 << 20
"""The most memory for the names of cached resources."""

MAX_PLANNED_NAME: Final = 1024
"""In characters. The cells of a resource with a longer topic or name are looked up for each packet."""

PLAN_AGE_S: Final = 60.0
"""After this time all plans are dropped, so that those of clients that have left go."""

_PUBLISH: Final = ResourceKind.PUBLISH
"""A module-level name, because it is read for each packet."""


class UseCounter(Cell):
    """Counts how much of one resource is in use, for rules that are added meanwhile; belongs to no rule.

    It is registered in ``counters`` while anything is in use, and longer if plans refer to it.
    """

    __slots__ = ("counters", "in_use", "resource")

    def __init__(self, counters: dict[Resource, UseCounter], resource: Resource) -> None:
        self.forgotten = False
        self.in_use = 0
        self.counters = counters
        self.resource = resource

    def take(self, amount: int, now: float) -> float:
        if not self.in_use:
            self.counters[self.resource] = self
        self.in_use += amount
        return 0.0

    def release(self, amount: int, now: float) -> None:
        self.in_use -= amount
        if self.in_use <= 0:
            self.in_use = 0
            self.counters.pop(self.resource, None)


class PlannedUseCounter(UseCounter):
    """A use counter that plans refer to. It stays registered as long as they do, so packets need no lookup."""

    __slots__ = ()

    def take(self, amount: int, now: float) -> float:
        self.in_use += amount
        return 0.0

    def release(self, amount: int, now: float) -> None:
        self.in_use -= amount


class ActiveRules:
    """The flow, hot-parameter and system rules in force.

    A request that one rule refuses uses up no other rule. The cells of a resource are cached as a plan. The broker
    uses the same resource object for all PUBLISH packets of a connection, so plans are found by the object's
    identity; the object is kept alive, so that its identity stays unique, until the plans are dropped, for example
    when a rule changes. A cell whose key was forgotten reports that, and the plan is made again.

    If the broker reports releases, a use counter counts what is in use by resource. A rule that is added later takes
    all of that over, so it counts exactly what will be released.
    """

    def __init__(self, metrics: Metrics, monotonic: Callable[[], float], max_keys: int, needs: LimiterNeeds) -> None:
        """Start without rules; ``needs`` is what the broker reports to this limiter."""
        self._monotonic = monotonic
        self._passed = metrics.counter("limiter.passed", "requests")
        self.blocked = self.shadow_blocked = self.delayed = 0
        self._environment = Environment(metrics, max_keys)
        self._needs = needs
        self._rules: dict[str, Rule] = {}
        self._settings: dict[str, AnswerSettings] = {}
        self._by_kind: Mapping[ResourceKind, tuple[Rule, ...]] = {}
        self._shut: Mapping[ResourceKind, Cells] = {}
        """The gates of system rules that are shut now; empty under normal load."""
        self._load = Load()
        self._counts_load = False
        """Whether some rule is adaptive, so that the broker's load must be measured."""
        self._use_counters: dict[Resource, UseCounter] = {}
        self._plans: dict[int, Cells] = {}
        self._topic_plans: dict[Resource, Cells] = {}
        self._release_plans: dict[int, Cells] = {}
        self._pinned: list[Resource] = []
        """The resources whose identities are keys of plans."""
        self._planned_bytes = 0
        self._planned_at = monotonic()
        """When the plans were last dropped."""

    @property
    def passed(self) -> int:
        """How many requests passed, delayed or not."""
        return self._passed.value

    def in_use(self) -> dict[Resource, int]:
        """How much of each resource is in use, for the kinds whose releases the broker reports."""
        return {resource: counter.in_use for resource, counter in self._use_counters.items() if counter.in_use > 0}

    def acquire(self, resource: Resource, amount: int) -> LimitDecision | None:
        """Take ``amount`` from every matching rule, or from none if one refuses."""
        cells = self._plans.get(id(resource))
        if cells is None:
            cells = self._plan(resource)
        if self._shut:
            cells = self._shut.get(resource.kind, ()) + cells
        now = self._monotonic()
        for cell in cells:
            wait_s = cell.take(amount, now)
            if wait_s:
                if any(cell.forgotten for cell in cells):
                    return self._acquire_again(cells, cells.index(cell) + (wait_s > 0.0), resource, amount)
                return self._combine(cells, cells.index(cell), wait_s, amount, now)
        self._passed.value += amount
        return None

    def release(self, resource: Resource, amount: int) -> None:
        """Release an amount of a resource whose concurrency is limited."""
        cells = self._release_plans.get(id(resource))
        if cells is None:
            cells = self._release_plan(resource)
        if cells:
            now = self._monotonic()
            for cell in cells:
                cell.release(amount, now)

    def _acquire_again(self, cells: Cells, taken: int, resource: Resource, amount: int) -> LimitDecision | None:
        """Undo what was taken and try again with new cells, because some cell's key was forgotten."""
        for cell in cells[:taken]:
            cell.undo(amount)
        self._plans.pop(id(resource), None)
        self._release_plans.pop(id(resource), None)
        self._topic_plans.pop(resource, None)
        return self.acquire(resource, amount)

    def _combine(self, cells: Cells, place: int, wait_s: float, amount: int, now: float) -> LimitDecision | None:
        """Continue at the first cell that did not return 0: it refuses, delays or is in shadow mode."""
        taken = list(cells[:place])
        longest_s, slowest = 0.0, None
        while True:
            cell = cells[place]
            if wait_s < 0.0:
                if not cell.rule.shadow:
                    for other in taken:
                        other.undo(amount)
                    cell.rule.blocked.value += amount
                    self.blocked += amount
                    return cell.rule.refusal
                cell.rule.shadow_blocked.value += amount
                self.shadow_blocked += amount
                if cell.take_anyway(amount):
                    taken.append(cell)
            else:
                taken.append(cell)
                if wait_s > longest_s and not cell.rule.shadow:
                    longest_s, slowest = wait_s, cell.rule
            place += 1
            if place == len(cells):
                break
            wait_s = cells[place].take(amount, now)
        self._passed.value += amount
        if slowest is None:
            return None
        slowest.delayed.value += amount
        self.delayed += amount
        return LimitDecision(LimitVerdict.DELAY, slowest.name, longest_s, slowest.reason)

    # Plans: the cells of a resource

    def _plan(self, resource: Resource) -> Cells:
        """The cells of a resource; cached if the resource is likely to come again."""
        if not _is_planned(resource):
            return self._cells(resource)
        if resource.topic is not None:
            cells = self._topic_plans.get(resource)
            if cells is None:
                self._make_room(len(self._topic_plans), resource)
                cells = self._topic_plans[resource] = self._cells(resource)
            return cells
        self._make_room(len(self._pinned), resource)
        self._pinned.append(resource)
        cells = self._plans[id(resource)] = self._cells(resource)
        return cells

    def _cells(self, resource: Resource) -> Cells:
        now = self._monotonic()
        rules = self._by_kind.get(resource.kind, ())
        cells = [cell for cell in (rule.cell(resource, now) for rule in rules) if cell is not None]
        if resource.kind is _PUBLISH and self._counts_load:
            cells.append(LoadCell(self._load))
        if resource.kind in self._needs.releases:
            cells.append(self._use_counter(resource))
        return tuple(cells)

    def _use_counter(self, resource: Resource) -> UseCounter:
        """The resource's use counter. It follows all cells that may refuse, so it never has to undo."""
        counter = self._use_counters.get(resource)
        if counter is None:
            if not _is_planned(resource):
                return UseCounter(self._use_counters, resource)
            counter = self._use_counters[resource] = PlannedUseCounter(self._use_counters, resource)
        return counter

    def _release_plan(self, resource: Resource) -> Cells:
        """The cells that count releases."""
        known = self._plans.get(id(resource))
        cells = self._cells(resource) if known is None else known
        cells = tuple(cell for cell in cells if type(cell).release is not Cell.release)
        if known is not None:
            self._release_plans[id(resource)] = cells
        return cells

    def _make_room(self, plans: int, resource: Resource) -> None:
        """Make room for one more plan."""
        wanted = sum(map(getsizeof, (resource.client_id, resource.username, resource.topic)))
        if plans >= MAX_PLANS or self._planned_bytes + wanted > MAX_PLAN_BYTES:
            self._drop_plans()
        self._planned_bytes += wanted

    def _drop_plans(self) -> None:
        self._planned_bytes = 0
        self._planned_at = self._monotonic()
        self._plans.clear()
        self._release_plans.clear()
        self._topic_plans.clear()
        self._pinned.clear()
        # In place: ledgers know the counters.
        for resource in [resource for resource, counter in self._use_counters.items() if counter.in_use <= 0]:
            del self._use_counters[resource]

    # Rules

    def take(self, rules: Rules) -> list[str]:
        """Apply these rules; unchanged rules keep their state. Returns what needs a restart."""
        sentences = []
        taken: list[tuple[Rule, AnswerSettings]] = []
        for settings in (*rules.flow, *rules.param, *rules.system):
            why = unmet_need(settings, self._needs)
            if why is not None:
                sentences.append(f'rule "{settings.name}" is not in force: {why}')
                continue
            known = self._rules.get(settings.name)
            if known is None or self._settings[settings.name] != settings:
                known = self._make_rule(settings)
            taken.append((known, settings))
        staying = [rule for rule, _ in taken]
        for rule in self._rules.values():
            if rule not in staying:
                rule.retire()
        self._rules = {settings.name: rule for rule, settings in taken}
        self._settings = {settings.name: settings for rule, settings in taken}
        self._index()
        return sentences

    def resize(self, max_keys: int) -> None:
        """Change the limit of remembered keys, also for the rules in force."""
        self._environment = evolve(self._environment, max_keys=max_keys)
        now = self._monotonic()
        for rule in self._rules.values():
            if isinstance(rule, FlowRule):
                rule.table.resize(max_keys, now)

    def _make_rule(self, settings: AnswerSettings) -> Rule:
        rule: Rule
        if isinstance(settings, SystemSettings):
            rule = SystemRule(settings, self._environment.metrics, self._load)
        elif isinstance(settings, ParamSettings):
            rule = ParamRule(settings, self._environment)
        else:
            assert isinstance(settings, FlowSettings)
            rule = FlowRule(settings, self._environment)
        if releases_of(settings):
            self._count_in_use(rule)
        return rule

    def _count_in_use(self, rule: Rule) -> None:
        """Let a new rule count what is in use already, because it will get the releases."""
        now = self._monotonic()
        for resource, amount in self.in_use().items():
            cell = rule.cell(resource, now)
            if cell is not None:
                cell.take_anyway(amount)

    def _index(self) -> None:
        """Index the rules by kind, and drop all plans."""
        by_kind: dict[ResourceKind, list[Rule]] = {}
        for name, rule in self._rules.items():
            for kind in kinds_of(self._settings[name]):
                by_kind.setdefault(kind, []).append(rule)
        self._by_kind = {kind: tuple(rules) for kind, rules in by_kind.items()}
        counted_load = self._counts_load
        self._counts_load = any(rule.settings.adaptive for rule in self.system_rules())
        if self._counts_load and not counted_load:
            in_hand = sum(amount for resource, amount in self.in_use().items() if resource.kind is _PUBLISH)
            self._load.begin(in_hand, self._monotonic())
        self.shut_gates()
        self._drop_plans()

    def system_rules(self) -> Iterable[SystemRule]:
        return [rule for rule in self._rules.values() if isinstance(rule, SystemRule)]

    def shut_gates(self) -> None:
        """Put the gates of shut rules before all other cells."""
        shut: dict[ResourceKind, Cells] = {}
        for rule in self.system_rules():
            if rule.shut:
                for kind, gate in rule.gates.items():
                    shut[kind] = (*shut.get(kind, ()), gate)
        self._shut = shut

    def sweep(self, now: float) -> None:
        """Forget some of the keys without recent use."""
        for rule in self._rules.values():
            rule.sweep(now)

    def age(self, now: float) -> None:
        """Reduce the weights of hot values, and drop all plans from time to time: some may be unused."""
        for rule in self._rules.values():
            rule.age(now)
        if now - self._planned_at >= PLAN_AGE_S:
            self._drop_plans()


def _is_planned(resource: Resource) -> bool:
    """Whether the cells of a resource are cached: only for PUBLISH, and if its names are not long."""
    if resource.kind is not _PUBLISH:
        return False
    return all(
        len(name or "") <= MAX_PLANNED_NAME for name in (resource.topic, resource.client_id, resource.username)
    )
