"""What the connections of a broker need of its settings."""

from __future__ import annotations

from typing import Final

from attrs import field, frozen

from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.net.handshake import VERSIONS
from kinmqtt_akka_like_cluster.net.tls import Tls
from kinmqtt_akka_like_cluster.settings import AkkaSettings, agreement_digest

HANDSHAKE_LIMIT_S: Final = 5.0
"""How long a connection may take until both sides have proved who they are, TCP and TLS included."""
MAX_HALF_OPEN: Final = 64
"""Accepted connections whose peers have not proved who they are. Further ones wait in the accept queue."""
MAX_CONNECTIONS: Final = 1024
"""Established connections. While there are so many, none is accepted."""
CONTROL_BUFFER_BYTES: Final = 32 << 20
"""What may be unsent on a control connection."""
BULK_BUFFER_FACTOR: Final = 4
"""A bulk connection has room for ``link_bytes`` of batches and of calls, their answers, and what is sent again."""


@frozen(slots=True)
class NetworkConfig:
    """The settings of a network, with what their files contain."""

    listen: Endpoint
    cluster: str
    cookie: bytes = field(repr=False)
    digest: bytes
    """The digest of the settings that must agree."""
    tls: Tls | None = None
    features: int = 0
    """What this broker can do beyond its version, as a bit mask."""
    versions: tuple[int, int] = VERSIONS
    handshake_s: float = HANDSHAKE_LIMIT_S
    max_half_open: int = MAX_HALF_OPEN
    max_connections: int = MAX_CONNECTIONS
    control_buffer_bytes: int = CONTROL_BUFFER_BYTES
    bulk_buffer_bytes: int = BULK_BUFFER_FACTOR * (64 << 20)

    @classmethod
    def of(cls, settings: AkkaSettings, cookie: bytes, tls: Tls | None, features: int = 0) -> NetworkConfig:
        """Return the part of the settings that a network needs. Raises ``ValueError`` if ``listen`` is missing."""
        return cls(
            listen=Endpoint.parse(settings.listen),
            cluster=settings.cluster,
            cookie=cookie,
            digest=agreement_digest(settings),
            tls=tls,
            features=features,
            bulk_buffer_bytes=BULK_BUFFER_FACTOR * settings.link_bytes,
        )
