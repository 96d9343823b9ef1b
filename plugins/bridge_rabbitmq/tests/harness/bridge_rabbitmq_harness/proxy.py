"""A TCP proxy in threads of its own, which can be away or hang: an event loop may stand still beside it."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Stands in front of a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._is_away = False
        self._is_over = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        """Where it takes connections."""
        return f"127.0.0.1:{self.port}"

    def away(self) -> None:
        """Cut all connections, and take no more."""
        self._is_away = True
        self._cut()

    def hang(self) -> None:
        """Let nothing pass."""
        self._flows.clear()

    def repair(self) -> None:
        """Let everything pass again, what has waited too."""
        self._is_away = False
        self._flows.set()

    def end(self) -> None:
        """End it."""
        self._is_over = True
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
        self._flows.set()
        self._cut()
        for each in self._threads:
            each.join()
        for side in (self._listener, *self._sockets):
            side.close()

    def _cut(self) -> None:
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._is_over or self._is_away:
                client.close()
                if self._is_over:
                    return
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            for pair in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pass_on, args=pair)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._flows.wait()
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
