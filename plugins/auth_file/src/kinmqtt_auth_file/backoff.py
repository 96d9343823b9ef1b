"""Backoff after wrong passwords: each address pauses longer after each one, up to a limit, until a right one."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from attrs import define

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Clock

FREE_FAILURES: Final = 5
"""Wrong passwords in a row that cause no pause: people mistype, and many may share an address."""
FIRST_PAUSE_S: Final = 0.25
"""The pause after the next one; each further one doubles it."""
FORGET_AFTER_S: Final = 600.0
"""After this time without a wrong password, an address's failures expire."""
MAX_ADDRESSES: Final = 10_000
"""The most addresses that are remembered; beyond that, the one with the oldest last failure is forgotten."""


@define(slots=True)
class _Failures:
    count: int
    last: float


class Backoff:
    """Remembers addresses with wrong passwords, and computes their pauses."""

    def __init__(self, clock: Clock, longest_s: float, most: int = MAX_ADDRESSES) -> None:
        """``longest_s`` is the longest pause; 0 for none at all."""
        self._clock = clock
        self._longest_s = longest_s
        self._most = most
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        """By address, oldest last failure first."""

    def __len__(self) -> int:
        """The number of addresses with unexpired failures."""
        self._forget(self._clock.monotonic())
        return len(self._failures)

    def set_limits(self, longest_s: float) -> None:
        """Change the longest pause."""
        self._longest_s = longest_s

    def has_failed(self, address: str) -> bool:
        """Whether the address has unexpired failures."""
        return self._known(address) is not None

    def pause_s(self, address: str) -> float:
        """The address's pause between two verifications."""
        known = self._known(address)
        return 0.0 if known is None else self._pause_s(known.count)

    def ready_at(self, address: str) -> float:
        """When the next verification may begin, by the clock's ``monotonic``; 0 without failures."""
        known = self._known(address)
        return 0.0 if known is None else known.last + self._pause_s(known.count)

    def failed(self, address: str) -> int:
        """Record a wrong password; returns how many came in a row."""
        now = self._clock.monotonic()
        known = self._known(address) or _Failures(0, now)
        known.count += 1
        known.last = now
        self._failures[address] = known
        self._failures.move_to_end(address)
        self._forget(now)
        return known.count

    def succeeded(self, address: str) -> None:
        """Record a right password, which clears the address's failures."""
        self._failures.pop(address, None)

    def _known(self, address: str) -> _Failures | None:
        known = self._failures.get(address)
        return None if known is None or self._is_expired(known, self._clock.monotonic()) else known

    def _pause_s(self, count: int) -> float:
        if count <= FREE_FAILURES:
            return 0.0
        # Limit the exponent, so that the float can't overflow.
        return min(FIRST_PAUSE_S * 2.0 ** min(count - FREE_FAILURES - 1, 64), self._longest_s)

    def _forget(self, now: float) -> None:
        while self._failures:
            oldest = next(iter(self._failures))
            if len(self._failures) <= self._most and not self._is_expired(self._failures[oldest], now):
                return
            del self._failures[oldest]

    @staticmethod
    def _is_expired(known: _Failures, now: float) -> bool:
        return now - known.last >= FORGET_AFTER_S
