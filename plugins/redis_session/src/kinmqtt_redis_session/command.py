"""``kinmqtt redis export|import``: exports Redis's contents in the format of ``kinmqtt store``, and imports them."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, cast

from kinmqtt_redis_session._plugin import RedisSession
from kinmqtt_redis_session.settings import RedisSessionSettings
from kinmqtt_redis_session.transfer import TransferError, lines
from kinmqtt_spi.export import Contents, line_text, read_export
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.plugin import Timer
from kinmqtt_spi.services.queue import QueueStore, QueueWrite
from kinmqtt_spi.services.retain import RetainStore
from kinmqtt_spi.services.session import SessionStore
from kinmqtt_spi.services.store import Store
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.values import NodeIdentity

MAX_COMMANDS: Final = 2000
"""The writes of one commit of an import."""


class Redis:
    """The command ``kinmqtt redis``."""

    summary = "export and import what the plugin redis_session stores"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("action", choices=("export", "import"), help="to standard output, or from standard input")
        parser.add_argument(
            "-c", "--config", type=Path, required=True, help="the broker's settings, with [plugins.redis_session]"
        )

    def run(self, parsed: Namespace) -> int:
        """Run it. Brokers should be stopped for an export; else it is not a consistent snapshot."""
        settings = parse(RedisSessionSettings, Document.read(parsed.config), ("plugins", "redis_session"))
        if parsed.action == "export":
            asyncio.run(_export(settings))
        else:
            contents = read_export(sys.stdin.buffer)
            asyncio.run(_import(settings, contents))
            # Redis stores no events.
            left_out = len(contents.events) + len(contents.consumer_offsets)
            if left_out:
                print(f"kinmqtt: {left_out} lines of events were left out", file=sys.stderr)
        return 0


class _Clock:
    """The system's clock."""

    def now(self) -> float:
        """See :class:`~kinmqtt_spi.services.plugin.Clock`."""
        return time.time()

    def monotonic(self) -> float:
        """See :class:`~kinmqtt_spi.services.plugin.Clock`."""
        return time.monotonic()

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """See :class:`~kinmqtt_spi.services.plugin.Clock`."""
        return asyncio.get_running_loop().call_later(delay_s, call)


class _Log:
    """Prints warnings and errors to standard error."""

    def debug(self, format: str, **values: object) -> None:
        """Print nothing."""

    def info(self, format: str, **values: object) -> None:
        """Print nothing: the command reports its result itself."""

    def warn(self, format: str, **values: object) -> None:
        """See :class:`~kinmqtt_spi.services.plugin.Log`."""
        print(f"kinmqtt: {format.format(**values)}", file=sys.stderr)

    error = warn


def _context(settings: RedisSessionSettings) -> BareContext:
    """A context without a broker. Its node uid is random, so that two commands at once are different nodes."""
    context: Any = BareContext("redis_session", settings, node=NodeIdentity("copy", secrets.randbits(63) | 1))
    context.clock, context.log = _Clock(), _Log()
    return cast(BareContext, context)


class _OpenStores:
    """The plugin's stores, opened without a broker."""

    def __init__(self, settings: RedisSessionSettings) -> None:
        self._plugin = RedisSession(joins=False)
        self._context = _context(settings)
        self._plugin.configure(self._context)
        self.sessions: SessionStore = self._plugin.session_store()
        self.queues: QueueStore = self._plugin.queue_store()
        self.retained: RetainStore = self._plugin.retain_store()

    async def __aenter__(self) -> _OpenStores:
        try:
            await self._plugin.start(self._context)
        except BaseException:
            await self._plugin.stop()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._plugin.stop()

    async def clients(self) -> dict[str, int]:
        """All clients with stored state, with their epochs."""
        return await self._plugin.clients()


async def _export(settings: RedisSessionSettings) -> None:
    count = 1
    async with _OpenStores(settings) as opened:
        clients = await opened.clients()
        async for line in lines(opened.sessions, opened.queues, opened.retained, clients):
            print(line_text(line))
            count += 1
    # Without this line a truncated export would look complete.
    print(line_text({"kind": "end", "lines": count}))


async def _import(settings: RedisSessionSettings, contents: Contents) -> None:
    async with _OpenStores(settings) as opened:
        if await opened.clients() or opened.retained.count():
            raise TransferError(
                f"Redis already holds something below {settings.prefix!r}: import before a broker has run with this "
                "prefix, or set another prefix in [plugins.redis_session]"
            )
        for at in range(0, len(contents.sessions), MAX_COMMANDS):
            opened.sessions.apply(contents.sessions[at : at + MAX_COMMANDS])
            await _commit(opened.sessions)
        for some in _chunks(contents.queue_writes()):
            opened.queues.apply(some)
            await _commit(opened.queues)
        for at in range(0, len(contents.retained), MAX_COMMANDS):
            opened.retained.put(contents.retained[at : at + MAX_COMMANDS])
            await _commit(opened.retained)
        totals = opened.queues.totals()
        print(
            f"Redis has {opened.sessions.count()} sessions, {opened.retained.count()} retained messages and "
            f"{totals.queued + totals.inflight} queued messages"
        )


def _chunks(clients: Iterable[list[QueueWrite]]) -> Iterable[list[QueueWrite]]:
    some: list[QueueWrite] = []
    for writes in clients:
        some += writes
        if len(some) >= MAX_COMMANDS:
            yield some
            some = []
    if some:
        yield some


async def _commit(store: Store) -> None:
    answer = store.commit()
    if answer is not None:
        await answer


command = Redis()
