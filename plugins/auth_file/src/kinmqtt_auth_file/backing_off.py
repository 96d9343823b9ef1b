"""How long an address waits after wrong passwords: longer after each, never for long, and healed by a right one."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from attrs import define

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Clock

FREE: Final = 5
"""Wrong passwords in a row that cost an address no time: people mistype, and many may share an address."""
FIRST_S: Final = 0.25
"""The pause after the next one; each further one doubles it."""
HEALED_AFTER_S: Final = 600.0
"""Without a wrong password for so long an address is as if it never had one."""
MOST: Final = 10_000
"""Addresses that are remembered; of more the one whose last wrong password is the oldest is forgotten."""


@define(slots=True)
class _Failures:
    count: int
    last: float


class BackOff:
    """What is known of addresses from which wrong passwords came."""

    def __init__(self, clock: Clock, longest_s: float, most: int = MOST) -> None:
        """``longest_s`` is the longest pause; 0 for none at all."""
        self._clock = clock
        self._longest_s = longest_s
        self._most = most
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        """By address, the one whose last failure is the oldest first."""

    def __len__(self) -> int:
        """How many addresses have failures that are not healed."""
        self._forget(self._clock.monotonic())
        return len(self._failures)

    def bound(self, longest_s: float) -> None:
        """Another longest pause, from now on."""
        self._longest_s = longest_s

    def has_failed(self, address: str) -> bool:
        """Whether a wrong password came from it that is not healed."""
        return self._known(address) is not None

    def pause_s(self, address: str) -> float:
        """How long it waits between two verifications."""
        known = self._known(address)
        return 0.0 if known is None else self._pause_s(known.count)

    def ready_at(self, address: str) -> float:
        """When its next verification may begin, by the clock's ``monotonic``; long ago where nothing is known."""
        known = self._known(address)
        return 0.0 if known is None else known.last + self._pause_s(known.count)

    def failed(self, address: str) -> int:
        """A wrong password came from it; answers how many came in a row."""
        now = self._clock.monotonic()
        known = self._known(address) or _Failures(0, now)
        known.count += 1
        known.last = now
        self._failures[address] = known
        self._failures.move_to_end(address)
        self._forget(now)
        return known.count

    def succeeded(self, address: str) -> None:
        """A right password came from it: all is well again."""
        self._failures.pop(address, None)

    def _known(self, address: str) -> _Failures | None:
        known = self._failures.get(address)
        return None if known is None or self._is_healed(known, self._clock.monotonic()) else known

    def _pause_s(self, count: int) -> float:
        if count <= FREE:
            return 0.0
        # The exponent has a bound: a float has one, too.
        return min(FIRST_S * 2.0 ** min(count - FREE - 1, 64), self._longest_s)

    def _forget(self, now: float) -> None:
        while self._failures:
            oldest = next(iter(self._failures))
            if len(self._failures) <= self._most and not self._is_healed(self._failures[oldest], now):
                return
            del self._failures[oldest]

    @staticmethod
    def _is_healed(known: _Failures, now: float) -> bool:
        return now - known.last >= HEALED_AFTER_S
