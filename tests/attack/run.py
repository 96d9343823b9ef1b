"""Attacks a broker of this checkout, attack by attack, and prints a table of what came of it.

    .venv/bin/python tests/attack/run.py [--watermarks 100,130,160] [--seconds 10] [--only NAME …]

Each attack gets a broker of its own. Watermarks are in MiB; left out, they are the broker's defaults.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / tests / "harness") for tests in ("tests", "core/tests", "spi/tests")]

from root_harness.attacks import attacks  # noqa: E402
from root_harness.campaign import HEAD, attacked, broker_with, settings_with  # noqa: E402


def main() -> None:
    """Run the attacks that are asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watermarks", type=lambda text: tuple(int(each) for each in text.split(",")))
    parser.add_argument("--seconds", type=float, default=10.0, help="how long an attack goes on that has no end")
    parser.add_argument("--only", nargs="+", choices=[name for name, _ in attacks()])
    arguments = parser.parse_args()
    print(HEAD, flush=True)
    for name, _ in attacks():
        if arguments.only and name not in arguments.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            with broker_with(settings_with(arguments.watermarks), Path(folder)) as broker:
                print(attacked(broker, name, arguments.seconds).row, flush=True)


if __name__ == "__main__":
    main()
