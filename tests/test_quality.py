"""The checks of `dev.py check`, so that the one test command runs everything that CI runs."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


CHECKS = runpy.run_path(str(ROOT / "dev.py"))["CHECKS"]


@pytest.mark.parametrize("command", CHECKS, ids=" ".join)
def test_sources_pass(command: tuple[str, ...]) -> None:
    """The sources are clean: linted, formatted, and strictly typed where users build on them."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
