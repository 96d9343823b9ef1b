"""The answering side: a member keeps the entries of some client ids, and answers the others' questions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

from kinmqtt_akka_like_cluster.pure.register import Effect, Elsewhere, Granted, Outdated, Register
from kinmqtt_akka_like_cluster.pure.register_messages import (
    END,
    LOCATE,
    MOVED,
    OUTDATED,
    PAGE,
    READ,
    REGISTER,
    Question,
    pack_granted,
    pack_outdated,
    pack_page,
    pack_read,
    unpack_page,
)
from kinmqtt_akka_like_cluster.pure.registrars import View, digest_of, owned_by_registrar
from kinmqtt_akka_like_cluster.pure.wire import MalformedControl
from kinmqtt_akka_like_cluster.register.notices import Notices
from kinmqtt_akka_like_cluster.tasks import Tasks
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.cluster import ClusterListener
from kinmqtt_spi.values import Maybe, NodeIdentity

RETRY_S: Final = 0.05
"""The pause before a member is asked again."""

TIDY: Final = 2000
"""How many entries are looked at in one turn, to forget those that others keep now."""


class Ask(Protocol):
    """Asks a member, this one as well. Raises ServiceUnavailable without an answer in time."""

    async def __call__(self, node: NodeIdentity, data: bytes) -> bytes:
        """Return the answer."""


class Keeper:
    """Keeps this member's part of the register: lets claims begin one after the other, and tells what it has."""

    def __init__(
        self,
        node: NodeIdentity,
        listener: ClusterListener,
        ask: Ask,
        asked: Mapping[int, str],
        outdated: Callable[[str], None],
        notices: Notices,
        tasks: Tasks,
    ) -> None:
        """``asked``: this node's claims, by number; ``outdated`` takes client ids of its outdated sessions."""
        self._node = node
        self._listener = listener
        self._ask = ask
        self._asked = asked
        self._outdated = outdated
        self._notices = notices
        self._tasks = tasks
        self.register = Register(node.uid)
        self._nodes: Mapping[int, NodeIdentity] = {}
        self._view: View = ()
        self._granting: dict[tuple[int, int], asyncio.Future[bytes]] = {}
        """By uid and number: claims of members that wait here."""
        self._snapshots: dict[int, list[tuple[str, int]]] = {}
        """By uid of a member that reads them: this node's client ids."""

    def stop(self) -> None:
        """Answer all that waits: those who asked are to ask another member."""
        for uid, number in list(self._granting):
            self._answer(uid, number, b"")

    # Members

    def members_changed(self, view: View, nodes: Mapping[int, NodeIdentity]) -> None:
        """Take the members that are UP, and those that may own client ids, by uid; read what they have."""
        self._view, self._nodes = view, nodes
        for uid in self._snapshots.keys() - nodes.keys():
            del self._snapshots[uid]
        for uid, number in list(self._granting):
            if uid not in nodes:
                self._answer(uid, number, b"")
        register = self.register
        before = register.round
        self._apply(register.change(view, frozenset(nodes)))
        if register.round != before:
            for uid in list(register.unread):
                self._tasks.spawn(self._read(uid, register.round), "reading the register")
            self._tasks.spawn(self._tidy(), "tidying the register")

    async def _read(self, uid: int, round: int) -> None:
        """Read what a member owns, again until it answers."""
        register, start, node = self.register, 0, self._nodes[uid]
        while register.round == round and uid in register.unread:
            try:
                page = unpack_page(await self._ask(node, pack_read(digest_of(self._view), start)))
            except (ServiceUnavailable, MalformedControl):
                page = None
            if page is None:  # Its view is another one, for a moment.
                start = 0
                await asyncio.sleep(RETRY_S)
                continue
            is_first = not start
            start, owned, claims = page
            self._apply(register.read(uid, round, owned, claims if is_first else None))
            if not start:
                self._apply(register.has_read(uid, round))
                return

    async def _tidy(self) -> None:
        after = self.register.tidy(0, TIDY)
        while after:
            await asyncio.sleep(0)
            after = self.register.tidy(after, TIDY)

    # Questions

    def take(self, origin: NodeIdentity, question: Question) -> Maybe[bytes]:
        """Answer a question or notice of a member, this one as well."""
        register, client_id = self.register, question.client_id
        if question.kind == LOCATE:
            return self._wait_for_grant(origin.uid, question.number, client_id)
        if question.kind == READ:
            return self._page(origin.uid, question.number, question.start)
        if question.kind == END:
            self._answer(origin.uid, question.number, b"")
            self._apply(register.end(origin.uid, question.number, client_id))
        elif question.kind == REGISTER:
            effects = register.register(origin.uid, client_id, question.epoch, unasked=question.unasked)
            self._apply(effects)
        elif question.kind == MOVED:
            self._apply(register.register(question.number, client_id, question.epoch))
        elif question.kind == OUTDATED:
            self._outdated(client_id)
        else:
            register.release(origin.uid, client_id, question.epoch)
        return b""

    @property
    def waiting(self) -> int:
        """The number of claims that wait here for their turn."""
        return len(self._granting)

    def _wait_for_grant(self, uid: int, number: int, client_id: str) -> Awaitable[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answer(uid, number, b"")
        self._granting[uid, number] = future
        self._apply(self.register.locate(uid, number, client_id))
        return future

    def _page(self, uid: int, digest: int, start: int) -> bytes:
        if digest != digest_of(self._view):
            return b""
        if not start:
            self._snapshots[uid] = list(self._listener.owned())
        snapshot = self._snapshots.get(uid, [])
        owned = owned_by_registrar(snapshot[start : start + PAGE], self._view, uid)
        following = start + PAGE
        if following >= len(snapshot):
            self._snapshots.pop(uid, None)
            following = 0
        claims = [] if start else [(client_id, number) for number, client_id in self._asked.items()]
        return pack_page(following, owned, owned_by_registrar(claims, self._view, uid))

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Granted(uid, number, owner, epoch):
                    self._answer(uid, number, pack_granted(owner, epoch))
                case Elsewhere(uid, number):
                    self._answer(uid, number, b"")
                case Outdated(uid, client_id):
                    if uid == self._node.uid:
                        self._outdated(client_id)
                    elif uid in self._nodes:
                        self._notices.tell(self._nodes[uid], pack_outdated(client_id))

    def _answer(self, uid: int, number: int, answer: bytes) -> None:
        future = self._granting.pop((uid, number), None)
        if future is not None and not future.done():
            future.set_result(answer)
