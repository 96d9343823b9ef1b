"""Whose clients are connected, so that they can be sent away when their user goes."""

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
    """What stands for a user's hash where others can see it: a digest under a key of this process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def of(self, username: str, hash: PasswordHash) -> str:
        """The seal of the two."""
        # No hash has a zero byte in it.
        told = f"{username}\0{hash}".encode(errors="surrogatepass")
        return hmac.digest(self._key, told, "sha256").hex()


class Users:
    """Whose clients are connected. Who has left is forgotten now and then: twice the connected ones are kept at most.

    A client id and its user belong together: what is told late of one user's client hides no other's of that id.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clients: dict[tuple[str, str], None] = {}
        """Client ids with their users, in the order of their coming."""
        self._sweep_at = SWEEP_AT_LEAST

    def __len__(self) -> int:
        return len(self._clients)

    def add(self, client: Client) -> None:
        """A client is connected."""
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
        """Disconnect the clients of users who are gone or have another hash; how many there were."""
        count = 0
        for client_id, username in list(self._clients):
            if username not in before.users or before.users[username] == after.users.get(username):
                continue
            del self._clients[client_id, username]
            if self._is_here(client_id, username):
                count += self._context.disconnect(client_id)
        return count
