"""Addresses: one spelling of each, and no other reading of it by the system."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.net.addresses import Endpoint


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("10.0.0.1:4883", "10.0.0.1:4883"),
        ("[::1]:4883", "[::1]:4883"),
        ("[2001:DB8:0:0::1]:04883", "[2001:db8::1]:4883"),
        ("Broker-1.Example.:4883", "broker-1.example:4883"),
        ("kinmqtt_0:1", "kinmqtt_0:1"),
        ("unix:/run/kinmqtt/a b.sock", "unix:/run/kinmqtt/a b.sock"),
    ],
)
def test_an_address_has_one_spelling(text: str, spelling: str) -> None:
    """Brokers compare addresses as text: which one is the first seed, and whether it is their own."""
    endpoint = Endpoint.parse(text)

    assert str(endpoint) == spelling
    assert Endpoint.parse(spelling) == endpoint


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not host:port"),
        ("10.0.0.1", "is not host:port"),
        (":4883", "is not host:port"),
        ("host:", "is not host:port"),
        ("host:-1", "is not host:port"),
        ("host:４８８３", "is not host:port"),
        ("host:0", "from 1 to 65535"),
        ("host:65536", "from 1 to 65535"),
        ("::1:4883", r"in brackets, as \[::1\]:4883"),
        ("[::1:4883", "is not an IPv6 address in brackets"),
        ("[10.0.0.1]:4883", "is not an IPv6 address in brackets"),
        ("[fe80::1%eth0]:4883", "scope"),
        ("127.1:4883", "neither an IP address nor a host name"),
        ("0:4883", "neither an IP address nor a host name"),
        ("0x7f000001:4883", "neither an IP address nor a host name"),
        ("256.0.0.1:4883", "neither an IP address nor a host name"),
        ("*:4883", "neither an IP address nor a host name"),
        ("a b:4883", "neither an IP address nor a host name"),
        ("-a:4883", "neither an IP address nor a host name"),
        ("unix:", "is absolute"),
        ("unix:run/kinmqtt.sock", "is absolute"),
        ("unix:/run/\n", "is absolute"),
        (f"unix:/{'x' * 107}", "at most 107 bytes"),
        (f"{'a.' * 130}b:1", "at most 255 bytes"),
    ],
)
def test_a_malformed_address_is_refused(text: str, problem: str) -> None:
    """The text says what is wrong."""
    with pytest.raises(ValueError, match=problem):
        Endpoint.parse(text)


@pytest.mark.parametrize(
    ("text", "local", "wildcard"),
    [
        ("127.0.0.1:1", True, False),
        ("127.200.0.9:1", True, False),
        ("[::1]:1", True, False),
        ("[::ffff:127.0.0.1]:1", True, False),
        ("localhost:1", True, False),
        ("unix:/a", True, False),
        ("10.0.0.1:1", False, False),
        ("localhost.example:1", False, False),
        ("0.0.0.0:1", False, True),
        ("[::]:1", False, True),
        ("[::ffff:0.0.0.0]:1", False, True),
    ],
)
def test_addresses_of_this_machine_are_known(text: str, local: bool, wildcard: bool) -> None:
    """Without TLS only these are used."""
    endpoint = Endpoint.parse(text)

    assert (endpoint.is_local, endpoint.is_wildcard) == (local, wildcard)


@given(st.text(max_size=80))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    """What is accepted is read back the same; nothing else than ValueError is raised."""
    try:
        endpoint = Endpoint.parse(text)
    except ValueError:
        return
    assert Endpoint.parse(str(endpoint)) == endpoint
