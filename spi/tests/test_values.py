"""The values that services and hooks exchange."""

from __future__ import annotations

from decimal import Decimal
from typing import cast

import pytest
from attrs.exceptions import FrozenInstanceError
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import FIRST_FAILURE, ReasonCode
from kinmqtt_spi.services.authentication import (
    ALLOW_ANONYMOUS,
    ConnectRequest,
    Continue,
    ExchangeStep,
    Identity,
    Redirect,
    allow_as,
)
from kinmqtt_spi.services.authorization import EVERYBODY, Scope
from kinmqtt_spi.services.event import EventVersion
from kinmqtt_spi.services.metric import Histogram
from kinmqtt_spi.services.retain import RetainVersion
from kinmqtt_spi.values import (
    ABSTAIN,
    ALLOW,
    LEVEL_BYTES,
    MESSAGE_BYTES,
    SUBSCRIPTION_BYTES,
    Address,
    Client,
    Disconnect,
    Message,
    MessageId,
    Publisher,
    Reject,
    Subscription,
    Verdict,
    deny,
    make_message,
)


def test_a_changed_message_forgets_its_frame() -> None:
    """What goes out after a change is what the copy says, not the bytes it came in."""
    message = Message("a", b"x", qos=1, retain=True, frame=b"\x30\x00", frame_version=5)

    changed = message.replace(topic="b")
    whole = message.replace(payload=b"", qos=0, retain=False, properties=Properties(content_type="t"))

    assert (changed.topic, changed.payload, changed.qos, changed.retain) == ("b", b"x", 1, True)
    assert (changed.frame, changed.frame_version) == (None, 0)
    assert whole == Message("a", properties=Properties(content_type="t"))
    assert message.frame == b"\x30\x00"


def test_the_frame_is_no_part_of_what_a_message_is() -> None:
    """Two messages that say the same are equal however they came in."""
    assert Message("a", b"x", frame=b"1", frame_version=4) == Message("a", b"x")


def test_a_message_counts_for_all_that_it_holds() -> None:
    """The objects, its topic as wide as it may be, its payload, and its properties: one of a byte may be large."""
    properties = Properties(content_type="text", user_property=(("k", "x" * 1000),))

    sizes = [Message("t", b"x").size_bytes, Message("t/ä", b"12345").size_bytes]

    assert sizes == [MESSAGE_BYTES + 2, MESSAGE_BYTES + 3 * 4 + 5]
    assert Message("t", b"x", properties=properties).size_bytes == MESSAGE_BYTES + 2 + properties.size_bytes > 1000


@given(st.text(), st.sampled_from([None, "g", "gruppe-ä"]))
def test_a_subscription_counts_for_its_filter_and_group(filter: str, group: str | None) -> None:
    """Each level counts and a group does; what a client may change without a new filter does not."""
    plain = Subscription(filter, share_group=group)
    longer = Subscription(f"{filter}/x", share_group=group)
    other = Subscription(filter, 2, group, True, True, 2, 268_435_455)

    assert plain.size_bytes == other.size_bytes
    assert plain.size_bytes >= SUBSCRIPTION_BYTES + 2 * len(filter.encode("utf-8", "surrogatepass"))
    assert longer.size_bytes >= plain.size_bytes + LEVEL_BYTES
    assert Subscription(filter, share_group="g").size_bytes > Subscription(filter).size_bytes


@pytest.mark.parametrize(
    ("client", "counts_for"),
    [
        (Client("c", "u", Address("192.0.2.1", 5)), "user u"),
        (Client("d", "u", Address("192.0.2.2", 6)), "user u"),
        (Client("c", None, Address("192.0.2.1", 5)), "address 192.0.2.1"),
        (Client("d", "made up", Address("192.0.2.1", 6), anonymous=True), "address 192.0.2.1"),
        (Client("c", "address 192.0.2.1"), "user address 192.0.2.1"),
        (Client("c"), "address "),
    ],
)
def test_a_client_counts_for_its_user_or_its_address(client: Client, counts_for: str) -> None:
    """Neither another client id nor, where nobody has checked it, another user name makes another of it."""
    assert client.quota_key == counts_for


@pytest.mark.parametrize(("now", "expired"), [(9.9, False), (10.0, True), (10.1, True)])
def test_a_message_expires_at_its_time(now: float, expired: bool) -> None:
    """From the end of its interval on a message is not delivered any more (MQTT-3.3.2-5)."""
    assert Message("a", expires_at=10.0).has_expired(now) is expired
    assert not Message("a").has_expired(now)


def test_secrets_and_payloads_do_not_show() -> None:
    """What is never written to a log is not in a ``repr`` either."""
    secret = b"hush-hush"
    request = ConnectRequest("c", "u", secret)
    shown = [Message("t", secret), request, ExchangeStep("m", secret, None, request), allow_as(data=secret)]

    texts = [repr(each) for each in (*shown, Continue(secret))]

    assert all("hush" not in text and "<9 bytes>" in text for text in texts)
    assert "password=None" in repr(ConnectRequest("c"))


def test_an_identity_says_whose_name_counts() -> None:
    """Its own, else CONNECT's, which whoever allows has verified; an anonymous one has none."""
    request = ConnectRequest("c", "u")

    names = [each.username_of(request) for each in (Identity(), Identity("v"), Identity(anonymous=True))]

    assert names == ["u", "v", None]
    assert ALLOW_ANONYMOUS.allowed
    assert ALLOW_ANONYMOUS.identity.username_of(request) is None


