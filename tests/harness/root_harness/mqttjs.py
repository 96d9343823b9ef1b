"""MQTT.js on Node, driven by a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from spi_harness.processes import Process, needed

HERE = Path(__file__).parents[2] / "interop"


class RefusedError(Exception):
    """What was asked for has failed; has the reason code where there is one."""

    def __init__(self, text: str, code: Any) -> None:
        super().__init__(text)
        self.code = code


class Driver:
    """A Node process with MQTT.js clients, which do what they are told."""

    def __init__(self, url: str) -> None:
        assert (HERE / "node_modules" / "mqtt" / "package.json").exists(), (
            "MQTT.js is not installed beside this file: `npm ci` here, or `python3 dev.py install`"
        )
        self._url = url
        self._ids = count(1)
        self.process = Process([needed("node", "nodejs"), str(HERE / "mqttjs_driver.mjs")])
        self._read = 0
        self._events: list[dict[str, Any]] = []
        self._wait_for(lambda told: told.get("event") == "ready")

    def ask(self, op: str, client: str, **words: Any) -> Any:
        """Have something done, and return what came of it."""
        number = next(self._ids)
        self.process.say(json.dumps({"id": number, "op": op, "client": client, **words}))
        answer = self._wait_for(lambda told: told.get("id") == number)
        if "error" in answer:
            raise RefusedError(answer["error"], answer.get("code"))
        return answer["result"]

    def event(self, name: str, client: str) -> dict[str, Any]:
        """The next event of that name and client."""
        return self._wait_for(lambda told: told.get("event") == name and told.get("client") == client)

    def _wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for position, told in enumerate(self._events):
            if wanted(told):
                return self._events.pop(position)
        while True:
            self.process.wait_for_line("", count=self._read + 1)
            new: dict[str, Any] = json.loads(self.process.lines[self._read])
            self._read += 1
            if wanted(new):
                return new
            self._events.append(new)

    def connect(self, client: str, version: int, **options: Any) -> dict[str, Any]:
        """Connect a client, and return its CONNACK."""
        options |= {"protocolVersion": version, "protocolId": "MQIsdp" if version == 3 else "MQTT"}
        options.setdefault("clientId", f"j{uuid4().hex[:12]}")
        answer: dict[str, Any] = self.ask("connect", client, url=self._url, options=options)
        return answer

    def subscribe(self, client: str, topic: Any, **options: Any) -> list[int]:
        """Subscribe, and return the reason codes."""
        answer: list[int] = self.ask("subscribe", client, topic=topic, options=options)
        return answer

    def publish(self, client: str, topic: str, payload: str, **options: Any) -> None:
        """Publish, and wait until all is done; raises :class:`RefusedError` with the reason code."""
        self.ask("publish", client, topic=topic, payload=payload, options=options)

    def message(self, client: str) -> dict[str, Any]:
        """The next message a client gets."""
        return self.event("message", client)
