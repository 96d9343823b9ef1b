"""Plugins of tests for brokers and commands in processes of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

HARNESS: Final = Path(__file__).parents[1]


def plugin_on_path(folder: Path, name: str, module: str, harness: Path) -> str:
    """Return a PYTHONPATH with which a process finds a plugin as if it had been installed.

    It is ``PLUGIN`` in ``module``, which is below ``harness`` and may import ``core_harness``. Its metadata is
    written to ``folder``.
    """
    metadata = folder / f"kinmqtt_{name}-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kinmqtt-{name}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[kinmqtt.plugins]\n{name} = {module}:PLUGIN\n")
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(folder), *dict.fromkeys([str(harness), str(HARNESS)]), *([before] if before else [])])
