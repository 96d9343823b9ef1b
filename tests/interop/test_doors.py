"""Every kind of listener, with the clients that people use: TCP, TLS, WebSocket, Unix, PROXY, systemd."""

from __future__ import annotations

import asyncio
import http.server
import os
import queue
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiomqtt
import gmqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from core_harness.brokers import BrokerProcess, run_command, running_broker
from core_harness.certificates import Authority
from core_harness.wire import Wire, wire
from kinmqtt.mqtt.packets import V5, Publish
from root_harness.mqttjs import Driver
from spi_harness.processes import Process, environment, free_port, needed, wait_until

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
LIMIT_S = 20.0
BANNED = "127.0.0.99"

CONFIGURATION = """\
[broker]
allow_anonymous = true

[listeners.tcp]
endpoint = "tcp:{tcp}:interface=127.0.0.1"

[listeners.tls]
endpoint = "tcp:{tls}:interface=127.0.0.1"
tls = {{ certificate = "localhost.pem", private_key = "localhost.key" }}

[listeners.ws]
endpoint = "tcp:{ws}:interface=127.0.0.1"
websocket = {{ origins = ["*"] }}

[listeners.pages]
endpoint = "tcp:{pages}:interface=127.0.0.1"
websocket = {{}}

[listeners.wss]
endpoint = "tcp:{wss}:interface=127.0.0.1"
tls = {{ certificate = "localhost.pem", private_key = "localhost.key" }}
websocket = {{ path = "/mqtt" }}

[listeners.unix]
endpoint = "unix:mqtt.sock"

[listeners.proxied]
endpoint = "tcp:{proxied}:interface=127.0.0.1"
proxy_protocol = true

[[plugins.bans.entries]]
address = "{banned}"
"""


class Doors:
    """A broker with a listener of every kind, and what its clients need to know."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.authority.issue("localhost")
        self.ports: dict[str, int] = {}
        while len(set(self.ports.values())) < 6:
            self.ports = {name: free_port() for name in ("tcp", "tls", "ws", "pages", "wss", "proxied")}
        text = CONFIGURATION.format(**self.ports, banned=BANNED)
        (folder / "kinmqtt.toml").write_text(text, encoding="utf-8")

    @property
    def socket(self) -> str:
        """The path of the Unix socket."""
        return str(self.folder / "mqtt.sock")

    def context(self) -> ssl.SSLContext:
        """What a client of TLS needs."""
        context = ssl.create_default_context(cafile=str(self.authority.file))
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # As Python's own clients are from 3.13 on.
        return context

    @contextmanager
    def listening(self, *filters: str) -> Iterator[Wire]:
        """A plain client that has subscribed."""
        with wire(self.ports["tcp"], f"sub-{uuid4().hex[:8]}", V5) as client:
            for filter in filters:
                client.subscribe(filter, 0)
            yield client


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def doors(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Doors]:
    """The broker, for all tests of the module, with sockets of either sort."""
    doors = Doors(tmp_path_factory.mktemp("doors"))
    command = [sys.executable, "-m", "kinmqtt", "run", "-c", "kinmqtt.toml"]
    env = environment(KINMQTT__BROKER__EVENT_LOOP=request.param)
    with running_broker(command=lambda port: command, cwd=doors.folder, env=env):
        yield doors


@pytest.fixture
def topic() -> str:
    """A topic of the test's own."""
    return f"doors/{uuid4().hex[:8]}"


def _arrived(client: Wire, topic: str) -> bytes:
    publish = client.expect(Publish)
    assert publish.topic == topic
    return publish.payload


# paho


def _paho(doors: Doors, door: str) -> paho.Client:
    transport = {"ws": "websockets", "wss": "websockets", "unix": "unix"}.get(door, "tcp")
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        protocol=paho.MQTTv5,
        transport=transport,  # type: ignore[arg-type]
        reconnect_on_failure=False,
    )
    if door in ("tls", "wss"):
        client.tls_set_context(doors.context())
    if door == "unix":
        client.connect(doors.socket, 1)
    else:
        client.connect("localhost", doors.ports[door])
    return client


