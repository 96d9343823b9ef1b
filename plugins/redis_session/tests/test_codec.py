"""Keys, versions and values survive their way to Redis and back."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_redis_session.codec import Messages, entry_json, entry_of, version_hex, version_of
from kinmqtt_redis_session.keys import Keys, decoded, encoded
from kinmqtt_spi.services.retain import RetainVersion
from kinmqtt_spi.testing.build import entry
from kinmqtt_spi.testing.queue import whole_entry

NUMBERS = st.integers(0, 2**64 - 1)
TIMES = st.floats(allow_nan=False)


@given(st.text(st.characters(codec="utf-8")))
def test_a_client_id_is_its_own_hash_tag(client_id: str) -> None:
    """Braces of its own would put a client's keys into several slots, and two clients must not share keys."""
    name = encoded(client_id)
    (key,) = Keys("p:").client(name, b"s")

    assert decoded(name) == client_id
    assert key.count(b"{") == key.count(b"}") == 1


@given(st.builds(RetainVersion, TIMES, NUMBERS, NUMBERS), st.builds(RetainVersion, TIMES, NUMBERS, NUMBERS))
def test_the_order_of_versions_is_that_of_their_digits(one: RetainVersion, other: RetainVersion) -> None:
    """Versions are numbers, and stay so as text."""
    assert (one < other) == (version_hex(one) < version_hex(other))
    assert version_of(version_hex(one).encode()) == one


def test_neighbouring_times_differ() -> None:
    """A microsecond, and the last bit of a double, count."""
    times = [0.0, 5e-324, 1.0, 1.0000000000000002, 1_700_000_000.000001, 1_700_000_000.000002, 1e300]

    assert all(
        version_hex(RetainVersion(a, 2**64 - 1, 9)) < version_hex(RetainVersion(b, 0, 0)) for a, b in pairwise(times)
    )


def test_entries_come_back() -> None:
    """Also where several share a message."""
    messages = Messages()
    for each in (whole_entry(1), whole_entry(1)._replace(sequence=7, qos=0), entry(3)):
        assert entry_of(b"12 - " + entry_json(each, messages).encode()) == each
