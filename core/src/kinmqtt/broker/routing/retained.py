"""Stores retained messages, and sends them for new subscriptions (section 3.3.1.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import DeferredLock
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker import event_log as events
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.deliver import deliver
from kinmqtt.broker.routing.target import target_of
from kinmqtt.broker.routing.version_clock import VersionClock
from kinmqtt.hooks.awaitables import as_deferred, resolve, run
from kinmqtt.hooks.messages import PLUGIN_VALUES_PREFIX
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.retain import RetainPage, RetainStore, RetainVersion, RetainWrite, retained_bytes
from kinmqtt_spi.values import Maybe, Message, RetainHandling, Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.retained")

PAGE: Final = 100
"""The most messages that one read of the retain store returns."""

BYTES_AT_ONCE: Final = 256 << 10
"""The bytes sent to one client before its capacity is checked again."""

EXPIRE_AT_ONCE: Final = 200
"""The most messages that one request to expire removes."""

EXPIRE_ROUNDS: Final = 5
"""The most requests to expire in one second."""

SYS_PREFIX: Final = "$SYS/"


class Retained:
    """Writes to the retain store, and reads from it."""

    def __init__(self, runtime: Runtime, epoch_of: Callable[[str], int]) -> None:
        """``epoch_of`` returns the epoch of a client's session; 0 if it has none."""
        self._runtime = runtime
        self._epoch_of = epoch_of
        self.versions = VersionClock()
        self._on_write: Callable[[RetainWrite], object] | None = None
        self._on_expired: Callable[[Sequence[Message]], object] | None = None
        self._own: RetainStore | None = MemoryRetainStore() if runtime.stores.retain.is_shared else None
        """The messages below ``$SYS/``, where nodes share a retain store: they tell of this node."""
        self._adopting = DeferredLock()
        self._unsent: dict[Session, deque[Subscription]] = {}
        """By session: the subscriptions whose retained messages are to be sent, in order."""

    def observe(
        self, on_write: Callable[[RetainWrite], object], on_expired: Callable[[Sequence[Message]], object]
    ) -> None:
        """Call ``on_write`` with each write of a message that is not this node's alone, before its commit.

        ``on_expired`` gets the messages that the store has removed because they have expired.
        """
        self._on_write = on_write
        self._on_expired = on_expired

    @staticmethod
    def is_of_node(topic: str) -> bool:
        """Whether a topic is one that each node has for itself: the broker's own, and the values of plugins."""
        return topic.startswith((SYS_PREFIX, PLUGIN_VALUES_PREFIX))

    def store(self, publication: Publication) -> Awaitable[None] | None:
        """Store a message for its topic, or clear the topic if the payload is empty; awaitable if a plugin is."""
        message = publication.stored
        retaining = self._runtime.hooks.retaining
        if not retaining.active:
            self._write(message, publication.epoch)
            return None
        outcome = retaining(message)
        if isinstance(outcome, Awaitable):
            return self._store_later(outcome, publication.epoch)
        if isinstance(outcome, Message):
            self._write(outcome, publication.epoch)
        return None

    async def load_newest_version(self) -> None:
        """Read the newest stored version after a start: later ones must be newer, even if a clock was set back."""
        cursor: object = None
        while True:
            contents = await resolve(self._runtime.stores.retain.iterate(cursor))
            for write in contents.writes:
                self.versions.observe(write.version.received_at)
            cursor = contents.cursor
            if cursor is None:
                return

    def lacks_capacity_for(self, publication: Publication) -> Maybe[bool]:
        """Return whether a limit forbids to retain a message; one that replaces a larger one is always allowed."""
        publish = publication.publish
        if not publish.payload or publish.topic.startswith(SYS_PREFIX):
            return False
        return self.lacks_capacity(publication.stored)

    def lacks_capacity(self, message: Message) -> Maybe[bool]:
        """Return whether a limit forbids to retain a message; see :meth:`lacks_capacity_for`."""
        runtime = self._runtime
        limits = runtime.limits
        store = runtime.stores.retain
        batch = runtime.turn.batch
        more_bytes = retained_bytes(message)
        many = store.count() + len(batch.retain) >= limits.max_retained_messages
        size_bytes = store.size_bytes() + batch.retain_bytes + more_bytes
        if not many and size_bytes <= limits.max_retained_bytes:
            if not self._exceeds_share(message.publisher.username, more_bytes):
                return False
        page = store.match(message.topic, None, 1)
        if isinstance(page, Awaitable):
            return self._is_larger_than_stored(page, message)
        return _is_larger(message, page)

    def _exceeds_share(self, username: str | None, more_bytes: int) -> bool:
        """Return whether a user would exceed its share of retained messages, with writes not committed yet."""
        held = None if username is None else self._runtime.stores.retain.held_by(username)
        if held is None or username is None:
            return False
        limits = self._runtime.limits
        messages, size_bytes = self._runtime.turn.batch.retain_users.get(username, (0, 0))
        if held[0] + messages >= limits.share_of(limits.max_retained_messages):
            return True
        return held[1] + size_bytes + more_bytes > limits.share_of(limits.max_retained_bytes)

    @staticmethod
    async def _is_larger_than_stored(pending: Awaitable[RetainPage], message: Message) -> bool:
        try:
            return _is_larger(message, await as_deferred(pending))
        except ServiceUnavailable:
            return True  # The publisher may retry.

    def page(self, filter: str, cursor: object) -> Maybe[RetainPage]:
        """Return a page of the messages that match a filter, without plugins' values and what has expired."""
        page = self._runtime.stores.retain.match(filter, cursor, PAGE)
        if isinstance(page, Awaitable):
            return as_deferred(page).addCallback(self._visible)
        return self._visible(page)

    def _visible(self, page: RetainPage) -> RetainPage:
        now = self._runtime.clock.now()
        messages = [
            message
            for message in page.messages
            if not message.has_expired(now) and not message.topic.startswith(PLUGIN_VALUES_PREFIX)
        ]
        return RetainPage(tuple(messages), page.cursor)

    def persist_value(self, plugin: str, key: str, value: bytes | None) -> None:
        """Store a plugin's value, or delete it if it is ``None``, with this turn's writes."""
        runtime = self._runtime
        message = Message(f"{PLUGIN_VALUES_PREFIX}{plugin}/{key}", value or b"", 1, True)
        self._put(message.received(runtime.message_ids.mint(), runtime.clock.now(), None))
        runtime.turn.touch()

    async def has_value(self, plugin: str, key: str) -> bool:
        """Return whether a plugin's value is stored."""
        page = await resolve(self._runtime.stores.retain.match(f"{PLUGIN_VALUES_PREFIX}{plugin}/{key}", None, 1))
        return bool(page.messages)

    async def persisted_values(self, plugin: str) -> dict[str, bytes]:
        """Return the stored values of a plugin, by key; without those of other nodes that are alive."""
        await self.adopt_values(plugin)
        found = await self._values(plugin)
        if self._runtime.stores.retain.is_shared:
            uid = self._runtime.node.uid
            found = {key: message for key, message in found.items() if message.id.node == uid}
        return {key: message.payload for key, message in found.items()}

    async def adopt_values(self, plugin: str) -> dict[str, bytes]:
        """Make the values of a plugin this node's that nodes have left which are gone; returns them by key.

        Of several nodes that try, one gets a value: it is written only if nobody has written it since.
        """
        if not self._runtime.stores.retain.is_shared:
            return {}
        # One after the other: two nodes may be gone at once, and both calls would return the same values.
        await self._adopting.acquire()
        try:
            return await self._adopt_values(plugin)
        finally:
            self._adopting.release()

    async def _adopt_values(self, plugin: str) -> dict[str, bytes]:
        runtime = self._runtime
        store = runtime.stores.retain
        uid = runtime.node.uid
        owners = {message.id.node for message in (await self._values(plugin)).values()} - {uid}
        gone = owners - await resolve(runtime.stores.session.living(owners))
        if not gone:
            return {}
        prefix = f"{PLUGIN_VALUES_PREFIX}{plugin}/"
        adopted: set[str] = set()
        cursor: object = None
        while True:
            contents = await resolve(store.iterate(cursor))
            for write in contents.writes:
                if write.version.node in gone and write.message.topic.startswith(prefix):
                    self.versions.observe(write.version.received_at)
                    message = write.message.received(runtime.message_ids.mint(), runtime.clock.now(), None)
                    self._put(message, write.version)
                    adopted.add(write.message.topic.removeprefix(prefix))
            cursor = contents.cursor
            if cursor is None:
                break
        await runtime.turn.committed()
        values = await self._values(plugin)
        return {key: values[key].payload for key in adopted if key in values and values[key].id.node == uid}

    async def _values(self, plugin: str) -> dict[str, Message]:
        """Return the stored values of a plugin, by key, as messages."""
        prefix = f"{PLUGIN_VALUES_PREFIX}{plugin}/"
        found: dict[str, Message] = {}
        cursor: object = None
        while True:
            page = await resolve(self._runtime.stores.retain.match(f"{prefix}#", cursor, PAGE))
            found.update((message.topic.removeprefix(prefix), message) for message in page.messages)
            cursor = page.cursor
            if cursor is None:
                return found

    async def _store_later(self, outcome: Awaitable[object], epoch: int) -> None:
        settled = await as_deferred(outcome)
        if isinstance(settled, Message):
            self._write(settled, epoch)

    def _put(self, message: Message, expected: RetainVersion | None = None, epoch: int = 0) -> RetainWrite:
        version = self.versions.next(message.received_at, message.id, self._runtime.stores.retain.newest())
        write = RetainWrite(message, version, expected, epoch)
        self.put_foreign(write)
        return write

    def put_foreign(self, write: RetainWrite) -> None:
        """Commit a write that has its version, with this turn's writes: another node's."""
        batch = self._runtime.turn.batch
        batch.retain.append(write)
        message = write.message
        size_bytes = retained_bytes(message)
        batch.retain_bytes += size_bytes
        username = message.publisher.username
        if username is not None:
            messages, its_bytes = batch.retain_users.get(username, (0, 0))
            batch.retain_users[username] = (messages + 1, its_bytes + size_bytes)

    def _write(self, message: Message, epoch: int) -> None:
        runtime = self._runtime
        if self._own is not None and message.topic.startswith(SYS_PREFIX):
            self._own.put([RetainWrite(message, self.versions.next(message.received_at, message.id))])
            return
        write = self._put(message, None, epoch)
        if self._on_write is not None and not message.topic.startswith(SYS_PREFIX):
            self._on_write(write)
        batch = runtime.turn.batch
        kind = EventKind.ADD_RETAIN if message.payload else EventKind.REMOVE_RETAIN
        publisher = message.publisher.client_id
        if not message.topic.startswith(SYS_PREFIX):
            data: dict[str, object] = {"topic": message.topic}
            if message.payload:
                message_id = f"{message.id.node}-{message.id.counter}"
                data |= {"qos": message.qos, "bytes": len(message.payload), "message_id": message_id}
            events.record_data(runtime, kind, publisher, self._epoch_of(publisher), data)
        hooks = runtime.hooks
        if message.payload and hooks.retained.active:
            batch.after_commit.append(lambda: hooks.retained(message))
        elif not message.payload and hooks.retain_cleared.active:
            batch.after_commit.append(lambda: hooks.retain_cleared(message.topic))

    def send(self, session: Session, made: Sequence[tuple[Subscription, bool]]) -> None:
        """Send the retained messages for subscriptions just made, as they request (MQTT-3.3.1-9 to 11).

        ``made`` has each subscription, and whether it is new.
        """
        wanted = [subscription for subscription, new in made if _asks_for_retained(subscription, new)]
        if not wanted:
            return
        queued = self._unsent.get(session)
        if queued is not None:
            queued.extend(wanted)
            return
        self._unsent[session] = deque(wanted)
        run(self._send_queued(session)).addErrback(partial(self._send_failed, session.client_id))

    @staticmethod
    def _send_failed(client_id: str, failure: Failure) -> None:
        if failure.check(ServiceUnavailable):
            # The store is unavailable: a traceback would add nothing.
            text = "retained messages could not be sent to {client_id!r}: {error}"
            log.error(text, client_id=client_id, error=failure.value)
        else:
            log.failure("retained messages could not be sent to {client_id!r}", failure, client_id=client_id)

    async def _send_queued(self, session: Session) -> None:
        """Send the retained messages for all queued subscriptions of a client.

        In slices, as many filters may each take a long search and match nothing.
        """
        queued = self._unsent[session]
        slices = self._runtime.slices
        try:
            while queued and session.connection is not None:
                if slices.is_over():
                    await slices.turn()
                subscription = queued.popleft()
                # The client may have unsubscribed meanwhile.
                if subscription.full_filter in session.subscriptions:
                    await self._send_pages(session, subscription)
        finally:
            del self._unsent[session]

    async def _send_pages(self, session: Session, subscription: Subscription) -> None:
        """Send the retained messages for one subscription, page by page, no faster than the client reads."""
        store = self._runtime.stores.retain
        if self._own is not None and subscription.filter.startswith(SYS_PREFIX):
            store = self._own
        target = target_of(session, [subscription])
        connection = session.connection
        cursor: object = None
        while connection is not None and session.connection is connection:
            page = await resolve(store.match(subscription.filter, cursor, PAGE))
            now = self._runtime.clock.now()
            size_bytes = 0
            for message in page.messages:
                if message.has_expired(now) or message.topic.startswith(PLUGIN_VALUES_PREFIX):
                    continue
                if size_bytes > BYTES_AT_ONCE:
                    self._runtime.turn.touch()
                    await connection.wait_for_capacity(PAGE)
                    if session.connection is not connection:
                        return
                    size_bytes = 0
                size_bytes += message.size_bytes
                deliver(self._runtime, target, Publication.of(message), retained=True)
            self._runtime.turn.touch()
            cursor = page.cursor
            if cursor is None:
                return
            # Continue in a later turn: a filter may match nothing on many pages, and others must not wait.
            await connection.wait_for_capacity(PAGE)

    async def expire(self, now: float) -> None:
        """Remove messages that have expired at ``now``, a bounded number in one call."""
        for _ in range(EXPIRE_ROUNDS):
            removed = await resolve(self._runtime.stores.retain.expire(now, EXPIRE_AT_ONCE))
            if self._on_expired is not None and removed:
                self._on_expired(removed)
            if self._runtime.hooks.retain_cleared.active:
                for message in removed:
                    self._runtime.hooks.retain_cleared(message.topic)
            if len(removed) < EXPIRE_AT_ONCE:
                return
            await self._runtime.slices.turn()


def _asks_for_retained(subscription: Subscription, new: bool) -> bool:
    """Return whether retained messages are to be sent for a subscription (section 3.8.3.1)."""
    handling = subscription.retain_handling
    if subscription.share_group is not None or handling == RetainHandling.DO_NOT_SEND:
        return False
    return new or handling != RetainHandling.SEND_IF_NEW


def _is_larger(message: Message, page: RetainPage) -> bool:
    """Return whether a message is larger than the one retained for its topic, or there is none."""
    return not page.messages or message.size_bytes > page.messages[0].size_bytes
