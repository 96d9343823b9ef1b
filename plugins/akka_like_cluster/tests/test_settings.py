"""The settings: defaults, and what is refused with which words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.settings import AkkaSettings, TlsSettings, agreement_digest, read_cookie, validated
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.settings import Document, as_toml, parse

PATH = ("plugins", "akka_like_cluster")
SECTION = "[plugins.akka_like_cluster]\n"
MINIMAL = 'listen = "127.0.0.1:4883"\ncookie_file = "cookie"\n'
REMOTE = 'listen = "10.0.0.1:4883"\ncookie_file = "cookie"\n'
TLS = (
    '[plugins.akka_like_cluster.tls]\ncertificate = "c"\nprivate_key = "k"\nca = "a"\npeers = ["*.brokers.example"]\n'
)


def parsed(text: str) -> AkkaSettings:
    """The section as a settings file has it."""
    return parse(AkkaSettings, Document.parse(SECTION + text, "kinmqtt.toml"), PATH)


def refused(text: str) -> str:
    """Why a section is refused, one line for each problem."""
    with pytest.raises(SettingsError) as error:
        parsed(text)
    return str(error.value)


def test_defaults() -> None:
    """An address and a cookie are enough; the times are Akka's."""
    settings = validated(parsed(MINIMAL))

    assert settings.seeds == () and settings.dns == "" and settings.seeds_file is None
    assert str(settings.advertised) == "127.0.0.1:4883"
    assert (settings.cluster, settings.votes, settings.downing) == ("kinmqtt", True, "auto")
    assert (settings.stable_after_s, settings.quorum, settings.control) == ("auto", None, None)
    assert settings.link_bytes == 64 << 20
    assert (settings.heartbeat_s, settings.pause_s, settings.threshold) == (1.0, 2.0, 8.0)


def test_all_keys_are_read() -> None:
    """With units, and with TLS."""
    settings = parsed(
        """
        listen = "0.0.0.0:4883"
        advertise = "B1.brokers.example:4883"
        cluster = "green"
        seeds = ["b1.brokers.example:4883", "[2001:db8::1]:4883"]
        cookie_file = "cookie"
        votes = false
        downing = "static_quorum"
        quorum = 2
        stable_after_s = "7 s"
        control = "cluster.sock"
        link_bytes = "32 MiB"
        heartbeat_s = 0.5
        """
        + TLS
    )

    assert str(settings.advertised) == "b1.brokers.example:4883"
    assert (settings.stable_after_s, settings.link_bytes, settings.quorum) == (7.0, 32 << 20, 2)
    assert settings.tls == TlsSettings(
        certificate=Path("c"), private_key=Path("k"), ca=Path("a"), peers=("*.brokers.example",)
    )


def test_without_a_section_the_plugin_is_not_configured() -> None:
    """It may be installed and not used."""
    with pytest.raises(NotConfigured, match="has no listen"):
        validated(parsed(""))


