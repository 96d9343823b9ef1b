"""Where a process is, so that others on the same machine can tell that it has ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

_DEAD: Final = ("Z", "X", "x")
"""States of a process that has ended, and whose parent has not asked for its status yet."""


class Machine:
    """This machine, as Linux shows it; elsewhere nothing is known of any process."""

    def __init__(self, proc: Path = Path("/proc"), pid: int | None = None) -> None:
        self._proc = proc
        self._pid = pid
        self._world = self._read_world()

    def here(self) -> bytes:
        """Where this process is, as others may read it; asked anew each time, because a daemon forks."""
        pid = os.getpid() if self._pid is None else self._pid
        began, _ = self._stat(pid)
        return json.dumps([self._world, pid, began], separators=(",", ":")).encode()

    def has_ended(self, place: bytes) -> bool:
        """Whether a process has certainly ended: it was in this very life of this machine, and is not any more."""
        found = self._found(place)
        return found is not None and not found

    def is_running(self, place: bytes) -> bool:
        """Whether a process is certainly there."""
        return bool(self._found(place))

    def _read_world(self) -> str:
        """What all have in common who can see each other's process ids: a boot, and a namespace in it."""
        try:
            boot = (self._proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            return f"{boot} {os.readlink(self._proc / 'self/ns/pid')}"
        except OSError:
            return ""

    def _found(self, place: bytes) -> bool | None:
        try:
            world, pid, began = json.loads(place)
        except (ValueError, TypeError):
            return None
        if not world or world != self._world or not began:
            return None
        now, state = self._stat(pid)
        if now:
            return now == began and state not in _DEAD
        return None if self._exists(pid) else False

    def _stat(self, pid: int) -> tuple[str, str]:
        """When a process began, in ticks since the boot, and its state; empty where that can't be read."""
        try:
            words = (self._proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2]
        except OSError:
            return "", ""
        fields = words.split()
        return fields[19], fields[0]

    @staticmethod
    def _exists(pid: int) -> bool:
        """Whether there is such a process, one that is another user's and hidden included."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True
