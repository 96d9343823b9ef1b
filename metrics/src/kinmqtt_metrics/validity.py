"""What no pipeline of ours writes, and somebody's file may have all the same: it would spoil every sum and axis."""

from __future__ import annotations

from typing import Final

from kinmqtt_metrics.number_arguments import WEEK_S

LATEST_S: Final = 7_258_118_400
"""2200, in seconds since the epoch. Windows begin between 1970 and then."""
MOST_COUNTED: Final = 2**53
"""No count of a window is higher, nor below 0: sums of a thousand of these stay within 64 bits."""
MOST_MEASURED: Final = 1e18
"""No measure is further from 0."""
LONGEST_S: Final = WEEK_S
"""No window is longer."""
