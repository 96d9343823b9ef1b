"""Plugins that ask to fail closed, and those that do not, through a whole broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_harness.faulty import broken, connect_reason, opened, plugin, publish_reason, received, subscribe_reason
from core_harness.house import House
from kinmqtt.mqtt.packets import V5
from kinmqtt_spi import ReasonCode
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.services.limiter import LimiterNeeds


def limited_at(kind: str) -> Callable[..., Any]:
    """A limiter that fails at one kind of resource."""
    return lambda resource, amount: broken() if resource.kind.value == kind else None


CLOSED: list[tuple[str, Callable[..., Any], Callable[[House], Any], Any, Any]] = [
    ("acquire", limited_at("connection"), opened, False, True),
    ("acquire", limited_at("connect"), connect_reason, 0, 0x88),
    ("acquire", limited_at("publish"), publish_reason, 0, 0x83),
    ("acquire", limited_at("subscribe"), subscribe_reason, 0, 0x83),
    ("acquire", lambda *_: True, connect_reason, 0, None),
    ("delivering", broken, received, [b"x"], []),
    ("delivering", lambda *_: True, received, [b"x"], []),
    ("connack_sending", broken, connect_reason, 0, 0x83),
    ("initial_subscriptions", broken, connect_reason, 0, 0x88),
    ("initial_subscriptions", lambda _: ["a"], connect_reason, 0, 0x88),
]


@pytest.mark.parametrize(
    ("hook", "function", "ask", "open", "closed"), CLOSED, ids=[f"{c[0]}-{n}" for n, c in enumerate(CLOSED)]
)
def test_a_plugin_may_ask_to_fail_closed(
    hook: str, function: Callable[..., Any], ask: Callable[[House], Any], open: Any, closed: Any
) -> None:
    """What its failure would let through is refused, as the hook's page says; without the mark it is let through."""
    found: list[Any] = []
    for marked in (False, True):
        house = House(plugins={"limits": plugin(closed=marked, **{hook: function})})
        if marked and closed is None:
            assert house.open().closed
            continue
        found.append(ask(house))

    assert found == [open, closed] if closed is not None else [open]


def test_a_message_that_a_failure_keeps_back_is_counted() -> None:
    """As one that a plugin dropped for the client."""
    house = House(plugins={"masks": plugin(closed=True, delivering=broken)})

    received(house)

    assert house.broker.runtime.statistics.dropped["intercepted"].value == 1
    assert house.assembly.metrics.sum("plugin.failures") == 1


def test_a_limiter_that_fails_closed_is_told_of_no_end() -> None:
    """It granted nothing; whoever granted its part beside it has it back at once."""
    released: list[str] = []
    needs = LimiterNeeds(releases=LimiterNeeds().kinds)
    parts: dict[str, dict[str, Any]] = {
        name: {"limiter_needs": lambda: needs, "release": lambda resource, amount, name=name: released.append(name)}
        for name in ("broken", "sound")
    }
    plugins = {
        "broken": plugin(closed=True, acquire=limited_at("connect")),
        "sound": plugin(acquire=lambda resource, amount: None, **parts["sound"]),
    }
    house = House(plugins=plugins)

    house.connect("a", V5)

    assert released.count("sound") == 2  # The connection's and the CONNECT's.
    assert house.connect("b", V5).connack.reason is ReasonCode.SERVER_UNAVAILABLE


@pytest.mark.parametrize("hook", ["authenticate", "published", "choose_member", "queue_full"])
def test_only_hooks_that_fail_open_can_be_marked(hook: str) -> None:
    """A mark that changes nothing would be believed."""
    with pytest.raises(AssemblyError, match=f"plugin 'eager' marks its hook {hook} fails_closed"):
        House(plugins={"eager": plugin(closed=True, **{hook: broken})})


@pytest.mark.parametrize("hook", ["connack_sending", "initial_subscriptions"])
@pytest.mark.parametrize("expiry_s", [0, 60])
def test_a_client_that_a_failure_refuses_may_come_again(hook: str, expiry_s: int) -> None:
    """Its session was opened by then: it ends, or waits for its client, as if the connection had been lost."""
    fails = [True]
    house = House(plugins={"strict": plugin(closed=True, **{hook: lambda *_: broken() if fails.pop() else None})})
    fails.insert(0, False)

    refused = house.connect("c", V5, expiry_s=expiry_s)
    left = set(house.broker.sessions.by_id)
    peer = house.connect("c", V5, clean_start=False, expiry_s=expiry_s)

    assert refused.closed and refused.connack.reason.is_failure
    assert left == ({"c"} if expiry_s else set())
    assert (peer.connack.reason, peer.connack.session_present) == (ReasonCode.SUCCESS, bool(expiry_s))
