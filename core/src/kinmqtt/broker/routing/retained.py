"""Retained messages: keeping them, and sending them to new subscriptions (section 3.3.1.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf, nextafter
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker import event_log as events
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.deliver import deliver
from kinmqtt.broker.routing.target import target_of
from kinmqtt.hooks.awaitables import as_deferred, resolve, run
from kinmqtt.hooks.messages import PLUGIN_VALUES_PREFIX
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.retain import RetainPage, RetainVersion, RetainWrite, retained_bytes
from kinmqtt_spi.values import Maybe, Message, RetainHandling, Subscription

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.retained")

PAGE: Final = 100
BYTES_AT_ONCE: Final = 256 << 10
"""How much is sent to one client before it is asked whether it has room."""

EXPIRE_AT_ONCE: Final = 200

EXPIRE_ROUNDS: Final = 5
"""In one second, one after the other."""

SYS_PREFIX: Final = "$SYS/"


class Retained:
    """The broker's dealings with the retain store."""

    def __init__(self, runtime: Runtime, epoch_of: Callable[[str], int]) -> None:
        """``epoch_of`` answers the epoch of a client's session; 0 where it has none."""
        self._runtime = runtime
        self._epoch_of = epoch_of
        self._latest = 0.0
        self._lines: dict[Session, deque[Subscription]] = {}
        """Subscriptions for which retained messages are to be sent, by session, one after the other."""

    def keep(self, publication: Publication) -> Awaitable[None] | None:
        """Store a message for its topic, or clear the topic where the payload is empty; awaitable if a plugin is."""
        message = publication.stored
        retaining = self._runtime.hooks.retaining
        if not retaining.active:
            self._write(message)
            return None
        outcome = retaining(message)
        if isinstance(outcome, Awaitable):
            return self._keep_later(outcome)
        if isinstance(outcome, Message):
            self._write(outcome)
        return None

    async def go_on(self) -> None:
        """After a start: what is retained from now on is newer than all there is, also where a clock was set back."""
        cursor: object = None
        while True:
            contents = await resolve(self._runtime.stores.retain.iterate(cursor))
            self._latest = max([self._latest, *(write.version.received_at for write in contents.writes)])
            cursor = contents.cursor
            if cursor is None:
                # Newer, not as new: whose is the newer of two that came at the same moment, a node's uid would say.
                self._latest = nextafter(self._latest, inf)
                return

    def lacks_capacity_for(self, publication: Publication) -> Maybe[bool]:
        """Whether a message can't be retained for there are too many; one in place of another may."""
        publish = publication.publish
        if not publish.payload or publish.topic.startswith(SYS_PREFIX):
            return False
        runtime = self._runtime
        limits = runtime.limits
        store = runtime.stores.retain
        coming = runtime.turn.batch
        more_bytes = retained_bytes(publication.stored)
        many = store.count() + len(coming.retain) >= limits.max_retained_messages
        size_bytes = store.size_bytes() + coming.retain_bytes + more_bytes
        if not many and size_bytes <= limits.max_retained_bytes:
            if not self._takes_too_much(publication.publisher.username, more_bytes):
                return False
        page = store.match(publish.topic, None, 1)
        if isinstance(page, Awaitable):
            return self._replaces_none(page, publication)
        return _is_larger(publication, page)

    def _takes_too_much(self, username: str | None, more_bytes: int) -> bool:
        """Whether a user has its share of what is retained, with what is on its way to the store."""
        held = None if username is None else self._runtime.stores.retain.held_by(username)
        if held is None or username is None:
            return False
        limits = self._runtime.limits
        messages, size_bytes = self._runtime.turn.batch.retain_users.get(username, (0, 0))
        if held[0] + messages >= limits.share_of(limits.max_retained_messages):
            return True
        return held[1] + size_bytes + more_bytes > limits.share_of(limits.max_retained_bytes)

    @staticmethod
    async def _replaces_none(pending: Awaitable[RetainPage], publication: Publication) -> bool:
        try:
            return _is_larger(publication, await as_deferred(pending))
        except ServiceUnavailable:
            return True  # Whoever sends it again finds the store there, or gets the same answer.

    def persist_value(self, plugin: str, key: str, value: bytes | None) -> None:
        """Keep a plugin's value, or forget it, with this turn's writes."""
        runtime = self._runtime
        message = Message(f"{PLUGIN_VALUES_PREFIX}{plugin}/{key}", value or b"", 1, True)
        self._put(message.received(runtime.mint(), runtime.clock.now(), None))
        runtime.turn.touch()

    async def has_value(self, plugin: str, key: str) -> bool:
        """Whether a plugin's value is kept."""
        page = await resolve(self._runtime.stores.retain.match(f"{PLUGIN_VALUES_PREFIX}{plugin}/{key}", None, 1))
        return bool(page.messages)

    async def persisted_values(self, plugin: str) -> dict[str, bytes]:
        """All that a plugin keeps, by key."""
        prefix = f"{PLUGIN_VALUES_PREFIX}{plugin}/"
        found: dict[str, bytes] = {}
        cursor: object = None
        while True:
            page = await resolve(self._runtime.stores.retain.match(f"{prefix}#", cursor, PAGE))
            found.update((message.topic.removeprefix(prefix), message.payload) for message in page.messages)
            cursor = page.cursor
            if cursor is None:
                return found

    async def _keep_later(self, outcome: Awaitable[object]) -> None:
        settled = await as_deferred(outcome)
        if isinstance(settled, Message):
            self._write(settled)

    def _put(self, message: Message) -> None:
        # A wall clock that is set back must not make the newer of two messages the older one.
        newest = self._runtime.stores.retain.newest()
        if newest > self._latest:
            # Of another broker's, whose clock is ahead; or of a deletion from before a restart.
            self._latest = nextafter(newest, inf)
        self._latest = max(self._latest, message.received_at)
        version = RetainVersion(self._latest, message.id.node, message.id.counter)
        batch = self._runtime.turn.batch
        batch.retain.append(RetainWrite(message, version))
        size_bytes = retained_bytes(message)
        batch.retain_bytes += size_bytes
        username = message.publisher.username
        if username is not None:
            messages, its_bytes = batch.retain_users.get(username, (0, 0))
            batch.retain_users[username] = (messages + 1, its_bytes + size_bytes)

    def _write(self, message: Message) -> None:
        runtime = self._runtime
        self._put(message)
        batch = runtime.turn.batch
        kind = EventKind.ADD_RETAIN if message.payload else EventKind.REMOVE_RETAIN
        publisher = message.publisher.client_id
        if not message.topic.startswith(SYS_PREFIX):
            events.record(runtime, kind, publisher, self._epoch_of(publisher), topic=message.topic)
        hooks = runtime.hooks
        if message.payload and hooks.retained.active:
            batch.after_commit.append(lambda: hooks.retained(message))
        elif not message.payload and hooks.retain_cleared.active:
            batch.after_commit.append(lambda: hooks.retain_cleared(message.topic))

    def send(self, session: Session, made: Sequence[tuple[Subscription, bool]]) -> None:
        """Send what matches subscriptions that were just made, where they ask for that (MQTT-3.3.1-9 to 11).

        ``made`` says of each whether it is new.
        """
        wanted = [subscription for subscription, new in made if _asks_for_retained(subscription, new)]
        if not wanted:
            return
        line = self._lines.get(session)
        if line is not None:
            line.extend(wanted)
            return
        self._lines[session] = deque(wanted)
        run(self._send_line(session)).addErrback(partial(self._not_sent, session.client_id))

    @staticmethod
    def _not_sent(client_id: str, failure: Failure) -> None:
        if failure.check(ServiceUnavailable):
            # It is no fault of the broker's, and a trace would say no more.
            text = "retained messages could not be sent to {client_id!r}: {error}"
            log.error(text, client_id=client_id, error=failure.value)
        else:
            log.failure("retained messages could not be sent to {client_id!r}", failure, client_id=client_id)

    async def _send_line(self, session: Session) -> None:
        """All that a client is to be sent, however many filters ask for it at one time.

        Many filters may find nothing, each after a long look: lines of several clients move on slice by slice.
        """
        line = self._lines[session]
        slices = self._runtime.slices
        try:
            while line and session.connection is not None:
                if slices.is_over():
                    await slices.turn()
                subscription = line.popleft()
                # It may have been given up while it waited.
                if subscription.full_filter in session.subscriptions:
                    await self._send_pages(session, subscription)
        finally:
            del self._lines[session]

    async def _send_pages(self, session: Session, subscription: Subscription) -> None:
        """Page by page, and no faster than the client takes them."""
        target = target_of(session, [subscription])
        connection = session.connection
        cursor: object = None
        while connection is not None and session.connection is connection:
            page = await resolve(self._runtime.stores.retain.match(subscription.filter, cursor, PAGE))
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
            # In a later turn: a filter that finds nothing for many pages leaves others theirs.
            await connection.wait_for_capacity(PAGE)

    async def expire(self, now: float) -> None:
        """Remove what has expired at ``now``, some of it at one time."""
        for _ in range(EXPIRE_ROUNDS):
            removed = await resolve(self._runtime.stores.retain.expire(now, EXPIRE_AT_ONCE))
            if self._runtime.hooks.retain_cleared.active:
                for message in removed:
                    self._runtime.hooks.retain_cleared(message.topic)
            if len(removed) < EXPIRE_AT_ONCE:
                return
            await self._runtime.slices.turn()


def _asks_for_retained(subscription: Subscription, new: bool) -> bool:
    """Whether retained messages are to be sent for a subscription (section 3.8.3.1)."""
    handling = subscription.retain_handling
    if subscription.share_group is not None or handling == RetainHandling.DO_NOT_SEND:
        return False
    return new or handling != RetainHandling.SEND_IF_NEW


def _is_larger(publication: Publication, page: RetainPage) -> bool:
    """Whether a message takes more room than what is retained for its topic already."""
    return not page.messages or publication.stored.size_bytes > page.messages[0].size_bytes
