"""A sink and a source over a target and an origin in memory, which tests let fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.memory.polling import Pending
from kinmqtt_spi.services.bridge import Answer, Item, Poison, Publish, Sink, Source
from kinmqtt_spi.testing.bridge import SinkCase, SourceCase
from kinmqtt_spi.testing.build import message
from kinmqtt_spi.values import Message

POISON = message("suite/topic", b"poison", qos=1)


class Target:
    """What a sink sends to."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.state = "up"
        """``up``, ``down``, ``refusing`` or ``hanging``."""

    def set(self, state: str) -> Any:
        """Change the state; return a call that changes it back."""
        self.state = state
        return lambda: setattr(self, "state", "up")


class TargetSink(Sink):
    """A sound sink; its answers come later."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.is_open = False

    def check(self) -> Any:
        return None

    async def open(self) -> None:
        await self.reach()
        self.is_open = True

    async def reach(self) -> None:
        if self.target.state == "hanging":
            await Pending[None]()
        if self.target.state == "down":
            raise ServiceUnavailable("the target is down")
        if self.target.state == "refusing":
            raise SinkRefused("the target does not know this password")

    async def send(self, items: Sequence[Item]) -> Sequence[Answer] | None:
        if not self.is_open:
            raise ServiceUnavailable("not open")
        await self.reach()
        return self.deliver(items)

    def deliver(self, items: Sequence[Item]) -> Sequence[Answer] | None:
        answers = [Poison("the word is forbidden") if self.is_poison(item) else None for item in items]
        self.target.received += [
            item.message.payload for item, answer in zip(items, answers, strict=True) if not answer
        ]
        return answers if any(answers) else None

    def is_poison(self, item: Item) -> bool:
        return item.message.payload == POISON.payload

    async def close(self) -> None:
        self.is_open = False


class Origin:
    """What a source gets messages from."""

    def __init__(self) -> None:
        self.offered: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.is_down = False
        self.changed = Pending[None]()

    def offer(self, payloads: Sequence[bytes]) -> None:
        """Add messages."""
        self.offered += payloads
        changed, self.changed = self.changed, Pending()
        changed.complete()


class OriginSource(Source):
    """A sound source."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    def messages(self, payloads: Sequence[bytes]) -> list[Message]:
        return [Message("from/origin", payload, 1) for payload in payloads]

    async def run(self, publish: Publish) -> None:
        origin = self.origin
        while True:
            if origin.is_down:
                raise ServiceUnavailable("the origin is down")
            batch = origin.offered[len(origin.acknowledged) :][:10]
            if batch:
                await publish(self.messages(batch))
                origin.acknowledged += batch
            else:
                await origin.changed


def sink_case(made: type[TargetSink] = TargetSink) -> tuple[SinkCase, Target]:
    """Make a sink of a class with its target."""
    target = Target()
    return SinkCase(made(target), lambda: target.received, POISON), target


def source_case(made: type[OriginSource] = OriginSource) -> tuple[SourceCase, Origin]:
    """Make a source of a class with its origin."""
    origin = Origin()
    return SourceCase(made(origin), origin.offer, lambda: origin.acknowledged), origin
