"""An HTTP server on a real socket that answers by a script, also with what no server should."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import define, frozen

HANG: Final = b"hang"
"""An answer that never comes."""
LIMIT_S: Final = 30.0


@frozen
class Got:
    """A request."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes
    connection: int
    """The number of its connection, from 1."""


def answer(status: int = 200, body: bytes = b"", reason: str = "Said", **headers: str) -> bytes:
    """Return an answer's bytes; underscores in names of headers stand for hyphens."""
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@frozen
class Then:
    """Bytes that are sent, after which the connection is closed."""

    data: bytes = b""
    resets: bool = False
    """Whether that is a reset."""


Script = Callable[[Got], "bytes | Then"]


@define(eq=False, slots=False)
class Server:
    """Answers each request with what ``script`` returns, and remembers it."""

    script: Script = lambda got: answer()
    certificate: tuple[Path, Path] | None = None
    client_authority: Path | None = None

    def __attrs_post_init__(self) -> None:
        self.got: list[Got] = []
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._resumed = threading.Event()
        self.port = 0
        self._tls = None if self.certificate is None else self._context(self.certificate)
        self.start()

    @property
    def url(self) -> str:
        """The URL of the root, without a slash at the end."""
        return f"http{'' if self._tls is None else 's'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, at the same port as before."""
        self._resumed.clear()
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def stop(self) -> None:
        """Close the port and all connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._resumed.set()
        with self._lock:
            for each in list(self._open):
                _close(each)

    def bodies(self) -> list[bytes]:
        """Return what was sent."""
        return [got.body for got in self.got]

    def _context(self, certificate: tuple[Path, Path]) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        if self.client_authority is not None:
            context.load_verify_locations(self.client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.add(connection)
                number = self.connections
            threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        try:
            connection.settimeout(LIMIT_S)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection.makefile("rb") as reading:
                while (got := _read(reading, number)) is not None:
                    self.got.append(got)
                    said = self.script(got)
                    if said is HANG:
                        self._resumed.wait(LIMIT_S)
                        return
                    connection.sendall(said if isinstance(said, bytes) else said.data)
                    if isinstance(said, Then):
                        if said.resets:
                            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                            connection.close()
                        return
        except OSError:  # the client has gone, which the tests look at from its side
            return
        finally:
            with self._lock:
                self._open.discard(connection)
            _close(connection)


def _close(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is closed already
        pass
    connection.close()


def _read(reading: Any, number: int) -> Got | None:
    head = []
    while (line := reading.readline()) not in (b"\r\n", b""):
        head.append(line.decode("latin-1").rstrip("\r\n"))
    if not head or head[0].count(" ") != 2:
        return None
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in head[1:])}
    length = int(headers.get("content-length", "0"))
    body = reading.read(length)
    return Got(method, path, headers, body, number) if len(body) == length else None
