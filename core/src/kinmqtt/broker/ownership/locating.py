"""Fetches the session of a CONNECT from the node that has it, where each node has stores of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kinmqtt.broker.ownership.registry import has_ended
from kinmqtt.hooks.awaitables import resolve
from kinmqtt_spi.errors import MalformedBatch, ServiceUnavailable
from kinmqtt_spi.values import NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.claims import Claims
    from kinmqtt.broker.ownership.handoff import HandOffs
    from kinmqtt.broker.ownership.opening import Opening
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt_spi.services.cluster import ClusterBackend, Located

USER: Final = "user"
"""The question whose session a client id has."""

USER_LIMIT_S: Final = 5.0

_NOBODY: Final = b""
_ANONYMOUS: Final = b"\0"
_VERIFIED: Final = b"\1"
_UNVERIFIED: Final = b"\2"


class FetchFailed(Exception):
    """The node that has a session can't be found, or can't hand it off now. The text is for the log."""

    def __init__(self, error: ServiceUnavailable) -> None:
        super().__init__(str(error))
        self.reason = error.reason


class Locating:
    """Opens sessions, wherever they are; the cluster lets only one node at a time claim a client id."""

    def __init__(
        self, runtime: Runtime, registry: Registry, cluster: ClusterBackend, claims: Claims, hand_offs: HandOffs
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._cluster = cluster
        self._claims = claims
        self._hand_offs = hand_offs

    async def open(self, opening: Opening) -> tuple[Session, bool]:
        """Open a session for a connection; see :meth:`kinmqtt.broker.ownership.claims.Claims.open`.

        Raises :class:`FetchFailed` too.
        """
        client_id = opening.client.client_id
        # Before the lock of the client id: another node that claims it now waits for this node to let go of it.
        try:
            located = await resolve(self._cluster.locate(client_id))
        except ServiceUnavailable as error:
            raise FetchFailed(error) from error
        if located is None:
            return await self._claims.open(opening)
        try:
            try:
                await self._fetch(opening, located)
            except ServiceUnavailable as error:
                raise FetchFailed(error) from error
            return await self._claims.open(opening, located.epoch)
        finally:
            session = self._registry.get(client_id)
            if session is not None:
                self._cluster.register(client_id, session.epoch)
            self._cluster.end_claim(client_id)

    async def _fetch(self, opening: Opening, located: Located) -> None:
        """Have the session handed off to this node if another one has it."""
        owner, client_id = located.owner, opening.client.client_id
        if owner is None or owner == self._runtime.node:
            return
        await self._check_user(opening, owner)
        epoch = located.epoch + 1
        if self._registry.get(client_id) is not None:
            # It is from before: the owner has a later one, which takes its messages.
            await self._hand_offs.hand_off(client_id, epoch, owner)
        await resolve(self._cluster.claim(client_id, epoch, owner))
        self._runtime.turn.touch()

    async def _check_user(self, opening: Opening, owner: NodeIdentity) -> None:
        """Raise SessionOfAnotherUser before anything is moved."""
        reuse = self._claims.reuse
        if reuse.is_unrestricted:
            return
        question = opening.client.client_id.encode()
        answer = await resolve(self._cluster.ask(owner, USER, question, USER_LIMIT_S))
        kind, name = answer[:1], answer[1:]
        if kind != _NOBODY:
            reuse.check_user(None if kind == _ANONYMOUS else name.decode(), kind == _UNVERIFIED, opening.claimant)

    def answer_user(self, origin: NodeIdentity, data: bytes) -> bytes:
        """Tell another node whose session this node has under a client id.

        The answer is empty if there is none; else a byte for the kind of the user, and the user's name.
        """
        try:
            session = self._registry.get(data.decode())
        except UnicodeDecodeError as error:
            raise MalformedBatch(f"a client id that can't be read: {error}") from None
        if session is None or has_ended(session):
            return _NOBODY
        name = session.client.username
        if name is None:
            return _ANONYMOUS
        return (_UNVERIFIED if session.username_unverified else _VERIFIED) + name.encode()
