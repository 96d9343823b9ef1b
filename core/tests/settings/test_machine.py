"""What the machine, or the container, lets the process have."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt.settings.machine import (
    MOST_OPEN_FILES,
    Machine,
    memory_limit_bytes,
    open_file_limit,
    raise_open_file_limit,
    this_machine,
)

GIB = 1 << 30
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
UNLIMITED_V1 = "9223372036854771712"


class System:
    """The files in which a system says what a process may have, below a folder."""

    def __init__(self, root: Path, memory_kib: int = 16 << 20) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal:       {memory_kib} kB\nMemFree:         1 kB\n")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def group(self, path: str, mounts: str, **limits: str) -> None:
        """The process's own group, and limits by ``group:file``."""
        self.write("proc/self/cgroup", path)
        self.write("proc/self/mountinfo", mounts)

    @property
    def limit(self) -> int | None:
        return memory_limit_bytes(self.root)


@pytest.fixture
def system(tmp_path: Path) -> System:
    """A system with 16 GiB."""
    return System(tmp_path)


def test_without_groups_it_is_the_machines_memory(system: System) -> None:
    """Where no control group says less the memory of the machine is the limit."""
    assert system.limit == 16 * GIB


def test_a_group_of_version_2(system: System) -> None:
    """`memory.max` of the process's own group holds."""
    system.group("0::/system.slice/kinmqtt.service\n", V2)
    system.write("sys/fs/cgroup/system.slice/kinmqtt.service/memory.max", f"{GIB}\n")

    assert system.limit == GIB


def test_the_groups_above_hold_too(system: System) -> None:
    """The least limit on the way up holds; `max` is none."""
    system.group("0::/a/b/c\n", V2)
    system.write("sys/fs/cgroup/a/b/c/memory.max", "max\n")
    system.write("sys/fs/cgroup/a/b/memory.max", f"{3 * GIB}\n")
    system.write("sys/fs/cgroup/a/memory.max", f"{2 * GIB}\n")

    assert system.limit == 2 * GIB


def test_a_group_that_is_throttled_before_it_is_full(system: System) -> None:
    """`memory.high` counts as a limit: above it the system slows the process down."""
    system.group("0::/a\n", V2)
    system.write("sys/fs/cgroup/a/memory.max", f"{4 * GIB}\n")
    system.write("sys/fs/cgroup/a/memory.high", f"{3 * GIB}\n")

    assert system.limit == 3 * GIB


def test_a_container_that_sees_its_own_group_as_the_root(system: System) -> None:
    """The path in /proc/self/cgroup is the host's and can't be seen; the mount's root is the group."""
    system.group("4:memory:/docker/0123\n0::/\n", V1.replace(" / /sys", " /docker/0123 /sys"))
    system.write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB // 2}\n")

    assert system.limit == GIB // 2


def test_a_container_in_a_mount_of_the_whole_tree(system: System) -> None:
    """Version 1: the group lies below the mount, with a limit; the root has none to speak of."""
    system.group("4:cpu,cpuacct:/other\n5:memory:/docker/0123\n", V1)
    system.write("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", f"{GIB}\n")
    system.write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{UNLIMITED_V1}\n")

    assert system.limit == GIB


def test_both_versions_at_once(system: System) -> None:
    """Where memory is version 1's, version 2's hierarchy has no say, and is no trouble."""
    hybrid = V1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    system.group("4:memory:/a\n0::/a\n", hybrid)
    system.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", f"{GIB}\n")

    assert system.limit == GIB


def test_a_limit_above_the_machines_memory(system: System) -> None:
    """There is no more than the machine has."""
    system.group("0::/a\n", V2)
    system.write("sys/fs/cgroup/a/memory.max", f"{64 * GIB}\n")

    assert system.limit == 16 * GIB


def test_a_path_out_of_what_can_be_seen(system: System) -> None:
    """A group beside the process's namespace is not looked for outside the mount."""
    system.group("0::/../beside\n", V2)
    system.write("sys/fs/beside/memory.max", f"{GIB}\n")

    assert system.limit == 16 * GIB


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60), st.text(max_size=20))
def test_files_that_say_anything(
    tmp_path_factory: pytest.TempPathFactory, meminfo: str, groups: str, mounts: str, limit: str
) -> None:
    """Whatever stands in these files, nothing is raised, and a limit is a positive number."""
    root = tmp_path_factory.mktemp("system")
    system = System(root)
    system.write("proc/meminfo", meminfo)
    system.group(f"0::/a\n{groups}", V2 + mounts)
    system.write("sys/fs/cgroup/a/memory.max", limit)

    found = system.limit

    assert found is None or found > 0


def test_this_machine() -> None:
    """On Linux, where the tests run, both are known."""
    machine = this_machine()

    assert machine.memory_bytes is not None
    assert machine.memory_bytes > 64 << 20
    assert machine.open_files is None or machine.open_files > 8


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 20_000, 20_000),
        (1024, resource.RLIM_INFINITY, MOST_OPEN_FILES),
        (1024, 1 << 30, MOST_OPEN_FILES),
        (1024, 1024, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
        (1 << 21, 1 << 30, None),
    ],
)
def test_the_soft_limit_of_files_is_raised(soft: int, hard: int, raised: int | None) -> None:
    """To the hard one, to a million at most, and never lowered; the hard limit stays."""
    put: list[tuple[int, tuple[int, int]]] = []

    raise_open_file_limit(lambda _: (soft, hard), lambda which, limits: put.append((which, limits)))

    assert put == ([] if raised is None else [(resource.RLIMIT_NOFILE, (raised, hard))])


def test_a_system_that_does_not_let_the_limit_be_raised() -> None:
    """The limit stays as it is, and the broker starts."""

    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    raise_open_file_limit(lambda _: (1024, 4096), refuse)


def test_any_number_of_files() -> None:
    """No limit is not a large number."""
    infinity = resource.RLIM_INFINITY

    assert open_file_limit(lambda _: (infinity, infinity)) is None
    assert open_file_limit(lambda _: (1024, infinity)) == 1024


def test_of_an_unknown_machine_nothing_is_said() -> None:
    """What nobody tells is None, not a guess."""
    assert Machine() == Machine(memory_bytes=None, open_files=None)