def test_the_example_of_the_documentation_can_be_made() -> None:
    """Each key has its sentence."""
    assert "cookie_file" in as_toml(AkkaSettings, PATH)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        # listen
        ('listen = "4883"', "kinmqtt.toml:2:10: plugins.akka_like_cluster.listen: '4883' is not host:port"),
        ('cookie_file = "c"', "listen: is missing beside cookie_file: where other brokers connect"),
        (TLS, "listen: is missing beside tls"),
        (
            'listen = "0.0.0.0:1"\ncookie_file = "c"\n' + TLS,
            "listen: 0.0.0.0:1 is every address of this machine: set",
        ),
        ('listen = "[::]:1"\ncookie_file = "c"\n' + TLS, "listen: [::]:1 is every address of this machine: set"),
        (REMOTE, "listen: 10.0.0.1:4883 is no loopback address: others could read and forge"),
        ('listen = "broker:1"\ncookie_file = "c"', "listen: broker:1 is no loopback address"),
        ('listen = "127.0.0.1:0"\ncookie_file = "c"', "a port is a number from 1 to 65535"),
        # advertise
        (MINIMAL + 'advertise = "x"', "advertise: 'x' is not host:port"),
        (REMOTE + 'advertise = "0.0.0.0:1"\n' + TLS, "advertise: 0.0.0.0:1 is no address that others can connect to"),
        (MINIMAL + 'advertise = "unix:/a"', "advertise: unix:/a can't lead to listen, 127.0.0.1:4883"),
        ('listen = "unix:/a"\ncookie_file = "c"\nadvertise = "127.0.0.1:1"', "can't lead to listen, unix:/a"),
        (MINIMAL + 'advertise = "10.0.0.1:1"', "advertise: 10.0.0.1:1 is no loopback address: others could"),
        # cluster
        (MINIMAL + 'cluster = ""', "cluster: the name has 0 bytes, not 1 to 64"),
        (MINIMAL + f'cluster = "{"x" * 65}"', "cluster: the name has 65 bytes"),
        (MINIMAL + 'cluster = "a\\u0007"', "cluster: the name has characters that can't be printed"),
        # seeds
        (MINIMAL + 'seeds = ["127.0.0.1:1", "b"]', "seeds: 'b' is not host:port"),
        (MINIMAL + 'seeds = ["10.0.0.1:1"]', "seeds: 10.0.0.1:1 is no loopback address: others could read"),
        (REMOTE + 'seeds = ["[::]:1"]\n' + TLS, "seeds: [::]:1 is no address that others can connect to"),
        (MINIMAL + f"seeds = {['127.0.0.1:1'] * 65}", "seeds: has 65 addresses, 64 at most"),
        (
            MINIMAL + 'seeds = ["127.0.0.1:1"]\ndns = "localhost:1"',
            "dns: and seeds are mutually exclusive: remove one",
        ),
        (MINIMAL + 'seeds = ["127.0.0.1:1"]\nseeds_file = "f"', "seeds_file: and seeds are mutually exclusive"),
        (REMOTE + 'dns = "b:1"\nseeds_file = "f"\n' + TLS, "seeds_file: and dns are mutually exclusive"),
        # dns
        (MINIMAL + 'dns = "brokers.example"', "dns: 'brokers.example' is not host:port"),
        (MINIMAL + 'dns = "127.0.0.1:1"', "dns: 127.0.0.1:1 is not name:port; seeds takes addresses"),
        (MINIMAL + 'dns = "unix:/a"', "dns: unix:/a is not name:port"),
        (MINIMAL + 'dns = "brokers.example:1"', "dns: brokers.example:1 may have addresses beyond this machine"),
        (
            REMOTE + 'advertise = "b1.example:1"\ndns = "brokers.example:1"\n' + TLS,
            "dns: gives IP addresses, where this broker would not find b1.example:1, itself: advertise an IP address",
        ),
        # the cookie
        ('listen = "127.0.0.1:1"', "cookie_file: is missing: a file with the secret of this cluster"),
        ('listen = "127.0.0.1:1"', "`kinmqtt cluster keys` makes one"),
        # downing
        (MINIMAL + 'downing = "keep_majorty"', 'did you mean "keep_majority"?'),
        (MINIMAL + 'downing = "static_quorum"', 'quorum: is missing: downing = "static_quorum" needs the number'),
        (MINIMAL + "quorum = 2", 'quorum: is for downing = "static_quorum" only: set that, or remove quorum'),
        (MINIMAL + 'downing = "static_quorum"\nquorum = 0', "quorum: expected a whole number not below 1"),
        (MINIMAL + 'stable_after_s = "never"', "stable_after_s: expected"),
        (MINIMAL + "stable_after_s = 2.9", "stable_after_s: 2.9 s is below heartbeat_s + pause_s (3 s)"),
        (MINIMAL + "pause_s = 0.9", "pause_s: is below heartbeat_s (1 s): raise it, or lower heartbeat_s"),
        # amounts
        (MINIMAL + 'link_bytes = "1 MiB"', "link_bytes: expected a whole number of bytes not below 16777216"),
        (MINIMAL + "heartbeat_s = 0", "heartbeat_s: expected a number of seconds from 0.05 to 60"),
        (MINIMAL + "threshold = 0", "threshold: expected a number from 1 to 100"),
        # tls
        (REMOTE + TLS.replace('ca = "a"\n', ""), "tls.ca: required key is missing"),
        (REMOTE + TLS.replace('["*.brokers.example"]', "[]"), "tls.peers: is empty: name the brokers"),
        (REMOTE + TLS.replace("*.brokers.example", "*"), "tls.peers: '*': a * stands for the first label"),
        (REMOTE + TLS.replace("*.brokers.example", "*.example"), "tls.peers: '*.example': a * stands"),
        (REMOTE + TLS.replace("*.brokers.example", "b*.brokers.example"), "tls.peers: 'b*.brokers.example': a *"),
        (REMOTE + TLS.replace("*.brokers.example", "a.*.example"), "tls.peers: 'a.*.example': a * stands"),
        (REMOTE + TLS.replace("*.brokers.example", "a b"), "tls.peers: 'a b' is neither a host name nor an IP"),
        (REMOTE + TLS.replace("*.brokers.example", ""), "tls.peers: '' is neither a host name nor an IP"),
    ],
)
def test_a_contradiction_is_refused(text: str, problem: str) -> None:
    """The line names the place, the key and the way out."""
    assert problem in refused(text)


def test_all_problems_are_reported_at_once() -> None:
    """In the order of the file."""
    problems = refused('listen = "10.0.0.1:1"\ncluster = ""\nquorum = 1').splitlines()

    keys = [line.split(": ")[1].removeprefix("plugins.akka_like_cluster.") for line in problems]
    assert sorted(keys) == ["cluster", "cookie_file", "listen", "quorum"]


