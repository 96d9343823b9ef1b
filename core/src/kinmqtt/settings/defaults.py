"""Defaults of limits that follow from the machine: shares of its memory, and of the files that may be open.

A limit that is left out of the settings holds such a default. :meth:`LimitSettings.resolved` puts a plain number in
its place, so that whoever looks at a limit sees an ``int``. Until then it is a number too: what holds where nothing
is known of the machine.
"""

from __future__ import annotations

from typing import Final

from kinmqtt.settings.machine import Machine

RESERVED_FILES: Final = 256
"""Files that are no client's: the stores' segments, listeners, logs, plugins' connections, and clients that are
closed as soon as they have come. A quarter of the limit where that is less."""


class MachineDefault(int):
    """A default that follows from the machine."""

    words: str = ""
    """What it is, for documentation."""

    def on(self, machine: Machine) -> int:
        """The plain number that holds there."""
        return int(self)


LEAST_BYTES: Final = 1 << 20
"""A bound that follows from memory is no lower, however small the machine."""


class MemoryShare(MachineDefault):
    """A share of the memory limit; at most a cap, where there is one, and then a mebibyte at least."""

    share: float
    cap: int | None

    def __new__(cls, share: float, cap: int | None = None) -> MemoryShare:
        """``cap`` in bytes is what holds where the memory is not known; 0 without one."""
        made = super().__new__(cls, cap or 0)
        made.share = share
        made.cap = cap
        most = "" if cap is None else f", at most {size_in_words(cap)}"
        made.words = f"{share:.0%} of the memory limit{most}"
        return made

    def on(self, machine: Machine) -> int:
        """See :meth:`MachineDefault.on`."""
        if machine.memory_bytes is None:
            return int(self)
        part = int(machine.memory_bytes * self.share)
        return part if self.cap is None else min(self.cap, max(part, LEAST_BYTES))


class FileShare(MachineDefault):
    """Nearly all files that may be open; 0, for no limit, where any number may."""

    def __new__(cls) -> FileShare:
        """There is one sort of it."""
        made = super().__new__(cls, 0)
        made.words = f"the limit of open files, less {RESERVED_FILES}"
        return made

    def on(self, machine: Machine) -> int:
        """See :meth:`MachineDefault.on`."""
        files = machine.open_files
        if files is None:
            return 0
        return max(1, files - min(RESERVED_FILES, files // 4))


def size_in_words(size_bytes: int) -> str:
    """A size as the settings file may have it, cut to a tenth of its unit."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >> shift:
            tenths = size_bytes * 10 >> shift
            return f"{tenths // 10} {unit}" if tenths % 10 == 0 else f"{tenths / 10} {unit}"
    return f"{size_bytes} bytes"
