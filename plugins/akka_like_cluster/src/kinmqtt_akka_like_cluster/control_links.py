"""The control connections between this broker and the others: membership travels on them, never behind messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind
from kinmqtt_akka_like_cluster.net.keeper import Keeper
from kinmqtt_akka_like_cluster.net.transport import Network
from kinmqtt_akka_like_cluster.pure.messages import FrameCutter, MalformedControl, Message, encode
from kinmqtt_spi.services.plugin import Log

MAX_EARLY: Final = 8
"""The most messages that wait for a connection with a seed; later ones are dropped, because all are repeated."""

Received = Callable[[Established, Message], object]
Lost = Callable[[int], object]


class ControlLinks:
    """Keeps a control connection to each member, and takes those of others.

    Each node dials its own connection to every other one, and sends what it begins on that; answers come back on the
    same connection. So what one direction of the network loses is noticed in that direction.
    """

    def __init__(self, network: Network, log: Log, received: Received, lost: Lost, distrust: Lost) -> None:
        """``lost`` gets the uid of the process at the other end of each connection that has ended.

        ``distrust`` gets it for each malformed message.
        """
        self.malformed = 0
        """How often a connection was closed because of malformed input."""
        self._network = network
        self._log = log
        self._received = received
        self._lost = lost
        self._distrust = distrust
        self._members: dict[int, Keeper] = {}
        self._seeds: dict[str, Keeper] = {}
        self._early: dict[str, list[Message]] = {}
        self._accepted: dict[int, Established] = {}
        """By uid: the last connection that another process has dialled."""

    def keep(self, uid: int, name: str, address: str) -> None:
        """Keep a connection to a member."""
        if uid not in self._members:
            dial = partial(self._network.dial, address, ConnectionKind.CONTROL, uid)
            keeper = self._members[uid] = Keeper(f"{name} at {address}", dial, self._read, self._log)
            keeper.start()

    def drop(self, uid: int) -> None:
        """Close the connections with a process that is gone."""
        keeper = self._members.pop(uid, None)
        if keeper is not None:
            keeper.stop()
        accepted = self._accepted.pop(uid, None)
        if accepted is not None:
            accepted.close()

    def forget_seeds(self) -> None:
        """Close the connections to seeds: this process is a member, or does not join any more."""
        for keeper in self._seeds.values():
            keeper.stop()
        self._seeds.clear()
        self._early.clear()

    def close(self) -> None:
        """Close all connections."""
        self.forget_seeds()
        for uid in {*self._members, *self._accepted}:
            self.drop(uid)

    def send(self, uid: int, message: Message, reply: bool) -> None:
        """Send a message to a process; it is dropped if there is no connection."""
        keeper = self._members.get(uid)
        dialled = None if keeper is None else keeper.connection
        accepted = self._accepted.get(uid)
        connection = (accepted or dialled) if reply else (dialled or accepted)
        if connection is not None:
            connection.write(encode(message))

    def send_to(self, address: str, message: Message) -> None:
        """Send a message to whatever process has an address, at once or when it is connected."""
        keeper = self._seeds.get(address)
        if keeper is None:
            dial = partial(self._network.dial, address, ConnectionKind.CONTROL, None)
            keeper = self._seeds[address] = Keeper(f"seed {address}", dial, partial(self._greet, address), self._log)
            keeper.start()
        if keeper.connection is not None:
            keeper.connection.write(encode(message))
            return
        early = self._early.setdefault(address, [])
        # The last one is as good as all before it.
        early[:] = [*early, message][-MAX_EARLY:]

    def accept(self, connection: Established) -> None:
        """Take a connection that another process has dialled."""
        uid = connection.peer.uid
        before = self._accepted.get(uid)
        self._accepted[uid] = connection
        if before is not None:
            before.close()
        self._read(connection)
        report = connection.on_lost

        def lost() -> None:
            if self._accepted.get(uid) is connection:
                del self._accepted[uid]
            if report is not None:
                report()

        connection.on_lost = lost

    def _greet(self, address: str, connection: Established) -> None:
        self._read(connection)
        for message in self._early.pop(address, ()):
            connection.write(encode(message))

    def _read(self, connection: Established) -> None:
        cutter = FrameCutter()

        def take(data: bytes) -> None:
            try:
                for message in cutter.feed(data):
                    self._received(connection, message)
            except MalformedControl as error:
                self.malformed += 1
                text = "the control connection with {peer} is closed: {error}"
                self._log.warn(text, peer=connection.peer.name, error=error)
                connection.abort(str(error))
                self._distrust(connection.peer.uid)

        connection.on_data = take
        connection.on_lost = partial(self._lost, connection.peer.uid)
