"""The C library's allocator, real and pretended."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from kinmqtt.broker import allocator


def test_the_bounds_are_fixed() -> None:
    """Large blocks are mapped one by one, and the heap's end is given back when much of it is free."""
    calls: list[tuple[int, int]] = []

    def mallopt(what: int, value: int) -> int:
        calls.append((what, value))
        return 1

    library = SimpleNamespace(mallopt=mallopt)

    assert allocator.tune(library, {})
    assert calls == [(-3, allocator.MAPPED_BYTES), (-1, allocator.KEPT_FREE_BYTES)]


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_operator_has_set_stays(name: str) -> None:
    """By the C library's own variables."""
    library = SimpleNamespace(mallopt=lambda what, value: pytest.fail("it was set all the same"))

    assert not allocator.tune(library, {name: "1"})


def test_a_library_without_such_bounds() -> None:
    """Nothing is done, and nothing fails."""
    library = SimpleNamespace()

    assert not allocator.tune(library, {})
    allocator.trimmer(library)()


def test_free_memory_is_given_back_to_the_last_byte() -> None:
    """All that is free, with nothing left at the heap's end."""
    calls: list[int] = []

    allocator.trimmer(SimpleNamespace(malloc_trim=calls.append))()

    assert calls == [0]


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of another system")
def test_the_library_of_this_process() -> None:
    """It can be called."""
    allocator.trimmer()()
