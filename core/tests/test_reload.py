"""SIGHUP: the plugins get their sections of the settings file as it is now."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SETTINGS = """\
[[plugins.rate_limits.rules]]
name = "{name}"
kind = "publish"
rate_per_s = 5
"""


class Running:
    """A broker in a process of its own, and its log."""

    def __init__(self, settings: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "kinmqtt",
            "run",
            "-c",
            str(settings),
            "--listen",
            "tcp:0:interface=127.0.0.1",
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def wait_for(self, text: str) -> list[str]:
        """The log up to the line that has ``text``."""
        assert self.process.stderr is not None
        lines: list[str] = []
        for line in self.process.stderr:
            lines.append(line)
            if text in line:
                return lines
        raise AssertionError(f"{text!r} is not in the log:\n{''.join(lines)}")


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A settings file with one rule."""
    path = tmp_path / "kinmqtt.toml"
    path.write_text(SETTINGS.format(name="one"), encoding="utf-8")
    return path


@pytest.fixture
def running(settings: Path) -> Iterator[Running]:
    """A broker that listens; it must end with status 0."""
    running = Running(settings)
    try:
        running.wait_for("state is kept in memory")
        yield running
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
    finally:
        running.process.kill()
        running.process.communicate()


def test_plugins_take_new_settings(running: Running, settings: Path) -> None:
    """SIGHUP reads the file anew and says that the plugins have it."""
    settings.write_text(SETTINGS.format(name="two"), encoding="utf-8")

    running.process.send_signal(signal.SIGHUP)

    running.wait_for("reload: the plugins have their new settings")


def test_a_file_with_mistakes_changes_nothing(running: Running, settings: Path) -> None:
    """A reload of a file with mistakes names them, and the old settings stay in force."""
    settings.write_text(SETTINGS.format(name="two") + "burts = 3\n", encoding="utf-8")

    running.process.send_signal(signal.SIGHUP)

    log = "".join(running.wait_for("the old ones stay in force"))
    assert "plugins.rate_limits.rules[0].burts: unknown key; did you mean 'burst'?" in log
