"""Certificates that expire: told of before clients are refused, and while they are."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import ILogObserver, formatEvent, globalLogPublisher
from zope.interface import provider

from core_harness.brokers import run_command
from core_harness.certificates import Authority
from kinmqtt.cli import run as runner
from kinmqtt.config import Overrides, load
from kinmqtt.net import service as service_module
from kinmqtt.net.service import LOOK_AT_CERTIFICATES_S, BrokerService
from kinmqtt.net.tls import TlsContext
from kinmqtt.net.validity import DAY_S, EARLY_S, Validity, of_chain
from kinmqtt.settings import TlsSettings
from kinmqtt_spi.memory.plugin import TurnableClock

_now = time.time

DAY = timedelta(days=1)
OVER = (-10 * DAY, -DAY)
SOON = (-10 * DAY, 5 * DAY + timedelta(hours=1))
LATER = (-10 * DAY, 20 * DAY)
NOT_YET = (DAY, 90 * DAY)


@given(begins_at=st.floats(0, 4e9), length_s=st.floats(0, 1e9), now=st.floats(0, 4e9))
def test_a_certificate_is_told_of_when_it_is_not_good_or_soon_is_not(
    begins_at: float, length_s: float, now: float
) -> None:
    """Before it begins, after it has ended, and from 14 days before that on (RFC 5280 section 4.1.2.5)."""
    ends_at = begins_at + length_s
    problem = Validity("it", "nobody connects", begins_at, ends_at).problem(now)

    if now > ends_at:
        assert problem is not None
        assert "it expired on" in problem
    elif now < begins_at:
        assert problem is not None
        assert "it is not valid before" in problem
    elif ends_at - now <= EARLY_S:
        assert problem is not None
        assert "it expires on" in problem
    else:
        assert problem is None


@pytest.mark.parametrize(
    ("left_s", "told"),
    [
        (EARLY_S + 1, None),
        (EARLY_S, "in 14 days"),
        (2 * DAY_S, "in 2 days"),
        (2 * DAY_S - 1, "in 1 day:"),
        (DAY_S - 1, "in less than a day"),
        (0, "in less than a day"),
        (-1, "expired on 2023-11-14 22:13 UTC"),
    ],
)
def test_how_long_is_left(left_s: float, told: str | None) -> None:
    """In whole days, and with the date."""
    problem = Validity("it", "nobody connects", 0, 1_700_000_000.0).problem(1_700_000_000.0 - left_s)

    assert (problem is None) is (told is None)
    assert told is None or (problem is not None and told in problem)


def _chain(folder: Path, leaf: Any, between: Any) -> Path:
    """A file with a certificate, and behind it one between it and the root."""
    certificate, _ = Authority(folder).issue("localhost", valid=leaf)
    other = Authority(folder, "between", valid=between)
    certificate.write_bytes(certificate.read_bytes() + other.file.read_bytes())
    return certificate


@pytest.mark.parametrize(
    ("leaf", "between", "told"),
    [
        (LATER, LATER, []),
        (OVER, LATER, ["the certificate of 'CN=localhost,O=kinmqtt tests' expired on"]),
        (SOON, LATER, ["the certificate of 'CN=localhost,O=kinmqtt tests' expires on"]),
        (NOT_YET, LATER, ["the certificate of 'CN=localhost,O=kinmqtt tests' is not valid before"]),
        (LATER, OVER, ["the certificate of 'CN=between,O=kinmqtt tests', number 2 of the chain, expired on"]),
        (SOON, NOT_YET, ["expires on", "number 2 of the chain, is not valid before"]),
    ],
)
def test_each_certificate_of_the_chain_is_looked_at(tmp_path: Path, leaf: Any, between: Any, told: list[str]) -> None:
    """The broker's own and those behind it; each line says which, when, and what to do."""
    certificate = _chain(tmp_path, leaf, between)
    settings = TlsSettings(certificate=certificate, private_key=tmp_path / "localhost.key")
    clock = TurnableClock(_now())

    found = TlsContext(settings, "k.toml:1: listeners.a.tls", "mqtt").problems(clock.now())

    assert len(found) == len(told)
    for line, words in zip(found, told, strict=True):
        assert line.startswith(f"k.toml:1: listeners.a.tls.certificate: {certificate}: ")
        assert words in line


@pytest.mark.parametrize(("valid", "told"), [(LATER, None), (OVER, "expired on"), (NOT_YET, "is not valid before")])
def test_the_authorities_of_clients_are_looked_at(tmp_path: Path, valid: Any, told: str | None) -> None:
    """One that is over refuses every client that it has given a certificate."""
    certificate, private_key = Authority(tmp_path).issue("localhost")
    clients = Authority(tmp_path, "clients", valid=valid)
    settings = TlsSettings(
        certificate=certificate, private_key=private_key, client_certificates="required", client_ca=clients.file
    )

    found = TlsContext(settings, "tls", "mqtt").problems(_now())

    assert len(found) == (0 if told is None else 1)
    if told is not None:
        assert f"tls.client_ca: {clients.file}: the authority 'CN=clients,O=kinmqtt tests' {told}" in found[0]
        assert "clients with its certificates are refused" in found[0]


