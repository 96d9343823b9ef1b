"""Handles the close of a session's connection: the session ends, or stays for its client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.broker.ownership.background import in_background
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.broker.session.session import expiry_moment
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import pause
from kinmqtt_spi.services.session import ClearWill, ReleaseSession

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.ending import Ending
    from kinmqtt.broker.ownership.redistribution import Redistribution
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.ownership.wills import Wills
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt.broker.turn.ports import Peer


class Leaving:
    """Detaches sessions from closed connections, then ends or releases them."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        wills: Wills,
        redistribution: Redistribution,
        ending: Ending,
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._wills = wills
        self._redistribution = redistribution
        self._ending = ending

    def connection_closed(self, session: Session, connection: Peer, will_stands: bool) -> None:
        """Handle the close of a session's connection; without ``will_stands`` the will is deleted.

        A normal DISCONNECT deletes the will (MQTT-3.14.4-3). If another connection already has the session, nothing
        is done.
        """
        if session.connection is not connection:
            return
        self._registry.detach(session)
        if not will_stands:
            session.will = None
        ends = session.expiry_s == 0
        if ends and session.persistent:
            # DISCONNECT has set the expiry interval to 0.
            in_background(self._end_until_committed(session), session.client_id)
            return
        self._redistribution.redistribute_memory(session, ends)
        if ends:
            self._ending.end(session)
            return
        if session.queue.count:
            in_background(self._redistribute_queue(session), session.client_id)
        self._release(session)

    def _release(self, session: Session) -> None:
        """Release the session: its expiry interval and the delay of its will start now."""
        now = self._runtime.now()
        will_due_at = None
        if session.will is not None:
            delay_s = min(session.will.delay_s, session.expiry_s)
            if delay_s:
                will_due_at = now + delay_s
            else:
                self._wills.publish(session)
        else:
            self._registry.write(ClearWill(session.client_id, session.epoch))
        expires_at = expiry_moment(session.expiry_s, now)
        self._registry.write(ReleaseSession(session.client_id, session.epoch, expires_at, will_due_at))

    async def _end_until_committed(self, session: Session) -> None:
        """End a persistent session, with retries until that is committed."""
        while not await self._ending.end_offline(session):
            await pause(self._runtime.clock, RETRY_S)

    async def _redistribute_queue(self, session: Session) -> None:
        """Give queued messages of shared subscriptions to other members.

        If that is not committed, the queue is reloaded; the messages stay for the client or the session's end.
        """
        client_id = session.client_id
        async with self._registry.locks.of(client_id):
            try:
                if self._registry.offline(client_id, session.epoch) is session:
                    await self._redistribution.redistribute_stored(session, ends=False)
            except CommitFailed:
                pass
