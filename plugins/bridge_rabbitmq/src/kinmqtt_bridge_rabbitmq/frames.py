"""The frames of published messages: pika would encode the same names, topics and routing keys again for each."""

from __future__ import annotations

import struct
from typing import Final

from pika.frame import Body, Header, Method
from pika.spec import FRAME_END_SIZE, FRAME_HEADER_SIZE, Basic, BasicProperties

MAX_CACHED: Final = 2048
"""Topics and routing keys whose encoded forms are remembered, each."""

_TIMESTAMP: Final = struct.Struct(">Q")
_NO_IDENTITY: Final = 1 + _TIMESTAMP.size
"""The bytes of an empty ``message_id`` and of a timestamp."""


class EncodedProperties:
    """Properties for :class:`pika.frame.Header` that are encoded already."""

    __slots__ = ("encoded",)
    INDEX: Final = BasicProperties.INDEX

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded

    def encode(self) -> list[bytes]:
        """Return the pieces of the frame."""
        return [self.encoded]


def properties_before_identity(properties: BasicProperties) -> bytes:
    """Return the encoded form of properties up to ``message_id`` and ``timestamp``, which are the last two."""
    properties.message_id, properties.timestamp = "", 0
    return b"".join(properties.encode())[:-_NO_IDENTITY]


def with_identity(before: bytes, identity: str, timestamp: int) -> EncodedProperties:
    """Return what :func:`properties_before_identity` has left out, behind it; ``identity`` is short and ASCII."""
    return EncodedProperties(
        b"%b%c%b%b" % (before, len(identity), identity.encode("ascii"), _TIMESTAMP.pack(timestamp))
    )


class Framer:
    """Makes the frames of messages on one channel, for one exchange."""

    def __init__(self, channel_number: int, frame_max: int, exchange: str) -> None:
        self._channel_number = channel_number
        self._body_max = frame_max - FRAME_HEADER_SIZE - FRAME_END_SIZE
        self._exchange = exchange
        self._methods: dict[str, bytes] = {}
        """By routing key."""

    def add_to(
        self,
        frames: list[bytes],
        routing_key: str,
        properties: BasicProperties | EncodedProperties,
        payload: bytes,
    ) -> None:
        """Append the frames of a message that must reach a queue (``mandatory``): all, or none if it raises."""
        number = self._channel_number
        method = self._methods.get(routing_key)
        if method is None:
            method = self._method(routing_key)
        frames += (method, Header(number, len(payload), properties).marshal())
        for start in range(0, len(payload), self._body_max):
            frames.append(Body(number, payload[start : start + self._body_max]).marshal())

    def _method(self, routing_key: str) -> bytes:
        if len(self._methods) >= MAX_CACHED:
            self._methods.clear()
        made: bytes = Method(self._channel_number, Basic.Publish(0, self._exchange, routing_key, True)).marshal()
        self._methods[routing_key] = made
        return made