def test_a_file_whose_dates_can_not_be_read_is_told_of(tmp_path: Path) -> None:
    """OpenSSL takes certificates that this library does not know: they serve, and nobody can tell for how long."""
    file = tmp_path / "odd.pem"
    file.write_text("-----BEGIN TRUSTED CERTIFICATE-----\nAAAA\n-----END TRUSTED CERTIFICATE-----\n")

    [line] = of_chain(file).problems(_now())

    assert line.startswith(f"{file}: the expiry of its certificates is unknown")


SETTINGS = """\
[broker]
allow_anonymous = true
data = "memory"

[listeners.secure]
endpoint = "tcp:8883:interface=127.0.0.1"
tls = {{ certificate = "{folder}/localhost.pem", private_key = "{folder}/localhost.key" }}
"""


def test_check_says_it(tmp_path: Path) -> None:
    """`kinmqtt check` warns, and finds the settings sound all the same."""
    Authority(tmp_path).issue("localhost", valid=OVER)
    (tmp_path / "k.toml").write_text(SETTINGS.format(folder=tmp_path), encoding="utf-8")

    done = run_command("check", "-c", "k.toml", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "warning: k.toml:5: listeners.secure.tls.certificate: " in done.stdout
    assert "the certificate of 'CN=localhost,O=kinmqtt tests' expired on" in done.stdout
    assert done.stdout.endswith("the settings are valid\n")


# A running broker


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Undo what a started broker does to the garbage collector of its process."""
    yield
    gc.unfreeze()
    gc.enable()


class Running:
    """A broker as a service, with its clock in the test's hand, and what its log has said of certificates."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "k.toml").write_text(SETTINGS.format(folder=folder), encoding="utf-8")
        self.clock = TurnableClock(_now())
        monkeypatch.setattr(runner, "ReactorClock", lambda reactor: self.clock)
        self.reactor: Any = MemoryReactorClock()
        self.service: BrokerService = runner.build_service(load(folder / "k.toml", Overrides(), {}), self.reactor)
        self.lines: list[str] = []

    def start(self) -> None:
        globalLogPublisher.addObserver(self._observe)
        self.service.startService()
        self.settle()

    def stop(self) -> None:
        self.service.stopService()
        self.settle()
        globalLogPublisher.removeObserver(self._observe)

    def settle(self) -> None:
        for _ in range(10):
            self.reactor.advance(0)
            self.clock.advance(0)

    def told(self) -> list[str]:
        """What was said since it was asked last."""
        lines, self.lines = self.lines, []
        return lines

    @provider(ILogObserver)
    def _observe(self, event: Any) -> None:
        text = formatEvent(event)
        if "the certificate of" in text:
            self.lines.append(f"{event['log_level'].name}: {text}")


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A broker whose certificate has 5 days left."""
    Authority(tmp_path).issue("localhost", valid=SOON)
    monkeypatch.setattr(service_module, "LOOK_AT_CERTIFICATES_S", 60.0)  # A day is very many seconds to turn.
    broker = Running(tmp_path, monkeypatch)
    broker.start()
    yield broker
    broker.stop()


def test_a_running_broker_says_it_at_the_start_and_once_a_day(running: Running) -> None:
    """Once each time, as a warning, with what is left as it is then."""
    first = running.told()
    running.clock.advance(59)
    early = running.told()
    running.clock.step(6 * DAY_S)
    running.clock.advance(2)
    second = running.told()

    assert LOOK_AT_CERTIFICATES_S == DAY_S
    assert early == []
    assert ["expires on" in line and line.startswith("warn: ") for line in first] == [True]
    assert ["expired on" in line for line in second] == [True]


@pytest.mark.parametrize(("valid", "told"), [(LATER, []), (OVER, ["expired on"]), (None, ["expires on"])])
def test_a_reload_says_what_is_wrong_with_those_in_use(
    running: Running, tmp_path: Path, valid: Any, told: list[str]
) -> None:
    """The new ones, or where these can't be used, the old ones."""
    running.told()
    if valid is None:
        (tmp_path / "localhost.pem").write_text("broken")
    else:
        Authority(tmp_path).issue("localhost", valid=valid)

    running.service._reload_soon()
    running.settle()

    found = running.told()
    assert [words in line for words, line in zip(told, found, strict=True)] == [True] * len(told)
