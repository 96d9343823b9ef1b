"""The generated parts of the documentation are those of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_no_page_is_stale() -> None:
    """Hooks, settings, state tables and metrics stand in docs/ as the code has them."""
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, f"run `python docs/generate.py`:\n{done.stdout}{done.stderr}"
