"""The format of batches and answers: everything comes back, and noise is refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kinmqtt.broker.forwarding.batch_format import (
    AGAIN,
    MOVED,
    NO_MEMBER,
    PLAIN,
    REFUSED,
    V5_PACKETS,
    RunHead,
    Verdict,
    batch_head,
    cut_packets,
    read_answer,
    read_batch,
    write_answer,
    write_run,
)
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V311, Publish
from kinmqtt_spi.errors import MalformedBatch
from kinmqtt_spi.values import Publisher

texts = st.text(max_size=8)
packets = st.builds(
    lambda topic, payload: encode(Publish.build(topic, payload), V311),
    st.text("ab/", min_size=1, max_size=9),
    st.binary(max_size=9) | st.just(bytes(200)) | st.just(bytes(20_000)),
)
heads = st.builds(
    RunHead,
    st.sets(st.sampled_from((V5_PACKETS, AGAIN, PLAIN))).map(sum),
    st.builds(Publisher, texts, st.none() | texts),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
)
runs = st.lists(st.tuples(heads, st.lists(packets, max_size=4)), max_size=4)


def batch_of(several: list[tuple[RunHead, list[bytes]]]) -> bytes:
    """Returns the batch of some runs."""
    pieces = [batch_head(0)]
    for head, its in several:
        before = sum(map(len, pieces))
        assert write_run(head, its, pieces) == sum(map(len, pieces)) - before
    return b"".join(pieces)


@given(runs)
def test_a_batch_comes_back_as_it_was(several: list[tuple[RunHead, list[bytes]]]) -> None:
    """Every field of every run, and every packet."""
    batch = batch_of(several)

    read = read_batch(batch)

    assert len(read) == len(several)
    for (head, its), found in zip(several, read, strict=True):
        assert [packet for packet, _ in cut_packets(batch, found.start, found.end)] == its
        assert (found.publisher, found.uid, found.counter) == (head.publisher, head.uid, head.counter)
        assert (found.age_ms, found.groups, found.clients) == (head.age_ms, head.groups, head.clients)
        assert found.flags & head.flags == head.flags
        assert found.is_v5 == head.is_v5


@given(packets)
def test_a_packets_body_is_found(packet: bytes) -> None:
    """Behind a Remaining Length of any size."""
    [(found, body)] = cut_packets(b"xx" + packet, 2, len(packet) + 2)

    assert found == packet
    assert body == (2 if len(packet) < 130 else 3 if len(packet) < 16_387 else 4)


@given(st.binary(max_size=60))
@example(b"")
@example(b"\1" + bytes(25))
def test_noise_is_refused(noise: bytes) -> None:
    """With an error of its own, and never with another."""
    for data in (noise, b"\1" + noise):
        try:
            for head in read_batch(data):
                cut_packets(data, head.start, head.end)
        except MalformedBatch:
            pass


@given(runs, st.data())
def test_a_batch_that_is_cut_off_is_refused(several: list[tuple[RunHead, list[bytes]]], data: st.DataObject) -> None:
    """At any place within a run."""
    batch = batch_of(several)
    ends = {head.end for head in read_batch(batch)} | {9}
    end = data.draw(st.integers(0, len(batch)))
    if end in ends:
        return

    with pytest.raises(MalformedBatch):
        read_batch(batch[:end])


@pytest.mark.parametrize("packet", [b"\x30", b"\x40\x02\0\1", b"\x30\xff\xff\xff\xff\x01", b"\x30\x05a", b"\x30\x80"])
def test_what_is_no_publish_packet_is_refused(packet: bytes) -> None:
    """Another packet type, a length that can't be read, or a packet that does not end in its run."""
    with pytest.raises(MalformedBatch):
        cut_packets(packet, 0, len(packet))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 9), st.just(REFUSED), st.just(())),
            st.tuples(st.integers(0, 9), st.just(NO_MEMBER), st.tuples(texts, texts)),
            st.tuples(st.integers(0, 9), st.just(MOVED), st.tuples(texts, texts)),
        ),
        max_size=5,
    )
)
def test_an_answer_comes_back_as_it_was(verdicts: list[Verdict]) -> None:
    """It is empty if everything was committed."""
    answer = write_answer(verdicts)

    assert read_answer(answer, 10) == verdicts
    assert (answer == b"") == (not verdicts)


def test_an_exception_has_the_texts_of_its_code_and_no_more() -> None:
    """A client id where a session has moved, nothing where a queue has refused."""
    assert write_answer([(1, MOVED, ("c", "f")), (2, REFUSED, ())]) == b"\1\0\0\0\1\3\0\1c\0\1f\0\0\0\2\1"


@pytest.mark.parametrize(
    "answer",
    [
        b"\2",
        b"\1\0",
        write_answer([(3, REFUSED, ())]),
        write_answer([(0, 9, ())]),
        write_answer([(0, MOVED, ("c", ""))])[:-1],
    ],
)
def test_a_wrong_answer_is_refused(answer: bytes) -> None:
    """Another version, a cut, a message that the batch does not have, or a code that nobody knows."""
    with pytest.raises(MalformedBatch):
        read_answer(answer, 3)
