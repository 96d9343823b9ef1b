"""A connection to another node, from its first byte to its end."""

from __future__ import annotations

from typing import Protocol

from kinmqtt_spi.errors import MalformedBatch
from kinmqtt_spi.mesh.frames import HELLO, HELLO_FRAME_BYTES, FrameDecoder, Hello, MalformedFrame
from kinmqtt_spi.mesh.link import Transport, WrongPeer
from kinmqtt_spi.mesh.peer import Peer
from kinmqtt_spi.values import NodeIdentity


class ConnectionOwner(Protocol):
    """What a connection needs of the backend."""

    def find(self, uid: int) -> Peer | None:
        """Return the member with that uid, if there is one."""

    def malformed_on(self, node: NodeIdentity | None, error: Exception) -> None:
        """Count malformed input, of ``None`` before the peer is known."""

    def refused(self, node: NodeIdentity | None, error: Exception) -> None:
        """Report a connection with a process that is not expected."""


class Connection:
    """One connection. Its owner passes on what arrives, and the end of it."""

    __slots__ = ("_decoder", "_early", "_owner", "_peer", "_transport")

    def __init__(self, owner: ConnectionOwner, transport: Transport, peer: Peer | None) -> None:
        self._owner = owner
        self._transport = transport
        self._peer = peer
        # Until the peer is known: what has arrived, and where its first frame ends.
        self._early: list[bytes] = []
        self._decoder = FrameDecoder(HELLO_FRAME_BYTES)
        if peer is not None:
            self._attach(peer)

    @property
    def node(self) -> NodeIdentity | None:
        """The node at the other end; ``None`` until it has said HELLO on an accepted connection."""
        return None if self._peer is None else self._peer.node

    def feed(self, data: bytes) -> None:
        """Take bytes in any pieces. Bad input closes the transport; a connection that was replaced reads nothing."""
        peer = self._peer
        try:
            if peer is None:
                self._identify(data)
            elif peer.transport is self._transport:
                peer.link.feed(data)
        except WrongPeer as error:
            self._owner.refused(self.node, error)
            self._close()
        except (MalformedFrame, MalformedBatch) as error:
            self._owner.malformed_on(self.node, error)
            self._close()

    def lost(self) -> None:
        """The connection was lost. Does nothing after it was replaced."""
        peer = self._peer
        if peer is not None and peer.transport is self._transport:
            peer.transport = None
            peer.link.lost()

    def _attach(self, peer: Peer) -> None:
        self._peer = peer
        peer.transport = self._transport
        peer.link.connected(self._transport)

    def _identify(self, data: bytes) -> None:
        self._early.append(data)
        for kind, _, body in self._decoder.feed(data):
            if kind != HELLO:
                raise MalformedFrame(f"a frame of type {kind} before HELLO")
            hello = Hello.unpack(body)
            peer = self._owner.find(hello.uid)
            if peer is None:
                raise WrongPeer(hello.uid)
            early, self._early = b"".join(self._early), []
            self._attach(peer)
            peer.link.feed(early)
            return

    def _close(self) -> None:
        self.lost()
        self._transport.close()
