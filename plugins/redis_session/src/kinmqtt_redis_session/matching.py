"""Matches a filter against sorted topics and skips ranges that can't match.

Topics are sorted by their bytes. All topics that begin with ``a/`` are adjacent, and ``a0`` follows them, because "0"
is the byte after "/".
"""

from __future__ import annotations

from typing import Final

_BEHIND: Final = b"0"
_BEHIND_DOLLAR: Final = b"%"
END: Final = b"\xff"
"""Sorts after every topic: UTF-8 never has this byte."""


class Pattern:
    """A filter with wildcards."""

    def __init__(self, filter: bytes) -> None:
        self._levels = filter.split(b"/")
        self._all_below = self._levels[-1] == b"#"
        if self._all_below:
            self._levels.pop()
        fixed: list[bytes] = []
        for level in self._levels:
            if level == b"+":
                break
            fixed.append(level)
        self._is_wild_at_first = not fixed
        self.first_level = fixed[0] if fixed else None
        """The first level of all matching topics; ``None`` if it is a wildcard."""
        self.start = b"/".join(fixed)
        """No topic before this one matches."""

    def look(self, topic: bytes) -> tuple[bool, bytes | None]:
        """Whether a topic matches, and the next one that may match; ``None`` if that may be the following topic."""
        if self._is_wild_at_first and topic[:1] == b"$":
            return False, _BEHIND_DOLLAR
        levels = topic.split(b"/")
        for number, wanted in enumerate(self._levels):
            if number >= len(levels):
                return False, None
            if wanted == b"+" or wanted == levels[number]:
                continue
            return False, self._beyond(topic, levels[:number], wanted)
        if len(levels) == len(self._levels) or self._all_below:
            return True, None
        # The topic is deeper than the filter, and so are its siblings.
        return False, b"/".join(levels[: len(self._levels)]) + _BEHIND

    def is_over(self, topic: bytes) -> bool:
        """Whether neither this topic nor a later one can match."""
        return not self._is_wild_at_first and topic > self.start and not topic.startswith(self.start)

    @staticmethod
    def _beyond(topic: bytes, above: list[bytes], wanted: bytes) -> bytes:
        parent = b"/".join(above) + b"/" if above else b""
        exact = parent + wanted
        if topic < exact:
            return exact
        if topic < exact + b"/":
            return exact + b"/"
        return parent[:-1] + _BEHIND if parent else END
