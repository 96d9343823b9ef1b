"""Listening sockets, of TCP and Unix."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.settings import SECTION
from kinmqtt_spi.errors import AssemblyError

BACKLOG: Final = 128


class ListeningSockets:
    """The sockets of one endpoint: several for a name with several addresses."""

    def __init__(self, endpoint: Endpoint, sockets: list[socket.socket]) -> None:
        self.sockets = sockets
        self._endpoint = endpoint
        self._inode = _inode(endpoint.path) if endpoint.is_unix else None

    @property
    def endpoints(self) -> list[Endpoint]:
        """The addresses that they are bound to."""
        if self._endpoint.is_unix:
            return [self._endpoint]
        return [Endpoint(*each.getsockname()[:2]) for each in self.sockets]

    def close(self) -> None:
        """Close the sockets, and remove the file of a Unix socket unless another process has replaced it."""
        if self._inode is not None and self._inode == _inode(self._endpoint.path):
            with suppress(OSError):
                os.unlink(self._endpoint.path)
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
            sockets.append(_bound_unix(endpoint.path))
        else:
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


def _bound_unix(path: str) -> socket.socket:
    _remove_stale(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.bind(path)
        # Before anybody can connect: only this user's brokers may.
        os.chmod(path, 0o600)
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _remove_stale(path: str) -> None:
    """Remove a socket on which no process listens. Raises ``OSError`` if there is anything else."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError("the file exists, and is no socket; remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # Its queue is full, so somebody listens.
    raise OSError("another process listens there")


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
