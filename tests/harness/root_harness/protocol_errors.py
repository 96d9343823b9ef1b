"""Every mistake that a client can make, made before a broker in memory; and every place in the source that finds one.

`docs/errors.md` is generated from what the broker answers here. `tests/test_protocol_errors.py` checks that no place
is left out: a new `raise` needs a scenario, or a reason why no client gets there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from attrs import define, field, frozen

from core_harness.corpus import Entry, cases
from kinmqtt.mqtt.codec.primitives import write_varint
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.packets import (
    V5,
    V31,
    V311,
    Auth,
    Connack,
    Connect,
    DisconnectPacket,
    Packet,
    PacketType,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
)
from kinmqtt.mqtt.reasons import connack_code, has_connack_code
from kinmqtt.testing import BrokerHarness, HarnessClient
from kinmqtt_spi import Properties, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Continue, ExchangeStep

SOURCES: Final = Path(__file__).resolve().parents[3] / "core" / "src" / "kinmqtt"

FILES: Final = (
    "mqtt/framing.py",
    "mqtt/connection_state.py",
    "mqtt/codec/__init__.py",
    "mqtt/codec/flags.py",
    "mqtt/codec/primitives.py",
    "mqtt/codec/properties.py",
    "mqtt/reasons.py",
    "mqtt/characters.py",
    "mqtt/codec/connect.py",
    "mqtt/codec/publish.py",
    "mqtt/qos_state.py",
    "mqtt/codec/acks.py",
    "mqtt/codec/subscribe.py",
    "mqtt/topics.py",
    "mqtt/codec/plain.py",
    "broker/handlers/connect.py",
    "broker/handlers/authenticate.py",
    "broker/handlers/common.py",
    "broker/handlers/incoming_publish.py",
    "broker/handlers/acknowledge.py",
    "broker/handlers/disconnect.py",
    "broker/handlers/subscribe.py",
)
"""The files that find a peer's mistake, in the order of the table; a test looks whether there are others."""

ERRORS: Final = {
    "MalformedPacket": ReasonCode.MALFORMED_PACKET,
    "ProtocolError": ReasonCode.PROTOCOL_ERROR,
    "PacketTooLarge": ReasonCode.PACKET_TOO_LARGE,
    "UnsupportedVersion": ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    "RemoteError": None,
    "_bad_name": ReasonCode.TOPIC_NAME_INVALID,
    "_bad_filter": ReasonCode.TOPIC_FILTER_INVALID,
    "bad": None,
}
"""What is called to make an error of the peer's, and its reason code where that is always the same."""


# Places in the source


@frozen
class Site:
    """A place that finds a mistake."""

    file: str
    line: int
    text: str
    """What it says, with … for what depends on the packet."""
    clause: str | None
    """``None`` where that depends on the packet."""

    def fits(self, said: str) -> bool:
        """Whether this may be what was said; not where it may say anything."""
        return self.text != "…" and re.fullmatch(re.escape(self.text).replace("…", ".+"), said, re.DOTALL) is not None


@cache
def sites() -> tuple[Site, ...]:
    """Every place, in the order of the table."""
    return tuple(site for file in FILES for site in sites_in(file, (SOURCES / file).read_text(encoding="utf-8")))


