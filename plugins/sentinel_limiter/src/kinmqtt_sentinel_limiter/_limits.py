"""Answering the limiters' questions: which cells concern a resource, and what they say together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from sys import getsizeof
from typing import Final, TypeAlias

from attrs import evolve

from kinmqtt_sentinel_limiter._cells import Cell
from kinmqtt_sentinel_limiter._needs import kinds_of, releases_of, unmet
from kinmqtt_sentinel_limiter._rules import Environment, FlowRule, ParamRule, Rule
from kinmqtt_sentinel_limiter._settings import AnswerSettings, FlowSettings, ParamSettings, Rules, SystemSettings
from kinmqtt_sentinel_limiter._system import Load, LoadCell, SystemRule
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.services.metric import Metrics

Cells: TypeAlias = tuple[Cell, ...]

MAX_PLANS: Final = 50_000
"""For how many resources it is remembered which cells concern them."""

MAX_PLANNED_BYTES: Final = 16 << 20
"""What the names of those may take together."""

LONGEST_PLANNED: Final = 1024
"""In characters. A resource with a longer topic or name in it has its cells found for each packet."""

PLANS_KEPT_S: Final = 60.0
"""After so long they are found anew, so that those of who has left go."""

_PUBLISH: Final = ResourceKind.PUBLISH
"""A name of the module's own, as it is looked at for each packet."""


class Ledger(Cell):
    """How much one resource has in use, for rules that come while it does; no rule's own.

    It is in the book while it has anything in use, and longer where plans hold it.
    """

    __slots__ = ("book", "in_use", "resource")

    def __init__(self, book: dict[Resource, Ledger], resource: Resource) -> None:
        self.gone = False
        self.in_use = 0
        self.book = book
        self.resource = resource

    def take(self, amount: int, now: float) -> float:
        if not self.in_use:
            self.book[self.resource] = self
        self.in_use += amount
        return 0.0

    def give_back(self, amount: int, now: float) -> None:
        self.in_use -= amount
        if self.in_use <= 0:
            self.in_use = 0
            self.book.pop(self.resource, None)


class PlannedLedger(Ledger):
    """A ledger that plans hold, and that stays in the book with them: packets come and go without looking it up."""

    __slots__ = ()

    def take(self, amount: int, now: float) -> float:
        self.in_use += amount
        return 0.0

    def give_back(self, amount: int, now: float) -> None:
        self.in_use -= amount


