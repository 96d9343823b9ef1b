"""What waits for one client's socket, in pieces."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt.broker.buffers import SHARED_BYTES, Buffers
from kinmqtt.broker.connection.unsent import Unsent, size_of, without_qos_0
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, V311, Pingresp, Puback, Publish
from kinmqtt.settings import LimitSettings
from kinmqtt_spi.metrics import MetricRegistry

LARGE = bytes(range(256)) * (SHARED_BYTES // 128)


def buffers_of(*connections: Any) -> Buffers:
    """What counts, with these connections."""
    cut = MetricRegistry().counter("cut", "connections")
    return Buffers(LimitSettings(), connections, lambda call: None, cut)


def test_a_large_piece_counts_once_for_all_who_wait_for_it() -> None:
    """A message to many is one object in many outboxes."""
    buffers = buffers_of()
    waiting = [Unsent(buffers) for _ in range(5)]
    for unsent in waiting:
        unsent.add([b"head", LARGE])
    together = buffers.outbound

    waiting[0].clear()
    while waiting[1]:
        waiting[1].take(len(LARGE) // 2)
    after = buffers.outbound
    for unsent in waiting[2:]:
        unsent.clear()

    assert together == len(LARGE) + 5 * len(b"head")
    assert after == len(LARGE) + 3 * len(b"head")
    assert buffers.outbound == 0


def test_small_pieces_are_joined() -> None:
    """To hold very many of them one by one costs more than to copy them."""
    buffers = buffers_of()
    unsent = Unsent(buffers)

    unsent.add([b"abc"] * 1000 + [LARGE] + [b"def"] * 10)

    assert [len(piece) for piece in unsent.rest()] == [3000, len(LARGE), 30]


pieces = st.lists(st.binary(max_size=40).map(lambda b: b * 40) | st.just(LARGE) | st.binary(max_size=5), max_size=8)
steps = st.lists(st.tuples(st.integers(0, 1), pieces, st.integers(1, 40_000)), max_size=30)


@given(steps)
def test_every_byte_goes_out_once_in_order_and_is_counted_until_then(
    steps: list[tuple[int, list[bytes], int]],
) -> None:
    """Two that share pieces, in any order of adding and taking: plain bytes agree, and so does the count."""
    buffers = buffers_of()
    both = [Unsent(buffers), Unsent(buffers)]
    model = [b"", b""]
    for which, added, at_once in steps:
        both[which].add(added)
        model[which] += b"".join(added)
        if both[which]:
            data = both[which].take(at_once)
            assert 0 < len(data) <= at_once
            assert model[which].startswith(data)
            model[which] = model[which][len(data) :]
        assert [b"".join(unsent.rest()) for unsent in both] == model
        shared = {id(piece): piece for unsent in both for piece in unsent._pieces if len(piece) >= SHARED_BYTES}
        own = [piece for unsent in both for piece in unsent._pieces if len(piece) < SHARED_BYTES]
        assert buffers.outbound == size_of(list(shared.values())) + size_of(own)
    for unsent in both:
        unsent.clear()
    assert buffers.outbound == 0
    assert not buffers._pieces


def _publish(version: int, qos: int, payload: bytes, cut: bool) -> list[bytes]:
    """A PUBLISH as it stands in an outbox, whole or in pieces."""
    packet = encode(Publish.build("t", payload, qos=qos, packet_id=7 if qos else 0), version)
    if not cut and not qos:
        return [packet]
    body = len(packet) - len(payload)
    return [packet[: body - 2], packet[body - 2 : body], packet[body:]] if qos else [packet[:body], packet[body:]]


packet_of = st.builds(
    lambda version, qos, payload, cut: (int(not qos), _publish(version, qos, payload, cut)),
    st.sampled_from([V311, V5]),
    st.integers(0, 2),
    st.binary(max_size=20) | st.just(b"\x30\x05" * 200) | st.just(bytes(20_000)),
    st.booleans(),
) | st.sampled_from([(0, [encode(Pingresp(), V5)]), (0, [encode(Puback(9), V5)])])
run_of = st.lists(st.binary(max_size=300), min_size=2, max_size=5).map(
    lambda payloads: (
        len(payloads),
        [b"".join(piece for each in payloads for piece in _publish(V311, 0, each, False))],
    )
)


@given(st.lists(packet_of | run_of, max_size=20))
def test_of_an_outbox_only_qos_0_is_left_out(packets: list[tuple[int, list[bytes]]]) -> None:
    """However packets are cut into pieces or joined to runs, and whatever payloads look like."""
    outbox = [piece for _, cut in packets for piece in cut]

    left, dropped = without_qos_0(outbox)

    assert b"".join(left) == b"".join(piece for qos_0, cut in packets if not qos_0 for piece in cut)
    assert dropped == sum(qos_0 for qos_0, _ in packets)
