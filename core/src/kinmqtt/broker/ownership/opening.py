"""The request of a CONNECT for a session."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define

from kinmqtt.broker.session.session import Session
from kinmqtt.broker.turn.ports import Peer
from kinmqtt_spi.services.session import Claimant
from kinmqtt_spi.values import Client, Will


@define(slots=True)
class Opening:
    """The request of a CONNECT for a session."""

    connection: Peer
    attach: Callable[[Session], None]
    """Hands the session to the connection."""
    client: Client
    claimant: Claimant
    """The same client as the session store identifies it."""
    clean_start: bool
    expiry_s: int
    """The session expiry interval in seconds; 0 ends the session with its connection (section 3.1.2.11.2)."""
    will: Will | None
    receive_maximum: int
    """The most messages of QoS 1 and 2 that the client accepts in flight (section 3.1.2.11.3)."""
    max_packet_bytes: int | None
    """The largest packet that the client accepts, in bytes; ``None`` for no limit (section 3.1.2.11.4)."""
    topic_aliases: int
    """The number of topic aliases that the client accepts, up to what the broker uses (section 3.1.2.11.5)."""
