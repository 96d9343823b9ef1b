"""Lines of jobs, one for each address, which have their turns one after the other: none holds up another.

Addresses without failures go first, and one turn in :data:`TURNS` is for the others all the same, so that nobody
waits for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv4Address, ip_address
from itertools import chain
from typing import Final, Generic, TypeVar

J = TypeVar("J")

TURNS: Final = 4
"""Of so many turns one is for addresses with failures, while others wait too."""

SITE_BITS: Final = 64
"""Of an IPv6 address: what one site has of them is one address here, or a client had as many lines as it likes."""


def network(address: str) -> str:
    """Whose line a client stands in: its IPv4 address, the first half of an IPv6 address, or what else is there."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address  # A Unix socket, say.
    if isinstance(ip, IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    site = int(ip) >> SITE_BITS << SITE_BITS
    return f"{ip_address(site)}/{SITE_BITS}" if site >> SITE_BITS else str(ip)


class Turns(Generic[J]):
    """Who is next. A line that had its turn goes behind the others of its class."""

    def __init__(self, has_failed: Callable[[str], bool]) -> None:
        """``has_failed`` says of a line by its name which class it is of; it is asked as :meth:`look_again` says."""
        self._has_failed = has_failed
        self._sound: OrderedDict[str, dict[J, None]] = OrderedDict()
        self._failing: OrderedDict[str, dict[J, None]] = OrderedDict()
        self._count = 0
        self._in_a_row = 0
        """Turns that addresses without failures had while others could have had theirs."""

    def __len__(self) -> int:
        """How many jobs wait."""
        return self._count

    def waiting(self, line: str) -> int:
        """How many jobs wait in one line."""
        return len(self._sound.get(line) or self._failing.get(line) or ())

    def failing(self) -> tuple[str, ...]:
        """The lines of addresses with failures, in the order of their turns."""
        return tuple(self._failing)

    def add(self, line: str, job: J) -> None:
        """A job comes to the end of its line."""
        lines = self._lines_of(line)
        if line not in lines:
            lines = self._failing if self._has_failed(line) else self._sound
        lines.setdefault(line, {})[job] = None
        self._count += 1

    def remove(self, line: str, job: J) -> bool:
        """A job leaves its line, wherever it stands; ``False`` where it does not."""
        lines = self._lines_of(line)
        jobs = lines.get(line)
        if jobs is None or job not in jobs:
            return False
        del jobs[job]
        self._count -= 1
        if not jobs:
            del lines[line]
        return True

    def look_again(self, line: str) -> None:
        """An address has failed, or no longer counts as one that has: its line goes behind those of its class."""
        lines = self._lines_of(line)
        others = self._failing if self._has_failed(line) else self._sound
        if line in lines and lines is not others:
            others[line] = lines.pop(line)

    def take(self, is_ready: Callable[[str], bool]) -> tuple[str, J] | None:
        """The next job with its line. ``is_ready`` is asked of the lines of addresses with failures."""
        failing = next(filter(is_ready, self._failing), None)
        sound = next(iter(self._sound), None)
        if sound is None or (failing is not None and self._in_a_row >= TURNS - 1):
            self._in_a_row = 0
            return None if failing is None else self._turn_of(self._failing, failing)
        self._in_a_row = 0 if failing is None else self._in_a_row + 1
        return self._turn_of(self._sound, sound)

    def last_of_longest(self, line: str) -> tuple[str, J] | None:
        """Who gives way to one job more in ``line``: the last in the longest, with its line; ``None`` for nobody.

        Addresses with failures give way to those without, and those without to none that has some. Within a class
        who has more than the line would have gives way, so that an address with one job is never pushed out by
        another's second.
        """
        asks = self._has_failed(line)
        if not asks and self._failing:
            return self._last(self._failing)
        found = self._last(self._failing if asks else self._sound)
        return found if found is not None and self.waiting(found[0]) > self.waiting(line) + 1 else None

    def everybody(self) -> tuple[J, ...]:
        """All jobs that wait."""
        return tuple(chain.from_iterable([*self._sound.values(), *self._failing.values()]))

    def _lines_of(self, line: str) -> OrderedDict[str, dict[J, None]]:
        return self._failing if line in self._failing else self._sound

    def _turn_of(self, lines: OrderedDict[str, dict[J, None]], line: str) -> tuple[str, J]:
        job = next(iter(lines[line]))
        lines.move_to_end(line)
        self.remove(line, job)
        return line, job

    @staticmethod
    def _last(lines: OrderedDict[str, dict[J, None]]) -> tuple[str, J] | None:
        if not lines:
            return None
        longest = max(lines, key=lambda line: len(lines[line]))
        return longest, next(reversed(lines[longest]))
