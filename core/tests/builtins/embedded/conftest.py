"""What holds for the tests of the embedded store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core_harness.open_files import open_files


@pytest.fixture(autouse=True)
def nothing_stays_open(tmp_path: Path) -> Iterator[None]:
    """Who leaves a file open hears of it here, and not some later test while rubbish is collected."""
    yield
    assert open_files(tmp_path) == []
