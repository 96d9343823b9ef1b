"""The black list in a whole broker."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House
from kinmqtt.builtins.bans import BanSettings, BansSettings
from kinmqtt.mqtt.packets import V5, V311
from kinmqtt_spi import Decision, hookimpl
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.authentication import ConnectRequest, Identity, allow_as

BANNED = 0x8A
NOT_AUTHORIZED = 0x87
"""What the harness reads return code 5 of MQTT 3.1.1 as."""


def _house(*entries: BanSettings, **more: object) -> House:
    return House(plugin_settings={"bans": BansSettings(entries=entries)}, **more)  # type: ignore[arg-type]


def test_a_banned_client_is_told_so() -> None:
    """MQTT 5 knows a reason for it."""
    house = _house(BanSettings(client_id="bad"))

    assert house.connect("bad", V5).connack.reason == BANNED
    assert house.connect("good", V5).connack.reason == 0


def test_an_older_client_is_not_authorized() -> None:
    """MQTT 3.1.1 says "not authorized" (section 3.2.2.3)."""
    assert _house(BanSettings(username="eve")).connect("x", V311, username="eve").connack.reason == NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("network", "host", "banned"),
    [
        ("192.0.2.0/24", "192.0.2.7", True),
        ("192.0.2.0/24", "198.51.100.7", False),
        ("192.0.2.7", "::ffff:192.0.2.7", True),
        ("2001:db8::/32", "2001:db8::1", True),
        ("::ffff:127.0.0.0/104", "127.0.0.1", True),
        ("::ffff:127.0.0.0/104", "::ffff:127.0.0.1", True),
        ("::ffff:127.0.0.0/104", "128.0.0.1", False),
        ("::ffff:127.0.0.0/104", "::7f00:1", False),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::ffff:0.0.0.0/96", "192.0.2.7", True),
        ("::7f00:0/104", "127.0.0.1", False),
        ("192.0.2.0/24", "local", False),
    ],
)
def test_an_address_is_not_read_from(network: str, host: str, banned: bool) -> None:
    """A banned address is closed before a byte is read; IPv4 in IPv6 counts as IPv4, in the list too."""
    peer = _house(BanSettings(address=network)).open(host=host)

    assert peer.closed is banned


def test_everything_given_must_fit() -> None:
    """An entry with a client id and an address bans that client there only."""
    house = _house(BanSettings(client_id="a", address="192.0.2.1"))

    assert house.connect("a", V5, host="192.0.2.1").connack.reason == BANNED
    assert house.connect("a", V5, host="192.0.2.2").connack.reason == 0


def test_a_ban_ends() -> None:
    """From its moment on the client may come in."""
    clock = TurnableClock(now=1_000_000_000.0)  # 2001-09-09T01:46:40Z
    house = _house(BanSettings(client_id="a", until="2001-09-09T01:47:00Z"), clock=clock)

    before = house.connect("a", V5).connack.reason
    house.advance(20)
    after = house.connect("a", V5).connack.reason

    assert (before, after) == (BANNED, 0)


class Renames:
    """Knows everybody as eve."""

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Decision:
        return allow_as(Identity(username="eve"))


def test_who_the_authenticator_names_is_banned() -> None:
    """A client's own word is not all: the list is asked again when the client is known."""
    assert (
        _house(BanSettings(username="eve"), plugins={"renames": Renames()}).connect("x", V5).connack.reason == BANNED
    )


def test_a_reload_brings_a_new_list() -> None:
    """It holds for whoever connects from then on."""
    house = _house()
    house.connect("a", V5)
    house.result(house.broker.reload(_only("bans", BansSettings(entries=(BanSettings(client_id="a"),)))))

    assert house.connect("a", V5).connack.reason == BANNED


def _only(plugin: str, settings: object) -> Any:
    return lambda name, settings_class: settings if name == plugin else settings_class and settings_class()


@pytest.mark.parametrize("wrong", [{}, {"address": "nowhere"}, {"client_id": "a", "until": "tomorrow"}])
def test_mistakes_are_refused(wrong: dict[str, str]) -> None:
    """An entry that would ban everybody, an address or a time that is none."""
    with pytest.raises(ValueError):
        BanSettings(**wrong)
