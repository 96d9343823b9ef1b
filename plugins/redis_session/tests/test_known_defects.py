"""Known defects of earlier stores, each with a test that this store does not have it.

Defects of the store are tested here; defects that show on the wire, in tests of a whole broker over Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_spi.services.queue import Append, InboundClose, InboundOpen, Remove
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import DiscardSession, OpenSession
from kinmqtt_spi.testing.build import entry, message, session
from redis_harness.instances import Instance, start_instance
from redis_harness.servers import RedisServer, redis_server

ROOT = Path(__file__).resolve().parents[3]
HERE = "plugins/redis_session/tests/test_known_defects.py"

SHOWN_BY = {
    "in flight by the publisher's packet identifier": f"{HERE}::test_publishers_may_use_the_same_packet_identifier",
    "versions compared as strings": f"{HERE}::test_versions_are_compared_as_numbers",
    "PUBACK though persisting failed": "tests/test_redis_known_defects.py::test_what_is_not_kept_is_not_acknowledged",
    "retained messages looked up by the filter's text": f"{HERE}::test_a_filter_is_no_topic",
    "queues without a bound": "core/tests/broker/test_queue.py::test_the_limit_holds_within_one_read",
    "turns without a bound": "plugins/redis_session/tests/test_consistency.py::test_waiting_writes_are_limited",
    "the second connection of a client id refused": (
        "tests/test_redis_known_defects.py::test_the_second_connection_takes_over_at_each_broker"
    ),
    "a CONNACK that denies what there is": (
        "tests/test_redis_known_defects.py::test_connack_denies_nothing_that_works"
    ),
    "an empty retained payload kept": f"{HERE}::test_an_empty_payload_is_not_stored",
    "messages removed before they are delivered": (
        "tests/test_redis_known_defects.py::test_what_was_sent_and_not_acknowledged_comes_again"
    ),
    "a will left out where the socket had an error": (
        "tests/test_redis_known_defects.py::test_a_reset_publishes_the_will"
    ),
    "all that is in flight sent again by a timer": (
        "tests/conformance/test_v5_behaviour.py::test_nothing_is_sent_again_within_a_connection"
    ),
    "pages that skip rows": f"{HERE}::test_pages_skip_nothing_while_rows_come_and_go",
}


def test_each_defect_has_its_test() -> None:
    """Each test named above exists, and those in the core's tests run over Redis too."""
    over_redis = (ROOT / "tox.ini").read_text("utf-8")
    for place in SHOWN_BY.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text("utf-8"), place
        assert "redis" in file or f"    {file}\n" in over_redis, place


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with nothing in it."""
    with redis_server(tmp_path / "redis") as server:
        yield server


def over(server: RedisServer, run: Callable[[Instance], Awaitable[Any]]) -> Any:
    """Run a coroutine with an instance of the plugin over a server; returns its result."""

    async def lived() -> Any:
        instance = await start_instance(host="127.0.0.1", port=server.port)
        try:
            return await run(instance)
        finally:
            await instance.plugin.stop()

    return asyncio.run(lived())


async def committed(store: Any) -> None:
    """Commit a store's writes."""
    answer = store.commit()
    assert answer is not None
    await answer


async def retained(instance: Instance, *writes: RetainWrite) -> None:
    """Commit retained messages."""
    instance.retained.put(writes)
    await committed(instance.retained)


def test_publishers_may_use_the_same_packet_identifier(server: RedisServer) -> None:
    """Two publishers' messages under one identifier are two entries, and one's release is not the other's."""

    async def run(instance: Instance) -> Any:
        instance.queues.apply([InboundOpen("p1", 1, 7), Append("s", 1, entry(1, payload=b"of p1"))])
        instance.queues.apply([InboundOpen("p2", 1, 7), Append("s", 1, entry(2, payload=b"of p2"), 7)])
        await committed(instance.queues)
        instance.queues.apply([InboundClose("p1", 1, 7)])
        await committed(instance.queues)
        waiting = [each.message.payload for each in await instance.queues.read("s", 0, 10)]
        state = await instance.queues.load("s")
        flying = [(each.packet_id, each.entry and each.entry.message.payload) for each in state.inflight]
        return waiting, flying, [(await instance.queues.load(name)).inbound for name in ("p1", "p2")]

    assert over(server, run) == ([b"of p1"], [(7, b"of p2")], [frozenset(), frozenset({7})])


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (RetainVersion(9.0, 1, 1), RetainVersion(10.0, 1, 1)),
        (RetainVersion(9.5, 1, 1), RetainVersion(1e9, 1, 1)),
        (RetainVersion(1.0, 9, 1), RetainVersion(1.0, 10, 1)),
        (RetainVersion(1.0, 1, 9), RetainVersion(1.0, 1, 10)),
        (RetainVersion(0.1, 1, 1), RetainVersion(0.1 + 2**-55, 1, 1)),
    ],
)
def test_versions_are_compared_as_numbers(server: RedisServer, older: RetainVersion, newer: RetainVersion) -> None:
    """Nine is before ten, whichever of the two comes first."""

    async def run(instance: Instance) -> Any:
        writes = [RetainWrite(message("a", b"old"), older), RetainWrite(message("a", b"new"), newer)]
        await retained(instance, *writes)
        await retained(instance, writes[0])
        return [each.payload for each in (await instance.retained.match("a")).messages]

    assert over(server, run) == [b"new"]