@pytest.mark.parametrize("door", ["tcp", "tls", "ws", "wss", "unix"])
def test_paho(doors: Doors, topic: str, door: str) -> None:
    """A large message goes in and out."""
    told: queue.Queue[Any] = queue.Queue()
    client = _paho(doors, door)
    client.on_message = lambda client, data, message: told.put((message.topic, message.payload, message.qos))
    client.on_subscribe = lambda client, data, mid, reasons, properties: told.put("subscribed")
    payload = os.urandom(300_000)
    client.loop_start()
    try:
        client.subscribe(topic, 2)
        assert told.get(timeout=LIMIT_S) == "subscribed"
        client.publish(topic, payload, 2)
        assert told.get(timeout=LIMIT_S) == (topic, payload, 2)
    finally:
        client.disconnect()
        client.loop_stop()


# mosquitto


@pytest.mark.parametrize("door", ["tls", "unix"])
def test_mosquitto_pub(doors: Doors, topic: str, door: str) -> None:
    """The command line of another broker's users."""
    where = {
        "tls": ["-h", "localhost", "-p", str(doors.ports["tls"]), "--cafile", str(doors.authority.file)],
        "unix": ["--unix", doors.socket],
    }[door]
    program = needed("mosquitto_pub", "mosquitto-clients")

    with doors.listening(topic) as sub:
        done = run_command(*where, "-t", topic, "-m", "hello", "-q", "1", program=[program])
        assert done.returncode == 0, done.stderr
        assert _arrived(sub, topic) == b"hello"


# aiomqtt and gmqtt


@pytest.mark.parametrize("door", ["tls", "ws", "wss"])
def test_aiomqtt(doors: Doors, topic: str, door: str) -> None:
    """paho's asyncio face."""

    async def talk() -> None:
        context = doors.context() if door in ("tls", "wss") else None
        transport: Any = "websockets" if door in ("ws", "wss") else "tcp"
        async with aiomqtt.Client("localhost", doors.ports[door], tls_context=context, transport=transport) as client:
            await client.subscribe(topic, 1)
            await client.publish(topic, b"hello", 1)
            message = await anext(aiter(client.messages))
            assert message.payload == b"hello"

    asyncio.run(asyncio.wait_for(talk(), LIMIT_S))


@pytest.mark.parametrize("door", ["tcp", "tls"])
@pytest.mark.parametrize("version", [4, 5])
def test_gmqtt(doors: Doors, topic: str, door: str, version: int) -> None:
    """A client that shares no code with the others."""

    async def talk() -> None:
        arrived: asyncio.Queue[tuple[str, bytes, int]] = asyncio.Queue()
        subscribed = asyncio.Event()
        client = gmqtt.Client(f"g{uuid4().hex[:8]}")
        client.on_message = lambda client, topic, payload, qos, properties: arrived.put_nowait((topic, payload, qos))
        client.on_subscribe = lambda client, mid, qos, properties: subscribed.set()
        secure: Any = doors.context() if door == "tls" else False
        await client.connect("localhost", doors.ports[door], ssl=secure, version=version)
        client.subscribe(topic, qos=2)
        await subscribed.wait()
        client.publish(topic, b"hello", qos=2)
        assert await arrived.get() == (topic, b"hello", 2)
        with suppress(ssl.SSLError):  # It closes without waiting for what is on its way to it, and says so.
            await client.disconnect()

    asyncio.run(asyncio.wait_for(talk(), LIMIT_S))


# MQTT.js


@pytest.mark.parametrize(("door", "scheme"), [("tls", "mqtts"), ("ws", "ws"), ("wss", "wss")])
@pytest.mark.parametrize("version", [4, 5])
def test_mqttjs(doors: Doors, topic: str, door: str, scheme: str, version: int) -> None:
    """The client of JavaScript, on Node."""
    driver = Driver(f"{scheme}://localhost:{doors.ports[door]}/mqtt")
    try:
        driver.connect("c", version, ca=doors.authority.file.read_text(encoding="utf-8"))
        driver.subscribe("c", topic, qos=2)
        driver.publish("c", topic, "hello", qos=2)
        message = driver.event("message", "c")
        assert (message["topic"], message["payload"], message["qos"]) == (topic, "hello", 2)
    finally:
        driver.process.end()


