"""The encoding of control messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akka_harness.states import FOUNDER, gossips, info, record
from kinmqtt_akka_like_cluster.pure.gossip import (
    MOST_MEMBERS,
    MOST_NUMBER,
    MOST_REMOVED,
    ClusterState,
    Gossip,
    NodeAddress,
    NodeInfo,
    Observation,
    Record,
)
from kinmqtt_akka_like_cluster.pure.messages import (
    HEADER_BYTES,
    MOST_BODY_BYTES,
    MOST_REASON_BYTES,
    FrameCutter,
    FullGossip,
    Heartbeat,
    HeartbeatAck,
    Join,
    Left,
    MalformedControl,
    Message,
    NotYet,
    Refused,
    Status,
    Welcome,
    Witness,
    Witnessed,
    decode,
    encode,
)
from kinmqtt_akka_like_cluster.pure.versions import HIGHEST_VERSION
from kinmqtt_spi.services.cluster import MemberState
from kinmqtt_spi.values import NodeIdentity

U64 = st.integers(0, 2**64 - 1)
JOINS = st.builds(Join, st.builds(info, st.integers(1, 9), votes=st.booleans()), st.binary(max_size=64))
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Heartbeat, U64),
    st.builds(HeartbeatAck, U64),
    st.builds(Status, st.binary(min_size=16, max_size=16), st.frozensets(U64, max_size=20)),
    st.builds(FullGossip, gossips()),
    JOINS,
    st.builds(Welcome, gossips()),
    st.builds(Refused, st.text(max_size=40)),
    st.just(NotYet()),
    st.builds(Witness, U64),
    st.builds(Witnessed, U64, st.booleans()),
    st.just(Left()),
)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes at these places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def frame(number: int, body: bytes) -> bytes:
    """Return a frame of any type."""
    return len(body).to_bytes(4, "big") + bytes([number]) + body


@given(messages=st.lists(MESSAGES, max_size=8), cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_messages_arrive_whole_in_any_pieces(messages: list[Message], cuts: list[int]) -> None:
    """Whatever pieces a stream is fed in, the same messages come out, in order."""
    stream = b"".join(map(encode, messages))
    cutter = FrameCutter()

    received = [message for piece in pieces_of(stream, cuts) for message in cutter.feed(piece)]

    assert received == messages


@given(number=st.integers(0, 255), body=st.binary(max_size=120))
def test_any_bytes_are_malformed_or_a_message(number: int, body: bytes) -> None:
    """Whatever a peer sends is malformed, or the only encoding of a message."""
    try:
        message = decode(number, body)
    except MalformedControl:
        return

    assert encode(message) == frame(number, body) or (isinstance(message, Join) and message.highest > HIGHEST_VERSION)


@given(message=MESSAGES, place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_changed_byte_is_malformed_or_another_message(message: Message, place: int, value: int) -> None:
    """A message with one byte changed is malformed, or the only encoding of what it is read as."""
    whole = bytearray(encode(message))
    body = whole[HEADER_BYTES:]
    if body:
        body[place % len(body)] = value
    try:
        changed = decode(whole[4], bytes(body))
    except MalformedControl:
        return

    assert encode(changed) == frame(whole[4], bytes(body)) or (
        isinstance(changed, Join) and changed.highest > HIGHEST_VERSION
    )


@given(message=MESSAGES)
def test_no_part_of_a_message_is_taken_for_a_whole_one(message: Message) -> None:
    """Each prefix of a frame is waited for; each prefix of a body raises, or is another message of the same type."""
    whole = encode(message)

    for end in range(len(whole)):
        assert list(FrameCutter().feed(whole[:end])) == []
        if end >= HEADER_BYTES:
            try:
                shorter = decode(whole[4], whole[HEADER_BYTES:end])
            except MalformedControl:
                continue
            assert isinstance(shorter, Status | Refused)


@given(message=MESSAGES, surplus=st.binary(min_size=1, max_size=7))
def test_surplus_bytes_are_malformed(message: Message, surplus: bytes) -> None:
    """A body that is longer than its message is refused; a reason and a list of uids have no other end than it."""
    if isinstance(message, Refused):
        return
    whole = encode(message)

    with pytest.raises(MalformedControl):
        decode(whole[4], whole[HEADER_BYTES:] + surplus)


@given(noise=st.lists(st.binary(min_size=1, max_size=200), max_size=20))
def test_noise_raises_one_error_or_is_waited_for(noise: list[bytes]) -> None:
    """Noise raises MalformedControl and nothing else, and then at each later call."""
    cutter = FrameCutter()
    is_malformed = False

    for piece in noise:
        try:
            list(cutter.feed(piece))
            assert not is_malformed
        except MalformedControl:
            is_malformed = True


def test_messages_before_a_malformed_one_are_delivered() -> None:
    """What is valid in a piece is delivered before the error is raised."""
    received = []

    with pytest.raises(MalformedControl, match="unknown type 99"):
        for message in FrameCutter().feed(encode(Heartbeat(7)) + frame(99, b"")):
            received.append(message)

    assert received == [Heartbeat(7)]


@pytest.mark.parametrize(
    ("number", "size", "problem"),
    [
        (4, MOST_BODY_BYTES + 1, "GOSSIP of 1048577 bytes, above 1048576"),
        (1, 9, "HEARTBEAT of 9 bytes, above 8"),
        (5, 2**32 - 1, "JOIN of 4294967295 bytes, above 4096"),
    ],
)
def test_an_oversized_message_is_refused_by_its_header(number: int, size: int, problem: str) -> None:
    """The limit of a type is enforced before any of the body is buffered."""
    with pytest.raises(MalformedControl, match=problem):
        list(FrameCutter().feed(size.to_bytes(4, "big") + bytes([number])))


def test_a_newer_process_may_say_more_when_it_joins() -> None:
    """Bytes behind a JOIN are ignored if its highest version is above this one's, and malformed otherwise."""
    newer = encode(Join(info(1), b"x", HIGHEST_VERSION, HIGHEST_VERSION + 1))[HEADER_BYTES:]
    same = encode(Join(info(1), b"x", HIGHEST_VERSION, HIGHEST_VERSION))[HEADER_BYTES:]

    assert decode(5, newer + b"more") == Join(info(1), b"x", HIGHEST_VERSION, HIGHEST_VERSION + 1)
    with pytest.raises(MalformedControl, match="4 bytes too long"):
        decode(5, same + b"more")


