"""Log lines about denied clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.logger import ILogObserver, LogLevel, formatEvent, globalLogPublisher
from zope.interface import provider

from core_harness.house import House
from kinmqtt.mqtt.packets import V5, V311
from kinmqtt_spi import ALLOW, Decision, deny, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Action, AuthorizationRequest
from kinmqtt_spi.testing.build import will


class Doorkeeper:
    """Lets `welcome` in and does not know `stranger`; denies what stands in `denied`."""

    def __init__(self, *denied: Action) -> None:
        self.denied = denied

    @hookimpl
    def authenticate(self, request: Any) -> Decision | None:
        if request.client_id == "stranger":
            return None
        if request.client_id == "welcome":
            return ALLOW
        return deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "unknown user or wrong password")

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision | None:
        return deny(text="line 6") if request.action in self.denied else None

    @hookimpl
    def authorize_receive(self, request: AuthorizationRequest) -> Decision | None:
        return deny() if request.action in self.denied else None


@pytest.fixture
def lines() -> Iterator[list[tuple[str, str]]]:
    """Level and text of what is logged of connections and denials."""
    found: list[tuple[str, str]] = []

    @provider(ILogObserver)
    def observe(event: Any) -> None:
        if event["log_namespace"] in ("kinmqtt.connection", "kinmqtt.denials"):
            found.append((event["log_level"].name, formatEvent(event)))

    globalLogPublisher.addObserver(observe)
    yield found
    globalLogPublisher.removeObserver(observe)


def house(*denied: Action, **limits: Any) -> House:
    return House(plugins={"doorkeeper": Doorkeeper(*denied)}, **limits)


def house_logging_denials(*denied: Action) -> House:
    """As with `--log-level debug`."""
    broker = house(*denied)
    broker.assembly.denials.enabled = True
    return broker


@pytest.mark.parametrize("version", [V311, V5])
def test_a_refused_client_is_named_with_the_plugin_that_decided(lines: list[tuple[str, str]], version: int) -> None:
    """Client id, user name, address and plugin stand in the line; the password does not."""
    house().connect("pump-2", version, username="device", password=b"hush-hush")

    [(level, line)] = [each for each in lines if "refused" in each[1]]
    assert level == LogLevel.info.name
    assert line == (
        "connection from 192.0.2.1:50000 (client 'pump-2', user 'device') refused by doorkeeper: "
        "unknown user or wrong password (0x86 BAD_USER_NAME_OR_PASSWORD)"
    )
    assert "hush" not in str(lines)


def test_a_client_for_whom_nobody_speaks_is_named_too(lines: list[tuple[str, str]]) -> None:
    """Then no plugin has decided."""
    house().connect("stranger")

    assert [line for _, line in lines] == [
        "connection from 192.0.2.1:50000 (client 'stranger', no user name) refused: "
        "no authenticator accepted the client (0x87 NOT_AUTHORIZED)"
    ]


def test_names_are_shown_on_one_line_and_cut(lines: list[tuple[str, str]]) -> None:
    """Whoever is refused writes no lines of its own, and no long ones."""
    house(control_characters="allow").connect("a\nb", V5, username="u" * 60_000)
    house().connect("", V5)

    first, second = (line for _, line in lines if "refused" in line)
    assert r"client 'a\nb', user 'uuu" in first
    assert len(first) < 400
    assert "(no client id, no user name)" in second


def test_denials_are_logged_at_debug(lines: list[tuple[str, str]]) -> None:
    """Of each action, with client, user, topic, text and plugin."""
    broker = house_logging_denials(*Action)
    client = broker.connect("welcome", V5, username="ada")
    client.publish("a/b", b"x", qos=1).publish("a/b", b"x", qos=1).subscribe("a/#")
    broker.connect("welcome", V5, will=will("w"))

    who = "client 'welcome' at 192.0.2.1:5000{}, {}, may not"
    ada, nobody = who.format(0, "user 'ada'"), who.format(1, "no user name")
    why = "line 6 (0x87 NOT_AUTHORIZED, doorkeeper)"
    assert [line for level, line in lines if level == "debug"] == [
        f"{ada} publish to 'a/b': {why}",  # Once: the answer is remembered.
        f"{ada} subscribe to 'a/#': {why}",
        f"{nobody} leave a will on 'w': {why}",
    ]


def test_a_denied_delivery_is_logged_at_debug(lines: list[tuple[str, str]]) -> None:
    """Where a client does not get what it has subscribed to."""
    broker = house_logging_denials(Action.RECEIVE)
    broker.connect("welcome", V5).subscribe("a").publish("a", b"x")

    assert [line for level, line in lines if level == "debug"] == [
        "client 'welcome' at 192.0.2.1:50000, no user name, may not receive 'a': "
        "denied (0x87 NOT_AUTHORIZED, doorkeeper)"
    ]


def test_denials_are_not_logged_by_default(lines: list[tuple[str, str]]) -> None:
    """One broker's setting does not affect another in the same process."""
    house_logging_denials()
    broker = house(*Action)
    broker.connect("welcome", V5).publish("a/b", b"x", qos=1).subscribe("a/#")

    assert [line for level, line in lines if level == "debug"] == []