class Page(http.server.BaseHTTPRequestHandler):
    """Serves the page and MQTT.js, and takes what the page tells."""

    told: queue.Queue[str] = queue.Queue()
    files = {  # noqa: RUF012
        "/": (HERE / "browser.html", "text/html"),
        "/mqtt.js": (HERE / "node_modules" / "mqtt" / "dist" / "mqtt.js", "text/javascript"),
    }

    def do_GET(self) -> None:
        found = self.files.get(self.path.partition("?")[0])
        body = found[0].read_bytes() if found else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", found[1] if found else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.told.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[int]:
    """A web server with the page, and its port."""
    while not Page.told.empty():
        Page.told.get()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _visit(folder: Path, port: int, broker_port: int, version: int) -> str:
    """What a page that a headless Chromium loads from one port tells of the broker at another."""
    if shutil.which("chromium") is None and "ID=ubuntu" in Path("/etc/os-release").read_text().splitlines():
        pytest.skip("Ubuntu has no chromium package; Debian has, and there this runs")
    chromium = needed("chromium", "chromium")
    page = f"http://127.0.0.1:{port}/?version={version}&url=ws://127.0.0.1:{broker_port}/mqtt"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    browser = Process([chromium, *options, f"--user-data-dir={folder}", page])
    try:
        return Page.told.get(timeout=3 * LIMIT_S)
    except queue.Empty:
        raise AssertionError(browser.output) from None
    finally:
        browser.end()


@pytest.mark.parametrize("version", [4, 5])
def test_a_browser(doors: Doors, tmp_path: Path, version: int) -> None:
    """A page in a headless Chromium speaks MQTT over WebSocket, where the listener takes pages from everywhere."""
    with serving() as port:
        assert _visit(tmp_path, port, doors.ports["ws"], version) == "browser/page hello 2"


def test_a_browser_on_a_page_of_another_host(doors: Doors, tmp_path: Path) -> None:
    """Where the listener says nothing of origins, a page of another port is not spoken to (RFC 6455 section 10.2)."""
    with serving() as port:
        assert _visit(tmp_path, port, doors.ports["pages"], 5) == "closed"


HTTP_PROXY = """\
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    timeout tunnel 30s
frontend web
    bind 127.0.0.1:{front}
    use_backend broker if {{ path /mqtt }}
    default_backend pages
backend broker
    server broker 127.0.0.1:{back}
backend pages
    server pages 127.0.0.1:{pages}
"""


def test_a_browser_on_a_page_of_the_same_host(doors: Doors, tmp_path: Path) -> None:
    """Behind a proxy that serves the page and hands /mqtt to the broker the page needs no setting."""
    front = free_port()
    with serving() as port:
        configuration = tmp_path / "haproxy.cfg"
        text = HTTP_PROXY.format(front=front, back=doors.ports["pages"], pages=port)
        configuration.write_text(text, encoding="utf-8")
        proxy = Process([needed("haproxy", "haproxy"), "-db", "-f", str(configuration)])
        try:
            _wait_for_port(front)
            assert _visit(tmp_path, front, front, 5) == "browser/page hello 2"
        finally:
            proxy.end()


# TLS by OpenSSL's own hand


def _s_client(doors: Doors, *options: str) -> subprocess.CompletedProcess[str]:
    program = needed("openssl", "openssl")
    where = ["-connect", f"127.0.0.1:{doors.ports['tls']}", "-CAfile", str(doors.authority.file), "-brief"]
    return run_command("s_client", *where, *options, program=[program])


@pytest.mark.parametrize(
    ("options", "version"),
    [(["-tls1_3"], "TLSv1.3"), (["-tls1_2"], "TLSv1.2"), (["-alpn", "mqtt"], "TLSv1.3")],
)
def test_openssl_agrees(doors: Doors, options: list[str], version: str) -> None:
    """On the version, a cipher with forward secrecy, and the certificate."""
    said = _s_client(doors, *options).stderr

    assert f"Protocol version: {version}" in said
    assert "Verification: OK" in said
    assert "GCM" in said or "CHACHA20" in said


