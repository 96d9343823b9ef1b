"""Publishes wills that are due, with retries until that is committed.

A persistent session's will is published and removed from the session in one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from attrs import define, field
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.message.names import check_made_names
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import pause, resolve, run
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.services.session import ClearWill
from kinmqtt_spi.values import Client, Message, Will

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.routing.due import DuePublisher
    from kinmqtt.broker.routing.publisher import MessagePublisher
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.wills")

MAX_AWAITING_RETRY: Final = 10_000
"""The most wills of ended sessions that wait for a retry because a store fails; further ones are dropped."""


@define(eq=False)
class _Attempt:
    """A persistent session whose will is not committed as published yet."""

    session: Session
    waiting: list[Deferred[None]] = field(factory=list)
    """Those who wait until it is known whether the attempt under way succeeds."""


class Wills:
    """Publishes wills."""

    def __init__(self, runtime: Runtime, registry: Registry, publisher: MessagePublisher, due: DuePublisher) -> None:
        self._runtime = runtime
        self._registry = registry
        self._publisher = publisher
        self._due = due
        self._awaiting_retry = 0
        self._unpublished: dict[str, _Attempt] = {}
        """By client id."""

    def publish(self, session: Session) -> None:
        """Publish the will of a session, in the background.

        A persistent session continues; the session store has its will until the publication is committed.
        """
        will, session.will = session.will, None
        if will is None:
            return
        work = (
            self._publish_persistent(session, will)
            if session.persistent
            else self._publish_last(session.client, will)
        )
        # Until it is published the will counts against the limit, though its session may be gone.
        total = self._runtime.accounts.all
        size_bytes = will.message.size_bytes
        total.will_bytes += size_bytes

        def over(result: object) -> None:
            total.will_bytes -= size_bytes
            if isinstance(result, Failure):
                log.failure("the will of {client_id!r} could not be published", result, client_id=session.client_id)

        run(work).addBoth(over)

    async def wait_for_attempt(self, client_id: str) -> None:
        """Wait for the current attempt to publish a will. Raises :class:`CommitFailed` where a retry is needed.

        Returns at once where another node has claimed the session since: its will is that node's to publish. What
        this node has begun may itself wait until the session has an owner again.
        """
        attempt = self._unpublished.get(client_id)
        if attempt is None or self._is_outdated(attempt.session):
            return
        over: Deferred[None] = Deferred()
        attempt.waiting.append(over)
        await over
        if self._unpublished.get(client_id) is attempt:
            raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)

    async def message_of(self, client: Client, will: Will) -> Message | None:
        """Return the message to publish, as plugins changed it; ``None`` if a plugin or an authorizer forbids it.

        The client was allowed to leave the will when it connected, but may have lost that right since.
        """
        message = self._publisher.completed(will.message)
        if not await self._due.is_still_allowed(client, Action.WILL, message):
            return None
        outcome = await resolve(self._runtime.hooks.will_publishing(client, message))
        if not isinstance(outcome, Message):
            return None
        try:
            check_made_names(self._runtime.limits, outcome, message)
            self._runtime.rights.spaces.check(outcome.topic, message.topic)
        except ValueError as error:
            log.error(
                "a plugin made an invalid message from a will to {topic!r}: {error}", topic=message.topic, error=error
            )
            return None
        return self._publisher.completed(outcome)

    async def _publish_persistent(self, session: Session, will: Will) -> None:
        """Publish the will of a session that continues; the session store holds it for retries."""
        client_id = session.client_id
        attempt = self._unpublished[client_id] = _Attempt(session)
        try:
            await self._slice()
            message = await self.message_of(session.client, will)
            if message is None:
                self._runtime.turn.batch.sessions.append(ClearWill(client_id, session.epoch))
                self._runtime.turn.touch()
                return
            again = False
            while not await self._is_committed(message, session, again) and not self._is_outdated(session):
                again = True
                self._notify(attempt.waiting)
                await pause(self._runtime.clock, RETRY_S)
        finally:
            if self._unpublished.get(client_id) is attempt:
                del self._unpublished[client_id]
            self._notify(attempt.waiting)

    def _is_outdated(self, session: Session) -> bool:
        """Tell whether this node's copy of a session was dropped."""
        return self._registry.get(session.client_id) is not session

    async def _publish_last(self, client: Client, will: Will) -> None:
        """Publish the will of a session that has ended; it stays in memory for retries, up to a limit."""
        await self._slice()
        message = await self.message_of(client, will)
        if message is None or await self._is_committed(message):
            return
        if self._awaiting_retry >= MAX_AWAITING_RETRY:
            self._runtime.drop(client.client_id, message, "store_failed")
            return
        self._awaiting_retry += 1
        try:
            await pause(self._runtime.clock, RETRY_S)
            await self._publisher.publish_until_committed(message, lambda: None, again=True)
        finally:
            self._awaiting_retry -= 1

    async def _slice(self) -> None:
        """Wait for a slice: thousands of clients may be gone at once."""
        if self._runtime.slices.is_over():
            await self._runtime.slices.turn()

    async def _is_committed(self, message: Message, session: Session | None = None, again: bool = False) -> bool:
        """Publish once, in one transaction with the removal from the ``session``; returns whether that committed.

        ``again``: an earlier attempt may have reached other nodes.
        """

        def along() -> None:
            if session is not None:
                self._clear(session)

        try:
            await self._publisher.publish_with(message, along, again)
        except CommitFailed:
            return False
        return True

    def _clear(self, session: Session) -> None:
        clear = ClearWill(session.client_id, session.epoch)
        batch = self._runtime.turn.batch
        batch.sessions.append(clear)
        batch.tied.add(clear)

    @staticmethod
    def _notify(waiting: list[Deferred[None]]) -> None:
        notified = waiting[:]
        waiting.clear()
        for over in notified:
            over.callback(None)
