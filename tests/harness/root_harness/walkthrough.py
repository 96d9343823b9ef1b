"""Follows a page of the documentation: writes its files, runs its commands, and compares what they print.

A page's ``console`` blocks are run one after the other in one folder; ``…`` in what is expected stands for anything,
on a line of its own for any lines. A block behind ``<!-- included: SOURCE as TARGET -->`` is written to TARGET first.
``kinmqtt run`` goes on in the background until the page is through.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

TIME_LIMIT_S = 120.0

_PART = re.compile(
    r"<!-- included: (?P<source>\S+)(?: as (?P<target>\S+))? -->\n+```\w*\n(?P<text>.*?)```"
    r"|```console\n(?P<commands>.*?)```",
    re.DOTALL,
)


@frozen(slots=True)
class File:
    """A file that the page has its reader write."""

    target: str
    text: str


@frozen(slots=True)
class Command:
    """A command, and what it should print."""

    line: str
    expected: str


def steps(page: str) -> Iterator[File | Command]:
    """What a page has its reader do, in order."""
    for part in _PART.finditer(page):
        if part["commands"] is not None:
            yield from _commands(part["commands"])
        elif part["target"] is not None:
            yield File(part["target"], part["text"])


def _commands(block: str) -> Iterator[Command]:
    for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, expected = text.partition("\n")
        # A command goes on behind a backslash, and until its quotes are closed.
        while line.endswith("\\") or line.count("'") % 2:
            more, _, expected = expected.partition("\n")
            line = line[:-1] + more.strip() if line.endswith("\\") else f"{line}\n{more}"
        yield Command(line, expected.strip("\n"))


def agrees(printed: str, expected: str) -> bool:
    """Whether what was printed is what was expected, where ``…`` stands for anything."""
    pattern = ""
    for line in expected.splitlines():
        # A line that is nothing but an ellipsis may be many lines, or none.
        pattern += r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*") + r"\s*?\n"
    text = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines()) if printed.strip() else ""
    return re.fullmatch(pattern, text) is not None


class Walk:
    """One reader, in a folder, with an environment."""

    def __init__(self, folder: Path, environment: Mapping[str, str], port: int) -> None:
        """``port`` takes the place of 1883 in all that is typed, written and expected."""
        self._folder = folder
        self._environment = dict(environment)
        self._port = str(port)
        self._running: list[subprocess.Popen[str]] = []

    def follow(self, page: str) -> list[str]:
        """Do what the page says; answers what was otherwise, one text each."""
        found = []
        try:
            for step in steps(page.replace("1883", self._port)):
                if isinstance(step, File):
                    file = self._folder / step.target
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(step.text)
                    continue
                printed = self._background(step) if step.line.startswith("kinmqtt run ") else self._run(step.line)
                if not agrees(printed, step.expected):
                    found.append(f"$ {step.line}\nexpected:\n{step.expected}\nprinted:\n{printed}")
        finally:
            for process in self._running:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(TIME_LIMIT_S)
                if process.stdout is not None:
                    process.stdout.close()
        return found

    def _run(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIME_LIMIT_S,
        )
        return done.stdout

    def _background(self, command: Command) -> str:
        """Start a broker, and read on until everything that is expected was printed."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command.line.removesuffix('&').strip()}"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._running.append(process)
        assert process.stdout is not None
        printed = ""
        began = time.monotonic()
        while not agrees(printed, command.expected) and time.monotonic() - began < TIME_LIMIT_S:
            line = process.stdout.readline()
            if not line:
                break
            printed += line
        return printed