@pytest.mark.parametrize(
    "options",
    [
        ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "aNULL:@SECLEVEL=0"],
    ],
)
def test_openssl_is_refused(doors: Doors, options: list[str]) -> None:
    """Old versions, no authentication of the broker, ciphers without authenticated encryption."""
    done = _s_client(doors, *options)

    assert done.returncode != 0
    assert "Verification: OK" not in done.stderr


# A proxy in front


HAPROXY = """\
defaults
    mode tcp
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend mqtt
    bind 127.0.0.1:{front}
    default_backend broker
backend broker
    server broker 127.0.0.1:{back} {send}
"""


@pytest.mark.parametrize("send", ["send-proxy", "send-proxy-v2"])
def test_haproxy(doors: Doors, topic: str, tmp_path: Path, send: str) -> None:
    """Behind it the broker knows who connects: one is let in, and another, who is banned by its address, is not."""
    front = free_port()
    configuration = tmp_path / "haproxy.cfg"
    configuration.write_text(HAPROXY.format(front=front, back=doors.ports["proxied"], send=send), encoding="utf-8")
    proxy = Process([needed("haproxy", "haproxy"), "-db", "-f", str(configuration)])
    try:
        _wait_for_port(front)
        with doors.listening(topic) as sub, wire(front, "through-haproxy", V5) as client:
            client.publish(topic, b"hello")
            assert _arrived(sub, topic) == b"hello"
        with socket.create_connection(("127.0.0.1", front), LIMIT_S, source_address=(BANNED, 0)) as banned:
            assert banned.recv(1) == b""
    finally:
        proxy.end()


def _wait_for_port(port: int) -> None:
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers, f"port {port} answers")


# Sockets that are handed over


LAUNCHER = """\
import os, socket, sys
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
os.dup2(listening.fileno(), 3)
os.set_inheritable(3, True)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "mqtt"}
os.execv(sys.executable, [sys.executable, "-m", "kinmqtt", "run", "--allow-anonymous",
                          "--listen", "systemd:domain=INET:index=0"])
"""


def test_systemd_hands_over_a_socket(topic: str) -> None:
    """Socket activation: the broker listens on what it was given."""

    def command(port: int) -> list[str]:
        return [sys.executable, "-c", LAUNCHER, str(port)]

    with running_broker(command=command) as broker:
        _talk(broker, topic)


def _talk(broker: BrokerProcess, topic: str) -> None:
    with wire(broker.port, "sub", V5) as sub, wire(broker.port, "pub", V5) as pub:
        sub.subscribe(topic, 0)
        pub.publish(topic, b"hello")
        assert _arrived(sub, topic) == b"hello"


# The end


def test_everybody_is_told_of_the_end(tmp_path: Path) -> None:
    """SIGTERM: whoever came in by whichever door gets 0x8B, and the broker ends with status 0."""
    doors = Doors(tmp_path)
    told: queue.Queue[tuple[str, Any]] = queue.Queue()
    command = [sys.executable, "-m", "kinmqtt", "run", "-c", "kinmqtt.toml"]
    with running_broker(command=lambda port: command, cwd=tmp_path) as broker:
        clients = {door: _paho(doors, door) for door in ("tcp", "tls", "ws", "wss", "unix")}
        for door, client in clients.items():
            client.on_connect = lambda *_, door=door: told.put(("in", door))
            client.on_disconnect = lambda c, d, flags, reason, properties, door=door: told.put((door, reason.value))
            client.loop_start()
        for _ in clients:
            assert told.get(timeout=LIMIT_S)[0] == "in"

        broker.tell_to_stop()
        reasons = dict(told.get(timeout=LIMIT_S) for _ in clients)
        assert broker.wait() == 0
        for client in clients.values():
            client.disconnect()
            client.loop_stop()

    assert reasons == dict.fromkeys(clients, 0x8B)
