"""Defaults of limits that depend on the machine: shares of its memory, and of the files that may be open.

A limit that is not set has such a default. :meth:`LimitSettings.resolved` replaces it by a plain ``int``. Until then
it is the limit on a machine of which nothing is known.
"""

from __future__ import annotations

from typing import Final

from kinmqtt.settings.machine import Machine

RESERVED_FILES: Final = 256
"""Files reserved for other uses than accepted clients; a quarter of the limit where that is less.

The stores' segments, listeners, logs, plugins' connections, and clients that are closed as soon as they connect.
"""


class MachineDefault(int):
    """A default that follows from the machine."""

    words: str = ""
    """How the default is computed, for documentation."""

    def on(self, machine: Machine) -> int:
        """Returns the limit on this machine as a plain number."""
        return int(self)


LEAST_BYTES: Final = 1 << 20
"""The least bound in bytes that is computed from memory, however small the machine."""


class MemoryShare(MachineDefault):
    """A share of the memory limit; with a cap it is at most the cap and at least one mebibyte."""

    share: float
    cap: int | None

    def __new__(cls, share: float, cap: int | None = None) -> MemoryShare:
        """``cap`` in bytes is also the value where the memory is not known; without a cap that is 0."""
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
    """The limit of open files, less those reserved; 0 (no limit) where the system sets none."""

    def __new__(cls) -> FileShare:
        """Takes no parameters."""
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
    """Returns a size in bytes in the notation of the settings file, cut to a tenth of its unit."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >> shift:
            tenths = size_bytes * 10 >> shift
            return f"{tenths // 10} {unit}" if tenths % 10 == 0 else f"{tenths / 10} {unit}"
    return f"{size_bytes} bytes"
