"""Wills that are due: each is published, and leaves its session, in one transaction, and again until it is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.message.names import check_made_names
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.broker.turn.turn import CommitFailed
from kinmqtt.hooks.awaitables import pause, run, settle
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.services.session import ClearWill
from kinmqtt_spi.values import Client, Message, Will

if TYPE_CHECKING:
    from kinmqtt.broker.routing.due import Due
    from kinmqtt.broker.routing.publisher import Publishing
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.wills")

MAX_OWED: Final = 10_000
"""Wills of sessions that are gone, which wait for a store that fails; what comes on top is lost."""


class Wills:
    """Publishes the wills of sessions whose clients are gone."""

    def __init__(self, runtime: Runtime, publishing: Publishing, due: Due) -> None:
        self._runtime = runtime
        self._publishing = publishing
        self._due = due
        self._owed = 0
        self._under_way: dict[str, list[Deferred[None]]] = {}
        """Kept sessions whose will is not known to be published yet, and who waits for the attempt under way."""

    def publish(self, session: Session) -> None:
        """The will of a session is due. One that is kept goes on; until its will is published, its store has it."""
        will, session.will = session.will, None
        if will is None:
            return
        work = self._of_kept(session, will) if session.kept else self._of_gone(session.client, will)
        # Until it is published it is somebody's still, though its session may be gone.
        everybody = self._runtime.accounts.all
        size_bytes = will.message.size_bytes
        everybody.will_bytes += size_bytes

        def over(result: object) -> None:
            everybody.will_bytes -= size_bytes
            if isinstance(result, Failure):
                log.failure("the will of {client_id!r} could not be published", result, client_id=session.client_id)

        run(work).addBoth(over)

    async def attempted(self, client_id: str) -> None:
        """Wait for a will that is being published. Raises :class:`CommitFailed` where it must be published again."""
        waiting = self._under_way.get(client_id)
        if waiting is not None:
            over: Deferred[None] = Deferred()
            waiting.append(over)
            await over
            if client_id in self._under_way:
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)

    async def message_of(self, client: Client, will: Will) -> Message | None:
        """What is to be published, as plugins want it; ``None`` where they stop it, or its client has no right to it.

        The client had the right when it connected, and may have lost it since.
        """
        message = self._publishing.completed(will.message)
        if not await self._due.may_still(client, Action.WILL, message):
            return None
        outcome = await settle(self._runtime.hooks.will_publishing(client, message))
        if not isinstance(outcome, Message):
            return None
        try:
            check_made_names(self._runtime.limits, outcome, message)
            self._runtime.rights.spaces.check(outcome.topic, message.topic)
        except ValueError as error:
            log.error(
                "a plugin made an unfit message of a will to {topic!r}: {error}", topic=message.topic, error=error
            )
            return None
        return self._publishing.completed(outcome)

    async def _of_kept(self, session: Session, will: Will) -> None:
        client_id = session.client_id
        self._under_way[client_id] = []
        try:
            await self._in_turn()
            message = await self.message_of(session.client, will)
            if message is None:
                self._runtime.turn.batch.sessions.append(ClearWill(client_id, session.epoch))
                self._runtime.turn.touch()
                return
            while not await self._is_kept(message, session):
                self._tell(self._under_way[client_id])
                await pause(self._runtime.clock, RETRY_S)
        finally:
            self._tell(self._under_way.pop(client_id))

    async def _of_gone(self, client: Client, will: Will) -> None:
        await self._in_turn()
        message = await self.message_of(client, will)
        if message is None or await self._is_kept(message):
            return
        if self._owed >= MAX_OWED:
            self._runtime.drop(client.client_id, message, "store_failed")
            return
        self._owed += 1
        try:
            await pause(self._runtime.clock, RETRY_S)
            await self._publishing.publish_until_kept(message, lambda: None)
        finally:
            self._owed -= 1

    async def _in_turn(self) -> None:
        """Thousands of clients may be gone at once: their wills are published in slices."""
        if self._runtime.slices.is_over():
            await self._runtime.slices.turn()

    async def _is_kept(self, message: Message, session: Session | None = None) -> bool:
        """One attempt, which takes the will from the ``session`` where there is one."""

        def along() -> None:
            if session is not None:
                self._tie(session)

        try:
            await self._publishing.publish_with(message, along)
        except CommitFailed:
            return False
        return True

    def _tie(self, session: Session) -> None:
        clear = ClearWill(session.client_id, session.epoch)
        batch = self._runtime.turn.batch
        batch.sessions.append(clear)
        batch.tied.add(clear)

    @staticmethod
    def _tell(waiting: list[Deferred[None]]) -> None:
        told = waiting[:]
        waiting.clear()
        for over in told:
            over.callback(None)
