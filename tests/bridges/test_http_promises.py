"""What holds for a broker with a sink to an HTTP server when something is wrong: the rows of docs/bridge.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_http_harness.server import Server, answer
from root_harness.bridge_promises import Bridged


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that takes everything, until a test gives it a script."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def bridged(server: Server, tmp_path: Path) -> Bridged:
    """A broker with a sink to the server."""
    return Bridged(
        tmp_path,
        "bridge_http",
        f'[plugins.bridge_http.sinks.out]\nfilters = ["to/#"]\nurl = "{server.url}"\n',
        lambda: [json.loads(body)["payload"].encode() for body in server.bodies()],
    )


def test_a_server_that_refuses_the_broker_leaves_its_messages(bridged: Bridged, server: Server) -> None:
    """B7: the line says what to check."""
    token = bridged.folder / "token"
    token.write_text("Bearer wrong-one")
    server.script = lambda got: answer() if got.headers["authorization"] == "Bearer right" else answer(401, b"who?")
    bridged.write(f'secret_headers = {{ Authorization = "{token}" }}\n')

    bridged.refusal_keeps_messages(
        ["plugins.bridge_http.sinks.out: the server answers 401 Said: 'who?': check secret_headers"],
        lambda: token.write_text("Bearer right"),
        b"1",
        b"1",
    )


def test_wrong_settings_stop_the_start_and_a_reload_goes_on_with_the_old(bridged: Bridged) -> None:
    """B8."""
    bridged.wrong_settings_change_nothing('methods = "PUT"\n', "8:1", "methods: unknown key; did you mean 'method'?")


def test_a_poison_message_is_parked_and_named(bridged: Bridged, server: Server) -> None:
    """B6."""
    server.script = lambda got: answer(422, b"no \n thing") if b"bad" in got.body else answer()
    bridged.write()

    bridged.poison_is_parked("to/a", b"bad", "the server answers 422 Said: 'no \\n thing'", b"bad", b"2")
