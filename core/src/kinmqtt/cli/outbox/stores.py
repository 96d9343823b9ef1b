"""The stores of the settings, opened without a broker, and the outboxes in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from attrs import define

from kinmqtt.broker.assembly import Assembly
from kinmqtt.broker.bridging import PARKED_SUFFIX
from kinmqtt.broker.outboxes.table import owner_of
from kinmqtt.broker.ownership.claims import release_of
from kinmqtt.broker.session.outbox_session import PREFIX
from kinmqtt.builtins import DEFAULTS, PERSISTENT_DEFAULTS
from kinmqtt.builtins.embedded.command import holds_something
from kinmqtt.builtins.embedded.directory import DirectoryInUse
from kinmqtt.hooks.awaitables import resolve
from kinmqtt.hooks.calls import Call
from kinmqtt_spi.errors import AssemblyError, Fenced, SpiError
from kinmqtt_spi.services.queue import Entry, QueueState, QueueWrite
from kinmqtt_spi.services.session import SessionWrite, StoredSession
from kinmqtt_spi.services.store import Store

FAMILIES: Final = ("session", "queue")
"""The families whose services hold outboxes."""

PAGE: Final = 200
"""Messages that are read at a time."""


class OutboxInUse(SpiError):
    """A broker that runs has the outbox."""

    def __init__(self, client_id: str) -> None:
        node, plugin, name = owner_of(client_id) or ("", "", client_id)
        shown = f"{plugin}:{name.removesuffix(PARKED_SUFFIX)}"
        super().__init__(
            f"outbox {shown} of node {node} is in use by a broker that runs: stop it first, with all other brokers "
            "over these stores, or one of them adopts it"
        )


@define(slots=True)
class Claimed:
    """A client id whose writes are this process's."""

    client_id: str
    epoch: int
    session: StoredSession | None
    """``None`` if nothing is stored under this client id."""


class OutboxStores:
    """The open session and queue stores."""

    def __init__(self, assembly: Assembly) -> None:
        self._sessions = assembly.stores.session
        self._queues = assembly.stores.queue
        self._node = assembly.node
        self._clock = assembly.clock
        self.where = _place_of(assembly)
        """What holds the outboxes, for messages: a directory, or a plugin's name."""

    @property
    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self._clock.now()

    # Reading

    async def sessions(self) -> AsyncIterator[tuple[int, StoredSession, bool]]:
        """Yield the sessions of outboxes, each with its epoch and whether a broker that runs has it."""
        cursor: object = None
        while True:
            page = await resolve(self._sessions.iterate(cursor))
            for epoch, session in page.sessions:
                if session.client_id.startswith(PREFIX):
                    yield epoch, session, session.client_id in page.elsewhere
            cursor = page.cursor
            if cursor is None:
                return

    async def state(self, client_id: str) -> QueueState:
        """Return the state of a queue: what is in flight, and the sizes."""
        return await resolve(self._queues.load(client_id))

    async def waiting(self, client_id: str, after: int = 0, limit: int = PAGE) -> Sequence[Entry]:
        """Return the first messages that wait, with sequence numbers above ``after``."""
        return await resolve(self._queues.read(client_id, after, limit))

    async def entries(self, client_id: str) -> AsyncIterator[Entry]:
        """Yield all messages of an outbox, in the order in which its consumer would get them."""
        for held in (await self.state(client_id)).inflight:
            if held.entry is not None:
                yield held.entry
        after = 0
        while page := await self.waiting(client_id, after):
            for entry in page:
                yield entry
            after = page[-1].sequence

    # Writing

    @asynccontextmanager
    async def claimed(self, client_id: str) -> AsyncIterator[Claimed]:
        """Claim a client id, and release it at the end.

        Raises :class:`OutboxInUse` if a broker that runs has it, also one that claims it meanwhile.
        """
        claim = await resolve(self._sessions.claim(client_id, self._node))
        held = Claimed(client_id, claim.epoch, claim.session)
        try:
            homes = set() if claim.home_uid is None else {claim.home_uid}
            living = await resolve(self._sessions.living(homes))
            if living:
                raise OutboxInUse(client_id)
            yield held
        except Fenced as error:
            raise OutboxInUse(client_id) from error
        finally:
            with suppress(SpiError):
                await self._release(held)

    async def _release(self, held: Claimed) -> None:
        if held.session is None:
            self._sessions.release(held.client_id, held.epoch)
        else:
            await self.write(sessions=[release_of(held.session, held.epoch, self.now)])

    async def write(self, queue: Sequence[QueueWrite] = (), sessions: Sequence[SessionWrite] = ()) -> None:
        """Commit writes, those of queues first where the stores do not share a transaction.

        Raises :class:`~kinmqtt_spi.errors.Fenced` and :class:`~kinmqtt_spi.errors.ServiceUnavailable`.
        """
        answers = []
        stores: list[Store] = []
        if queue:
            answers.append(self._queues.apply(queue))
            stores.append(self._queues)
        if sessions:
            answers.append(self._sessions.apply(sessions))
            stores.append(self._sessions)
        answers += [store.commit() for store in stores]
        for answer in answers:
            await resolve(answer)


@asynccontextmanager
async def opened(assembly: Assembly) -> AsyncIterator[OutboxStores]:
    """Start the plugins that serve sessions and queues, as a broker does, and stop them at the end.

    Raises :class:`~kinmqtt_spi.errors.SpiError`, also if they hold nothing or another process uses them.
    """
    plugins = {assembly.providers[family] for family in FAMILIES}
    _refuse_nothing(assembly, plugins)
    try:
        for call in _calls(assembly.hooks.start.each(), plugins):
            await _start(call, assembly)
        yield OutboxStores(assembly)
    except BaseException:
        with suppress(Exception):
            await _stop(assembly, plugins)
        raise
    await _stop(assembly, plugins)


async def _start(call: Call, assembly: Assembly) -> None:
    try:
        await resolve(call(assembly.contexts[call.plugin]))
    except DirectoryInUse as error:
        text = f"{assembly.settings.data_directory} is in use by {error.holder}: stop the broker first"
        raise AssemblyError(text) from error
    except SpiError:
        raise
    except Exception as error:
        raise AssemblyError(f"plugin {call.plugin!r} can't start: {type(error).__name__}: {error}") from error


async def _stop(assembly: Assembly, plugins: set[str]) -> None:
    for call in _calls(assembly.hooks.stop.each(), plugins):
        await resolve(call())


def _calls(calls: Iterable[Call], plugins: set[str]) -> list[Call]:
    return [call for call in calls if call.plugin in plugins]


def _refuse_nothing(assembly: Assembly, plugins: set[str]) -> None:
    """Refuse stores that end with their process, and a directory that no broker has used: it would be made."""
    if any(assembly.providers[family] == DEFAULTS[family] for family in FAMILIES):
        raise AssemblyError(
            "these settings keep sessions or queues in memory, where nothing is left of a broker that has stopped: "
            "name the broker's settings (-c FILE) or its directory (--data DIRECTORY)"
        )
    directory = assembly.settings.data_directory
    if directory is not None and plugins & set(PERSISTENT_DEFAULTS.values()):
        holds_something(directory)


def _place_of(assembly: Assembly) -> str:
    plugin = assembly.providers["session"]
    return str(assembly.settings.data_directory) if plugin in PERSISTENT_DEFAULTS.values() else plugin