def test_a_filter_is_no_topic(server: RedisServer) -> None:
    """A filter finds what it matches, and not what is kept under its text."""

    async def run(instance: Instance) -> Any:
        topics = ("a", "a/b", "a/b/c", "b/b", "$x/b")
        await retained(instance, *(RetainWrite(message(topic), RetainVersion(1.0, 1, 1)) for topic in topics))
        filters = ("a/+", "a/#", "+/b", "#", "a/b", "a/x")
        found = [(await instance.retained.match(each)).messages for each in filters]
        return [sorted(each.topic for each in its) for its in found]

    assert over(server, run) == [
        ["a/b"], ["a", "a/b", "a/b/c"], ["a/b", "b/b"], ["a", "a/b", "a/b/c", "b/b"], ["a/b"], [],
    ]  # fmt: skip


def test_an_empty_payload_is_not_stored(server: RedisServer) -> None:
    """It takes away what the topic held, and nothing of it is found, counted or weighed."""

    async def run(instance: Instance) -> Any:
        await retained(instance, RetainWrite(message("a"), RetainVersion(1.0, 1, 1)))
        empty = [RetainWrite(message(topic, b""), RetainVersion(2.0, 1, 1)) for topic in ("a", "never")]
        await retained(instance, *empty)
        messages = (await instance.retained.match("#")).messages
        writes = (await instance.retained.iterate()).writes
        return messages, writes, instance.retained.count(), instance.retained.size_bytes()

    assert over(server, run) == ((), (), 0, 0)
    held = [key for key in server.ask("keys", "*").split() if key.endswith((":m", ":t"))]
    assert held == []


def test_pages_skip_nothing_while_rows_come_and_go(server: RedisServer) -> None:
    """Whatever was there all the time is seen once, in sessions, retained messages and queues."""
    steady = [f"steady{number}" for number in range(40)]

    async def run(instance: Instance) -> Any:
        async def sessions(*names: str) -> None:
            instance.sessions.apply([OpenSession(1, session(name)) for name in names])
            await committed(instance.sessions)

        async def everything(page_of: Callable[[object], Awaitable[Any]], name_of: Callable[[Any], list[str]]) -> Any:
            seen: list[str] = []
            cursor: object = None
            number = 0
            while True:
                page = await page_of(cursor)
                seen += name_of(page)
                cursor, number = page.cursor, number + 1
                if cursor is None:
                    return sorted(name for name in seen if name in steady)
                # Before and behind the cursor one comes, and what came or was there before goes.
                await sessions(f"a{number}", f"z{number}")
                gone = f"gone{number}", f"a{number - 1}"
                instance.sessions.apply([DiscardSession(name, 1) for name in gone])
                await committed(instance.sessions)
                new = [RetainWrite(message(f"{name}{number}"), RetainVersion(2.0, 1, 1)) for name in "az"]
                old = [RetainWrite(message(name, b""), RetainVersion(3.0, 1, 1)) for name in gone]
                await retained(instance, *new, *old)

        going = [f"gone{number}" for number in range(60)]
        await sessions(*steady, *going)
        await retained(
            instance, *(RetainWrite(message(name), RetainVersion(1.0, 1, 1)) for name in (*steady, *going))
        )
        found = [
            await everything(
                lambda cursor: instance.sessions.iterate(cursor, 3),
                lambda page: [each.client_id for _, each in page.sessions],
            ),
            await everything(
                lambda cursor: instance.retained.iterate(cursor, 3),
                lambda page: [each.message.topic for each in page.writes],
            ),
            await everything(
                lambda cursor: instance.retained.match("#", cursor, 3),
                lambda page: [each.topic for each in page.messages],
            ),
        ]
        instance.queues.apply([Append("q", 1, entry(number)) for number in range(1, 31)])
        await committed(instance.queues)
        read: list[int] = []
        while page := await instance.queues.read("q", read[-1] if read else 0, 4):
            read += [each.sequence for each in page]
            instance.queues.apply([Remove("q", 1, read[-1]), Remove("q", 1, read[0])])
            await committed(instance.queues)
        return found, read

    found, read = over(server, run)

    assert found == [sorted(steady)] * 3
    assert read == list(range(1, 31))
