"""Limits that are left out, and follow from the machine."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from core_harness.house import House
from kinmqtt.settings import WATERMARKS, LimitSettings
from kinmqtt.settings.defaults import LEAST_BYTES, MachineDefault, size_in_words
from kinmqtt.settings.machine import Machine

MIB = 1 << 20
CONTAINER = Machine(512 * MIB, 1024)
LARGE = Machine(64 << 30, 1 << 20)
BOUNDS = [name for name in LimitSettings().of_machine if name.startswith("max_") and name.endswith("_bytes")]


def watermarks(limits: LimitSettings) -> list[int]:
    """The three, the lowest first."""
    return [getattr(limits, name) for name in WATERMARKS]


@pytest.mark.parametrize(
    ("files", "connections"), [(None, 0), (256, 192), (1024, 768), (20_000, 19_744), (1 << 20, (1 << 20) - 256)]
)
def test_connections_follow_from_the_limit_of_files(files: int | None, connections: int) -> None:
    """Of the files that may be open 256, a quarter at most, are no client's; without a limit there is none."""
    assert LimitSettings().resolved(Machine(None, files)).max_connections == connections


def test_what_was_set_stays() -> None:
    """Only what is left out follows from the machine."""
    given_limits = {"max_connections": 7, "max_all_queued_bytes": 1 << 40, "memory_slow_bytes": 11 * MIB}

    limits = LimitSettings(**given_limits).resolved(CONTAINER)  # type: ignore[arg-type]

    assert {name: getattr(limits, name) for name in given_limits} == given_limits


def test_the_watermarks_of_a_container() -> None:
    """60, 75 and 85 % of what it may have."""
    limits = LimitSettings().resolved(CONTAINER)

    assert [mark / (512 * MIB) for mark in watermarks(limits)] == pytest.approx([0.6, 0.75, 0.85])


def test_a_watermark_of_0_is_never_reached() -> None:
    """Each can be switched off by itself."""
    limits = LimitSettings(memory_slow_bytes=0, memory_refuse_bytes=0).resolved(CONTAINER)

    assert watermarks(limits) == [0, 384 * MIB, 0]


def test_where_the_memory_is_not_known() -> None:
    """There are no watermarks, and the bounds are what they may be at most."""
    limits = LimitSettings().resolved(Machine())

    assert watermarks(limits) == [0, 0, 0]
    assert limits.max_all_queued_bytes == 2 << 30
    assert limits.max_retained_bytes == 1 << 30


def test_on_a_large_machine_the_bounds_are_as_before() -> None:
    """2 GiB of queues and 1 GiB of retained messages are the most that is a default."""
    limits = LimitSettings().resolved(LARGE)

    assert (limits.max_all_queued_bytes, limits.max_retained_bytes) == (2 << 30, 1 << 30)


def test_a_container_is_safe_by_default() -> None:
    """All shared bounds together leave room below the third watermark for the broker itself."""
    limits = LimitSettings().resolved(CONTAINER)

    together = sum(getattr(limits, name) for name in BOUNDS)

    assert together + 80 * MIB <= limits.memory_refuse_bytes


def test_shares_are_of_what_the_broker_is_to_have() -> None:
    """Who sets the third watermark alone has said how much that is; the others follow."""
    limits = LimitSettings(memory_refuse_bytes=170 * MIB).resolved(LARGE)

    assert watermarks(limits) == [120 * MIB, 150 * MIB, 170 * MIB]
    assert limits.max_all_queued_bytes == 40 * MIB


def test_what_is_left_out_lies_between_what_is_set() -> None:
    """A watermark that is set above a default pushes that up, and one below pulls it down."""
    high = LimitSettings(memory_slow_bytes=500 * MIB).resolved(CONTAINER)
    low = LimitSettings(memory_drop_bytes=10 * MIB).resolved(CONTAINER)

    assert watermarks(high) == [500 * MIB] * 3
    assert watermarks(low)[:2] == [10 * MIB] * 2


marks = st.none() | st.integers(0, 1 << 40)


@given(st.tuples(marks, marks, marks), st.none() | st.integers(1, 1 << 42), st.none() | st.integers(1, 1 << 30))
def test_resolved_limits_are_plain_and_sound(
    asked: tuple[int | None, int | None, int | None], memory: int | None, files: int | None
) -> None:
    """On any machine every limit becomes an int, watermarks rise, and no bound is below its least."""
    wanted: dict[str, Any] = {name: mark for name, mark in zip(WATERMARKS, asked, strict=True) if mark is not None}
    rising = [mark for mark in asked if mark]
    if rising != sorted(rising):
        return

    limits = LimitSettings(**wanted).resolved(Machine(memory, files))

    assert not any(isinstance(getattr(limits, each.name), MachineDefault) for each in fields(LimitSettings))
    found = [mark for mark in watermarks(limits) if mark]
    assert found == sorted(found)
    assert all(getattr(limits, name) >= LEAST_BYTES for name in BOUNDS)
    assert all(getattr(limits, name) == mark for name, mark in wanted.items())


def test_the_harness_has_a_machine_of_no_kind() -> None:
    """A test's broker has the same limits on every machine, as plain numbers."""
    limits = House().broker.runtime.limits

    assert type(limits.max_connections) is int
    assert limits.memory_refuse_bytes == 0


def test_a_reload_looks_at_the_machine_again() -> None:
    """A container that was given less since has less."""
    house = House(machine=CONTAINER)
    before = house.broker.runtime.limits.max_all_queued_bytes

    house.machine = Machine(256 * MIB, 1024)
    house.result(house.broker.reload(lambda name, cls: None, LimitSettings()))

    assert house.broker.runtime.limits.max_all_queued_bytes == pytest.approx(before / 2, abs=1)
    assert house.broker.listeners["tcp:1883"].limits == house.broker.runtime.limits


@pytest.mark.parametrize(
    ("size", "words"),
    [(5, "5 bytes"), (2048, "2 KiB"), (3 << 29, "1.5 GiB"), (512 * MIB, "512 MiB"), (2 << 30, "2 GiB")],
)
def test_sizes_in_words(size: int, words: str) -> None:
    """As the settings file may have them."""
    assert size_in_words(size) == words
