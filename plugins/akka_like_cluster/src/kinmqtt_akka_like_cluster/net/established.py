"""A connection to another broker that has proved who it is."""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable
from typing import Final

from kinmqtt_akka_like_cluster.net.hello import ConnectionKind, PeerInfo
from kinmqtt_spi.services.plugin import Clock, Log, Timer

CLOSE_LIMIT_S: Final = 5.0
"""How long a closed connection may take to send what was written before."""

OnData = Callable[[bytes], object]
OnLost = Callable[[], object]


class Established:
    """A connection after its handshake. It is a :class:`kinmqtt_spi.mesh.link.Transport`.

    The owner sets :attr:`on_data` and :attr:`on_lost`, which are called on the event loop, never from within a call
    of this class. Until ``on_data`` is set nothing is read beyond what came with the handshake.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        peer: PeerInfo,
        kind: ConnectionKind,
        where: str,
        early: bytes,
        *,
        version: int,
        features: int,
        log: Log,
        clock: Clock,
        buffer_bytes: int,
    ) -> None:
        """``early`` is what came behind the handshake; ``buffer_bytes`` ends the connection if more is unsent."""
        self.peer = peer
        """Who the other side is, proved."""
        self.kind = kind
        self.version = version
        """The version of the protocol that both speak."""
        self.features = features
        """What both sides can do beyond the version, as a bit mask."""
        self.where = where
        """The other side's address, for the log."""
        self.reason: str | None = None
        """Why the connection has ended; ``None`` while it has not, and if either side has just closed it."""
        self.ended = False
        """Whether the connection has ended."""
        self._transport = transport
        self._log = log
        self._clock = clock
        self._buffer_bytes = buffer_bytes
        self._early: deque[bytes] = deque([early] if early else [])
        self._on_data: OnData | None = None
        self._on_lost: OnLost | None = None
        self._released = False
        """Whether data goes to the owner directly."""
        self._reported = False
        self._closing = False
        self._timer: Timer | None = None
        transport.pause_reading()

    @property
    def on_data(self) -> OnData | None:
        """Takes what arrives, in any pieces. If it raises, the error is logged and the connection ends."""
        return self._on_data

    @on_data.setter
    def on_data(self, call: OnData) -> None:
        first, self._on_data = self._on_data is None, call
        if first:
            asyncio.get_running_loop().call_soon(self._release)

    @property
    def on_lost(self) -> OnLost | None:
        """Called once when the connection has ended, also after :meth:`close`, and behind the last ``on_data``."""
        return self._on_lost

    @on_lost.setter
    def on_lost(self, call: OnLost) -> None:
        first, self._on_lost = self._on_lost is None, call
        if first and self.ended:
            asyncio.get_running_loop().call_soon(self._report)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were written and that the system has not taken. With TLS one piece of them may be missing."""
        return 0 if self.ended else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Send bytes. Does nothing after the connection has ended or was closed."""
        if self._closing or self.ended:
            return
        if self._transport.get_write_buffer_size() > self._buffer_bytes:
            self.abort(f"the other broker does not read: more than {self._buffer_bytes} bytes wait for it")
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection; what was written before is sent, for at most 5 s. Nothing more is read."""
        if not self._closing and not self.ended:
            self._closing = True
            self._timer = self._clock.later(CLOSE_LIMIT_S, self._transport.abort)
            self._transport.close()

    def abort(self, reason: str | None = None) -> None:
        """End the connection at once; what is unsent is lost."""
        if not self.ended:
            self._closing = True
            self.reason = self.reason or reason
            self._transport.abort()

    # Called by the protocol

    def received(self, data: bytes) -> None:
        """Take what has arrived."""
        if self._closing:
            return
        if not self._released:
            self._early.append(data)
            return
        # `_deliver`, without its call: this is done for each read.
        try:
            self._on_data(data)  # type: ignore[misc]
        except Exception as error:
            self._failed("the reader of", error)

    def lost(self, reason: str | None) -> None:
        """The connection has ended."""
        self.ended = True
        self.reason = self.reason or reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._released or self._on_data is None:
            self._report()

    def _release(self) -> None:
        """Pass on what came before the owner was there, and read on."""
        while self._early and not self._closing:
            self._deliver(self._early.popleft())
        self._early.clear()
        self._released = True
        if self.ended:
            self._report()
        elif not self._closing:
            self._transport.resume_reading()

    def _deliver(self, data: bytes) -> None:
        assert self._on_data is not None
        try:
            self._on_data(data)
        except Exception as error:
            self._failed("the reader of", error)

    def _report(self) -> None:
        if self._on_lost is None or self._reported:
            return
        self._reported = True
        try:
            self._on_lost()
        except Exception as error:
            self._failed("the end of", error)

    def _failed(self, what: str, error: Exception) -> None:
        self._log.error(
            "{what} the connection with {peer} failed:\n{trace}",
            what=what,
            peer=self.peer.name,
            trace="".join(traceback.format_exception(error)),
        )
        self.abort("its reader failed")
