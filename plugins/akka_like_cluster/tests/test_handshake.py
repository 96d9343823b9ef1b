"""The handshake: only who knows the cookie gets through, and nothing that was changed on the way."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.net.framing import encode
from kinmqtt_akka_like_cluster.net.handshake import (
    AUTH,
    HANDSHAKE_FRAME_BYTES,
    HELLO,
    REFUSED,
    Handshake,
    Role,
)
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind, Hello, PeerInfo
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused, Refusal
from kinmqtt_spi.mesh.frames import MalformedFrame

COOKIE = b"a secret of this cluster, shared!"
A = PeerInfo("a", 1, "127.0.0.1:4001", votes=False)
B = PeerInfo("b", 2, "127.0.0.1:4002")


def dialler(**changes: Any) -> Handshake:
    """The side of broker A, which dials."""
    return _side(Role.DIALLER, **{"kind": ConnectionKind.BULK, "own": A, "nonce": b"1" * 32, **changes})


def acceptor(**changes: Any) -> Handshake:
    """The side of broker B, which accepts."""
    return _side(Role.ACCEPTOR, **{"kind": None, "own": B, "nonce": b"2" * 32, **changes})


def _side(role: Role, kind: ConnectionKind | None, own: PeerInfo, **changes: Any) -> Handshake:
    return Handshake(role, kind, own, **{"cluster": "test", "cookie": COOKIE, "digest": bytes(32), **changes})


class Exchange:
    """Passes messages between two sides until both have nothing more to say."""

    def __init__(self, first: Handshake, second: Handshake) -> None:
        self.sides = (first, second)
        self.messages: list[bytes] = []
        """What was sent, in order."""
        self.refusals: list[HandshakeRefused | None] = [None, None]
        self.rests = [b"", b""]

    def run(self, change: Any = lambda number, message: message, pieces: int = 1_000_000) -> Exchange:
        """Run it; ``change`` may change a message, ``pieces`` is the size of the pieces that arrive."""
        for turn in range(12):
            message = self.sides[turn % 2].data_to_send()
            if message:
                self.messages.append(message)
                self._arrive(1 - turn % 2, change(len(self.messages) - 1, message), pieces)
        return self

    def _arrive(self, receiver: int, message: bytes, pieces: int) -> None:
        for start in range(0, len(message), pieces):
            if self.refusals[receiver] is None:
                try:
                    self.rests[receiver] += self.sides[receiver].feed(message[start : start + pieces])
                except HandshakeRefused as refused:
                    self.refusals[receiver] = refused


def test_both_sides_know_each_other() -> None:
    """Each has the other's identity, the kind, and what both speak."""
    first = dialler(versions=(1, 3), features=0b110)
    second = acceptor(versions=(2, 5), features=0b011)

    exchange = Exchange(first, second).run()

    assert (first.peer, second.peer) == (B, A)
    assert first.kind is second.kind is ConnectionKind.BULK
    assert (first.version, second.version) == (3, 3)
    assert (first.features, second.features) == (0b010, 0b010)
    assert [message[4] for message in exchange.messages] == [HELLO, HELLO, AUTH, AUTH]


@pytest.mark.parametrize("pieces", [1, 2, 7, 100])
def test_pieces_of_any_size_do(pieces: int) -> None:
    """A stream has no borders."""
    exchange = Exchange(dialler(), acceptor()).run(pieces=pieces)

    assert [side.peer for side in exchange.sides] == [B, A]


@given(st.binary(max_size=50), st.integers(1, 200))
def test_bytes_behind_the_handshake_are_returned(behind: bytes, pieces: int) -> None:
    """The acceptor's first frames may arrive together with its proof."""
    exchange = Exchange(dialler(), acceptor()).run(
        lambda number, message: message + behind if number == 3 else message, pieces
    )

    assert exchange.rests == [behind, b""]
    assert exchange.sides[0].feed(b"more") == b"more"


@given(st.binary(min_size=32, max_size=64), st.binary(min_size=32, max_size=64))
def test_different_cookies_never_match(one: bytes, other: bytes) -> None:
    """Both sides learn that, and nothing more."""
    assume(one != other)

    exchange = Exchange(dialler(cookie=one), acceptor(cookie=other)).run()

    assert [side.peer for side in exchange.sides] == [None, None]
    assert [refused and refused.refusal for refused in exchange.refusals] == [Refusal.NOT_AUTHENTICATED] * 2
    assert exchange.messages[-1].endswith(b"not authenticated")


