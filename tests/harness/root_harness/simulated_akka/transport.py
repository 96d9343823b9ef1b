"""A simulated connection as asyncio's protocols see it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kinmqtt.testing.world.schedule import NodeClock
from kinmqtt_spi.mesh.pipes import PipeEnd


class PipeTransport(asyncio.Transport):
    """A transport over one end of a pipe. Its protocol is called by the process's clock only."""

    def __init__(
        self, end: PipeEnd, clock: NodeClock, protocol: asyncio.Protocol, delay_s: Callable[[], float]
    ) -> None:
        """``delay_s`` says for all that is sent how long it is on its way."""
        super().__init__()
        self._end = end
        self._clock = clock
        self._protocol = protocol
        self._delay_s = delay_s
        self._is_closing = False
        self._is_paused = False
        self._unread: deque[bytes | None] = deque()
        """What has come while nobody reads; ``None`` is the end."""
        end.attach(self._feed, partial(self._feed, None))

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._end.other.delay_s = self._delay_s()
            self._end.write(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.close()
            # The other side may have closed before, while nobody read here.
            self._clock.later(0.0, self._read)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._clock.later(0.0, self._read)

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def _feed(self, data: bytes | None) -> None:
        self._unread.append(data)
        self._clock.run(self._read)

    def _read(self) -> None:
        while self._unread and (not self._is_paused or self._is_closing):
            data = self._unread.popleft()
            if data is None:
                self._is_closing = True
                self._protocol.connection_lost(None)
            elif not self._is_closing:
                self._protocol.data_received(data)
