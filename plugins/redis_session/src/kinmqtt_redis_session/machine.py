"""Describes the location of a process, so that brokers on the same machine can see that it has ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

_DEAD: Final = ("Z", "X", "x")
"""States of a process that has ended and whose parent has not collected its status (zombies)."""


class Machine:
    """This machine's processes, as Linux's ``/proc`` shows them; on other systems nothing is known."""

    def __init__(self, proc: Path = Path("/proc"), pid: int | None = None) -> None:
        self._proc = proc
        self._pid = pid
        self._namespace = self._read_namespace()

    def here(self) -> bytes:
        """This process's location, for others to read. It is not cached, because a daemon forks."""
        pid = os.getpid() if self._pid is None else self._pid
        began, _ = self._stat(pid)
        return json.dumps([self._namespace, pid, began], separators=(",", ":")).encode()

    def has_ended(self, place: bytes) -> bool:
        """Whether a process has certainly ended: it ran since this machine's last boot, and does not any more."""
        found = self._found(place)
        return found is not None and not found

    def is_running(self, place: bytes) -> bool:
        """Whether a process certainly runs."""
        return bool(self._found(place))

    def _read_namespace(self) -> str:
        """What processes that see each other's process ids have in common: the boot and the pid namespace."""
        try:
            boot = (self._proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            return f"{boot} {os.readlink(self._proc / 'self/ns/pid')}"
        except OSError:
            return ""

    def _found(self, place: bytes) -> bool | None:
        try:
            namespace, pid, began = json.loads(place)
        except (ValueError, TypeError):
            return None
        if not namespace or namespace != self._namespace or not began:
            return None
        now, state = self._stat(pid)
        if now:
            return now == began and state not in _DEAD
        return None if self._exists(pid) else False

    def _stat(self, pid: int) -> tuple[str, str]:
        """A process's start in ticks since boot, and its state; empty strings if they can't be read."""
        try:
            words = (self._proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2]
        except OSError:
            return "", ""
        fields = words.split()
        return fields[19], fields[0]

    @staticmethod
    def _exists(pid: int) -> bool:
        """Whether the process exists, even if another user owns it and ``/proc`` hides it."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True
