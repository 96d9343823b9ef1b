"""Unix sockets that only this process's user may use: bound in place of those that nobody uses any more."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress


class BoundUnixSocket:
    """A Unix socket with its file. It does not listen yet."""

    def __init__(self, path: str) -> None:
        """Bind. Raises ``OSError`` if a process listens there, or the file is no socket, or can't be made."""
        _remove_stale(path)
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.setblocking(False)
            self.socket.bind(path)
            # Before it listens, so before anybody can connect.
            os.chmod(path, 0o600)
        except OSError:
            self.socket.close()
            raise
        self._inode = _inode(path)

    def remove(self) -> None:
        """Remove the file, unless another process has replaced it."""
        if self._inode is not None and self._inode == _inode(self.path):
            with suppress(OSError):
                os.unlink(self.path)


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
