"""The contract of a limiter: what passes, and what happens to the excess."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from math import ceil, isfinite
from typing import Any, Final

import pytest
from attrs import evolve, frozen

from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.limiter import LimitDecision, LimiterNeeds, LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import Driver
from kinmqtt_spi.testing.hooks import Hooks

SPAN_S: Final = 60
"""How long a rate is watched, on the clock."""
CLIENTS: Final = 100_000
"""How many clients a bounded limiter is shown."""
OTHERS: Final = 20
"""How many clients come while another's share is used up."""


@frozen(slots=True)
class LimiterCase:
    """A limiter, and its limit."""

    plugin: Any
    """Configured with the fixture ``clock``."""
    limited: Resource
    """What is limited, used by one client."""
    passes: int
    """How many of it are ALLOWed at once when it was not used for long."""
    unlimited: Resource
    """What is not limited."""
    rate_per_s: float = 0.0
    """How many of it pass each second in the long run; for the suite's ``limits_rate``."""
    same_share: Sequence[Resource] = ()
    """What is used by others, and taken from the share of ``limited``: from its address, say, by another client."""
    own_share: Sequence[Resource] = ()
    """What has a share of its own, as large, though it has much in common with ``limited``."""


class LimiterContract(Contract):
    """Override the fixture ``limiter``, which returns a :class:`LimiterCase`; pass its plugin the ``clock``."""

    limits_rate = True
    """Whether the limited resource has a rate."""
    limits_concurrency = False
    """Whether the limited resource is limited by how much of it there is at once, until it is released."""
    per_client = True
    """Whether each client has its own share."""
    reloads = False
    """Whether its rules can be read again while it runs: override :meth:`reload`."""
    keeps_use = False
    """Whether what was used before a reload is used after it, where the rules stay as they are."""
    bounded = False
    """Whether the suite may see how many clients are remembered: override :meth:`size`, and set ``bound``."""
    bound = 0
    """How many clients the limiter of the case remembers at most."""

    @pytest.fixture
    def limiter(self, clock: TurnableClock) -> LimiterCase:
        """The plugin under test, and its limit."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture limiter")

    def size(self, case: LimiterCase) -> int:
        """Return the number of clients that the plugin remembers."""
        raise NotImplementedError(f"{type(self).__name__} sets bounded, and does not override size")

    def reload(self, case: LimiterCase, drive: Driver) -> None:
        """Reload the plugin with its present settings."""
        raise NotImplementedError(f"{type(self).__name__} sets reloads, and does not override reload")

    # Answers

    @behaviour("LIMITER-01")
    def test_limiter_01_it_answers_at_once(self, limiter: LimiterCase) -> None:
        """``acquire`` returns a ``LimitDecision``, or ``None`` to abstain, without waiting."""
        hooks = Hooks(limiter.plugin)
        for resource in (limiter.unlimited, *[limiter.limited] * (limiter.passes + 1)):
            answer = hooks.call("acquire", resource=resource, amount=1)
            assert not isinstance(answer, Awaitable)
            assert answer is None or isinstance(answer, LimitDecision)

    @behaviour("LIMITER-02")
    def test_limiter_02_what_is_not_limited_passes(self, limiter: LimiterCase) -> None:
        """A resource without a rule passes, however much of it, also while the limited resource does not."""
        hooks = Hooks(limiter.plugin)
        for _ in range(1000):
            _acquire(hooks, limiter.limited)
            assert _allowed(_acquire(hooks, limiter.unlimited))
        assert _allowed(_acquire(hooks, limiter.unlimited, 1_000_000))

    @behaviour("LIMITER-03")
    def test_limiter_03_the_excess_does_not_pass(self, limiter: LimiterCase) -> None:
        """The burst passes, and the next one does not."""
        hooks = Hooks(limiter.plugin)

        answers = [_allowed(_acquire(hooks, limiter.limited)) for _ in range(limiter.passes + 1)]

        assert answers == [True] * limiter.passes + [False]

    @behaviour("LIMITER-04")
    def test_limiter_04_an_amount_counts_as_much(self, limiter: LimiterCase) -> None:
        """An amount counts in full: requested at once it leaves as much as requested one by one."""
        hooks = Hooks(limiter.plugin)

        assert _allowed(_acquire(hooks, limiter.limited, limiter.passes))
        assert not _allowed(_acquire(hooks, limiter.limited))

    @behaviour("LIMITER-05")
    def test_limiter_05_an_excess_names_its_rule(self, limiter: LimiterCase) -> None:
        """An answer other than ALLOW names its rule."""
        for decision in _excess(limiter):
            assert decision.rule

    @behaviour("LIMITER-06")
    def test_limiter_06_a_delay_is_a_time(self, limiter: LimiterCase) -> None:
        """A delay is finite and not negative, and that of a DELAY is positive."""
        for decision in _excess(limiter):
            assert isfinite(decision.delay_s)
            assert decision.delay_s >= 0
            assert decision.delay_s > 0 or decision.verdict is not LimitVerdict.DELAY

    @behaviour("LIMITER-07")
    def test_limiter_07_a_refusal_has_a_reason(self, limiter: LimiterCase) -> None:
        """A refusal has the reason code of a failure."""
        for decision in _excess(limiter):
            assert decision.reason >= 0x80

    @behaviour("LIMITER-08")
    def test_limiter_08_what_is_not_known_is_met(self, limiter: LimiterCase) -> None:
        """Every kind is answered without an error if client id, user name and topic are unknown."""
        hooks = Hooks(limiter.plugin)
        for kind in ResourceKind:
            for address in ("192.0.2.1", "2001:db8::1", ""):
                answer = _acquire(hooks, Resource(kind, "tcp:1883", address))
                assert answer is None or isinstance(answer, LimitDecision)

    @behaviour("LIMITER-09")
    def test_limiter_09_it_says_what_it_needs(self, limiter: LimiterCase) -> None:
        """``limiter_needs``, if implemented, names the limited kind, and topics if rules depend on them.

        A kind with a limit on concurrency is among ``releases``.
        """
        hooks = Hooks(limiter.plugin)
        needs = hooks.call("limiter_needs") if hooks.has("limiter_needs") else LimiterNeeds()
        resource = limiter.limited

        assert isinstance(needs, LimiterNeeds)
        assert resource.kind in needs.kinds
        assert needs.releases <= needs.kinds
        assert resource.kind in needs.releases or not self.limits_concurrency
        if resource.kind is ResourceKind.PUBLISH and not needs.topics:
            # It will be asked without a topic, and limits all the same.
            for _ in range(limiter.passes):
                _acquire(hooks, evolve(resource, topic=None))
            assert not _allowed(_acquire(hooks, evolve(resource, topic=None)))

    @behaviour("LIMITER-10", needs="per_client")
    def test_limiter_10_each_client_has_its_share(self, limiter: LimiterCase) -> None:
        """One client's excess leaves another its whole share."""
        hooks = Hooks(limiter.plugin)
        for _ in range(limiter.passes * 3):
            _acquire(hooks, limiter.limited)

        other = _another(limiter.limited, 1)
        assert all(_allowed(_acquire(hooks, other)) for _ in range(limiter.passes))

    # Over time

    @behaviour("LIMITER-11", needs="limits_rate")
    def test_limiter_11_the_rate_is_kept(self, limiter: LimiterCase, clock: TurnableClock) -> None:
        """Over a minute about as much passes as the rate allows, and no more than that and the burst.

        The client obeys delays, and requests again when they are over.
        """
        hooks = Hooks(limiter.plugin)
        asked = min(ceil(limiter.rate_per_s * SPAN_S * 4), 6000)
        amount = max(1, ceil(limiter.rate_per_s * SPAN_S * 4 / asked))
        passed, free_at, start = 0, 0.0, clock.monotonic()
        for number in range(asked):
            clock.advance(start + SPAN_S * (number + 1) / asked - clock.monotonic())
            if clock.monotonic() < free_at:
                continue
            decision = _acquire(hooks, limiter.limited, amount)
            if _allowed(decision) or decision.verdict is LimitVerdict.DELAY:
                passed += amount
            if decision is not None and decision.verdict is LimitVerdict.DELAY:
                free_at = clock.monotonic() + decision.delay_s

        long_run = limiter.rate_per_s * SPAN_S
        assert 0.8 * long_run - amount <= passed <= 1.1 * long_run + limiter.passes + amount

    @behaviour("LIMITER-12", needs="limits_rate")
    def test_limiter_12_no_time_brings_nothing(self, limiter: LimiterCase, clock: TurnableClock) -> None:
        """While the clock stands still no tokens are added; after long enough the whole burst is available."""
        hooks = Hooks(limiter.plugin)
        used = [_allowed(_acquire(hooks, limiter.limited)) for _ in range(limiter.passes * 10)]
        clock.advance(10 * limiter.passes / limiter.rate_per_s + 1)
        again = [_allowed(_acquire(hooks, limiter.limited)) for _ in range(limiter.passes + 1)]

        assert sum(used) == limiter.passes
        assert again == [True] * limiter.passes + [False]

    @behaviour("LIMITER-24", needs="limits_rate")
    def test_limiter_24_a_large_amount_is_owed(self, limiter: LimiterCase, clock: TurnableClock) -> None:
        """An amount above the burst passes if one would, and the excess is taken on credit.

        A read may have more packets than any limit: it is not refused for ever, and the rate holds.
        """
        hooks = Hooks(limiter.plugin)
        for _ in range(limiter.passes - 1):
            assert _allowed(_acquire(hooks, limiter.limited))
        owed = 4 * limiter.passes - 1

        large = _acquire(hooks, limiter.limited, owed + 1)
        clock.advance(owed / limiter.rate_per_s / 2)
        before = _acquire(hooks, limiter.limited)
        clock.advance((owed + limiter.passes) / limiter.rate_per_s + 1)
        after = _acquire(hooks, limiter.limited)

        assert _allowed(large) or large.verdict is LimitVerdict.DELAY
        assert not _allowed(before)
        assert _allowed(after)

    @behaviour("LIMITER-13", needs="bounded")
    def test_limiter_13_its_memory_is_bounded(self, limiter: LimiterCase) -> None:
        """However many clients there are, no more are remembered than the limit, and the last one is limited, too."""
        hooks = Hooks(limiter.plugin)
        clients = max(CLIENTS, self.bound + self.bound // 10)
        for number in range(clients):
            _acquire(hooks, _another(limiter.limited, number))

        last = _another(limiter.limited, clients)
        answers = [_allowed(_acquire(hooks, last)) for _ in range(limiter.passes + 1)]
        assert self.size(limiter) <= self.bound
        assert answers == [True] * limiter.passes + [False]

    # How much there is at once

    @behaviour("LIMITER-14", needs="limits_concurrency")
    def test_limiter_14_what_is_released_can_be_used(self, limiter: LimiterCase, clock: TurnableClock) -> None:
        """A released grant can be granted again, and time alone adds nothing."""
        hooks = Hooks(limiter.plugin)
        for _ in range(limiter.passes):
            assert _allowed(_acquire(hooks, limiter.limited))
        clock.advance(3600)
        assert not _allowed(_acquire(hooks, limiter.limited))

        hooks.call("release", resource=limiter.limited, amount=1)

        assert _allowed(_acquire(hooks, limiter.limited))
        assert not _allowed(_acquire(hooks, limiter.limited))

    @behaviour("LIMITER-15", needs="limits_concurrency")
    def test_limiter_15_what_was_refused_is_not_held(self, limiter: LimiterCase) -> None:
        """A refusal by the limiter is not counted, and not released."""
        hooks = Hooks(limiter.plugin)
        for _ in range(3):
            granted = [_allowed(_acquire(hooks, limiter.limited)) for _ in range(limiter.passes * 2)]
            assert granted == [True] * limiter.passes + [False] * limiter.passes
            for _ in range(limiter.passes):
                hooks.call("release", resource=limiter.limited, amount=1)

    @behaviour("LIMITER-16", needs="limits_concurrency")
    def test_limiter_16_amounts_are_released_as_granted(self, limiter: LimiterCase) -> None:
        """An amount is released as it was granted; over many rounds nothing is lost or gained."""
        hooks = Hooks(limiter.plugin)
        for _ in range(1000):
            assert _allowed(_acquire(hooks, limiter.limited, limiter.passes))
            assert not _allowed(_acquire(hooks, limiter.limited))
            hooks.call("release", resource=limiter.limited, amount=limiter.passes)

    # Whose share it is

    @behaviour("LIMITER-17")
    def test_limiter_17_one_share_is_taken_together(self, limiter: LimiterCase) -> None:
        """Usage by others with the same share is taken from it: another name gives nothing more."""
        hooks = Hooks(limiter.plugin)
        others = _some(limiter.same_share, "others of the same share")
        _spend(hooks, limiter)
        for other in others:
            assert not _allowed(_acquire(hooks, other)), other

    @behaviour("LIMITER-18")
    def test_limiter_18_much_in_common_is_not_the_same(self, limiter: LimiterCase) -> None:
        """A client with its own share has all of it, whatever it shares with one whose share is used up."""
        hooks = Hooks(limiter.plugin)
        others = _some(limiter.own_share, "others with shares of their own")
        _spend(hooks, limiter)
        for other in others:
            assert all(_allowed(_acquire(hooks, other)) for _ in range(limiter.passes))
        assert not _allowed(_acquire(hooks, limiter.limited))

    @behaviour("LIMITER-19", needs="per_client")
    def test_limiter_19_others_bring_nothing_back(self, limiter: LimiterCase) -> None:
        """A client whose share is used up gains nothing from others that use theirs and are refused."""
        hooks = Hooks(limiter.plugin)
        _spend(hooks, limiter)
        for number in range(OTHERS):
            other = _another(limiter.limited, number)
            for _ in range(limiter.passes + 1):
                _acquire(hooks, other)
            assert not _allowed(_acquire(hooks, limiter.limited))

    @behaviour("LIMITER-20", needs="limits_concurrency")
    def test_limiter_20_a_release_is_its_clients(self, limiter: LimiterCase) -> None:
        """A release by another client leaves a used-up share used up, and that other can use it."""
        if not self.per_client:
            pytest.skip("the limiter has one share for all clients")
        hooks = Hooks(limiter.plugin)
        other = _another(limiter.limited, 1)
        _spend(hooks, limiter)
        for _ in range(limiter.passes):
            assert _allowed(_acquire(hooks, other))
        for _ in range(limiter.passes):
            hooks.call("release", resource=other, amount=1)
            assert not _allowed(_acquire(hooks, limiter.limited))
        assert all(_allowed(_acquire(hooks, other)) for _ in range(limiter.passes))
        assert not _allowed(_acquire(hooks, other))

    # A reload

    @behaviour("LIMITER-21", needs="reloads")
    def test_limiter_21_it_limits_after_a_reload(self, limiter: LimiterCase, drive: Driver) -> None:
        """After a reload with the same settings no more passes at once than before."""
        for _ in range(3):
            self.reload(limiter, drive)
        hooks = Hooks(limiter.plugin)

        answers = [_allowed(_acquire(hooks, limiter.limited)) for _ in range(limiter.passes + 1)]

        assert answers == [True] * limiter.passes + [False]

    @behaviour("LIMITER-22", needs="keeps_use")
    def test_limiter_22_a_reload_brings_nothing_back(self, limiter: LimiterCase, drive: Driver) -> None:
        """A share that was used up before a reload with the same settings is used up after it."""
        _spend(Hooks(limiter.plugin), limiter)
        for _ in range(3):
            self.reload(limiter, drive)
            assert not _allowed(_acquire(Hooks(limiter.plugin), limiter.limited))

    # After a refusal

    @behaviour("LIMITER-23", needs="limits_rate")
    def test_limiter_23_a_refusal_is_not_for_ever(self, limiter: LimiterCase, clock: TurnableClock) -> None:
        """A refused or delayed client passes again after a while, however often it was refused."""
        hooks = Hooks(limiter.plugin)
        for _ in range(20):
            _spend(hooks, limiter)
            for _ in range(3):
                decision = _acquire(hooks, limiter.limited)
            clock.advance(10 * (limiter.passes + 4) / limiter.rate_per_s + 1 + decision.delay_s)
            assert _allowed(_acquire(hooks, limiter.limited))


def _acquire(hooks: Hooks, resource: Resource, amount: int = 1) -> Any:
    return hooks.call("acquire", resource=resource, amount=amount)


def _some(examples: Sequence[Any], what: str) -> Sequence[Any]:
    if not examples:
        pytest.skip(f"the case has no example of {what}")
    return examples


def _spend(hooks: Hooks, case: LimiterCase) -> None:
    """Use the whole share of the limited resource."""
    for _ in range(case.passes):
        _acquire(hooks, case.limited)
    assert not _allowed(_acquire(hooks, case.limited))


def _allowed(decision: Any) -> bool:
    return decision is None or decision.verdict is LimitVerdict.ALLOW


def _excess(case: LimiterCase) -> Iterator[LimitDecision]:
    """Answers that are not ALLOW, each with more debt than the one before."""
    hooks = Hooks(case.plugin)
    for _ in range(case.passes):
        _acquire(hooks, case.limited)
    for amount in (1, 1, 10, 1000):
        decision = _acquire(hooks, case.limited, amount)
        assert not _allowed(decision)
        yield decision


def _another(resource: Resource, number: int) -> Resource:
    """The same resource, used by another client from another address."""
    return evolve(
        resource,
        address=f"2001:db8::{number >> 16:x}:{number & 0xFFFF:x}",
        client_id=None if resource.client_id is None else f"other-{number}",
        username=None if resource.username is None else f"other-{number}",
    )
