"""What the broker asks of a transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kinmqtt_spi.values import Address

if TYPE_CHECKING:
    from kinmqtt.broker.connection.listener import Listener


class Link(Protocol):
    """The little that the broker asks of a transport."""

    ready: bool
    """Whether what is written now goes out without piling up; ``Connection.drained`` says when it does again."""
    address: Address
    listener: Listener
    certificate_subject: str | None
    """The subject of the client's certificate, as RFC 4514 writes it, where there is one that was verified."""
    certificate_username: str | None
    """What the listener makes a user name of, from that certificate."""
    certificate_problem: str | None
    """Why the listener can't take a user name from that certificate, where it is to: its client is refused."""

    def write(self, data: bytes) -> None:
        """Send bytes, at once where the transport can."""

    def pause_reading(self) -> None:
        """Read nothing more until told."""

    def resume_reading(self) -> None:
        """Read on."""

    def close(self, linger: bool = False) -> None:
        """Close when everything written has gone out; to ``linger``, let the client read that before."""

    def abort(self) -> None:
        """Close now, and forget what has not gone out."""
