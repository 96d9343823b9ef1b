"""Follows a page about programs that run beside each other: its commands are typed into one shell, as by a reader.

Variables and processes in the background stay from one command to the next. A command that only asks is asked again
until it prints what the page says, because what it asks about may take a moment. Ports of the page become free ones.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from root_harness.walkthrough import Command, File, agrees, steps
from spi_harness.processes import free_port

LIMIT_S: Final = 60.0
"""How long a command may take, and how long an answer is waited for."""
PAUSE_S: Final = 0.2
"""The time between two questions: they need the processor as much as what they ask about."""
ASKS: Final = (
    *(f"kinmqtt cluster {name}" for name in ("status", "members", "routes", "where")),
    "cat ",
    "grep ",
)
"""How commands begin that change nothing."""

_END: Final = "-- the command has ended --"
_NOTICE: Final = re.compile(r"^bash: line \d+: +\d+ (?:Killed|Terminated) .*\n", re.MULTILINE)
"""What the shell says of a process that a signal has ended."""


def ports(*named: int) -> dict[str, str]:
    """Return a free port for each port of a page, in the same order as numbers."""
    free = sorted(free_port() for _ in named)
    return {str(name): str(port) for name, port in zip(sorted(named), free, strict=True)}


def replaced(text: str, names: Mapping[str, str]) -> str:
    """Return a text with other words in the place of these words."""
    return re.sub(r"\b\d+\b", lambda match: names.get(match[0], match[0]), text)


class Terminal:
    """One shell, in a folder, with an environment; what it has started ends with it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        # All of them are of the shell's process group; a group that is empty is gone.
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        for stream in (self._shell.stdin, self._shell.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def follow(self, page: str, names: Mapping[str, str]) -> Iterator[str]:
        """Do what the page says, with other ports; yields what was otherwise, one text each."""
        for step in steps(replaced(page, names)):
            if isinstance(step, File):
                raise ValueError(f"the page writes {step.target}; what it shows is copied before")
            printed = self._answer(step) if step.line.startswith(ASKS) else self.run(step.line)
            if not _agrees(printed, step.expected):
                yield f"$ {step.line}\nexpected:\n{step.expected}\nprinted:\n{printed}"

    def run(self, line: str) -> str:
        """Run a command, and return what it has printed."""
        assert self._shell.stdin is not None and self._shell.stdout is not None
        # The shell's own input is the commands: what runs must not read them.
        self._shell.stdin.write(f"{{ {line}\n}} < /dev/null\necho '{_END}'\n".encode())
        self._shell.stdin.flush()
        printed = b""
        end = time.monotonic() + LIMIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._shell.stdout, selectors.EVENT_READ)
            while not printed.endswith(f"{_END}\n".encode()):
                assert selector.select(max(0.0, end - time.monotonic())), f"$ {line}\nhas not ended:\n{printed!r}"
                piece = os.read(self._shell.stdout.fileno(), 1 << 16)
                assert piece, f"$ {line}\nthe shell has ended:\n{printed!r}"
                printed += piece
        return _NOTICE.sub("", printed.decode(errors="backslashreplace").removesuffix(f"{_END}\n"))

    def _answer(self, question: Command) -> str:
        """Ask until the answer is the page's, or has not become it in time."""
        end = time.monotonic() + LIMIT_S
        while True:
            printed = self.run(question.line)
            if _agrees(printed, question.expected) or time.monotonic() > end:
                return printed
            threading.Event().wait(PAUSE_S)


def _agrees(printed: str, expected: str) -> bool:
    """Tell whether they agree, whatever the widths of columns: they depend on the ports."""
    return agrees(re.sub(r" {2,}", " ", printed), re.sub(r" {2,}", " ", expected))
