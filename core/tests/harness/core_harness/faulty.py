"""Plugins made of functions, and what a client meets where they are broken: for the tests of plugins' mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from twisted.logger import ILogObserver, globalLogPublisher
from zope.interface import provider

from core_harness.house import House
from kinmqtt.mqtt.packets import V5, Puback, Suback, Unsuback
from kinmqtt_spi import Message, Properties, fails_closed, hookimpl
from kinmqtt_spi.hookspecs import HOOKSPEC_MODULES
from kinmqtt_spi.services.plugin import HealthState
from kinmqtt_spi.values import Will


@contextmanager
def logged() -> Iterator[list[str]]:
    """What the log says of the plugins and their outboxes."""
    found: list[str] = []

    @provider(ILogObserver)
    def observe(event: dict[str, Any]) -> None:
        if event.get("log_namespace") in ("kinmqtt.hooks", "kinmqtt.outboxes", "kinmqtt.subscribe", "kinmqtt.taps"):
            found.append(str(event["log_format"]).format(**event))

    globalLogPublisher.addObserver(observe)
    try:
        yield found
    finally:
        globalLogPublisher.removeObserver(observe)


def plugin(*, closed: bool = False, **hooks: Callable[..., Any]) -> Any:
    """A plugin with these functions for hooks; each takes what its hook has."""
    specs = {name: spec for module in HOOKSPEC_MODULES for name, spec in vars(module).items() if name in hooks}

    class Made:
        pass

    for name, function in hooks.items():
        spec = specs[name]
        names = spec.__code__.co_varnames[: spec.__code__.co_argcount]
        scope: dict[str, Any] = {"function": function}
        exec(f"def {name}({', '.join(['self', *names])}): return function({', '.join(names)})", scope)
        made = hookimpl(scope[name])
        setattr(Made, name, fails_closed(made) if closed else made)
    return Made()


def broken(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


# How clients fare


def connect_reason(house: House) -> int:
    """How a CONNECT is answered."""
    peer = house.connect("c", V5)
    return int(peer.connack.reason)


def publish_reason(house: House) -> int:
    """How a PUBLISH is answered, where somebody wants it."""
    house.connect("s", V5).subscribe("t", qos=1)
    return int(house.connect("p", V5).publish("t", b"x", qos=1).of(Puback)[0].reason)


def received(house: House) -> list[bytes]:
    """What a subscriber gets of a message."""
    sub = house.connect("s", V5).subscribe("t", qos=1)
    house.connect("p", V5).publish("t", b"x", qos=1)
    return [payload for _, payload, _ in sub.messages]


def will_received(house: House) -> list[bytes]:
    """What a subscriber gets of a will."""
    sub = house.connect("s", V5).subscribe("w", qos=1)
    house.connect("p", V5, will=Will(Message("w", b"gone", 1))).drop()
    return [payload for _, payload, _ in sub.messages]


def retained(house: House) -> list[bytes]:
    """What is retained of a message."""
    house.connect("p", V5).publish("t", b"x", retain=True)
    return [payload for _, payload, _ in house.connect("s", V5).subscribe("t").messages]


def subscribe_reason(house: House) -> int:
    """How a SUBSCRIBE is answered."""
    return int(house.connect("s", V5).subscribe("t").of(Suback)[0].reasons[0])


def unsubscribe_reason(house: House) -> int:
    """How an UNSUBSCRIBE is answered."""
    return int(house.connect("s", V5).subscribe("t").unsubscribe("t").of(Unsuback)[0].reasons[0])


def shared(house: House) -> list[bytes]:
    """What the one member of a shared subscription gets."""
    sub = house.connect("s", V5).subscribe("$share/g/t", qos=1)
    house.connect("p", V5).publish("t", b"x", qos=1)
    return [payload for _, payload, _ in sub.messages]


def overflow(house: House) -> int:
    """How many wait for a client whose queue has room for one."""
    house.connect("s", V5, expiry_s=60).subscribe("t", qos=1).drop()
    pub = house.connect("p", V5)
    for _ in range(3):
        pub.publish("t", b"x", qos=1)
    return house.broker.sessions.by_id["s"].queue.count


def health(house: House) -> HealthState:
    """How the plugin does."""
    return house.result(house.broker.health())["wrong"].state  # type: ignore[no-any-return]


def opened(house: House) -> bool:
    """Whether a connection is closed at once."""
    return house.open().closed


def reloaded(house: House) -> str:
    """What a reload says."""
    settings = {name: context.settings for name, context in house.assembly.contexts.items()}
    return "; ".join(house.result(house.broker.reload(lambda name, settings_class: settings[name])))


def exchanged(house: House) -> int:
    """How a CONNECT that names an authentication method is answered."""
    peer = house.connect("c", V5, properties=Properties(authentication_method="m"))
    return int(peer.connack.reason)
