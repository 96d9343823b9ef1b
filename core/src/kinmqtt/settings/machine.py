"""The resources of the machine or the container for this process: memory and open files.

The memory limit is the least of the machine's memory and the limits of the process's control group and its ancestors
(cgroup v2 ``memory.max`` and ``memory.high``, v1 ``memory.limit_in_bytes``). A container often sees its own group as
the root of the mount, while ``/proc/self/cgroup`` has its path on the host; groups that are not visible from here are
skipped.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from attrs import frozen
from twisted.logger import Logger

log = Logger("kinmqtt.machine")

MOST_OPEN_FILES: Final = 1 << 20
"""The soft limit of open files is raised no higher: some systems allow a billion, and programs size tables by it."""

_V2_LIMITS: Final = ("memory.max", "memory.high")
_V1_LIMITS: Final = ("memory.limit_in_bytes",)

Limit: TypeAlias = tuple[int, int]
"""A soft and a hard limit, as the system has them."""


@frozen(slots=True)
class Machine:
    """The resources of this process; ``None`` if unknown or unlimited."""

    memory_bytes: int | None = None
    open_files: int | None = None


def this_machine(root: Path = Path("/")) -> Machine:
    """Return the current resources of this process; ``root`` is the root of the system's files."""
    return Machine(memory_limit_bytes(root), open_file_limit())


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory limit of this process in bytes; ``None`` if it is unknown."""
    limits = [*_total_bytes(root), *_group_limits(root)]
    return min(limits, default=None)


def open_file_limit(get: Callable[[int], Limit] = resource.getrlimit) -> int | None:
    """Return the limit of open files, including sockets; ``None`` if there is none."""
    soft, _ = get(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_open_file_limit(
    get: Callable[[int], Limit] = resource.getrlimit, put: Callable[[int, Limit], None] = resource.setrlimit
) -> None:
    """Raise the soft limit of open files to the hard one, as servers do, because each socket counts.

    The soft limit is low for programs that use ``select``, which supports no file descriptors above 1,024; asyncio
    and uvloop use ``epoll`` or ``kqueue``. If the system refuses, the limit stays unchanged.
    """
    soft, hard = get(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        put(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warn(
            "the limit of open files stays at {soft} instead of {wanted}: {error}",
            soft=soft,
            wanted=wanted,
            error=error,
        )


def _total_bytes(root: Path) -> Iterator[int]:
    """Yield the machine's memory in bytes."""
    for line in _lines(root / "proc/meminfo"):
        name, _, size = line.partition(":")
        if name == "MemTotal" and size.split()[1:] == ["kB"]:
            yield from _number(size.split()[0], 1024)
            return
    if root == Path("/"):
        # Not Linux.
        try:
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError):
            return


def _group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the process's control group and its ancestors."""
    for path, controllers in _groups(root):
        for mounted_at, shown, is_v2 in _mounts(root):
            if is_v2 != (controllers == "") or not (is_v2 or "memory" in controllers.split(",")):
                continue
            for group in _upwards(path, shown):
                for name in _V2_LIMITS if is_v2 else _V1_LIMITS:
                    for line in _lines(mounted_at / group / name):
                        yield from _number(line.strip())


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the paths of the process's groups, each with its controllers; version 2 has none."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/") and number.isdecimal():
            yield path, controllers


def _mounts(root: Path) -> Iterator[tuple[Path, str, bool]]:
    """Yield each mount of groups, the group at the mount, and whether it is version 2."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, behind = line.partition(" - ")
        fields, kinds = before.split(), behind.split()
        if len(fields) < 5 or len(kinds) < 3 or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        if kinds[0] == "cgroup" and "memory" not in kinds[2].split(","):
            continue
        yield root / fields[4].lstrip("/"), fields[3], kinds[0] == "cgroup2"


def _upwards(path: str, shown: str) -> Iterator[str]:
    """Yield a group and its ancestors, as paths below a mount of the group ``shown``."""
    group = PurePosixPath(path)
    if shown != "/" and group.is_relative_to(shown):
        group = PurePosixPath("/") / group.relative_to(shown)
    for each in (group, *group.parents):
        if ".." not in each.parts:
            yield str(each).lstrip("/")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _number(text: str, unit: int = 1) -> Iterator[int]:
    """Yield a number; nothing for ``max`` or an invalid one."""
    if text.isascii() and text.isdecimal() and int(text):
        yield int(text) * unit
