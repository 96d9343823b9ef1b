"""The plugin keeps the contract of plugins, and refuses settings with the place of each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinmqtt_bridge_http import BridgeHttp, BridgeHttpSettings
from kinmqtt_bridge_http.sink import HttpSink
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.outbox import WhenFull
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.testing.plugin import PluginCase, PluginContract
from kinmqtt_spi.values import Message, Publisher

SECTION = """
[plugins.bridge_http.sinks.readings]
filters = ["sensors/#"]
url = "http://127.0.0.1:8080/${topic[1]}"
format = "ndjson"
key = "${clientid}/${topic}"
headers = { X-Site = "north" }
outbox = { max_bytes = "1 GiB", when_full = "refuse" }
sending = { parallel = 4, poison = "drop" }
"""
PLACE = "plugins.bridge_http.sinks"


def parsed(text: str) -> BridgeHttpSettings:
    """The settings of a file."""
    return parse(BridgeHttpSettings, Document.parse(text, "kinmqtt.toml"), ("plugins", "bridge_http"))


def configured(text: str = SECTION) -> tuple[BridgeHttp, BareContext]:
    """A plugin with these settings."""
    plugin = BridgeHttp()
    context = BareContext("bridge_http", parsed(text))
    plugin.configure(context)
    return plugin, context


class TestPlugin(PluginContract):
    """The plugin as any other."""

    reactor = "asyncio"
    reloads = True
    refuses_settings = True

    @pytest.fixture
    def plugin(self) -> PluginCase:
        section = SECTION.replace("plugins.bridge_http.", "")
        changed = section.replace("8080", "8081")
        return PluginCase(BridgeHttp, section, changed=changed, refused="", name="bridge_http")

    def probe(self, plugin: Any) -> object:
        return [sink.sink._settings for sink in plugin.sinks(BareContext("bridge_http", None)).values()]


def test_sinks_are_those_of_the_settings() -> None:
    """With their filters, bounds and keys."""
    plugin, context = configured()

    [(name, plan)] = plugin.sinks(context).items()

    assert name == "readings"
    assert isinstance(plan.sink, HttpSink)
    assert plan.filters == ("sensors/#",)
    assert (plan.outbox.max_bytes, plan.outbox.when_full) == (1 << 30, WhenFull.REFUSE)
    assert (plan.sending.parallel, plan.sending.poison) == (4, "drop")
    assert plan.key(Message("a/b", publisher=Publisher("ada"))) == b"ada/a/b"


def test_without_sinks_the_plugin_abstains() -> None:
    """It is installed, and nobody has said what for."""
    with pytest.raises(NotConfigured):
        configured("")


def test_a_secret_without_encryption_is_warned_of(tmp_path: Path) -> None:
    """Whoever is on the way can read it."""
    (tmp_path / "t").write_text("hidden")

    _, context = configured(f'{SECTION}secret_headers = {{ Authorization = "{tmp_path}/t" }}\n')

    assert "readings" in context.log.texts("warn")[0]
    assert "hidden" not in repr(context.settings)


@pytest.mark.parametrize(
    ("found", "instead", "problem"),
    [
        (
            "${topic[1]}",
            "${topics}",
            f"kinmqtt.toml:4:7: {PLACE}.readings.url: 'http://127.0.0.1:8080/${{topics}}': unknown placeholder "
            "${topics}; did you mean 'topic'?; use ${topic}, ${topic[N]}, ${clientid} or ${username}",
        ),
        (
            "127.0.0.1",
            "${clientid}",
            f"kinmqtt.toml:4:7: {PLACE}.readings.url: 'http://${{clientid}}:8080/${{topic[1]}}': the host is fixed: "
            "placeholders may stand in the path and in the query only",
        ),
        (
            "sensors/#",
            "sensors/#/x",
            f"kinmqtt.toml:3:11: {PLACE}.readings.filters: 'sensors/#/x' is not a topic filter "
            "that a topic can match",
        ),
        (
            "max_bytes",
            "max_byte",
            f"kinmqtt.toml:8:12: {PLACE}.readings.outbox.max_byte: unknown key; did you mean 'max_bytes'?",
        ),
        (
            "format =",
            "fromat =",
            f"kinmqtt.toml:5:1: {PLACE}.readings.fromat: unknown key; did you mean 'format'?",
        ),
        (
            "X-Site =",
            "idempotency-key =",
            f"kinmqtt.toml:7:11: {PLACE}.readings.headers: 'idempotency-key' is a header that the bridge sets itself",
        ),
        (
            "X-Site =",
            "Content-Type =",
            f"kinmqtt.toml:7:11: {PLACE}.readings.headers: Content-Type is a key of its own: content_type",
        ),
        (
            "X-Site =",
            '"X Site" =',
            f"kinmqtt.toml:7:11: {PLACE}.readings.headers: 'X Site' can't be the name of a header",
        ),
        (
            "X-Site =",
            'x-site = "a", X-Site =',
            f"kinmqtt.toml:7:11: {PLACE}.readings.headers: 'X-Site' is there twice: headers have no upper and lower "
            "case",
        ),
        (
            "north",
            "nörth",
            f"kinmqtt.toml:7:11: {PLACE}.readings.headers: 'nörth': headers have printable ASCII characters only",
        ),
        (
            "format =",
            "body = '${payload}'\nformat =",
            f'kinmqtt.toml:5:8: {PLACE}.readings.body: format "ndjson" needs a template of JSON in one line, and a '
            'content_type that is JSON; for others use format "one"',
        ),
        (
            "format =",
            "body = '{\"a\": ${topic}}'\nformat =",
            f"kinmqtt.toml:5:8: {PLACE}.readings.body: filled in, '{{\"a\": ${{topic}}}}' is no JSON: "
            "Expecting value: line 1 column 7 (char 6); placeholders stand within quotes",
        ),
        (
            "format =",
            'content_type = "json"\nformat =',
            f"kinmqtt.toml:5:16: {PLACE}.readings.content_type: 'json' is no content type, such as application/json",
        ),
        (
            "format =",
            'tls = { ca_file = "/dev/null" }\nformat =',
            f"kinmqtt.toml:5:1: {PLACE}.readings.tls: ca_file: /dev/null: can't be read: it is a device, "
            "not a regular file",
        ),
        (
            "format =",
            'secret_headers = { x-site = "/none" }\nformat =',
            f"kinmqtt.toml:5:18: {PLACE}.readings.secret_headers: 'x-site' is in headers too",
        ),
        (
            "format =",
            'secret_headers = { Authorization = "/none" }\nformat =',
            f"kinmqtt.toml:5:18: {PLACE}.readings.secret_headers: Authorization: /none: there is no such file",
        ),
        (
            "sinks.readings",
            'sinks."a b"',
            f"kinmqtt.toml:2:22: {PLACE}: 'a b' is not a name: use up to 64 of a-z, 0-9, underscore and hyphen",
        ),
    ],
)
def test_each_mistake_has_its_place(found: str, instead: str, problem: str) -> None:
    """File, line, key, what is wrong and what would do."""
    assert found in SECTION

    with pytest.raises(SettingsError) as refused:
        parsed(SECTION.replace(found, instead))

    assert refused.value.problems == (problem,)


@pytest.mark.parametrize("scheme", ["http", "HTTP"])
def test_certificates_without_encryption_are_refused(scheme: str, tmp_path: Path) -> None:
    """They would not be used."""
    (tmp_path / "ca").write_text("x")

    with pytest.raises(SettingsError, match=r"readings\.tls: an http:// url is not encrypted: write https://"):
        parsed(f'{SECTION}tls = {{ ca_file = "{tmp_path}/ca" }}\n'.replace("http:", f"{scheme}:"))
    with pytest.raises(SettingsError, match=r"tls: certificate_file and key_file need each other"):
        parsed(f'{SECTION}tls = {{ key_file = "{tmp_path}/ca" }}\n'.replace("http:", "https:"))
