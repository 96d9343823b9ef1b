"""The sink keeps the contract of sinks, with a server on a real socket."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import pytest

from bridge_http_harness.making import message
from bridge_http_harness.server import HANG, Got, Server, Then, answer
from kinmqtt_bridge_http.settings import SinkSettings
from kinmqtt_bridge_http.sink import HttpSink
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.testing.bridge import SinkCase, SinkContract

POISON = b"this-is-poison"


def sound(got: Got) -> bytes:
    """Takes everything but poison."""
    return answer(422, b"no such thing") if POISON in got.body else answer()


def payloads(server: Server) -> Sequence[bytes]:
    """Return the payloads that the server has taken."""
    taken = []
    for got in server.got:
        if POISON in got.body:
            continue
        parsed = json.loads(got.body) if got.headers["content-type"] == "application/json" else None
        found = [json.loads(line) for line in got.body.splitlines()] if parsed is None else parsed
        for each in [found] if isinstance(found, dict) else found:
            text = each.get("payload")
            taken.append(b64decode(each["payload_base64"]) if text is None else text.encode())
    return taken


class _Suite(SinkContract):
    reactor = "asyncio"
    can_fail = can_refuse = can_hang = has_poison = True
    format: Literal["one", "ndjson", "json_array"]
    target: Server

    @pytest.fixture
    def server(self) -> Iterator[Server]:
        """What the messages go to."""
        server = Server(script=sound)
        yield server
        server.stop()

    @pytest.fixture
    def sink(self, clock: TurnableClock, server: Server) -> SinkCase:
        settings = SinkSettings(url=f"{server.url}/in", format=self.format, connections=8)
        self.target = server
        return SinkCase(HttpSink("out", settings, clock), lambda: payloads(server), message(payload=POISON, qos=1))

    def failing(self, case: SinkCase) -> Callable[[], object]:
        self.target.stop()
        return self.target.start

    def refusing(self, case: SinkCase) -> Callable[[], object]:
        return self._saying(answer(401, b"who are you?"))

    def hanging(self, case: SinkCase) -> Callable[[], object]:
        return self._saying(HANG)

    def _saying(self, said: bytes | Then) -> Callable[[], object]:
        """Let the server take nothing until the call that is returned."""
        server = self.target
        before = len(server.got)
        server.script = lambda got: said

        def repair() -> None:
            del server.got[before:]
            server.script = sound

        return repair


class TestOne(_Suite):
    """A message in each request."""

    format = "one"


class TestLines(_Suite):
    """A line for each message."""

    format = "ndjson"


class TestArray(_Suite):
    """An element for each message."""

    format = "json_array"
