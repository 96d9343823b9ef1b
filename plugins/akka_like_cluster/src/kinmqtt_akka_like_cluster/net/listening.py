"""Listening sockets, of TCP and Unix."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address
from typing import Final

from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.net.unix_sockets import BoundUnixSocket
from kinmqtt_akka_like_cluster.settings import SECTION
from kinmqtt_spi.errors import AssemblyError

BACKLOG: Final = 128


class ListeningSockets:
    """The sockets of one endpoint: several for a name with several addresses."""

    def __init__(self, endpoint: Endpoint, sockets: list[socket.socket], unix: BoundUnixSocket | None = None) -> None:
        """``unix``: the only socket, if it is a Unix socket."""
        self.sockets = sockets
        self._endpoint = endpoint
        self._unix = unix

    @property
    def endpoints(self) -> list[Endpoint]:
        """The addresses that they are bound to."""
        if self._endpoint.is_unix:
            return [self._endpoint]
        return [Endpoint(*each.getsockname()[:2]) for each in self.sockets]

    def close(self) -> None:
        """Close the sockets, and remove the file of a Unix socket unless another process has replaced it."""
        if self._unix is not None:
            self._unix.remove()
        for each in self.sockets:
            each.close()


async def listen_on(endpoint: Endpoint, *, local_only: bool) -> ListeningSockets:
    """Bind and listen. With ``local_only`` every address must be of the loopback interface, whatever its name is.

    Raises :class:`AssemblyError` that says why it can't.
    """
    place = f"{SECTION}.listen: {endpoint}: "
    sockets: list[socket.socket] = []
    try:
        if endpoint.is_unix:
            unix = BoundUnixSocket(endpoint.path)
            sockets.append(unix.socket)
            unix.socket.listen(BACKLOG)
            return ListeningSockets(endpoint, sockets, unix)
        for family, address in await _resolved(endpoint):
            if local_only and not ip_address(address[0]).is_loopback:
                raise OSError(f"{address[0]} is no loopback address, and [{SECTION}.tls] is missing")
            sockets.append(_bound(family, address))
    except OSError as error:
        for each in sockets:
            each.close()
        raise AssemblyError(f"{place}{error.strerror or error}") from error
    return ListeningSockets(endpoint, sockets)


async def _resolved(endpoint: Endpoint) -> list[tuple[int, tuple[str, int]]]:
    found = await asyncio.get_running_loop().getaddrinfo(
        endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    distinct = {(int(family), (str(address[0]), int(address[1]))) for family, _, _, _, address in found}
    return sorted(distinct)


def _bound(family: int, address: tuple[str, int]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made
