"""The asking side: finds the owners of client ids, with the help of the members that keep their entries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, Protocol

from kinmqtt_akka_like_cluster.pure.register_messages import (
    END,
    LOCATE,
    Question,
    pack_locate,
    pack_moved,
    pack_register,
    pack_release,
    unpack_granted,
)
from kinmqtt_akka_like_cluster.pure.registrars import View, registrar_of
from kinmqtt_akka_like_cluster.pure.wire import MalformedControl
from kinmqtt_akka_like_cluster.register.keeper import RETRY_S, Keeper
from kinmqtt_akka_like_cluster.register.moving import Moving
from kinmqtt_akka_like_cluster.register.notices import Notices
from kinmqtt_akka_like_cluster.results import settled
from kinmqtt_akka_like_cluster.tasks import Tasks
from kinmqtt_spi.errors import NodeGone, ServiceUnavailable
from kinmqtt_spi.services.cluster import ClusterListener, Located, Member, MemberState
from kinmqtt_spi.services.plugin import Clock, Log
from kinmqtt_spi.values import Maybe, NodeIdentity

LOCATE_LIMIT_S: Final = 10.0
"""How long a client's CONNECT waits until the owner of its client id is known, and earlier claims have ended."""

OWNERS: Final = frozenset({MemberState.UP, MemberState.LEAVING, MemberState.EXITING})
"""The states of members that have started and may own client ids."""

_LEFT: Final = OWNERS - {MemberState.UP}


class Asking(Protocol):
    """What the register needs of the backend."""

    def ask_backend(self, node: NodeIdentity, data: bytes, limit_s: float) -> Maybe[bytes]:
        """See :class:`~kinmqtt_spi.mesh.backend.MeshBackend`."""

    def members(self) -> Sequence[Member]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""


