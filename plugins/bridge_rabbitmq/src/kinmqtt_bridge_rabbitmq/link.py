"""One connection to RabbitMQ with one channel, on the event loop of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel
from pika.exceptions import AMQPError

from kinmqtt_bridge_rabbitmq.errors import meaning
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused

T = TypeVar("T")

CLOSE_LIMIT_S: Final = 1.0
"""How long the end of a connection waits for RabbitMQ; after that the connection is cut."""

FRAME_OVERHEAD: Final = 64
"""More bytes than a frame with properties has besides them."""


class Connection(AsyncioConnection):  # type: ignore[misc]  # pika's classes have no types
    """Writes many frames at once: pika would make three system calls for each message."""

    def write(self, frames: Sequence[bytes]) -> None:
        """Send frames; none of a connection that is closed."""
        if frames and not self.is_closed:
            self._adapter_emit_data(b"".join(frames))

    def cut(self) -> None:
        """End it at once, also while it is being opened."""
        if not self.is_closed:
            self._terminate_stream(ServiceUnavailable("the connection was given up"))


class Link:
    """A connection and its channel: where one of them ends, both do."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._watchers: list[Callable[[], None]] = []
        self.lost: BaseException | None = None
        """Why the connection or the channel has ended."""
        self.blocked: str | None = None
        """Why RabbitMQ takes no messages on this connection for now."""
        self.channel: Channel
        connection.add_on_close_callback(self._connection_closed)
        connection.add_on_connection_blocked_callback(self._block)
        connection.add_on_connection_unblocked_callback(self._unblock)

    @property
    def max_header_bytes(self) -> int:
        """The most bytes that the properties of a message may have: AMQP sends them in one frame."""
        return self.frame_max - FRAME_OVERHEAD

    @property
    def frame_max(self) -> int:
        """The most bytes of a frame."""
        return int(self._connection.params.frame_max)

    @property
    def is_blocked(self) -> bool:
        """Whether RabbitMQ takes no messages on this connection, which is open."""
        return self.blocked is not None and self.lost is None

    def write(self, frames: Sequence[bytes]) -> None:
        """Send frames at once."""
        self._connection.write(frames)

    def watch(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when the connection is lost or blocked."""
        self._watchers.append(call)

    def error(self) -> SinkRefused | ServiceUnavailable:
        """Return why nothing can be sent."""
        if self.lost is not None:
            return meaning(self.lost)
        return ServiceUnavailable(
            f"RabbitMQ takes no messages for now (connection.blocked): {self.blocked or 'it did'}"
        )

    async def open_channel(self) -> None:
        """Open the channel."""
        opened = self._future()
        self.channel = self._connection.channel(on_open_callback=lambda _: _settle(opened, None))
        self.channel.add_on_close_callback(self._channel_closed)
        await self._wait(opened)

    async def call(self, method: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Call a method of pika that takes a ``callback``; raises the reason if the connection or channel ends."""
        answered = self._future()
        try:
            method(*arguments, callback=lambda answer: _settle(answered, answer), **more)
        except AMQPError:
            if self.lost is None:
                raise
            raise self.lost from None
        return await self._wait(answered)

    async def rest(self, seconds: float) -> None:
        """Wait so long, or until the connection or channel ends."""
        ended = self._future()
        try:
            async with asyncio.timeout(seconds):
                await ended
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(ended)

    async def close(self) -> None:
        """Disconnect, in :data:`CLOSE_LIMIT_S` at the latest."""
        try:
            if self._connection.is_open:
                self._connection.close()
            if not self._connection.is_closed:
                await asyncio.wait([self._ended], timeout=CLOSE_LIMIT_S)
        finally:
            self.abort()

    def abort(self) -> None:
        """Cut the connection."""
        self._connection.cut()

    def _future(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        return future

    async def _wait(self, future: asyncio.Future[T]) -> T:
        if self.lost is not None:
            _settle(future, None)
        try:
            answer = await future
        finally:
            self._waiting.discard(future)
        if self.lost is not None:
            raise self.lost
        return answer

    def _channel_closed(self, channel: Channel, reason: BaseException) -> None:
        self._lose(reason)

    def _connection_closed(self, connection: object, reason: BaseException) -> None:
        self._lose(reason)
        _settle(self._ended, None)

    def _lose(self, reason: BaseException) -> None:
        if self.lost is not None:
            return
        self.lost = reason
        for future in self._waiting:
            _settle(future, None)
        self._tell()

    def _block(self, connection: object, frame: Any) -> None:
        self.blocked = str(frame.method.reason)[:200]
        self._tell()

    def _unblock(self, connection: object, frame: Any) -> None:
        self.blocked = None

    def _tell(self) -> None:
        for call in self._watchers:
            call()


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


async def consume(link: Link, queues: Sequence[str], arrived: Callable[..., None], ended: Callable[[], None]) -> None:
    """Have the queues delivered to ``arrived(queue, method, properties, body)``; ``ended`` if RabbitMQ stops."""
    channel = link.channel
    channel.add_on_cancel_callback(lambda _: ended())
    for queue in queues:

        def on_message(_: object, method: Any, properties: Any, body: bytes, queue: str = queue) -> None:
            arrived(queue, method, properties, body)

        await link.call(channel.basic_consume, queue, on_message)
