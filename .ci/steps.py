"""What the commands of a checkout share: a line of progress, a command in the background of it, and a failure."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

TICK_S = 1.0 if sys.stdout.isatty() else 15.0
"""How often a long command shows its seconds: on a terminal one line counts, in a log each tick is a line."""


class Failure(Exception):
    """Something the person at the keyboard has to know; its text is all they see."""


def say(text: str) -> None:
    """Print one line of progress at once, also into a pipe."""
    print(f"dev.py: {text}", flush=True)


def quiet(command: list[str], complaint: str = "", *, cwd: str = ROOT, env: dict[str, str] | None = None) -> bool:
    """Run a command and count its seconds; print its output only if it fails. Return whether it succeeded."""
    began = time.monotonic()
    on_terminal = sys.stdout.isatty()
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd, env=env)
        except OSError as error:
            say(f"{complaint}: {error}" if complaint else str(error))
            return False
        while True:
            try:
                status = process.wait(TICK_S)
                break
            except subprocess.TimeoutExpired:
                passed = f"  … {time.monotonic() - began:.0f} s"
                print(f"\r{passed}" if on_terminal else passed, end="" if on_terminal else "\n", flush=True)
            except KeyboardInterrupt:
                process.wait()
                raise
        if on_terminal:
            print("\r\033[K", end="", flush=True)
        if status != 0:
            log.seek(0)
            print(log.read().decode("utf-8", "replace")[-4000:], flush=True)
            if complaint:
                say(complaint)
    return status == 0
