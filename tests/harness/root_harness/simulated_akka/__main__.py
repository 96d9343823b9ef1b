"""The command ``python -m root_harness.simulated_akka``; its options are those of ``kinmqtt.testing.world``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from kinmqtt.testing.world.__main__ import in_hash_order
from kinmqtt.testing.world.__main__ import main as world_main
from root_harness.simulated_akka.runs import plan_of, run_plan

NAME: Final = "root_harness.simulated_akka"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; returns 1 if one of them breaks a promise."""
    return world_main(arguments, NAME, run_plan, plan_of)


if __name__ == "__main__":
    in_hash_order(NAME)
    sys.exit(main())
