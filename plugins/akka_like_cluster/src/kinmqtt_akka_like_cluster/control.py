"""The control socket: `kinmqtt cluster` asks the running broker over it, one line of JSON a request and an answer."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kinmqtt_akka_like_cluster.net.addresses import MAX_UNIX_PATH_BYTES
from kinmqtt_akka_like_cluster.net.unix_sockets import BoundUnixSocket
from kinmqtt_spi.errors import AssemblyError, SpiError
from kinmqtt_spi.services.plugin import Log

MAX_REQUEST_BYTES: Final = 64 << 10
MAX_CLIENTS: Final = 16
"""Connections at the same time; further ones are closed."""
REQUEST_LIMIT_S: Final = 10.0
"""How long a client may take to send its request."""

Answer = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Answers a request; raises ``ValueError`` or :class:`SpiError` with a sentence for the operator."""


class ControlSocket:
    """Listens on a Unix socket that only the broker's user may use."""

    def __init__(self, path: Path, answers: Mapping[str, Answer], log: Log) -> None:
        """``answers`` by the name of the request."""
        self.path = path
        self._answers = answers
        self._log = log
        self._server: asyncio.Server | None = None
        self._bound: BoundUnixSocket | None = None
        self._clients = 0

    async def open(self) -> None:
        """Listen. Raises :class:`AssemblyError` if that is not possible."""
        try:
            if len(os.fsencode(self.path)) > MAX_UNIX_PATH_BYTES:
                raise OSError(f"the path of a Unix socket has at most {MAX_UNIX_PATH_BYTES} bytes")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._bound = BoundUnixSocket(os.fspath(self.path))
            self._server = await asyncio.start_unix_server(
                self._serve, sock=self._bound.socket, limit=MAX_REQUEST_BYTES
            )
        except OSError as error:
            raise AssemblyError(
                f"plugins.akka_like_cluster.control: {self.path}: {error.strerror or error}; name another path. The "
                "default one is in broker.data, of which each broker has its own"
            ) from error

    async def close(self) -> None:
        """Listen no more, and remove the socket, unless another process has replaced it."""
        if self._server is not None and self._bound is not None:
            self._bound.remove()
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= MAX_CLIENTS:
                line = await asyncio.wait_for(reader.readline(), REQUEST_LIMIT_S)
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError) as error:
            self._log.debug("a request on the control socket failed: {error}", error=error)
        finally:
            self._clients -= 1
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("a request is an object")
            name = request.get("command")
            answer = self._answers.get(name) if isinstance(name, str) else None
            if answer is None:
                raise ValueError(f"unknown request {name!r}; this broker knows {', '.join(sorted(self._answers))}")
            return {"answer": await answer(request)}
        except (SpiError, ValueError) as error:
            return {"error": str(error)}
        except Exception as error:
            self._log.error("the control socket could not answer: {error!r}", error=error)
            return {"error": f"the broker failed: {type(error).__name__}"}


def ask(path: Path, request: Mapping[str, Any], limit_s: float) -> Any:
    """Ask a running broker; raises ``SpiError`` with a sentence for the operator. It blocks."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(limit_s)
        try:
            client.connect(os.fspath(path))
            client.sendall(json.dumps(request).encode() + b"\n")
            received = bytearray()
            while not received.endswith(b"\n"):
                piece = client.recv(1 << 16)
                if not piece:
                    break
                received += piece
        except FileNotFoundError:
            raise SpiError(f"{path}: no broker listens there: does it run, with plugins.akka_like_cluster?") from None
        except OSError as error:
            raise SpiError(f"{path}: the broker can't be asked: {error.strerror or error}") from None
    try:
        answer = json.loads(received)
        if "error" in answer:
            raise SpiError(answer["error"])
        return answer["answer"]
    except (ValueError, KeyError, TypeError):
        raise SpiError(f"{path}: the broker closed the connection without an answer") from None
