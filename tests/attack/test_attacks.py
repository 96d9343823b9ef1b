"""The broker's memory stays within its watermarks whatever is done to it, and others are served all the while.

``tests/attack/run.py`` makes a table of the same attacks, for longer and with other watermarks. How long the
bystander waits stands in that table, and is not asserted here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from root_harness.attacks import attacks
from root_harness.campaign import attacked, broker_with, settings_with

WATERMARKS = (100, 130, 160)
"""In MiB: when it does nothing the broker takes some 70."""

PEAK_BYTES = 200 << 20
BACK_BYTES = 130 << 20
"""What is left behind is below the second watermark: sessions and retained messages stay, by design."""

LASTS_S = 2.0


@pytest.mark.parametrize("name", [name for name, _ in attacks()])
def test_an_attack_stays_within_the_watermarks(name: str, tmp_path: Path) -> None:
    """The memory has a bound, the bystander keeps its connection, and after the attack the memory is back."""
    with broker_with(settings_with(WATERMARKS), tmp_path) as broker:
        result = attacked(broker, name, LASTS_S)

    print(result)
    assert result.peak_bytes < PEAK_BYTES
    assert result.after_bytes < BACK_BYTES
    assert result.bystander["lost"] == 0
    assert result.bystander["trips"] > 0
