"""The interface between the broker and a transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kinmqtt_spi.values import Address

if TYPE_CHECKING:
    from kinmqtt.broker.connection.listener import Listener


class Link(Protocol):
    """A transport, as a connection uses it."""

    ready: bool
    """Whether the transport can send now without buffering; ``Connection.drained`` reports when it can again."""
    address: Address
    listener: Listener
    certificate_subject: str | None
    """The subject of the client's verified certificate in RFC 4514 form, if there is one."""
    certificate_username: str | None
    """The user name that the listener takes from that certificate."""
    certificate_problem: str | None
    """Why the listener can't take the user name it needs from that certificate; such a client is rejected."""

    def write(self, data: bytes) -> None:
        """Send bytes, or buffer them if the socket is busy."""

    def pause_reading(self) -> None:
        """Stop reading until :meth:`resume_reading`."""

    def resume_reading(self) -> None:
        """Resume reading."""

    def close(self, linger: bool = False) -> None:
        """Close when everything is sent; with ``linger``, give the client time to read it first."""

    def abort(self) -> None:
        """Close now and discard unsent bytes."""
