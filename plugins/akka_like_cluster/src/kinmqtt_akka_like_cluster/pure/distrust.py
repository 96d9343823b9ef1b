"""Members that send malformed input again and again: they answer heartbeats, and are of no use all the same."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MOST_MALFORMED: Final = 3
"""A member that sends so many malformed messages within :data:`WINDOW_S` counts as unreachable."""
WINDOW_S: Final = 60.0
"""Also how long it must send none to be reachable again."""


class Distrust:
    """What one member knows of the others' malformed input. Times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._times: dict[int, list[float]] = {}
        """By uid: when the last malformed messages came, :data:`MOST_MALFORMED` at most."""
        self._distrusted: set[int] = set()

    def __contains__(self, uid: int) -> bool:
        """Tell whether a member counts as unreachable."""
        return uid in self._distrusted

    def note(self, uid: int, now: float) -> bool:
        """Note a malformed message; returns whether the member counts as unreachable from now on."""
        times = self._times[uid] = [*self._times.get(uid, ()), now][-MOST_MALFORMED:]
        if len(times) == MOST_MALFORMED and now - times[0] <= WINDOW_S:
            self._distrusted.add(uid)
        return uid in self._distrusted

    def ended(self, members: Collection[int], now: float) -> list[int]:
        """Return the members that may be reachable again, and forget all those whose malformed messages are old."""
        over = {uid for uid, times in self._times.items() if now - times[-1] > WINDOW_S or uid not in members}
        ended = sorted(self._distrusted & over & {*members})
        self._distrusted -= over
        for uid in over:
            del self._times[uid]
        return ended
