"""What holds for a broker with a sink to an HTTP server when something is wrong: the rows of docs/bridge.md."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_http_harness.server import Server, answer
from core_harness.brokers import run_command, running_broker
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import V5, Puback, Publish
from spi_harness.processes import wait_until


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that takes everything, until a test gives it a script."""
    server = Server()
    yield server
    server.stop()


def write_settings(folder: Path, url: str, sink: str = "") -> None:
    """Write a broker's settings, with one sink."""
    (folder / "kinmqtt.toml").write_text(
        '[broker]\nsys_interval_s = 0.1\n[plugins]\nonly = ["bridge_http"]\n'
        f'[plugins.bridge_http.sinks.out]\nfilters = ["to/#"]\nurl = "{url}"\n{sink}'
    )


def running(folder: Path) -> Any:
    """A broker over the folder's data."""
    return running_broker("-c", "kinmqtt.toml", "--data", str(folder / "data"), cwd=folder)


def state_is(client: Wire, wanted: bytes) -> None:
    """Wait until the sink's state below ``$SYS`` is that."""
    client.subscribe("$SYS/bridge/bridge_http/out/state", packet_id=9)
    while True:
        packet = client.receive()
        assert packet is not None
        if isinstance(packet, Publish) and packet.payload == wanted:
            return


def payloads(server: Server) -> list[str]:
    """What has come."""
    return [json.loads(body)["payload"] for body in server.bodies()]


def test_a_server_that_refuses_the_broker_leaves_its_messages(server: Server, tmp_path: Path) -> None:
    """B7: REFUSED, with a line that says where and how, without secrets; publishers go on, a reload tries at once."""
    token = tmp_path / "token"
    token.write_text("Bearer wrong-one")
    server.script = lambda got: answer() if got.headers["authorization"] == "Bearer right" else answer(401, b"who?")
    write_settings(tmp_path, server.url, f'secret_headers = {{ Authorization = "{token}" }}\n')
    with running(tmp_path) as process, wire(process.port, "p", V5) as client:
        client.publish("to/a", b"1", 1, packet_id=1).expect(Puback)
        state_is(client, b"refused")
        [line] = process.wait_for_line("sink bridge_http:out failed in send")
        assert "plugins.bridge_http.sinks.out: the server answers 401 Said: 'who?': check secret_headers" in line
        assert "tried again in 60" in line
        token.write_text("Bearer right")
        process.signal(signal.SIGHUP)
        wait_until(lambda: payloads(server) == ["1", "1"], "the message has come")
        assert "wrong-one" not in process.output


def test_wrong_settings_stop_the_start_and_a_reload_goes_on_with_the_old(server: Server, tmp_path: Path) -> None:
    """B8: an unknown key is named with its place and the key that was meant."""
    wrong = 'methods = "PUT"\n'
    write_settings(tmp_path, server.url, wrong)
    for command in ("check", "run"):
        done = run_command(command, "-c", "kinmqtt.toml", cwd=tmp_path)
        assert done.returncode != 0
        problem = "plugins.bridge_http.sinks.out.methods: unknown key; did you mean 'method'?"
        assert f"kinmqtt.toml:8:1: {problem}" in done.stderr

    write_settings(tmp_path, server.url)
    with running(tmp_path) as process, wire(process.port, "p", V5) as client:
        write_settings(tmp_path, server.url, wrong)
        process.signal(signal.SIGHUP)
        process.wait_for_line("unknown key; did you mean 'method'")
        client.publish("to/a", b"1", 1, packet_id=1).expect(Puback)
        wait_until(lambda: payloads(server) == ["1"], "the old sink goes on")


def test_a_poison_message_is_parked_and_named(server: Server, tmp_path: Path) -> None:
    """B6: the line says which sink, why, and what became of it; the others go on."""
    server.script = lambda got: answer(422, b"no \n thing") if b"bad" in got.body else answer()
    write_settings(tmp_path, server.url)
    with running(tmp_path) as process, wire(process.port, "p", V5) as client:
        client.publish("to/a", b"bad", 1, packet_id=1).expect(Puback)
        client.publish("to/a", b"2", 1, packet_id=2).expect(Puback)
        wait_until(lambda: payloads(server) == ["bad", "2"], "the other has come")
        [line] = process.wait_for_line("sink bridge_http:out will never take a message")
        assert "the server answers 422 Said: 'no \\n thing'" in line and "it is parked" in line