@pytest.mark.parametrize("other", [COOKIE + b"x", COOKIE + b"\0", COOKIE[:-1]])
def test_a_cookie_that_differs_in_its_end_does_not_match(other: bytes) -> None:
    """No part of it is ignored; HMAC alone takes keys that differ in zeros at their end for one."""
    exchange = Exchange(dialler(cookie=other), acceptor()).run()

    assert [side.peer for side in exchange.sides] == [None, None]


def test_the_cookie_is_not_sent() -> None:
    """Nor is a piece of it, nor its digest."""
    sent = b"".join(Exchange(dialler(), acceptor()).run().messages)

    assert not any(COOKIE[start : start + 8] in sent for start in range(len(COOKIE) - 7))
    assert sha256(COOKIE).digest()[:8] not in sent


@given(st.integers(0, 3), st.data())
def test_no_changed_message_gets_through(number: int, data: st.DataObject) -> None:
    """Whichever byte of whichever message is changed, its receiver is never done; a changed HELLO ends both."""

    def change(index: int, message: bytes) -> bytes:
        if index != number:
            return message
        position = data.draw(st.integers(0, len(message) - 1))
        flipped = message[position] ^ data.draw(st.integers(1, 255))
        return message[:position] + bytes([flipped]) + message[position + 1 :]

    exchange = Exchange(dialler(), acceptor()).run(change)

    receiver = (number + 1) % 2
    assert exchange.sides[receiver].peer is None
    assert number >= 2 or exchange.sides[1 - receiver].peer is None


@given(st.integers(0, 3), st.data())
def test_no_message_with_a_byte_more_or_less_gets_through(number: int, data: st.DataObject) -> None:
    """It is refused, or its end is waited for in vain."""

    def change(index: int, message: bytes) -> bytes:
        if index != number:
            return message
        position = data.draw(st.integers(0, len(message) - 1))
        if data.draw(st.booleans()):
            return message[:position] + message[position + 1 :]
        longer = message[:position] + data.draw(st.binary(min_size=1, max_size=1)) + message[position:]
        assume(not longer.startswith(message))  # That would be a valid message, and a byte behind it.
        return longer

    exchange = Exchange(dialler(), acceptor()).run(change)

    assert exchange.sides[(number + 1) % 2].peer is None


@given(st.binary(max_size=300), st.booleans())
def test_noise_is_refused_or_waited_for(noise: bytes, dials: bool) -> None:
    """Nothing else than a refusal is raised, and noise is not answered."""
    side = dialler() if dials else acceptor()
    side.data_to_send()

    try:
        side.feed(noise)
    except HandshakeRefused as refused:
        assert refused.refusal is Refusal.MALFORMED or refused.by_peer

    assert side.peer is None
    assert side.data_to_send() == b""


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "it is HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "it is TLS"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "the other node has"),
        (b"\x10\x0c\x00\x04MQTT\x04\x02", "it is MQTT"),
        (b"\x00\x00\x03\xf4\x01", "above 1024"),
        (b"\x00\x00\x00\x00\x04", "unknown type 4"),
    ],
)
def test_noise_is_refused_at_its_first_header(noise: bytes, words: str) -> None:
    """The log says what it may be."""
    side = acceptor()

    with pytest.raises(HandshakeRefused, match=words):
        side.feed(noise)

    assert side.data_to_send() == b""