def test_an_anonymous_identity_has_no_name() -> None:
    """Both together would be a riddle."""
    with pytest.raises(ValueError, match="an anonymous identity has no user name"):
        Identity("u", anonymous=True)


def test_values_do_not_change() -> None:
    """A value handed to several plugins is the same for all of them."""
    with pytest.raises(FrozenInstanceError):
        Client("c").client_id = "d"  # type: ignore[misc]


def test_an_address_reads_as_people_write_it() -> None:
    """A peer without a port is shown by its host alone."""
    assert (str(Address("10.0.0.1", 1883)), str(Address("/run/mqtt"))) == ("10.0.0.1:1883", "/run/mqtt")


def test_a_shared_subscription_knows_how_it_was_written() -> None:
    """UNSUBSCRIBE compares with the filter as the client wrote it (MQTT-3.10.4-1)."""
    assert Subscription("a/#", share_group="g").full_filter == "$share/g/a/#"
    assert Subscription("a/#").full_filter == "a/#"


def test_only_allow_is_allowed() -> None:
    """Abstaining is not a yes, and a refusal carries its reason and text."""
    refusal = deny(ReasonCode.BANNED, "no")

    assert [each.allowed for each in (ALLOW, ABSTAIN, refusal)] == [True, False, False]
    assert (refusal.verdict, refusal.reason, refusal.text) == (Verdict.DENY, ReasonCode.BANNED, "no")
    assert deny().reason is ReasonCode.NOT_AUTHORIZED


def test_failures_begin_at_0x80() -> None:
    """A reason code says by its number whether it is a failure (section 2.4)."""
    assert all(code.is_failure == (code.value >= FIRST_FAILURE) for code in ReasonCode)
    assert ReasonCode.UNSPECIFIED_ERROR.is_failure and not ReasonCode.REAUTHENTICATE.is_failure


def test_a_redirection_has_the_code_of_its_kind() -> None:
    """A server is used for now (0x9C) or moved for good (0x9D) (section 4.11)."""
    assert Redirect("other").reason is ReasonCode.USE_ANOTHER_SERVER
    assert Redirect("other", permanent=True).reason is ReasonCode.SERVER_MOVED


def test_a_scope_covers_whom_it_names() -> None:
    """Each name in a scope narrows it, and the empty scope is everybody's."""
    ann = Client("c", "ann")
    scopes = [EVERYBODY, Scope("c"), Scope(username="ann"), Scope("c", "ann"), Scope("c", "bob"), Scope("d")]

    assert [scope.covers(ann) for scope in scopes] == [True, True, True, True, False, False]


def test_versions_compare_as_numbers() -> None:
    """The tenth comes after the ninth, and an epoch outweighs every counter."""
    assert EventVersion(1, 9) < EventVersion(1, 10) < EventVersion(2, 0)
    assert RetainVersion(1.0, 9, 9) < RetainVersion(2.0, 0, 0) < RetainVersion(2.0, 1, 0)


def test_an_observation_falls_within_its_bound() -> None:
    """A value equal to a bound counts below it, and the last bucket has no bound."""
    histogram = Histogram("took", "seconds", [1.0, 2.0])

    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)

    assert (histogram.counts, histogram.sum) == ([2, 1, 1], 12.0)


@pytest.mark.parametrize("bounds", [[], [2.0, 1.0], [1.0, 1.0]])
def test_bounds_must_rise(bounds: list[float]) -> None:
    """A histogram whose buckets overlap or are none is a mistake."""
    with pytest.raises(ValueError, match="must increase"):
        Histogram("took", "seconds", bounds)


def test_a_message_made_in_the_fast_way_is_a_message_like_any_other() -> None:
    """It equals the one that the constructor makes, and nobody can change it either."""
    values = ("t", b"x", 1, True, Properties(content_type="a"), Publisher("p"), MessageId(1, 2), 3.0, 4.0, b"f", 5)

    made = make_message(*values)

    assert type(made) is Message
    assert made == Message(*values)
    assert hash(made) == hash(Message(*values))
    assert (made.frame, made.frame_version) == (b"f", 5)
    assert made.replace(topic="u").topic == "u"
    with pytest.raises(FrozenInstanceError):
        made.topic = "u"  # type: ignore[misc]


def test_what_plugins_give_loosely_is_what_the_fields_say() -> None:
    """A truth value read back as a number, a time as a decimal and no text at all are common, and no harm."""
    message = Message("t", retain=cast(bool, 1), received_at=cast(float, Decimal(7)), expires_at=cast(float, 9))
    rejected, closed = Reject(cast(ReasonCode, 0x87), cast(str, None)), Disconnect(cast(ReasonCode, 0x98))

    assert (message.retain, type(message.received_at), type(message.expires_at)) == (True, float, float)
    assert message.replace(retain=cast(bool, 0)).retain is False
    assert (rejected.reason, rejected.text) == (ReasonCode.NOT_AUTHORIZED, "")
    assert closed.reason is ReasonCode.ADMINISTRATIVE_ACTION
    assert deny(text=cast(str, None)).text == ""
    with pytest.raises(ValueError, match="is not a valid ReasonCode"):
        Reject(cast(ReasonCode, 0x03))
