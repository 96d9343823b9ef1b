"""Another node: its link, its routes and its state, and what its calls and batches do here."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol

from kinmqtt_spi.errors import MalformedBatch, ServiceUnavailable
from kinmqtt_spi.mesh.calls import (
    ABORT,
    ASK,
    BACKEND,
    CLAIM,
    HAND,
    ROUTES,
    STATE,
    STATES,
    pack_state,
    unpack_ask,
    unpack_claim,
    unpack_state,
)
from kinmqtt_spi.mesh.frames import MalformedFrame
from kinmqtt_spi.mesh.handoff import ReceivedHandOffs
from kinmqtt_spi.mesh.link import Link, Token, Transport
from kinmqtt_spi.mesh.local import Local
from kinmqtt_spi.mesh.routes import RouteCopy, RouteFeed
from kinmqtt_spi.services.cluster import Member, MemberState
from kinmqtt_spi.services.plugin import Timer
from kinmqtt_spi.values import NodeIdentity

ROUTES_PAUSE_S: Final = 1.0
"""How long to wait until routes are sent again that another node could not take, in seconds."""
CHUNK_LIMIT_S: Final = 60.0
"""How long chunks of routes are kept for the next one, in seconds; those that come later have no effect, so that the
sender begins again."""


def later_state(one: MemberState, other: MemberState) -> MemberState:
    """Return the state that follows the other."""
    return max(one, other, key=STATES.index)


class PeerOwner(Protocol):
    """Takes reports of a peer."""

    def progressed(self, peer: Peer) -> None:
        """The peer's state, or what it knows of this node's routes, may have changed."""

    def malformed_late(self, peer: Peer, error: Exception) -> None:
        """The listener has found out later that a batch is malformed."""


class Peer:
    """One other node, for as long as it is a member."""

    __slots__ = (
        "_behind",
        "_chunk_timer",
        "_hand_offs",
        "_local",
        "_owner",
        "_told",
        "_told_version",
        "feed",
        "is_reachable",
        "link",
        "member",
        "node",
        "routes",
        "transport",
    )

    def __init__(self, local: Local, member: Member, owner: PeerOwner) -> None:
        self._local = local
        self._owner = owner
        self.node: NodeIdentity = member.node
        self.member = Member(member.node, MemberState.JOINING, member.reachable)
        """The member as it was reported last."""
        self.is_reachable = member.reachable
        """Whether the owner has told that the peer is reachable. It is reported after the peer has caught up."""
        self._behind: int | None = None
        self.transport: Transport | None = None
        self.link = Link(local.node.uid, member.node.uid, self, local.clock, local.limits)
        self.routes = RouteCopy()
        self.feed = RouteFeed(
            local.routes,
            self._send_routes,
            lambda: owner.progressed(self),
            lambda: local.clock.later(ROUTES_PAUSE_S, lambda: self.feed.pump()),
        )
        self._chunk_timer: Timer | None = None
        self._hand_offs = ReceivedHandOffs(local, self.link, member.node)
        self._told: MemberState | None = None
        self._told_version = 0

    def begin(self) -> None:
        """Send this node's state and its routes, as soon as there is a connection."""
        self.tell_state()
        self.feed.pump()

    def close(self) -> list[Token]:
        """End the link; returns the tokens of what the peer has not answered."""
        self.feed.close()
        self._await_chunk(False)
        tokens = self.link.abandon()
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.close()
        self._hand_offs.abort()
        return tokens

    @property
    def is_synchronised(self) -> bool:
        """Whether the peer has said what version its routes have, and they are here."""
        return self._told is not None and self.routes.version >= self._told_version

    def state(self, known: MemberState) -> MemberState:
        """Return the peer's state, of which ``known`` is known otherwise. It is not UP before its routes are here."""
        state = known if self._told is None else later_state(known, self._told)
        if state is MemberState.UP and not self.is_synchronised:
            state = MemberState.JOINING
        return later_state(state, self.member.state)

    def reach(self, is_reachable: bool) -> None:
        """Take what the owner tells. A peer that is reachable again has missed changes of this node's routes."""
        if is_reachable and not self.is_reachable:
            self._behind = self._local.routes.version
        self.is_reachable = is_reachable

    def has_caught_up(self) -> bool:
        """Tell whether the peer has the routes that this node had when the peer became reachable again."""
        if self._behind is not None and self.feed.known >= self._behind:
            self._behind = None
        return self._behind is None

    def tell_state(self) -> None:
        """Send this node's state."""
        self.link.call(pack_state(self._local.state, self._local.routes.version), IGNORED, None)

    def _send_routes(self, chunk: bytes, token: Token) -> None:
        self.link.call(bytes((ROUTES,)) + chunk, token, None)

    # What arrives

    def received(self, sequence: int, batch: bytes, assured: bool) -> None:
        """See :class:`~kinmqtt_spi.mesh.link.LinkOwner`."""
        try:
            answer = self._local.listener.received(self.node, batch, assured)
        except MalformedBatch as error:
            if assured:
                # Sent again, it would close the link each time.
                self.link.fail(sequence, self._unreadable(error))
            raise
        except Exception as error:
            self.link.fail(sequence, self._local.unavailable(error))
            return
        if isinstance(answer, bytes) and not assured:
            return
        if isinstance(answer, bytes) or not isinstance(answer, Awaitable):
            self.answered(sequence, answer)
        else:
            commit = _Commit(self, sequence)
            self._local.run(answer, commit.done, commit.failed)
            commit.started()

    def _unreadable(self, error: MalformedBatch) -> ServiceUnavailable:
        return ServiceUnavailable(f"node {self._local.node.name} can't read the batch: {error}")

    def answered(self, sequence: int, answer: object) -> None:
        """Answer an assured batch or a question."""
        if isinstance(answer, bytes):
            self.link.answer(sequence, answer)
        else:
            self.link.fail(sequence, self._local.unavailable(TypeError(f"{answer!r} is no answer")))

    def not_committed(self, sequence: int, error: Exception) -> None:
        """Answer an assured batch that failed."""
        if isinstance(error, MalformedBatch):
            self.link.fail(sequence, self._unreadable(error))
            self._owner.malformed_late(self, error)
        else:
            self.link.fail(sequence, self._local.unavailable(error))

    def called(self, sequence: int, body: bytes) -> None:
        """See :class:`~kinmqtt_spi.mesh.link.LinkOwner`."""
        local, link = self._local, self.link
        kind = body[0] if body else 0
        if kind == STATE:
            self._told, self._told_version = unpack_state(body)
            link.answer(sequence, b"")
            self._owner.progressed(self)
        elif kind == ROUTES:
            self._take_routes(sequence, body)
            self._owner.progressed(self)
        elif kind == CLAIM:
            client_id, epoch = unpack_claim(body)
            local.finish(
                lambda: local.listener.session_claimed(client_id, epoch, self.node),
                lambda _: link.answer(sequence, b""),
                lambda error: link.fail(sequence, error),
            )
        elif kind == ASK:
            method, data = unpack_ask(body)
            local.finish(
                lambda: local.listener.asked(self.node, method, data),
                lambda answer: self.answered(sequence, answer),
                lambda error: link.fail(sequence, error),
            )
        elif HAND <= kind <= ABORT:
            self._hand_offs.called(kind, sequence, body)
        elif kind == BACKEND:
            local.finish(
                lambda: local.backend_asked(self.node, body[1:]),
                lambda answer: self.answered(sequence, answer),
                lambda error: link.fail(sequence, error),
            )
        else:
            raise MalformedFrame(f"a call of the unknown kind {kind}")

    def _take_routes(self, sequence: int, body: bytes) -> None:
        """Apply a chunk of routes. One that the core could not apply is not confirmed: all are sent again."""
        local, link = self._local, self.link
        changes = self.routes.take(body[1:])
        self._await_chunk(self.routes.awaits_chunk)
        if changes is None or not (changes[0] or changes[1] or self.routes.version):
            link.answer(sequence, self.routes.answer)
            return

        def failed(error: ServiceUnavailable) -> None:
            self.routes = RouteCopy()
            link.fail(sequence, error)

        local.finish(
            lambda: local.listener.routes_changed(self.node, self.routes.version, *changes),
            lambda _: link.answer(sequence, self.routes.answer),
            failed,
        )

    def _await_chunk(self, is_awaited: bool) -> None:
        """Limit the time until the next chunk of routes, if one is awaited."""
        timer, self._chunk_timer = self._chunk_timer, None
        if timer is not None:
            timer.cancel()
        if is_awaited:
            self._chunk_timer = self._local.clock.later(CHUNK_LIMIT_S, self._forget_chunks)

    def _forget_chunks(self) -> None:
        self._chunk_timer = None
        self.routes.forget_chunks()
        text = "node {node} has sent a part of its routes, and not the rest within {limit:g} s: the part is forgotten"
        self._local.log.warn(text, node=self.node.name, limit=CHUNK_LIMIT_S)


class _Commit:
    """An answer of the listener to a batch, which is awaited."""

    __slots__ = ("_malformed", "_peer", "_sequence", "_starting")

    def __init__(self, peer: Peer, sequence: int) -> None:
        self._peer = peer
        self._sequence = sequence
        self._starting = True
        self._malformed: MalformedBatch | None = None

    def done(self, answer: bytes) -> None:
        """Take the answer."""
        self._peer.answered(self._sequence, answer)

    def failed(self, error: Exception) -> None:
        """Take the failure."""
        if self._starting and isinstance(error, MalformedBatch):
            self._malformed = error
        else:
            self._peer.not_committed(self._sequence, error)

    def started(self) -> None:
        """Raise MalformedBatch if the listener has found it at once: then the batch does not count as received."""
        self._starting = False
        if self._malformed is not None:
            raise self._malformed


class _Ignored:
    """A token for what needs no answer."""

    __slots__ = ()

    def set(self, value: bytes) -> None:
        """Do nothing."""

    def fail(self, error: Exception) -> None:
        """Do nothing."""


IGNORED = _Ignored()
