"""SIGHUP: the plugins get their sections of the settings file as it is now."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core_harness.wire import wire
from spi_harness.processes import free_port

SETTINGS = """\
[[plugins.rate_limits.rules]]
name = "{name}"
kind = "publish"
rate_per_s = 5
"""


class Running:
    """A broker in a process of its own, and its log."""

    def __init__(self, settings: Path) -> None:
        self.port = free_port()
        command = [
            sys.executable,
            "-m",
            "kinmqtt",
            "run",
            "-c",
            str(settings),
            "--listen",
            f"tcp:{self.port}:interface=127.0.0.1",
            "--data",
            "memory",
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

    running.wait_for("reload: plugins, limits and certificates are as the settings say now")


def test_a_file_with_mistakes_changes_nothing(running: Running, settings: Path) -> None:
    """A reload of a file with mistakes names them, and the old settings stay in force."""
    settings.write_text(SETTINGS.format(name="two") + "burts = 3\n", encoding="utf-8")

    running.process.send_signal(signal.SIGHUP)

    log = "".join(running.wait_for("the old ones stay in effect"))
    assert "plugins.rate_limits.rules[0].burts: unknown key; did you mean 'burst'?" in log


def test_what_needs_a_restart_is_named(running: Running, settings: Path) -> None:
    """Changes that a running broker can't take are told one by one; the others hold."""
    more = '[broker]\nnode_name = "other"\n[services]\nsubscription = "hash"\n[plugins.scram]\nusers = {}\n'
    settings.write_text(SETTINGS.format(name="two") + more, encoding="utf-8")

    running.process.send_signal(signal.SIGHUP)

    log = "".join(running.wait_for("as the settings say now"))
    assert "reload: [broker]: a change needs a restart" in log
    assert "reload: [services]: a change needs a restart" in log
    assert "reload: plugins.scram: the plugin is not in use; to use it needs a restart" in log
    assert "the listeners" not in log


def test_limits_are_taken(running: Running, settings: Path) -> None:
    """New limits hold for who connects from then on."""
    limits = "[limits]\nreceive_maximum = 7\n"
    settings.write_text(limits + SETTINGS.format(name="one"), encoding="utf-8")

    running.process.send_signal(signal.SIGHUP)
    running.wait_for("as the settings say now")

    with wire(running.port) as client:
        assert client.connect("c").properties.receive_maximum == 7
