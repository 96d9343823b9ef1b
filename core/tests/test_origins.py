"""Whose pages may connect by WebSocket (RFC 6455 section 10.2)."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt.origins import check_origin, is_same, refusal

SAME = [
    ("https://example.org", "example.org"),
    ("http://example.org", "example.org"),
    ("https://example.org", "example.org:443"),
    ("http://example.org", "example.org:80"),
    ("https://example.org:443", "example.org"),
    ("https://example.org:8084", "example.org:8084"),
    ("http://example.org:8084", "EXAMPLE.org:8084"),
    ("http://127.0.0.1:8083", "127.0.0.1:8083"),
    ("http://[::1]:8083", "[::1]:8083"),
    ("https://xn--bcher-kva.example", "xn--bcher-kva.example"),
]
OTHERS = [
    ("https://evil.example", "example.org"),
    ("https://example.org.evil.example", "example.org"),
    ("https://example.org", "example.org:8084"),
    ("https://example.org:8084", "example.org"),
    ("http://example.org:443", "example.org:80"),
    ("http://example.org", "example.org:443"),
    ("http://localhost:3000", "localhost:8083"),
    ("http://localhost:8083", "127.0.0.1:8083"),
    ("null", "null"),
    ("", ""),
    ("file://", "localhost"),
    ("chrome-extension://abcdef", "abcdef"),
    ("capacitor://localhost", "localhost"),
    ("https://example.org/", "example.org"),
    ("https://user@example.org", "example.org"),
    ("https://example.org:99999x", "example.org"),
    ("https://example.org https://example.org", "example.org"),
    ("example.org", "example.org"),
    ("https://", ""),
    ("https://example.org\n", "example.org"),
]


@pytest.mark.parametrize(("origin", "host"), SAME)
def test_a_page_of_the_same_host_and_port_may_connect(origin: str, host: str) -> None:
    """Whatever its scheme, and whether or not a default port is written."""
    assert is_same(origin, host)
    assert refusal(None, [origin], host) is None


@pytest.mark.parametrize(("origin", "host"), OTHERS)
def test_a_page_of_another_may_not(origin: str, host: str) -> None:
    """Another host or port, a scheme that no web server has, and what is no origin at all."""
    assert not is_same(origin, host)
    assert refusal(None, [origin], host) is not None


HOSTS = st.from_regex(r"[a-z][a-z0-9-]{0,8}(\.[a-z]{2,5})?", fullmatch=True)
PORTS = st.none() | st.integers(1, 65535) | st.sampled_from([80, 443])


@given(
    scheme=st.sampled_from(["http", "https"]),
    host=HOSTS,
    port=PORTS,
    other_host=HOSTS,
    other_port=PORTS,
    is_other=st.booleans(),
)
def test_it_compares_as_urls_are_compared(
    scheme: str, host: str, port: int | None, other_host: str, other_port: int | None, is_other: bool
) -> None:
    """By host and effective port, as the standard library takes them from URLs of either scheme."""
    there = other_host if is_other else host
    origin = f"{scheme}://{host}" + (f":{port}" if port else "")
    header = there + (f":{other_port}" if other_port else "")

    def effective(url: str) -> tuple[str | None, int]:
        parts = urlsplit(url)
        return parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]

    wanted = any(effective(origin) == effective(f"{its}://{header}") for its in ("http", "https"))

    assert is_same(origin, header) is wanted


@pytest.mark.parametrize(
    ("origins", "found", "may"),
    [
        (None, [], True),
        ((), [], True),
        (("https://example.org",), [], True),
        ((), ["http://here"], False),
        (("*",), ["https://evil.example"], True),
        (("*",), ["null"], True),
        (("https://example.org", "https://example.com"), ["https://example.com"], True),
        (("https://Example.org",), ["https://example.org"], True),
        (("https://example.org",), ["http://here"], False),
        (("https://example.org",), ["https://example.org.evil.example"], False),
        (None, ["http://here", "http://evil.example"], False),
        (("https://example.org",), ["https://example.org", "https://example.org"], False),
    ],
)
def test_settings_say_which_pages_may(origins: tuple[str, ...] | None, found: list[str], may: bool) -> None:
    """A client without an Origin is no browser, and may in any case; of two Origins none counts."""
    assert (refusal(origins, found, "here") is None) is may


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        ("example.org", "write https://example.org, or \\*"),
        ("https://example.org/", "as https://example.org"),
        ("https://example.org/app", "as https://example.org"),
        ("https://*.example.org", "it ends behind the host"),
        ("://x", "has no scheme"),
        ("https://", "it ends behind the host"),
        ("", "has no scheme"),
    ],
)
def test_an_origin_that_no_browser_sends_is_a_mistake(origin: str, told: str) -> None:
    """It would never fit, and the operator would wonder."""
    with pytest.raises(ValueError, match=told):
        check_origin(origin)


@pytest.mark.parametrize("origin", ["*", "https://example.org", "http://localhost:3000", "capacitor://localhost"])
def test_an_origin_as_browsers_send_it_is_taken(origin: str) -> None:
    """Other schemes, too: applications with a browser inside have their own."""
    check_origin(origin)