def sites_in(file: str, source: str) -> Iterator[Site]:
    """The places of one file."""
    tree = ast.parse(source)
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        if function.name in ERRORS:
            continue
        texts = _assigned(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
                yield _site(file, node, texts)


def _assigned(function: ast.AST) -> dict[str, ast.expr]:
    """What a function's variables are set to."""
    return {
        target.id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _site(file: str, call: ast.Call, texts: dict[str, ast.expr]) -> Site:
    assert isinstance(call.func, ast.Name)
    arguments = call.args[1:] if call.func.id in ("RemoteError", "UnsupportedVersion") else call.args
    text = arguments[0]
    if isinstance(text, ast.Name):
        text = texts[text.id]
    clause: str | None = ""
    if len(arguments) > 1:
        clause = arguments[1].value if isinstance(arguments[1], ast.Constant) else None  # type: ignore[assignment]
    return Site(file, call.lineno, _written(text), clause)


def _written(text: ast.expr) -> str:
    """A text as it stands in the source, with … for what is filled in."""
    if isinstance(text, ast.JoinedStr):
        return "".join(_written(part) if isinstance(part, ast.Constant) else "…" for part in text.values)
    return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else "…"


@frozen
class Close:
    """A place that closes a connection, or refuses a CONNECT, for something else than a broken rule."""

    text: str
    reason: ReasonCode | None
    """``None`` where a plugin, a limiter or a store says it."""
    refuses: bool
    """Whether it is a CONNECT that is refused."""


def closes() -> Iterator[Close]:
    """Every such place of the broker."""
    for path in sorted((SOURCES / "broker").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            texts = _assigned(function)
            for node in (node for node in ast.walk(function) if isinstance(node, ast.Call) and len(node.args) > 1):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in ("Refused", "fail"):
                    text = texts.get(getattr(node.args[1], "id", ""), node.args[1])
                    yield Close(_written(text), _reason(node.args[0]), name == "Refused")


def _reason(argument: ast.expr) -> ReasonCode | None:
    is_named = isinstance(argument, ast.Attribute) and ast.unparse(argument.value) == "ReasonCode"
    return ReasonCode[argument.attr] if is_named else None  # type: ignore[attr-defined]


UNREACHED: Final = {
    ("mqtt/codec/connect.py", "reserved bits of the Connect Acknowledge Flags are set"): "servers send it",
    ("mqtt/codec/connect.py", "Session Present in a refusal"): "servers send it",
    ("mqtt/reasons.py", "CONNACK return code … is reserved"): "servers send it",
    ("mqtt/reasons.py", "SUBACK return code 0x… is reserved"): "servers send it",
    ("mqtt/codec/subscribe.py", "a SUBACK without a reason code"): "servers send it",
    ("mqtt/codec/subscribe.py", "an UNSUBACK without a reason code"): "servers send it",
    ("mqtt/topics.py", "a Topic Name or Topic Filter must not contain U+0000"): "the decoder refuses it before",
    ("mqtt/topics.py", "a ShareName must not contain U+0000"): "the decoder refuses it before",
    ("mqtt/topics.py", "a Topic Name or Topic Filter takes at most … bytes"): "no string is longer",
    ("mqtt/topics.py", "a Topic Name or Topic Filter has at most … levels here"): "the broker counts them itself",
    ("broker/handlers/connect.py", "not a CONNECT"): "a guard for the type checker",
    ("broker/handlers/authenticate.py", "not an AUTH"): "a guard for the type checker",
    ("broker/handlers/subscribe.py", "not a SUBSCRIBE"): "a guard for the type checker",
    ("broker/handlers/subscribe.py", "not an UNSUBSCRIBE"): "a guard for the type checker",
    ("broker/handlers/disconnect.py", "not a DISCONNECT"): "a guard for the type checker",
    ("broker/handlers/common.py", "no session"): "a guard for the type checker",
    ("broker/handlers/subscribe.py", "…"): "a plugin says it",
    ("broker/handlers/subscribe.py", "limited by …"): "a limiter says it",
}
"""Places where no mistake of a client's leads, by file and text, and why."""


# Mistakes


@frozen
class Seen:
    """What came of a mistake in one version."""

    version: int
    packet: str
    """The type of the packet, or of its first byte."""
    text: str
    clause: str
    reason: ReasonCode
    answer: str


Act = Callable[["Stage"], HarnessClient]


@define
class Stage:
    """Where mistakes are made: brokers by their limits, and clients with names of their own."""

    version: int
    _houses: dict[str, BrokerHarness] = field(factory=dict)
    _count: int = 0

    def house(self, plugins: bool = False, **limits: Any) -> BrokerHarness:
        """A broker with these limits."""
        key = repr((plugins, sorted(limits.items())))
        if key not in self._houses:
            self._houses[key] = BrokerHarness(plugins={"mechanism": Mechanism()} if plugins else {}, **limits)
        return self._houses[key]

    def open(self, **limits: Any) -> HarnessClient:
        """A connection on which nothing was said."""
        return self.house(**limits).open(self.version)

    def connect(self, properties: Properties = Properties(), **limits: Any) -> HarnessClient:  # noqa: B008
        """A client that is connected, and has got what it has to get."""
        self._count += 1
        peer = self.house(**limits).connect(f"c{self._count}", self.version, properties=properties)
        del peer.packets[:]
        peer.silent = True
        return peer


class Mechanism:
    """An authentication that never ends."""

    @hookimpl
    def exchange(self, step: ExchangeStep) -> Continue:
        """Ask for more."""
        return Continue(b"more")


def _sent(data: bytes, **limits: Any) -> Act:
    return lambda stage: stage.connect(**limits).send_bytes(data)


def _first(data: bytes) -> Act:
    return lambda stage: stage.open().send_bytes(data)


def _packet(packet: Packet, **limits: Any) -> Act:
    return lambda stage: stage.connect(**limits).send(packet)


def _filter(filter: str, **limits: Any) -> Act:
    return lambda stage: stage.connect(**limits).send(Subscribe(1, (SubscribeRequest(filter),)))


def _wrong_acknowledgement(stage: Stage) -> HarnessClient:
    peer = stage.connect()
    peer.subscribe(f"own/{id(peer)}", qos=2)
    stage.house().connect("p").publish(f"own/{id(peer)}", qos=2)
    return peer.send(Puback(peer.of(Publish)[0].packet_id))


def _authenticating(*packets: Packet) -> Act:
    def act(stage: Stage) -> HarnessClient:
        peer = stage.open(plugins=True)
        peer.send(Connect(V5, "a", properties=Properties(authentication_method="M")))
        del peer.packets[:]
        for packet in packets:
            peer.send(packet)
        return peer

    return act


def _publish_with_many_properties() -> bytes:
    properties = (b"\x26\x00\x01a\xff\xff" + b"x" * 65_535) * 9
    body = b"\x00\x01t" + write_varint(len(properties)) + properties
    return b"\x30" + write_varint(len(body)) + body


def _publish_with_user_properties(number: int) -> bytes:
    properties = b"\x26\x00\x00\x00\x00" * number
    body = b"\x00\x01t" + write_varint(len(properties)) + properties
    return b"\x30" + write_varint(len(body)) + body


OLD: Final = (V31, V311)
ALL: Final = (V31, V311, V5)
_PUBLISH: Final = Publish.build("t", b"x")
_QOS_2: Final = b"".join(b"\x34\x05\x00\x01t" + bytes((0, number)) for number in (1, 2))
_QOS_2_IN_5: Final = b"".join(b"\x34\x06\x00\x01t" + bytes((0, number, 0)) for number in (1, 2))

SCENARIOS: Final[Sequence[tuple[str, Sequence[int], Act]]] = (
    ("PUBLISH", ALL, _first(b"\x30")),
    ("AUTH", ALL, _first(b"\xf0")),
    ("type 0", ALL, _first(b"\x00")),
    ("CONNECT", ALL, lambda stage: stage.connect().send(Connect(stage.version, "again"))),
    ("SUBACK", ALL, _sent(b"\x90")),
    ("CONNACK", ALL, _sent(b"\x20")),
    ("PINGRESP", ALL, _sent(b"\xd0")),
    ("AUTH", OLD, _sent(b"\xf0")),
    ("PUBLISH", ALL, _sent(b"\x30\x80\x80\x10", max_packet_bytes=1000)),
    ("CONNECT", (V5,), _first(b"\x10\x0f\x00\x04HTTP\x05\x02\x00\x00\x00\x00\x02ab")),
    ("CONNECT", (V5,), _first(b"\x10\x13\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01c\x00\x00\x00\x00\x01w")),
    ("PUBLISH", (V5,), _sent(b"\x32\x03\x00\x01t")),
    ("PUBLISH", (V5,), _authenticating(_PUBLISH)),
    ("AUTH", (V5,), _authenticating(Auth(ReasonCode.CONTINUE_AUTHENTICATION, Properties(authentication_method="N")))),
    ("AUTH", (V5,), _authenticating(Auth(ReasonCode.REAUTHENTICATE, Properties(authentication_method="M")))),
    ("PUBLISH", (V5,), lambda stage: stage.connect().send_bytes(_publish_with_many_properties())),
    ("PUBLISH", (V5,), lambda stage: stage.connect().send_bytes(_publish_with_user_properties(101))),
    ("PUBLISH", (V5,), _sent(_QOS_2_IN_5, receive_maximum=1)),
    ("PUBLISH", (V5,), _packet(Publish.build("t", b"", properties=Properties(subscription_identifier=(1,))))),
    ("PUBLISH", (V5,), _packet(Publish.build("", b"", properties=Properties(topic_alias=1)))),
    ("PUBLISH", (V5,), _packet(Publish.build("t", b"", properties=Properties(topic_alias=65_000)))),
    ("PUBLISH", ALL, _packet(Publish.build("t\x07", b""))),
    ("CONNECT", ALL, lambda stage: stage.open().send(Connect(stage.version, "c\x07"))),
    ("SUBSCRIBE", ALL, _filter("t\x07")),
    ("UNSUBSCRIBE", ALL, _packet(Unsubscribe(1, ("t\x07",)))),
    ("PUBACK", ALL, _wrong_acknowledgement),
    ("DISCONNECT", (V5,), _packet(DisconnectPacket(properties=Properties(session_expiry_interval=9)))),
    ("SUBSCRIBE", ALL, _packet(Subscribe(1, tuple(map(SubscribeRequest, "abc"))), max_filters=2)),
    ("UNSUBSCRIBE", ALL, _packet(Unsubscribe(1, ("a", "b", "c")), max_filters=2)),
    *(
        (kind, ALL, act)
        for filter in ("a/#/b", "a+/b", "$share//t", "$share/+/t", "$share/g", "$share/g/")
        for kind, act in (
            ("SUBSCRIBE", _filter(filter)),
            ("UNSUBSCRIBE", _packet(Unsubscribe(1, (filter,)))),
        )
    ),
    ("SUBSCRIBE", ALL, _filter("a/b/c", max_topic_levels=2)),
    ("SUBSCRIBE", ALL, _filter("abcdef", max_topic_bytes=5)),
)
"""What the corpus can't have, for it depends on what was said before, or on the settings: packet, versions, act."""


@cache
def observed() -> tuple[Seen, ...]:
    """What comes of every mistake, by packet of the corpus and by scenario, in every version."""
    seen: list[Seen] = []
    for version in ALL:
        stage = Stage(version)
        for _, entry, entry_version in cases(direction="client"):
            if entry_version == version:
                seen += _observed(stage, _name(entry.data[0]), _of_corpus(entry))
        for packet, versions, act in SCENARIOS:
            if version in versions:
                found = list(_observed(stage, packet, act))
                assert found, f"{packet}: nothing came of a mistake in version {version}"
                seen += found
    return tuple(seen)


def _of_corpus(entry: Entry) -> Act:
    data = entry.data
    return _first(data) if data[0] >> 4 == PacketType.CONNECT else _sent(data)


def _name(first_byte: int) -> str:
    kind = first_byte >> 4
    return PacketType(kind).name if kind else "type 0"


def _observed(stage: Stage, packet: str, act: Act) -> Iterator[Seen]:
    """Make a mistake, and see which error the broker makes of it and what it answers; nothing where it is none."""
    with _errors() as errors:
        peer = act(stage)
    answer = _answer(peer, stage.version)
    if errors and answer:
        error = errors[-1]
        yield Seen(stage.version, packet, error.text, error.clause, error.reason, answer)


@contextmanager
def _errors() -> Iterator[list[RemoteError]]:
    """Every error of the peer's that is made within."""
    made: list[RemoteError] = []
    original = RemoteError.__init__

    def noted(self: RemoteError, reason: ReasonCode, text: str, clause: str = "") -> None:
        made.append(self)
        original(self, reason, text, clause)

    RemoteError.__init__ = noted  # type: ignore[method-assign]
    try:
        yield made
    finally:
        RemoteError.__init__ = original  # type: ignore[method-assign]


def _answer(peer: HarnessClient, version: int) -> str:
    """What a client reads, in few words; nothing where it is answered as if all were well."""
    for packet in reversed(peer.packets):
        if isinstance(packet, Connack) and packet.reason.is_failure:
            return f"CONNACK {_code(packet.reason, version)}"
        if isinstance(packet, DisconnectPacket):
            return f"DISCONNECT {_code(packet.reason, version)}"
        if isinstance(packet, Suback | Unsuback) and any(reason.is_failure for reason in packet.reasons):
            return f"{type(packet).__name__.upper()} 0x{packet.reasons[0]:02X}"
    return "closed" if peer.closed else ""


def _code(reason: ReasonCode, version: int) -> str:
    if version == V5:
        return f"0x{reason:02X}"
    assert has_connack_code(reason, version)
    return str(connack_code(reason, version))