class Limits:
    """The flow, hot-parameter and system rules in force.

    What one rule refuses costs no other rule anything. The broker asks for the PUBLISH packets of a connection with
    one and the same resource, so its cells are found by the resource's identity: the resource is held, and its
    identity nobody else's, until the plans are dropped, as when a rule changes. A cell whose key was forgotten
    says so when it is asked, and the resource's cells are looked for anew.

    Where the broker tells when something is over, a ledger has what is in use, by resource: a rule that comes later
    counts all of it, and what is given back then is what it has counted.
    """

    def __init__(self, metrics: Metrics, monotonic: Callable[[], float], max_keys: int, asked: LimiterNeeds) -> None:
        """Have no rules yet; ``asked`` is what the broker was asked to tell."""
        self._monotonic = monotonic
        self._passed = metrics.counter("limiter.passed", "requests")
        self.blocked = self.shadow_blocked = self.delayed = 0
        self._environment = Environment(metrics, max_keys)
        self._asked = asked
        self._rules: dict[str, Rule] = {}
        self._settings: dict[str, AnswerSettings] = {}
        self._by_kind: Mapping[ResourceKind, tuple[Rule, ...]] = {}
        self._shut: Mapping[ResourceKind, Cells] = {}
        """The gates of system rules that are shut just now; empty while all is well."""
        self._load = Load()
        self._counts_load = False
        """Whether some rule wants to know what the broker is able to do."""
        self._book: dict[Resource, Ledger] = {}
        self._plans: dict[int, Cells] = {}
        self._topic_plans: dict[Resource, Cells] = {}
        self._returns: dict[int, Cells] = {}
        self._pinned: list[Resource] = []
        """The resources whose identities are keys of plans."""
        self._planned_bytes = 0
        self._planned_at = monotonic()
        """Since when there may be plans."""

    @property
    def passed(self) -> int:
        """How much was let in, delayed or not."""
        return self._passed.value

    def in_use(self) -> dict[Resource, int]:
        """How much each resource has in use, of the kinds whose end the broker tells of."""
        return {resource: ledger.in_use for resource, ledger in self._book.items() if ledger.in_use > 0}

    def acquire(self, resource: Resource, amount: int) -> LimitDecision | None:
        """Take ``amount`` by every rule that concerns the resource, or by none where one refuses."""
        cells = self._plans.get(id(resource))
        if cells is None:
            cells = self._plan(resource)
        if self._shut:
            cells = self._shut.get(resource.kind, ()) + cells
        now = self._monotonic()
        for cell in cells:
            wait_s = cell.take(amount, now)
            if wait_s:
                if any(cell.gone for cell in cells):
                    return self._ask_anew(cells, cells.index(cell) + (wait_s > 0.0), resource, amount)
                return self._settle(cells, cells.index(cell), wait_s, amount, now)
        self._passed.value += amount
        return None

    def release(self, resource: Resource, amount: int) -> None:
        """Give back what is limited by how much of it there is at once."""
        cells = self._returns.get(id(resource))
        if cells is None:
            cells = self._return_plan(resource)
        if cells:
            now = self._monotonic()
            for cell in cells:
                cell.give_back(amount, now)

    def _ask_anew(self, cells: Cells, taken: int, resource: Resource, amount: int) -> LimitDecision | None:
        """Some cell's key was forgotten: take nothing of these, and ask those that are there now."""
        for cell in cells[:taken]:
            cell.undo(amount)
        self._plans.pop(id(resource), None)
        self._returns.pop(id(resource), None)
        self._topic_plans.pop(resource, None)
        return self.acquire(resource, amount)

    def _settle(self, cells: Cells, place: int, wait_s: float, amount: int, now: float) -> LimitDecision | None:
        """Go on behind the first cell that did not simply let pass: it refuses, delays or is in the shadow."""
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
                if cell.overrun(amount):
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

    # Which cells

    def _plan(self, resource: Resource) -> Cells:
        """The cells of a resource; remembered where it comes again."""
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
        if resource.kind in self._asked.releases:
            cells.append(self._ledger(resource))
        return tuple(cells)

    def _ledger(self, resource: Resource) -> Ledger:
        """The resource's ledger; behind all cells that may refuse, so that nothing is ever undone in it."""
        ledger = self._book.get(resource)
        if ledger is None:
            if not _is_planned(resource):
                return Ledger(self._book, resource)
            ledger = self._book[resource] = PlannedLedger(self._book, resource)
        return ledger

    def _return_plan(self, resource: Resource) -> Cells:
        """The cells that something is given back to."""
        known = self._plans.get(id(resource))
        cells = self._cells(resource) if known is None else known
        cells = tuple(cell for cell in cells if type(cell).give_back is not Cell.give_back)
        if known is not None:
            self._returns[id(resource)] = cells
        return cells

    def _make_room(self, plans: int, resource: Resource) -> None:
        """For one more than so many plans."""
        wanted = sum(map(getsizeof, (resource.client_id, resource.username, resource.topic)))
        if plans >= MAX_PLANS or self._planned_bytes + wanted > MAX_PLANNED_BYTES:
            self._drop_plans()
        self._planned_bytes += wanted

    def _drop_plans(self) -> None:
        self._planned_bytes = 0
        self._planned_at = self._monotonic()
        self._plans.clear()
        self._returns.clear()
        self._topic_plans.clear()
        self._pinned.clear()
        # In place: ledgers know the book.
        for resource in [resource for resource, ledger in self._book.items() if ledger.in_use <= 0]:
            del self._book[resource]

    # Which rules

    def take(self, rules: Rules) -> list[str]:
        """Go by these rules; those that did not change keep their state. Answers what must wait for a restart."""
        sentences = []
        taken: list[tuple[Rule, AnswerSettings]] = []
        for settings in (*rules.flow, *rules.param, *rules.system):
            why = unmet(settings, self._asked)
            if why is not None:
                sentences.append(f'rule "{settings.name}" is not in force: {why}')
                continue
            known = self._rules.get(settings.name)
            if known is None or self._settings[settings.name] != settings:
                known = self._made(settings)
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
        """Let each rule remember so many keys, those in force too."""
        self._environment = evolve(self._environment, max_keys=max_keys)
        now = self._monotonic()
        for rule in self._rules.values():
            if isinstance(rule, FlowRule):
                rule.table.resize(max_keys, now)

    def _made(self, settings: AnswerSettings) -> Rule:
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
        """Let a new rule know of what is in use already: it will be given that back."""
        now = self._monotonic()
        for resource, amount in self.in_use().items():
            cell = rule.cell(resource, now)
            if cell is not None:
                cell.overrun(amount)

    def _index(self) -> None:
        """Sort the rules by kind, and find every resource's cells anew."""
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
        """Put the gates of shut rules before everything else."""
        shut: dict[ResourceKind, Cells] = {}
        for rule in self.system_rules():
            if rule.shut:
                for kind, gate in rule.gates.items():
                    shut[kind] = (*shut.get(kind, ()), gate)
        self._shut = shut

    def sweep(self, now: float) -> None:
        """Forget keys that are as good as new, some at a time."""
        for rule in self._rules.values():
            rule.sweep(now)

    def age(self, now: float) -> None:
        """Let hot values get lighter, and have all plans made anew now and then: nobody may need them any more."""
        for rule in self._rules.values():
            rule.age(now)
        if now - self._planned_at >= PLANS_KEPT_S:
            self._drop_plans()


def _is_planned(resource: Resource) -> bool:
    """Whether it is remembered which cells concern a resource: where it comes again, and is not large."""
    if resource.kind is not _PUBLISH:
        return False
    return all(len(name or "") <= LONGEST_PLANNED for name in (resource.topic, resource.client_id, resource.username))
