"""What an operator is told of rules by user in a broker that lets anonymous clients in."""

from __future__ import annotations

from pathlib import Path

import pytest

from core_harness.brokers import run_command
from core_harness.house import House
from kinmqtt.broker.user_rules import notes_on_users
from kinmqtt.settings import BrokerSettings, ListenerSettings
from kinmqtt_spi import hookimpl


class Rights:
    """An authorizer."""

    @hookimpl
    def authorize(self) -> None:
        """Nobody asks here."""


class Door:
    """An authenticator."""

    @hookimpl
    def authenticate(self) -> None:
        """Nobody asks here."""


BY_USER = [
    '[[plugins.bans.entries]]\nusername = "eve"',
    '[[plugins.rate_limits.rules]]\nname = "r"\nkind = "publish"\nrate_per_s = 1\nper = "username"',
    '[[plugins.auto_subscriptions.subscriptions]]\nfilter = "to/${username}/#"',
    '[[plugins.topic_rewrite.rules]]\npattern = "me"\ntarget = "people/${username}"',
]
BY_CLIENT = [
    "",
    '[[plugins.bans.entries]]\nclient_id = "eve"',
    '[[plugins.rate_limits.rules]]\nname = "r"\nkind = "publish"\nrate_per_s = 1',
    '[[plugins.auto_subscriptions.subscriptions]]\nfilter = "to/${clientid}/#"',
]


@pytest.mark.parametrize("config", BY_USER)
def test_rules_by_user_beside_anonymous_are_told_of(config: str) -> None:
    """With the listener where anonymous clients come in, and the plugin whose rules these are."""
    plugin = config.split(".")[1].rstrip("]").split("]")[0]

    [note] = notes_on_users(House(config=config, start=False).assembly)

    assert note == (
        "anonymous accepts clients at tcp:1883 and ignores their user names, which are not verified: "
        f"rules by user name in {plugin} do not apply to them"
    )


@pytest.mark.parametrize("config", BY_CLIENT)
def test_other_rules_are_not(config: str) -> None:
    """Nothing is said where no rule looks at users."""
    assert notes_on_users(House(config=config, start=False).assembly) == []


def test_an_authorizer_beside_anonymous_is_told_of() -> None:
    """Most go by users; so does a template in the broker's own settings."""
    settings = BrokerSettings(response_information="to/${username}", sys_interval_s=0)

    [note] = notes_on_users(House(plugins={"rights": Rights()}, settings=settings, start=False).assembly)

    assert "in rights, broker.response_information do not" in note


def test_nothing_is_told_where_everybody_is_verified() -> None:
    """An authenticator keeps `anonymous` out."""
    assert notes_on_users(House(plugins={"rights": Rights(), "door": Door()}, start=False).assembly) == []


def test_only_listeners_where_anonymous_clients_come_in_are_named() -> None:
    """By their own authenticators, or by those of all."""
    plugins = {"rights": Rights(), "door": Door()}
    listeners = {
        "inner": ListenerSettings(endpoint="1", authenticators=("anonymous",)),
        "outer": ListenerSettings(endpoint="2", authenticators=("door",)),
        "other": ListenerSettings(endpoint="3"),
    }

    [note] = notes_on_users(House(plugins=plugins, listeners=listeners, start=False).assembly)

    assert "at inner and" in note


def test_the_check_says_so(tmp_path: Path) -> None:
    """`kinmqtt check` has the line, and the settings are valid all the same."""
    settings = tmp_path / "kinmqtt.toml"
    settings.write_text(BY_USER[0], encoding="utf-8")

    done = run_command("check", "-c", str(settings))

    assert done.returncode == 0
    assert "rules by user name in bans do not apply to them" in done.stdout
    assert done.stdout.endswith("the settings are valid\n")
