"""What a broker has acknowledged comes to an HTTP server, whichever of the two goes, and waits while it is away.

The long run is a command of its own: 20 kills of the broker, and 20 restarts of the server::

    KINMQTT_HTTP_KILLS=20 python -m pytest -m soak tests/bridges/test_http.py -s
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bridge_http_harness.server import HANG, Server, answer
from root_harness.crash_run import Run, said

FORMATS = ("one", "ndjson")


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that takes everything, until a test gives it a script."""
    server = Server()
    yield server
    server.stop()


class HttpRun(Run):
    """A broker with a sink of each format, its clients, and a server that is restarted now and then."""

    def __init__(self, folder: Path, server: Server, seed: int) -> None:
        self.settings = folder / "kinmqtt.toml"
        self.settings.write_text(
            "".join(
                f'[plugins.bridge_http.sinks.{format}]\nfilters = ["crash/#"]\nurl = "{server.url}/{format}"\n'
                f'format = "{format}"\nkey = "${{topic}}"\ntimeout_s = 2\n'
                "sending = { parallel = 2, longest_pause_s = 0.5 }\n"
                for format in FORMATS
            )
        )
        super().__init__(folder / "data", seed, config=self.settings)
        self.server = server
        self.rests_when = lambda: all(self.notes.have_come_to(by_topic(self.messages(each))) for each in FORMATS)

    def messages(self, format: str) -> list[dict[str, Any]]:
        """Return the messages that have come so far."""
        bodies = [got.body for got in list(self.server.got) if got.path == f"/{format}"]
        return [json.loads(line) for body in bodies for line in body.splitlines()]

    async def go(self, kills: int) -> None:
        """Kill the broker so many times under traffic, and restart the server as often."""
        async with self.under_traffic():
            for _ in range(kills):
                await self.kill_once(5)
                self.server.stop()
                await self.until(self.progress(5))
                self.server.start()


def by_topic(messages: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the numbers of messages by their topic, in the order in which they came."""
    found: dict[str, list[int]] = {}
    for message in messages:
        found.setdefault(message["topic"], []).append(int(message["payload"]))
    return found


def check(run: HttpRun) -> int:
    """Fail if something acknowledged is missing or out of order; returns how many messages came twice."""
    assert "Traceback" not in said(run.settings.with_name("data")), said(run.settings.with_name("data"))
    twice = 0
    for format in FORMATS:
        messages = run.messages(format)
        came = by_topic(messages)
        for topic, promised in run.notes.promised.items():
            missing = promised - set(came[topic])
            assert not missing, f"{format}, {topic}: {len(missing)} are missing: {sorted(missing)[:5]}"
            first = list(dict.fromkeys(came[topic]))
            assert all(before < after for before, after in pairwise(first)), (format, topic)
        twice += len(messages) - len({message["id"] for message in messages})
    return twice


def test_nothing_acknowledged_is_lost_on_its_way_to_a_server(tmp_path: Path, server: Server) -> None:
    """B1, B2, B3: at least once, in the order of each key, over kills of the broker and restarts of the server."""
    run = HttpRun(tmp_path, server, seed=31)

    asyncio.run(run.go(3))

    check(run)


@pytest.mark.soak
def test_nothing_is_lost_over_many_kills(tmp_path: Path, server: Server) -> None:
    """The same, for as many as are asked for."""
    kills = int(os.environ.get("KINMQTT_HTTP_KILLS", "20"))
    seed = int(os.environ.get("KINMQTT_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    run = HttpRun(tmp_path, server, seed)

    asyncio.run(run.go(kills))

    twice = check(run)
    promised = sum(map(len, run.notes.promised.values()))
    print(f"seed {seed}: {run.kills} kills, {kills} restarts, {promised} messages acknowledged, {twice} came twice")


def test_messages_wait_for_a_server_that_hangs_and_come_in_order(tmp_path: Path, server: Server) -> None:
    """B4: publishers and subscribers notice nothing; everything comes when the server answers again."""
    run = HttpRun(tmp_path, server, seed=32)

    async def hang() -> None:
        async with run.under_traffic():
            await run.until(run.progress(20))
            server.script = lambda got: HANG
            await run.until(run.progress(200))
            server.script = lambda got: answer()

    asyncio.run(hang())

    check(run)
