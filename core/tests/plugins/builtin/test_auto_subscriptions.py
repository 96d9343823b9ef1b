"""Subscriptions that clients have without asking, in a whole broker."""

from __future__ import annotations

import pytest
from harness import House

from kinmqtt.mqtt.packets import Suback
from kinmqtt.plugins.builtin.auto_subscriptions import AutoSubscriptionsSettings, TemplateSettings


def _house(*templates: TemplateSettings) -> House:
    return House(plugin_settings={"auto_subscriptions": AutoSubscriptionsSettings(subscriptions=templates)})


def test_a_client_has_them_from_the_start() -> None:
    """Its id is filled in, and no SUBACK is sent."""
    house = _house(TemplateSettings(filter="to/${clientid}/#", qos=1))
    sub = house.connect("one")

    house.connect("pub").publish("to/one/x", b"1", qos=1)
    house.connect("pub2").publish("to/two/x", b"2", qos=1)

    assert sub.messages == [("to/one/x", b"1", 1)]
    assert sub.of(Suback) == []


def test_retained_messages_come_along() -> None:
    """As with a subscription that was asked for."""
    house = _house(TemplateSettings(filter="news"))
    house.connect("pub").publish("news", b"old", retain=True)

    assert house.connect("one").messages == [("news", b"old", 0)]


@pytest.mark.parametrize("filter", ["a/#/b", "", "$share/g", "a/${clientid}+"])
def test_a_filter_that_is_none_is_refused(filter: str) -> None:
    """By the settings, and not anew for each client."""
    with pytest.raises(ValueError, match="is no topic filter"):
        TemplateSettings(filter=filter)
