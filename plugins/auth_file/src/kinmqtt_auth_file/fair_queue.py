"""A fair queue of jobs: each address has its own queue, and they take turns.

Addresses without failures go first, but one turn in :data:`FAILING_SHARE` is for the others, so that no one starves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv4Address, ip_address
from itertools import chain
from typing import Final, Generic, TypeVar

J = TypeVar("J")

FAILING_SHARE: Final = 4
"""One turn in this many is for addresses with failures while others wait too."""

SITE_BITS: Final = 64
"""The bits of an IPv6 address that identify a site. A site counts as one address, because it has a whole /64."""


def network(address: str) -> str:
    """The source of a client: its IPv4 address, the first half of its IPv6 address, or the text as it is."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address  # For example a Unix socket.
    if isinstance(ip, IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    site = int(ip) >> SITE_BITS << SITE_BITS
    return f"{ip_address(site)}/{SITE_BITS}" if site >> SITE_BITS else str(ip)


class FairQueue(Generic[J]):
    """Decides which job is next. An address that had its turn goes behind the others of its class."""

    def __init__(self, has_failed: Callable[[str], bool]) -> None:
        """``has_failed`` tells the class of an address; after a change call :meth:`reclassify`."""
        self._has_failed = has_failed
        self._clean: OrderedDict[str, dict[J, None]] = OrderedDict()
        self._failing: OrderedDict[str, dict[J, None]] = OrderedDict()
        self._count = 0
        self._in_a_row = 0
        """Consecutive turns of addresses without failures while a failing one was ready."""

    def __len__(self) -> int:
        """The number of waiting jobs."""
        return self._count

    def waiting(self, source: str) -> int:
        """The number of waiting jobs of an address."""
        return len(self._clean.get(source) or self._failing.get(source) or ())

    def failing(self) -> tuple[str, ...]:
        """The addresses with failures, in the order of their turns."""
        return tuple(self._failing)

    def add(self, source: str, job: J) -> None:
        """Append a job to the queue of its address."""
        queues = self._class_of(source)
        if source not in queues:
            queues = self._failing if self._has_failed(source) else self._clean
        queues.setdefault(source, {})[job] = None
        self._count += 1

    def remove(self, source: str, job: J) -> bool:
        """Remove a job; returns ``False`` if it is not queued."""
        queues = self._class_of(source)
        jobs = queues.get(source)
        if jobs is None or job not in jobs:
            return False
        del jobs[job]
        self._count -= 1
        if not jobs:
            del queues[source]
        return True

    def reclassify(self, source: str) -> None:
        """Move an address to the end of its class, after it has failed or its failures have expired."""
        queues = self._class_of(source)
        others = self._failing if self._has_failed(source) else self._clean
        if source in queues and queues is not others:
            others[source] = queues.pop(source)

    def take(self, is_ready: Callable[[str], bool]) -> tuple[str, J] | None:
        """Remove and return the next job with its address; ``is_ready`` tells whether a failing address may go."""
        failing = next(filter(is_ready, self._failing), None)
        clean = next(iter(self._clean), None)
        if clean is None or (failing is not None and self._in_a_row >= FAILING_SHARE - 1):
            self._in_a_row = 0
            return None if failing is None else self._pop(self._failing, failing)
        self._in_a_row = 0 if failing is None else self._in_a_row + 1
        return self._pop(self._clean, clean)

    def eviction_candidate(self, source: str) -> tuple[str, J] | None:
        """The job to evict for a new job of ``source``, with its address; ``None`` if there is none.

        It is the last job of the longest queue. Addresses with failures give way to those without, but not the other
        way round. Within a class, an address gives way if it has more jobs than ``source`` would have, so that an
        address with one job is never evicted for another's second.
        """
        asks = self._has_failed(source)
        if not asks and self._failing:
            return self._last(self._failing)
        found = self._last(self._failing if asks else self._clean)
        return found if found is not None and self.waiting(found[0]) > self.waiting(source) + 1 else None

    def all_jobs(self) -> tuple[J, ...]:
        """All waiting jobs."""
        return tuple(chain.from_iterable([*self._clean.values(), *self._failing.values()]))

    def _class_of(self, source: str) -> OrderedDict[str, dict[J, None]]:
        return self._failing if source in self._failing else self._clean

    def _pop(self, queues: OrderedDict[str, dict[J, None]], source: str) -> tuple[str, J]:
        job = next(iter(queues[source]))
        queues.move_to_end(source)
        self.remove(source, job)
        return source, job

    @staticmethod
    def _last(queues: OrderedDict[str, dict[J, None]]) -> tuple[str, J] | None:
        if not queues:
            return None
        longest = max(queues, key=lambda source: len(queues[source]))
        return longest, next(reversed(queues[longest]))
