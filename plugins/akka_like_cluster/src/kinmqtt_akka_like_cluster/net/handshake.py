"""The handshake of two brokers, without sockets: who they are, and that both know the cluster's cookie.

The dialler says HELLO, the acceptor answers with its own; then the dialler proves that it knows the cookie (AUTH),
and only then the acceptor does. A proof is an HMAC-SHA256 (RFC 2104), with the cookie's digest as key, over the
prover's role, both nonces, uids and HELLOs, and the digests of both TLS certificates: it can be neither replayed, nor
reflected, nor relayed over another TLS connection. The cookie itself is never sent. Whoever refuses says why
(REFUSED), after the other side's HELLO.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from enum import Enum
from hashlib import sha256
from struct import Struct
from typing import Final, NoReturn

from attrs import evolve

from kinmqtt_akka_like_cluster.net.framing import Frame, FrameDecoder, encode
from kinmqtt_akka_like_cluster.net.hello import NONCE_BYTES, ConnectionKind, Hello, PeerInfo, unpack_versions
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused, Refusal
from kinmqtt_akka_like_cluster.pure.versions import HIGHEST_VERSION, LOWEST_VERSION
from kinmqtt_spi.mesh.frames import MalformedFrame

VERSIONS: Final = (LOWEST_VERSION, HIGHEST_VERSION)
"""The lowest and the highest version of the protocol between brokers that this release speaks."""
HANDSHAKE_FRAME_BYTES: Final = 1024
"""The limit of a frame of the handshake, header included: noise is detected before much of it is buffered."""
MIN_COOKIE_BYTES: Final = 32
MAX_REASON_BYTES: Final = 300

HELLO: Final = 1
AUTH: Final = 2
REFUSED: Final = 3
_KINDS: Final = frozenset({HELLO, AUTH, REFUSED})
_NAMES: Final = {HELLO: "HELLO", AUTH: "AUTH", REFUSED: "REFUSED"}

_PURPOSE: Final = b"kinmqtt cluster handshake"
_UID: Final = Struct(">Q")
_SIZE: Final = Struct(">H")
_NOT_AUTHENTICATED: Final = "not authenticated"
"""All that the other side of a failed proof is told."""


class Role(Enum):
    """Who of the two has dialled."""

    DIALLER = b"dialler"
    ACCEPTOR = b"acceptor"


class Handshake:
    """One side of a handshake. It reads no clock: the owner ends it when it takes too long.

    Send what :meth:`data_to_send` returns after it was made and after each :meth:`feed`, also when that raises.
    """

    def __init__(
        self,
        role: Role,
        kind: ConnectionKind | None,
        own: PeerInfo,
        *,
        cluster: str,
        cookie: bytes,
        digest: bytes,
        nonce: bytes,
        versions: tuple[int, int] = VERSIONS,
        features: int = 0,
        own_certificate: bytes = b"",
        peer_certificate: bytes = b"",
        expected_uid: int | None = None,
    ) -> None:
        """An acceptor passes ``None`` as ``kind`` and learns it from the dialler.

        ``nonce`` is 32 random bytes that are used once. ``digest`` is the digest of the settings that must agree.
        The certificates are in DER, empty without TLS. ``expected_uid`` is the uid that a dialler expects. Raises
        ``ValueError`` for a cookie below 32 bytes, and for values that HELLO can't carry.
        """
        _check(role, kind, cookie, nonce)
        self._role = role
        self._own = own
        self._hello = Hello(versions, kind or ConnectionKind.CONTROL, cluster, own, features, digest, nonce)
        self._hello.pack()
        # HMAC takes keys that differ only in zeros at their end for one key; their digests differ.
        self._key = sha256(cookie).digest()
        self._own_certificate = own_certificate
        self._peer_certificate = peer_certificate
        self._expected_uid = expected_uid
        self._decoder = FrameDecoder(_KINDS, HANDSHAKE_FRAME_BYTES)
        self._out: list[bytes] = []
        self._sent_hello = b""
        self._peer_hello: Hello | None = None
        self._peer_hello_frame = b""
        self._take: Callable[[Frame], bool] = self._take_hello
        self._refused: HandshakeRefused | None = None
        self.kind = kind
        """The kind of connection; ``None`` until the acceptor knows it."""
        self.peer: PeerInfo | None = None
        """Who the other side is, once it has proved that it knows the cookie."""
        self.version = 0
        """The version that both speak, the highest one."""
        self.features = 0
        """The features that both have, as a bit mask."""
        if role is Role.DIALLER:
            self._say_hello()

    @property
    def claimed(self) -> PeerInfo | None:
        """Who the other side says it is, before any proof."""
        return None if self._peer_hello is None else self._peer_hello.sender

    def data_to_send(self) -> bytes:
        """Return what is to be sent now, once."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def feed(self, data: bytes) -> bytes:
        """Take bytes in any pieces. Return those that follow the handshake, when it is done; ``peer`` is set then.

        Raises :class:`HandshakeRefused`, again at each further call.
        """
        if self._refused is not None:
            raise self._refused
        if self.peer is not None:
            return data
        try:
            for frame in self._decoder.feed(data):
                if frame.sequence:
                    raise MalformedFrame(f"a frame with the number {frame.sequence} in a handshake")
                if frame.kind == REFUSED:
                    self._take_refused(frame.body)
                if self._take(frame):
                    return self._decoder.rest()
        except MalformedFrame as error:
            self._refuse(Refusal.MALFORMED, f"malformed handshake: {error}{_guess(self._decoder.rest())}")
        return b""

    def refuse(self, refusal: Refusal, text: str) -> HandshakeRefused:
        """Refuse the connection for a reason that the owner knows. Return the error.

        The other side is told that, and nothing of what was not sent yet.
        """
        self._out.clear()
        self._refused = HandshakeRefused(refusal, text)
        self._say_refused(refusal, text)
        return self._refused

    def _take_hello(self, frame: Frame) -> bool:
        """Take the first frame. Like its successor it tells whether the handshake is done."""
        if frame.kind != HELLO:
            raise MalformedFrame(f"{_NAMES[frame.kind]} where HELLO is expected")
        lowest, highest = unpack_versions(frame.body)
        own_lowest, own_highest = self._hello.versions
        if lowest > own_highest or highest < own_lowest:
            self._peer_hello_frame = encode(*frame)
            self._refuse(
                Refusal.VERSION,
                f"the protocol's versions differ: {own_lowest} to {own_highest} of {self._own.name!r}, "
                f"{lowest} to {highest} of the other broker",
            )
        hello = Hello.unpack(frame.body)
        self._peer_hello = hello
        self._peer_hello_frame = encode(*frame)
        self._compare(hello)
        self.version = min(highest, own_highest)
        self._take = self._take_auth
        if self._role is Role.ACCEPTOR:
            self.kind = hello.kind
            self._say_hello()
        else:
            self._prove()
        return False

    def _compare(self, hello: Hello) -> None:
        """Raise the refusal of a HELLO that was read."""
        own, sender = self._hello, hello.sender
        if sender.uid == self._own.uid:
            self._refuse(Refusal.SELF, "the connection leads to the process that has dialled it")
        if hello.nonce == own.nonce:
            self._refuse(Refusal.NOT_AUTHENTICATED, _NOT_AUTHENTICATED)
        if hello.cluster != own.cluster:
            self._refuse(
                # Both sides read this text, so nobody is "here".
                Refusal.CLUSTER,
                f"the names of the cluster differ: {own.cluster!r} of {self._own.name!r}, {hello.cluster!r} of "
                f"{sender.name!r}",
            )
        if hello.digest != own.digest:
            self._refuse(Refusal.SETTINGS, "the settings differ: downing, quorum or stable_after_s")
        if self._role is Role.DIALLER:
            if hello.kind is not self.kind:
                raise MalformedFrame("a HELLO for another kind of connection")
            if self._expected_uid not in (None, sender.uid):
                self._refuse(
                    Refusal.WRONG_PROCESS,
                    f"process {sender.uid:016x} answers, where {self._expected_uid:016x} is expected",
                )

    def _take_auth(self, frame: Frame) -> bool:
        if frame.kind != AUTH:
            raise MalformedFrame(f"{_NAMES[frame.kind]} where AUTH is expected")
        prover = Role.ACCEPTOR if self._role is Role.DIALLER else Role.DIALLER
        if not hmac.compare_digest(frame.body, self._proof(prover)):
            self._refuse(Refusal.NOT_AUTHENTICATED, _NOT_AUTHENTICATED)
        assert self._peer_hello is not None
        if self._role is Role.ACCEPTOR:
            self._prove()
        self.features = self._peer_hello.features & self._hello.features
        self.peer = self._peer_hello.sender
        return True

    def _take_refused(self, body: bytes) -> NoReturn:
        code = body[0] if body else Refusal.OTHER
        refusal = Refusal(code) if code in Refusal.__members__.values() else Refusal.OTHER
        text = body[1 : 1 + MAX_REASON_BYTES].decode(errors="replace")
        shown = "".join(sign if sign.isprintable() else "?" for sign in text) or "no reason given"
        self._refused = HandshakeRefused(refusal, shown, by_peer=True)
        raise self._refused

    def _say_hello(self) -> None:
        assert self.kind is not None
        self._sent_hello = encode(HELLO, 0, evolve(self._hello, kind=self.kind).pack())
        self._out.append(self._sent_hello)

    def _prove(self) -> None:
        self._out.append(encode(AUTH, 0, self._proof(self._role)))

    def _proof(self, prover: Role) -> bytes:
        """Return the MAC by which one side proves that it knows the cookie."""
        assert self._peer_hello is not None
        own = (self._hello.nonce, self._own.uid, self._sent_hello, self._own_certificate)
        other = (
            self._peer_hello.nonce,
            self._peer_hello.sender.uid,
            self._peer_hello_frame,
            self._peer_certificate,
        )
        sides = (own, other) if self._role is Role.DIALLER else (other, own)
        parts = [_PURPOSE, prover.value]
        for nonce, uid, hello, certificate in sides:
            # Only HELLO has no fixed size.
            parts += [nonce, _UID.pack(uid), _SIZE.pack(len(hello)), hello, sha256(certificate).digest()]
        return hmac.digest(self._key, b"".join(parts), "sha256")

    def _refuse(self, refusal: Refusal, text: str) -> NoReturn:
        # Noise is not answered.
        if self._peer_hello_frame:
            self._say_refused(refusal, text)
        self._refused = HandshakeRefused(refusal, text)
        raise self._refused

    def _say_refused(self, refusal: Refusal, text: str) -> None:
        self._out.append(encode(REFUSED, 0, bytes([refusal]) + text.encode(errors="replace")[:MAX_REASON_BYTES]))


def _check(role: Role, kind: ConnectionKind | None, cookie: bytes, nonce: bytes) -> None:
    """Raise ``ValueError`` for a mistake of this side."""
    if len(cookie) < MIN_COOKIE_BYTES:
        raise ValueError(f"the cookie has {len(cookie)} bytes, at least {MIN_COOKIE_BYTES} are needed")
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    if (role is Role.DIALLER) != (kind is not None):
        raise ValueError("the dialler chooses the kind of connection, the acceptor learns it")


def _guess(data: bytes) -> str:
    """Return what noise may be, to be appended to its description."""
    if data[:2] == b"\x16\x03":
        return "; it is TLS, and this node has no [plugins.akka_like_cluster.tls]"
    if data[:2] == b"\x15\x03":
        return "; the other node has [plugins.akka_like_cluster.tls], and this one has not"
    if data[:4] in (b"GET ", b"POST", b"HEAD", b"PUT "):
        return "; it is HTTP, and this is the port for other brokers"
    return "; it is MQTT, and this is the port for other brokers" if data[4:8] == b"MQTT" else ""
