"""The tests that run over every store, here over Redis: what tox calls `py311-redis`, with all else installed too."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST_S = 300.0


def listed() -> list[str]:
    """The modules that tox.ini names."""
    ini = configparser.ConfigParser(interpolation=None)
    ini.read(ROOT / "tox.ini")
    return ini["stores"]["tests"].split()


@pytest.mark.parametrize("module", listed())
def test_it_is_the_same_over_redis(module: str) -> None:
    """A broker keeps its promises with its sessions, queues and retained messages in Redis."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "KINMQTT"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", module]

    done = subprocess.run(
        command, cwd=ROOT, env=plain | {"KINMQTT_TEST_STORE": "redis"}, capture_output=True, text=True, timeout=MOST_S
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 0
