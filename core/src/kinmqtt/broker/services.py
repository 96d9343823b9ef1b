"""The parts of a broker that its connections use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from kinmqtt.broker.forwarding.forwarder import Forwarder
from kinmqtt.broker.keepalive import TimerWheel
from kinmqtt.broker.limiting import Limiting
from kinmqtt.broker.overload import Overload
from kinmqtt.broker.routing.fanouts import Fanouts
from kinmqtt.broker.routing.publisher import MessagePublisher
from kinmqtt.broker.routing.router import Router
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.turn.ports import Peer

if TYPE_CHECKING:
    # Not compiled: a compiled module must not import them at run time while it is being imported.
    from kinmqtt.broker.ownership.sessions import Sessions
    from kinmqtt.broker.routing.resender import Resender
    from kinmqtt.broker.routing.retained import Retained
    from kinmqtt.broker.routing.traffic import TrafficLedger


class Services:
    """The parts that the composition root passes to every connection."""

    __slots__ = (
        "_emptied",
        "arriving",
        "connections",
        "fanouts",
        "forwarder",
        "limiting",
        "overload",
        "publisher",
        "resender",
        "retained",
        "router",
        "runtime",
        "sessions",
        "traffic",
        "wheel",
    )

    def __init__(
        self,
        runtime: Runtime,
        connections: set[Peer],
        wheel: TimerWheel,
        limiting: Limiting,
        overload: Overload,
        forwarder: Forwarder,
        router: Router,
        publisher: MessagePublisher,
        resender: Resender,
        retained: Retained,
        sessions: Sessions,
        traffic: TrafficLedger,
    ) -> None:
        """``connections`` is the set of open connections; each adds itself."""
        self.runtime = runtime
        self.connections = connections
        self.wheel = wheel
        self.limiting = limiting
        self.overload = overload
        self.forwarder = forwarder
        self.router = router
        self.fanouts: Fanouts = router.fanouts
        self.publisher = publisher
        self.resender = resender
        self.retained = retained
        self.sessions = sessions
        self.traffic = traffic
        self.arriving = 0
        """Connections in a TLS handshake or before a proxy's header."""
        self._emptied: list[Deferred[None]] = []

    @property
    def is_full(self) -> bool:
        """Whether the connection limit of the whole broker is reached."""
        limit = self.runtime.limits.max_connections
        return bool(limit) and len(self.connections) + self.arriving >= limit

    def lost(self, connection: Peer) -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        if self._emptied and not self.connections:
            waiting, self._emptied = self._emptied, []
            for emptied in waiting:
                emptied.callback(None)

    def emptied(self) -> Deferred[None]:
        """Fires when the last connection is gone."""
        emptied: Deferred[None] = Deferred()
        if self.connections:
            self._emptied.append(emptied)
        else:
            emptied.callback(None)
        return emptied