def test_gossip_of_the_largest_cluster_fits() -> None:
    """1,000 members with the longest names, none of which reaches any other, fit into one message."""
    uids = range(2**63, 2**63 + MOST_MEMBERS)
    records = {
        uid: Record(
            NodeInfo(NodeIdentity(f"{uid}".ljust(255, "x"), uid), NodeAddress("h" * 255, 4883)), MemberState.UP, 1
        )
        for uid in uids
    }
    observations = {uid: Observation(MOST_NUMBER, frozenset(uids) - {uid}) for uid in uids}
    gossip = Gossip(
        ClusterState(FOUNDER, records, dict.fromkeys(range(MOST_REMOVED), 1), observations), frozenset(uids)
    )

    whole = encode(FullGossip(gossip))

    assert len(whole) < MOST_BODY_BYTES * 0.7
    assert list(FrameCutter().feed(whole)) == [FullGossip(gossip)]
    assert len(encode(Status(bytes(16), frozenset(uids)))) < 8_100


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (bytes(16) + b"\x03\xe9", "1001 members, above 1000"),
        (bytes(16) + b"\0\0" + b"\x10\x01", "4097 removed members, above 4096"),
        (bytes(16) + b"\0\0" + b"\0\0" + b"\0\1", "1 observers, above 0"),
        (bytes(16) + b"\0\0" + b"\0\2" + (b"\0" * 12) * 2, "do not ascend"),
    ],
)
def test_gossip_beyond_its_bounds_is_refused(body: bytes, problem: str) -> None:
    """Counts above the bounds, and uids out of order, are malformed."""
    with pytest.raises(MalformedControl, match=problem):
        decode(4, body)


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        (8, 0x20, "the term 2305843009213693952, above 9007199254740991"),
        (40, 2, "unknown flags of node 0000000000000001: 0x2"),
        (41, 5, "unknown state 5 with flags 0x1"),
        (42, 4, "unknown state 1 with flags 0x4"),
        (-1, 0b1100_0000, "bits for more than 1 members"),
    ],
)
def test_unknown_values_in_gossip_are_malformed(place: int, value: int, problem: str) -> None:
    """A term, a flag or a state that this version does not know, and bits of no member, are refused."""
    gossip = Gossip(ClusterState(FOUNDER, {1: Record(info(1), MemberState.UP, 1, True)}), frozenset({1}))
    body = bytearray(encode(FullGossip(gossip))[HEADER_BYTES:])

    body[place] = value

    with pytest.raises(MalformedControl, match=problem):
        decode(4, bytes(body))


def test_a_witness_says_yes_or_no() -> None:
    """Any other value is malformed."""
    with pytest.raises(MalformedControl, match="neither 0 nor 1"):
        decode(10, bytes(8) + b"\2")


def test_a_member_can_not_be_removed_too() -> None:
    """A state that has a uid both as a member and as removed is malformed: no merge makes it."""
    state = ClusterState(FOUNDER, {1: record(1)}, {1: 1})

    with pytest.raises(MalformedControl, match="both as a member and as removed"):
        decode(4, encode(FullGossip(Gossip(state, frozenset())))[HEADER_BYTES:])


def test_a_long_reason_is_cut() -> None:
    """A reason above its limit is cut at a whole character."""
    whole = encode(Refused("é" * MOST_REASON_BYTES))

    assert list(FrameCutter().feed(whole)) == [Refused("é" * (MOST_REASON_BYTES // 2))]


def test_a_digest_of_settings_has_a_limit() -> None:
    """A digest that no JOIN can carry raises ValueError."""
    with pytest.raises(ValueError, match="at most 64 bytes, not 65"):
        Join(info(1), bytes(65))
