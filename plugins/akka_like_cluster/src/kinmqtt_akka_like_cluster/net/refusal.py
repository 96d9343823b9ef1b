"""Refused connections: why, and a line in the log now and then."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Final

from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.pace import Pace, and_others
from kinmqtt_spi.services.plugin import Clock, Log

LOG_EVERY_S: Final = 60.0
"""A refusal of one peer for one reason is logged once in this time."""
MAX_LOGGED: Final = 256
"""Peers and reasons that are logged by themselves. Further ones share one line in a minute."""

_HINT: Final = "; the cookies differ (cookie_file), or somebody is in between"


class Refusal(IntEnum):
    """Why a connection was refused. The numbers are sent."""

    OTHER = 0
    """A reason that this release does not know."""
    MALFORMED = 1
    VERSION = 2
    CLUSTER = 3
    SETTINGS = 4
    NOT_AUTHENTICATED = 5
    SELF = 6
    """The process has reached itself, as a seed for example."""
    WRONG_PROCESS = 7
    """Another process than the expected one answers."""
    CERTIFICATE = 8
    """The certificate's names match none of ``tls.peers``."""
    TLS = 9
    """TLS itself has failed; not sent."""
    TIMEOUT = 10
    """The handshake took too long; not sent."""


class HandshakeRefused(SpiError):
    """One of the two sides has refused the connection."""

    def __init__(self, refusal: Refusal, text: str, *, by_peer: bool = False) -> None:
        """``text`` says why; ``by_peer`` whether the other side has refused."""
        super().__init__(text + _HINT if refusal is Refusal.NOT_AUTHENTICATED else text)
        self.refusal = refusal
        self.by_peer = by_peer


class Refusals:
    """Counts refused connections, and logs them at a bounded rate."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self.counts: Counter[Refusal] = Counter()
        """How many connections were refused, by reason."""
        self._log = log
        self._clock = clock
        self._paces: dict[tuple[str, Refusal], tuple[float, Pace]] = {}
        self._others = Pace(clock, LOG_EVERY_S)

    def report(self, refused: HandshakeRefused, peer: str, claimed: str | None = None) -> None:
        """Count a refusal, and log it unless it was logged within the last minute. Finding oneself is none.

        ``peer`` is the other side's address without a port of its own, ``claimed`` the name that it has given.
        """
        if refused.refusal is Refusal.SELF:
            return
        self.counts[refused.refusal] += 1
        held_back = self._pace((peer, refused.refusal)).due()
        if held_back is None:
            return
        self._log.warn(
            "{who}{comma} has refused this broker: {reason}{more}"
            if refused.by_peer
            else "refused {who}: {reason}{more}",
            who=peer if claimed is None else f"{peer}, which calls itself {claimed!r}",
            comma="" if claimed is None else ",",
            reason=refused,
            more=and_others(held_back),
        )

    def _pace(self, key: tuple[str, Refusal]) -> Pace:
        now = self._clock.monotonic()
        if key not in self._paces and len(self._paces) >= MAX_LOGGED:
            self._paces = {known: entry for known, entry in self._paces.items() if now - entry[0] < LOG_EVERY_S}
            if len(self._paces) >= MAX_LOGGED:
                return self._others
        since, pace = self._paces.get(key) or (now, Pace(self._clock, LOG_EVERY_S))
        self._paces[key] = (now if now - since >= LOG_EVERY_S else since, pace)
        return pace