@pytest.mark.parametrize(
    "text",
    [
        'listen = "unix:/run/a.sock"\ncookie_file = "c"\nseeds = ["unix:/run/b.sock"]',
        'listen = "[::1]:1"\ncookie_file = "c"\ndns = "localhost:1"',
        'listen = "localhost:1"\ncookie_file = "c"\nseeds = ["127.9.9.9:1"]',
        REMOTE + TLS,
        REMOTE + 'dns = "brokers.example:1"\n' + TLS,
        'listen = "0.0.0.0:1"\nadvertise = "10.0.0.1:1"\ncookie_file = "c"\n' + TLS,
        REMOTE + TLS.replace("*.brokers.example", "10.0.0.2"),
        REMOTE + TLS.replace("*.brokers.example", "2001:db8::1"),
        MINIMAL + "heartbeat_s = 0.05\npause_s = 0.1\nstable_after_s = 0.2",
    ],
)
def test_what_fits_together_is_accepted(text: str) -> None:
    """Loopback addresses, Unix sockets, and others with TLS."""
    assert validated(parsed(text)).listen


def test_the_cookie_is_read_without_its_line_end(tmp_path: Path) -> None:
    """An editor may have added one."""
    path = tmp_path / "cookie"
    path.write_bytes(b"c" * 32 + b"\r\n")
    path.chmod(0o640)

    assert read_cookie(path) == b"c" * 32


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        (b"c" * 31 + b"\n", 0o600, "it has 31 bytes, at least 32 are needed"),
        (b"", 0o600, "it has 0 bytes"),
        (b"c" * 32, 0o604, "all users may read or write it (mode 604); `chmod 600` it"),
        (b"c" * 32, 0o602, "all users may read or write it (mode 602)"),
        (b"c" * 5000, 0o600, "more than 4096 bytes"),
        (None, 0, "there is no such file"),
    ],
)
def test_an_unsafe_cookie_is_refused(tmp_path: Path, content: bytes | None, mode: int, problem: str) -> None:
    """The sentence names key and file, and says how to make a cookie; never what is in the file."""
    path = tmp_path / "cookie"
    if content is not None:
        path.write_bytes(content)
        os.chmod(path, mode)

    with pytest.raises(SettingsError) as error:
        read_cookie(path)

    text = str(error.value)
    assert text.startswith(f"plugins.akka_like_cluster.cookie_file: {path}: ")
    assert problem in text and "`kinmqtt cluster keys` makes one" in text
    assert "cccc" not in text


def settings_of(**changes: Any) -> AkkaSettings:
    """Settings that fit, with changes."""
    return AkkaSettings(**{"listen": "127.0.0.1:1", "cookie_file": Path("c"), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster": "other"},
        {"downing": "down_all"},
        {"downing": "static_quorum", "quorum": 2},
        {"downing": "static_quorum", "quorum": 3},
        {"stable_after_s": 7.0},
    ],
)
def test_settings_that_must_agree_are_in_the_digest(changes: dict[str, Any]) -> None:
    """Two brokers that differ in them would decide a split differently."""
    digests = {agreement_digest(settings_of()), agreement_digest(settings_of(**changes))}

    assert len(digests) == 2
    assert all(len(digest) == 32 for digest in digests)


def test_quorums_differ_in_the_digest() -> None:
    """Not only whether there is one."""
    one, other = (agreement_digest(settings_of(downing="static_quorum", quorum=number)) for number in (2, 3))

    assert one != other


@given(st.booleans(), st.integers(16 << 20, 2**40))
def test_what_is_each_brokers_own_is_not_in_the_digest(votes: bool, link_bytes: int) -> None:
    """Votes, limits and addresses may differ; 7 and 7.0 are one number."""
    own = settings_of(listen="127.0.0.1:2", votes=votes, link_bytes=link_bytes, stable_after_s=7)

    assert agreement_digest(own) == agreement_digest(settings_of(stable_after_s=7.0))


GREEN = {"cluster": "green", "downing": "static_quorum", "quorum": 3, "stable_after_s": 7}


@pytest.mark.parametrize(
    ("changes", "shares_stores", "digest"),
    [
        ({}, True, "87677115a33e48f5bc23b39a19cff821661adc5173aa9bc64e3683a570449294"),
        (
            {"cluster": "green", "downing": "static_quorum", "quorum": 3, "stable_after_s": 7},
            True,
            "1105d9c8c3b7648dd102331dc34dbb461b4567c941d90eba42a4cbddd9cd3b6f",
        ),
        ({}, False, "5270181d8eaa2712749cab5e4aacf00258677bf824c38a30b0fb62640ed5f789"),
    ],
)
def test_the_digest_is_that_of_older_releases(changes: dict[str, Any], shares_stores: bool, digest: str) -> None:
    """Brokers of two releases with equal settings let each other in: a release may not change these values."""
    found = agreement_digest(settings_of(**changes), shares_stores=shares_stores)

    assert found.hex() == digest
