"""Tracks users' connected clients, to disconnect them when their user is removed or changed."""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from kinmqtt_auth_file.hashes import PasswordHash
from kinmqtt_auth_file.passwords import Passwords
from kinmqtt_spi.services.plugin import Context
from kinmqtt_spi.values import Client

SWEEP_AT_LEAST: Final = 1024


class Seals:
    """Makes digests of users' hashes, under a key of this process, that may be shown to others."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, username: str, hash: PasswordHash) -> str:
        """The digest of a user name and a hash."""
        # A hash never contains a zero byte.
        message = f"{username}\0{hash}".encode(errors="surrogatepass")
        return hmac.digest(self._key, message, "sha256").hex()


class Users:
    """Tracks connected clients with their users. Disconnected clients are swept when their number has doubled.

    Entries are pairs of client id and user, so that a late notice about one user's client does not hide another's.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clients: dict[tuple[str, str], None] = {}
        """Client ids with their users, in the order of connection."""
        self._sweep_at = SWEEP_AT_LEAST

    def __len__(self) -> int:
        return len(self._clients)

    def add(self, client: Client) -> None:
        """Add a connected client."""
        if client.username is None:
            return
        self._clients[client.client_id, client.username] = None
        if len(self._clients) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        self._clients = {each: None for each in self._clients if self._is_here(*each)}
        self._sweep_at = max(2 * len(self._clients), SWEEP_AT_LEAST)

    def _is_here(self, client_id: str, username: str) -> bool:
        client = self._context.client(client_id)
        return client is not None and client.username == username

    def disconnect_changed(self, before: Passwords, after: Passwords) -> int:
        """Disconnect the clients of users who were removed or have another hash; returns their number."""
        count = 0
        for client_id, username in list(self._clients):
            if username not in before.users or before.users[username] == after.users.get(username):
                continue
            del self._clients[client_id, username]
            if self._is_here(client_id, username):
                count += self._context.disconnect(client_id) is True
        return count
