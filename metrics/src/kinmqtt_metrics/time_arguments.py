"""Times as they are given on a command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final


def epoch_s(moment: datetime) -> float:
    """A time without a zone is UTC, as the tables say."""
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


_BACK: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(min|m|h|d)")
_BACK_S: Final = {"min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_moment(text: str, newest_s: float) -> float:
    """``2026-11-21T14:00``, UTC where no zone is said, or ``24h``: so long before the newest window's end.

    Raises ``ValueError``.
    """
    match = _BACK.fullmatch(text.strip())
    if match is not None:
        return max(0.0, newest_s - float(match[1]) * _BACK_S[match[2]])
    try:
        return epoch_s(datetime.fromisoformat(text.strip()))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: write 2026-11-21, 2026-11-21T14:00 (UTC) or 24h "
            "(before the end of the newest window)"
        ) from None
