"""Whose clients are connected."""

from __future__ import annotations

import pytest

from kinmqtt_auth_file import users as users_module
from kinmqtt_auth_file.hashes import Sha512
from kinmqtt_auth_file.passwords import Passwords
from kinmqtt_auth_file.users import Users
from kinmqtt_spi import Client
from kinmqtt_spi.memory.plugin import BareContext

ONE, OTHER = (Sha512(b"salt", bytes([number]) * 64) for number in range(2))


def connected(context: BareContext, users: Users, client_id: str, username: str | None) -> None:
    """A client comes in."""
    context.clients[client_id] = Client(client_id, username)
    users.add(context.clients[client_id])


def test_who_is_removed_or_changed_is_disconnected() -> None:
    """The others stay, and so does who took over the client id of one."""
    context = BareContext()
    users = Users(context)
    for client_id, username in (("1", "gone"), ("2", "changed"), ("3", "same"), ("4", "gone"), ("5", None)):
        connected(context, users, client_id, username)
    context.clients["4"] = Client("4", "somebody else")
    before = Passwords.of({"gone": ONE, "changed": ONE, "same": ONE})

    count = users.disconnect_changed(before, Passwords.of({"changed": OTHER, "same": ONE}))

    assert count == 2
    assert [client_id for client_id, _ in context.disconnected] == ["1", "2"]


def test_another_user_of_the_same_client_id_hides_nobody() -> None:
    """Neither one that is told of and not there, nor one that was there before."""
    context = BareContext()
    users = Users(context)
    connected(context, users, "c", "ann")
    users.add(Client("c", "bob"))
    before = Passwords.of({"ann": ONE, "bob": ONE})

    bobs = users.disconnect_changed(before, Passwords.of({"ann": ONE}))
    anns = users.disconnect_changed(Passwords.of({"ann": ONE}), Passwords.of({}))

    assert (bobs, anns) == (0, 1)
    assert [client_id for client_id, _ in context.disconnected] == ["c"]


def test_who_has_left_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that come and go do not fill the memory."""
    monkeypatch.setattr(users_module, "SWEEP_AT_LEAST", 10)
    context = BareContext()
    users = Users(context)
    connected(context, users, "stays", "u")

    for number in range(100):
        connected(context, users, str(number), "u")
        del context.clients[str(number)]

    assert len(users) <= 10
    assert users.disconnect_changed(Passwords.of({"u": ONE}), Passwords.of({})) == 1
