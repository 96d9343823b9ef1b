"""Subscriptions that clients have without asking, in a whole broker."""

from __future__ import annotations

import pytest

from core_harness.house import House
from kinmqtt.builtins.auto_subscriptions import AutoSubscriptionsSettings, TemplateSettings
from kinmqtt.mqtt.packets import Suback


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
    with pytest.raises(ValueError, match="is not a topic filter"):
        TemplateSettings(filter=filter)


def test_a_template_may_be_a_shared_subscription() -> None:
    """Clients share what they are subscribed to without asking, and one of them gets each message [section 4.8.2]."""
    house = _house(TemplateSettings(filter="$share/g/jobs/#", qos=1))
    workers = [house.connect(name) for name in "ab"]
    pub = house.connect("pub")
    pub.unsubscribe("$share/g/jobs/#")

    for number in range(4):
        pub.publish("jobs/x", b"%d" % number)

    assert [len(worker.messages) for worker in workers] == [2, 2]


@pytest.mark.parametrize("template", ["${clientid}/#", "$share/g/${clientid}/#"])
@pytest.mark.parametrize("client_id", ["$SYS", "$CONTROL", "$share"])
def test_a_client_chooses_no_topics_of_the_broker_by_its_name(template: str, client_id: str) -> None:
    """A name that begins with a dollar fills in no beginning; within a filter it is a level as any other."""
    house = _house(TemplateSettings(filter=template), TemplateSettings(filter="to/${clientid}"))

    house.connect(client_id)

    assert [filter for filter, _ in house.broker.router.index.filters()] == [f"to/{client_id}"]


def test_no_local_on_a_shared_template_is_refused() -> None:
    """MQTT has no such subscription [MQTT-3.8.3-4]."""
    with pytest.raises(ValueError, match="no_local"):
        TemplateSettings(filter="$share/g/a", no_local=True)