@pytest.mark.parametrize(
    ("changes", "refusal", "words"),
    [
        ({"cluster": "other"}, Refusal.CLUSTER, "names of the cluster differ: 'other' of 'b', 'test' of 'a'"),
        ({"digest": b"x" * 32}, Refusal.SETTINGS, "settings differ: downing"),
        ({"versions": (2, 3)}, Refusal.VERSION, "2 to 3 of 'b', 1 to 1 of the other broker"),
        ({"own": PeerInfo("a", 1, "127.0.0.1:4001")}, Refusal.SELF, "the process that has dialled"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_with_its_reason(
    changes: dict[str, Any], refusal: Refusal, words: str
) -> None:
    """Both logs can name it, and no proof is exchanged."""
    exchange = Exchange(dialler(), acceptor(**changes)).run()

    for refused, by_peer in zip(exchange.refusals, (True, False), strict=True):
        assert refused is not None and refused.refusal is refusal and refused.by_peer is by_peer
        assert words in str(refused)
    assert [message[4] for message in exchange.messages] == [HELLO, REFUSED]


def test_a_dialler_expects_one_process() -> None:
    """At the address of a member another process may have started."""
    exchange = Exchange(dialler(expected_uid=3), acceptor()).run()

    for refused in exchange.refusals:
        assert refused is not None and refused.refusal is Refusal.WRONG_PROCESS
        assert "process 0000000000000002 answers, where 0000000000000003 is expected" in str(refused)
    assert [message[4] for message in exchange.messages] == [HELLO, HELLO, REFUSED]


def test_the_expected_process_is_accepted() -> None:
    """The check compares uids."""
    exchange = Exchange(dialler(expected_uid=2), acceptor()).run()

    assert exchange.sides[0].peer == B


def test_the_acceptor_does_not_prove_first() -> None:
    """Who can't prove anything gets a HELLO, and no MAC to try cookies against."""
    side = acceptor()
    side.feed(dialler().data_to_send())

    answer = side.data_to_send()

    assert [answer[4], len(answer)] == [HELLO, len(encode(HELLO, 0, answer[13:]))]
    with pytest.raises(HandshakeRefused):
        side.feed(encode(AUTH, 0, bytes(32)))
    assert side.data_to_send()[4] == REFUSED


def test_a_reflected_hello_is_refused() -> None:
    """An echo is this process itself; under another uid it has this side's nonce, which is refused as well."""
    echo, side = dialler(), dialler()
    with pytest.raises(HandshakeRefused) as found:
        side.feed(echo.data_to_send())
    assert found.value.refusal is Refusal.SELF

    forger = acceptor(nonce=b"1" * 32)
    with pytest.raises(HandshakeRefused) as found:
        forger.feed(dialler().data_to_send())
    assert found.value.refusal is Refusal.NOT_AUTHENTICATED


def test_a_proof_of_one_role_is_none_of_the_other() -> None:
    """The acceptor's proof can't be the dialler's, sent back."""
    first, second = dialler(), acceptor()
    second.feed(first.data_to_send())
    first.feed(second.data_to_send())
    proof = first.data_to_send()

    with pytest.raises(HandshakeRefused, match="not authenticated"):
        first.feed(proof)

    assert first.peer is None


def test_a_recorded_handshake_can_not_be_replayed() -> None:
    """The acceptor's next nonce is another one."""
    recorded = Exchange(dialler(), acceptor()).run().messages
    side = acceptor(nonce=b"3" * 32)

    side.feed(recorded[0])
    with pytest.raises(HandshakeRefused, match="not authenticated"):
        side.feed(recorded[2])


@pytest.mark.parametrize("side", ["own_certificate", "peer_certificate"])
def test_a_proof_is_bound_to_both_certificates(side: str) -> None:
    """Somebody in between, with a TLS connection to each side, can't pass on the proofs."""
    certificates = {"own_certificate": b"A", "peer_certificate": b"B"}
    mirrored = {"own_certificate": b"B", "peer_certificate": b"A"}
    good = Exchange(dialler(**certificates), acceptor(**mirrored)).run()

    bad = Exchange(dialler(**certificates | {side: b"C"}), acceptor(**mirrored)).run()

    assert [each.peer for each in good.sides] == [B, A]
    assert [each.peer for each in bad.sides] == [None, None]


def test_a_refusal_before_hello_tells_nothing_else() -> None:
    """A dialler that does not accept the certificate sends no HELLO; the other side gets the reason."""
    side, other = dialler(), acceptor()

    refused = side.refuse(Refusal.CERTIFICATE, "the certificate is for x")

    assert refused.refusal is Refusal.CERTIFICATE
    data = side.data_to_send()
    assert data[4] == REFUSED
    with pytest.raises(HandshakeRefused, match="the certificate is for x") as found:
        other.feed(data)
    assert found.value.by_peer and found.value.refusal is Refusal.CERTIFICATE
    assert other.claimed is None
    with pytest.raises(HandshakeRefused):
        side.feed(b"")


def test_a_reason_from_outside_is_short_and_printable() -> None:
    """It goes into the log; numbers of later releases are known as other reasons."""
    side = dialler()

    with pytest.raises(HandshakeRefused) as found:
        side.feed(encode(REFUSED, 0, b"\xfa\x1b[31m\xff" + b"x" * 900))

    assert found.value.refusal is Refusal.OTHER
    assert str(found.value).isprintable() and str(found.value).startswith("?[31m")
    assert len(str(found.value)) == 300


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (encode(AUTH, 0, bytes(32)), "AUTH where HELLO is expected"),
        (encode(HELLO, 1, b""), "number 1 in a handshake"),
        (encode(HELLO, 0, b""), "a HELLO of 0 bytes"),
        (encode(HELLO, 0, b"kmqx" + bytes(100)), "another protocol"),
        (encode(HELLO, 0, b"kmqc\0\2\0\1" + bytes(100)), "versions 2 to 1"),
    ],
)
def test_an_invalid_first_frame_is_malformed(frame: bytes, words: str) -> None:
    """It is refused without an answer."""
    side = acceptor()

    with pytest.raises(HandshakeRefused, match=words):
        side.feed(frame)

    assert side.data_to_send() == b""


def test_a_second_hello_is_malformed() -> None:
    """The frames have an order."""
    side = acceptor()
    hello = dialler().data_to_send()
    side.feed(hello)

    with pytest.raises(HandshakeRefused, match="HELLO where AUTH is expected"):
        side.feed(hello)


def test_a_hello_may_be_longer_than_this_release_knows() -> None:
    """A later version appends to it, and the proof covers that."""
    hello = Hello((1, 1), ConnectionKind.BULK, "test", A, 0, bytes(32), b"1" * 32)

    read = Hello.unpack(hello.pack() + b"more")

    assert read == hello


@given(
    st.builds(
        PeerInfo,
        st.text("abÄ1", min_size=1, max_size=100),
        st.integers(0, 2**64 - 1),
        st.just("[::1]:4883"),
        st.booleans(),
    ),
    st.binary(min_size=32, max_size=32),
    st.sampled_from(ConnectionKind),
)
def test_a_hello_is_read_as_it_was_written(sender: PeerInfo, nonce: bytes, kind: ConnectionKind) -> None:
    """Whatever the names are."""
    hello = Hello((1, 2), kind, "test", sender, 5, bytes(32), nonce)

    assert Hello.unpack(hello.pack()) == hello


@given(st.binary(max_size=200))
def test_any_body_is_a_hello_or_malformed(body: bytes) -> None:
    """Nothing else is raised, also behind a valid beginning."""
    start = Hello((1, 1), ConnectionKind.BULK, "test", A, 0, bytes(32), b"1" * 32).pack()[:90]
    for candidate in (body, start + body):
        try:
            Hello.unpack(candidate)
        except MalformedFrame:
            pass


def test_the_largest_hello_fits_into_a_frame() -> None:
    """With the longest names that settings accept."""
    sender = PeerInfo("n" * 255, 2**64 - 1, f"{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 57}:4883")
    hello = Hello((1, 1), ConnectionKind.BULK, "c" * 64, sender, 2**64 - 1, bytes(32), bytes(32))

    assert len(encode(HELLO, 0, hello.pack())) <= HANDSHAKE_FRAME_BYTES


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cookie": b"c" * 31}, "cookie has 31 bytes"),
        ({"nonce": b"1" * 31}, "a nonce has 32 bytes"),
        ({"digest": b""}, "a digest has 32 bytes"),
        ({"cluster": ""}, "the cluster's name has 0 bytes"),
        ({"cluster": "x" * 65}, "the cluster's name has 65 bytes"),
        ({"cluster": "a\nb"}, "can't be printed"),
        ({"own": PeerInfo("", 1, "a:1")}, "the node's name has 0 bytes"),
        ({"own": PeerInfo("a", 1, "a")}, "is not host:port"),
        ({"own": PeerInfo("a", 2**64, "a:1")}, "a HELLO of"),
        ({"kind": None}, "the dialler chooses"),
    ],
)
def test_values_that_hello_can_not_carry_are_refused_at_once(changes: dict[str, Any], words: str) -> None:
    """A mistake of this side is no matter of a peer."""
    with pytest.raises(ValueError, match=words):
        dialler(**changes)
