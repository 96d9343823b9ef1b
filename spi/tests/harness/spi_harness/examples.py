"""How many random examples a property is tried with: few in each run, many in a long one.

    KINMQTT_EXAMPLES=10 python -m pytest core/tests spi/tests

Every run has other examples.
"""

from __future__ import annotations

import os
from typing import Final

SHARE: Final = float(os.environ.get("KINMQTT_EXAMPLES", "0.4"))
LEAST: Final = 5


def examples(number: int) -> int:
    """Return how many of ``number`` examples are tried; with KINMQTT_EXAMPLES=1 all of them."""
    return max(LEAST, round(number * SHARE))
