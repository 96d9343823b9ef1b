"""Reading of bytes that a peer sent: everything that is wrong with them raises one error."""

from __future__ import annotations

from struct import Struct
from typing import Final

from kinmqtt_spi.errors import SpiError

U8: Final = Struct(">B")
U16: Final = Struct(">H")
U32: Final = Struct(">I")
U64: Final = Struct(">Q")


class MalformedControl(SpiError):
    """The peer sent something that is no control message. The owner closes the connection and counts it."""


class Reader:
    """Reads values from the front of a body. All methods raise :class:`MalformedControl` if it is too short."""

    __slots__ = ("_body", "_offset", "what")

    def __init__(self, body: bytes, what: str) -> None:
        """``what``: the name of the message, for errors."""
        self.what = what
        self._body = body
        self._offset = 0

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        end = self._offset + size
        if end > len(self._body):
            raise MalformedControl(f"{self.what} of {len(self._body)} bytes ends before its byte {end}")
        taken = self._body[self._offset : end]
        self._offset = end
        return taken

    def number(self, form: Struct) -> int:
        """Return the next number, of the form ``U8``, ``U16``, ``U32`` or ``U64``."""
        value: int = form.unpack(self.take(form.size))[0]
        return value

    def text(self) -> str:
        """Return the next text: its length as ``u8``, then UTF-8."""
        data = self.take(self.number(U8))
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise MalformedControl(f"{self.what} has a text that is not UTF-8: {data[:40]!r}") from error

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        return self.take(len(self._body) - self._offset)

    def end(self) -> None:
        """Check that nothing is left."""
        left = len(self._body) - self._offset
        if left:
            raise MalformedControl(f"{self.what} of {len(self._body)} bytes is {left} bytes too long")


def pack_text(text: str) -> bytes:
    """Return a text of at most 255 bytes as :meth:`Reader.text` reads it."""
    data = text.encode()
    return U8.pack(len(data)) + data
