"""The bulk connections: one for each pair of brokers carries their link, dialled by the one with the lower uid."""

from __future__ import annotations

from functools import partial

from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind
from kinmqtt_akka_like_cluster.net.keeper import Keeper
from kinmqtt_akka_like_cluster.net.transport import Network
from kinmqtt_spi.errors import NodeGone
from kinmqtt_spi.mesh.backend import MeshBackend
from kinmqtt_spi.mesh.connection import Connection
from kinmqtt_spi.services.plugin import Log
from kinmqtt_spi.values import NodeIdentity


class BulkLinks:
    """Keeps the connections that this node dials, and takes those of the nodes with lower uids."""

    def __init__(self, network: Network, mesh: MeshBackend, own: NodeIdentity, log: Log) -> None:
        self._network = network
        self._mesh = mesh
        self._own = own
        self._log = log
        self._members: dict[int, Keeper] = {}

    def keep(self, node: NodeIdentity, address: str) -> None:
        """Keep a connection to a member with a higher uid; the others dial."""
        if node.uid <= self._own.uid or node.uid in self._members:
            return
        dial = partial(self._network.dial, address, ConnectionKind.BULK, node.uid)
        keeper = self._members[node.uid] = Keeper(
            f"{node.name} at {address}", dial, partial(self._begin, node), self._log
        )
        keeper.start()

    def drop(self, uid: int) -> None:
        """Close the connection to a node that is gone."""
        keeper = self._members.pop(uid, None)
        if keeper is not None:
            keeper.stop()

    def close(self) -> None:
        """Close all connections that this node has dialled."""
        for uid in tuple(self._members):
            self.drop(uid)

    def accept(self, connection: Established) -> None:
        """Take a connection of another node. It is closed if that is no member, or not who dials."""
        if connection.peer.uid >= self._own.uid:
            connection.abort("the node with the lower uid dials")
            return
        member = self._mesh.find(connection.peer.uid)
        if member is None:
            # Gossip has not brought it here yet, or it is gone: it dials again.
            connection.abort("it is no member here")
            return
        # Not by what the link's HELLO says: who it is has been proved.
        self._begin(member.node, connection)

    def _begin(self, node: NodeIdentity, connection: Established) -> None:
        try:
            _attach(connection, self._mesh.connected(node, connection))
        except NodeGone as error:
            connection.abort(str(error))


def _attach(connection: Established, link: Connection) -> None:
    connection.on_data = link.feed
    connection.on_lost = link.lost