class ClientRegister:
    """This member's part of the register."""

    def __init__(
        self,
        node: NodeIdentity,
        backend: Asking,
        listener: ClusterListener,
        clock: Clock,
        log: Log,
        begins_anew: bool,
    ) -> None:
        """``begins_anew``: a client whose session is on a member that can't be reached gets a new one."""
        self._node = node
        self._backend = backend
        self._listener = listener
        self._clock = clock
        self._log = log
        self._begins_anew = begins_anew
        self._nodes: dict[int, NodeIdentity] = {}
        """The members that may own client ids, by uid."""
        self._view: View = ()
        self._numbers = 0
        self._asked: dict[int, str] = {}
        """By number: the client ids of claims of this node, asked for or under way."""
        self._under_way: dict[str, list[int]] = {}
        """By client id: the numbers of the core's claims that are under way, the oldest first."""
        self._unasked: set[int] = set()
        """Numbers of claims under way whose former owner could not be asked."""
        self.notices = Notices(backend.ask_backend, clock, log)
        self._tasks = Tasks(log)
        self.moving = Moving(node, self, listener, clock, log, self._tasks)
        self.keeper = Keeper(node, listener, self._ask, self._asked, self.moving.outdated, self.notices, self._tasks)
        self._changed = asyncio.Event()
        self._has_left = False
        self._has_stopped = False

    def stop(self) -> None:
        """End all that waits."""
        self.moving.stop()
        self._tasks.cancel()
        self._has_stopped = True
        self.notices.stop()
        self.keeper.stop()

    # Members

    def members_changed(self, members: Iterable[tuple[NodeIdentity, MemberState]]) -> None:
        """Take all members that are not gone."""
        known = list(members)
        self._nodes = {node.uid: node for node, state in known if state in OWNERS}
        self.notices.members_changed(frozenset(self._nodes.values()))
        self._has_left |= any(node == self._node and state in _LEFT for node, state in known)
        self._view = tuple(sorted(node.uid for node, state in known if state is MemberState.UP))
        self.keeper.members_changed(self._view, self._nodes)
        self._changed.set()
        self._changed = asyncio.Event()

    # Claims of this node

    async def locate(self, client_id: str) -> Located:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        number, located = await self.claim(client_id)
        self._under_way.setdefault(client_id, []).append(number)
        return located

    async def claim(self, client_id: str) -> tuple[int, Located]:
        """Begin a claim, and return its number for :meth:`end`, which must follow unless this call fails."""
        if self.notices.is_full:
            raise ServiceUnavailable(f"{len(self.notices)} notices wait for the members that keep client ids")
        deadline = self._clock.monotonic() + LOCATE_LIMIT_S
        self._numbers = number = self._numbers + 1
        self._asked[number] = client_id
        try:
            uid, epoch = await self._granted(client_id, number, deadline)
            owner = self._reachable(uid, client_id, number)
        except BaseException:
            self.end(number)
            raise
        # Above all epochs of registers that are lost, as long as clocks differ by less than a register's time.
        return number, Located(owner, max(epoch, int(self._clock.now() * 1000)))

    async def _granted(self, client_id: str, number: int, deadline: float) -> tuple[int | None, int]:
        """Return the uid of the owner and its epoch, when the claim may begin."""
        while (left_s := deadline - self._clock.monotonic()) > 0:
            if self._has_stopped:
                raise ServiceUnavailable(f"node {self._node.name} has stopped")
            changed = self._changed
            node = self._registrar(client_id)
            if node is None:
                if self._has_left:
                    return None, 0  # It was the last one.
            else:
                try:
                    granted = unpack_granted(
                        await self._ask(node, pack_locate(LOCATE, number, client_id), max(left_s, RETRY_S))
                    )
                except NodeGone:
                    granted = None
                except MalformedControl as error:
                    raise ServiceUnavailable(str(error)) from error
                if granted is not None:
                    return granted
            await self._pause(changed)
        raise ServiceUnavailable(
            f"the owner of client id {client_id!r} is not known after {LOCATE_LIMIT_S:g} s: the member that keeps "
            "its entry can't be reached, or reads it anew"
        )

    def _reachable(self, uid: int | None, client_id: str, number: int) -> NodeIdentity | None:
        """Return the owner, if it can be asked. Raises ServiceUnavailable, or returns None to begin anew."""
        owner = None if uid is None else self._nodes.get(uid)
        if owner is None or owner == self._node:
            return owner
        if any(each.node == owner and each.reachable for each in self._backend.members()):
            return owner
        if self._begins_anew:
            self._unasked.add(number)
            return None
        raise ServiceUnavailable(f"node {owner.name}, which has the session of {client_id!r}, can't be reached")

    def end_claim(self, client_id: str) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        numbers = self._under_way.get(client_id)
        if numbers is None:
            return
        number = numbers.pop(0)
        if not numbers:
            del self._under_way[client_id]
        self.end(number)

    def end(self, number: int) -> None:
        """End a claim."""
        client_id = self._asked.pop(number)
        self._unasked.discard(number)
        self._notify(client_id, pack_locate(END, number, client_id))

    def register(self, client_id: str, epoch: int) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        unasked = not self._unasked.isdisjoint(self._under_way.get(client_id, ()))
        self._notify(client_id, pack_register(epoch, client_id, unasked))

    def release(self, client_id: str, epoch: int) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterBackend`."""
        self._notify(client_id, pack_release(epoch, client_id))

    def announce_moved(self, client_id: str, epoch: int, owner: NodeIdentity) -> None:
        """Announce the new owner of a session that was handed off within a claim of this node."""
        self._notify(client_id, pack_moved(epoch, owner.uid, client_id))

    # Members that leave

    async def hand_all_over(self, deadline_s: float) -> None:
        """Hand this node's sessions off to the members that stay, as many as there is time for, in seconds."""
        others = (uid for uid in self._view if uid != self._node.uid)
        await self.moving.hand_all_over({uid: self._nodes[uid] for uid in others}, deadline_s)

    # Questions

    def _registrar(self, client_id: str) -> NodeIdentity | None:
        uid = registrar_of(client_id, self._view)
        return None if uid is None else self._nodes.get(uid)

    def _notify(self, client_id: str, notice: bytes) -> None:
        """Tell the member that keeps an entry something; what is lost with the member is read again."""
        node = self._registrar(client_id)
        if node is None or self._has_stopped:
            return
        if node == self._node:
            self.keeper.take(self._node, Question(notice))
        else:
            self.notices.tell(node, notice)

    async def _ask(self, node: NodeIdentity, data: bytes, limit_s: float = LOCATE_LIMIT_S) -> bytes:
        if node == self._node:
            answer = self.keeper.take(node, Question(data))
            return bytes(await self._limited(answer, limit_s) if isinstance(answer, Awaitable) else answer)
        return bytes(await settled(self._backend.ask_backend(node, data, limit_s)))

    async def _limited(self, answer: Awaitable[bytes], limit_s: float) -> bytes:
        try:
            return await asyncio.wait_for(answer, limit_s)
        except TimeoutError:
            raise ServiceUnavailable(f"earlier claims of the client id have not ended within {limit_s:g} s") from None

    def asked(self, origin: NodeIdentity, data: bytes) -> Maybe[bytes]:
        """Answer a question of another member. Raises ServiceUnavailable for one that can't be read."""
        try:
            return self.keeper.take(origin, Question(data))
        except MalformedControl as error:
            raise ServiceUnavailable(str(error)) from error

    async def _pause(self, changed: asyncio.Event) -> None:
        """Wait until the members change, or a moment."""
        try:
            await asyncio.wait_for(changed.wait(), RETRY_S)
        except TimeoutError:
            pass
