"""Routes a message that some sessions may have already: after another node's end, or for a repeated QoS 2 packet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kinmqtt.broker.routing.deliver import deliver
from kinmqtt.broker.routing.routed import Routed
from kinmqtt.broker.routing.target import Target, target_of
from kinmqtt.hooks.awaitables import resolve
from kinmqtt_spi.topics import matches

if TYPE_CHECKING:
    from kinmqtt.broker.forwarding.forwarder import Forwarder
    from kinmqtt.broker.message.publication import Publication
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session


class Resender:
    """Delivers to the persistent sessions that do not have a message yet, on this node and on the others.

    Other sessions are left out: they got it before, or they have ended with their node.
    """

    def __init__(
        self, runtime: Runtime, router: Router, forwarder: Forwarder, session_of: Callable[[str], Session | None]
    ) -> None:
        self._runtime = runtime
        self._router = router
        self._forwarder = forwarder
        self._session_of = session_of

    async def route(self, publication: Publication) -> Routed:
        """Route a message again, under the id that it has; other nodes answer to its ticket."""
        accepted = await self.deliver_here(publication)
        accepted &= self._router.forward_again(publication)
        return Routed.DELIVERED if accepted else Routed.REFUSED

    async def route_repeated(self, publication: Publication) -> Routed:
        """Route a message that its publisher sends again: nobody knows who got it before.

        A shared subscription gets it once more, because its member may not have committed it.
        """
        accepted = await self.deliver_here(publication)
        accepted &= self._router.forward_repeated(publication)
        return Routed.DELIVERED if accepted else Routed.REFUSED

    async def deliver_here(self, publication: Publication) -> bool:
        """Deliver to this node's sessions that lack the message; ``False`` if a queue refused it."""
        return await self._to_those_without(publication, self._router.fanout(publication.publish.topic).targets)

    async def deliver_to_session(self, publication: Publication, session: Session) -> bool:
        """Deliver to one session, if it lacks the message and has a subscription for it."""
        topic = publication.publish.topic
        wanted = [
            each
            for each in session.subscriptions.values()
            if each.share_group is None and matches(each.filter, topic)
        ]
        return not wanted or await self._to_those_without(publication, [target_of(session, wanted)])

    async def _to_those_without(self, publication: Publication, targets: Sequence[Target]) -> bool:
        turn = self._runtime.turn
        kept = [target for target in targets if target.session.persistent and target.qos and publication.publish.qos]
        if not kept:
            return True
        # What was delivered before may not be committed yet; then the store would not know it.
        await turn.drained()
        accepted = True
        for target in kept:
            session = target.session
            known = await resolve(self._runtime.stores.queue.known(session.client_id, {publication.id}))
            turn.touch()
            if not known and self._session_of(session.client_id) is session:
                accepted &= deliver(self._runtime, target, publication)
        return accepted
