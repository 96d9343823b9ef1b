"""The SPI's values as JSON has them, and back: for moving what one store holds into another.

:func:`to_plain` makes dicts, lists, strings, numbers, booleans and ``None`` of a value, and :func:`from_plain` the
value of those. Every field is written under its own name, also where it has its default. Bytes become base64, enums
their value, times stay seconds since the epoch (UTC).

Reading is strict: a field that is missing, unknown or of another type than it should be is a ``ValueError``
whose text begins with the field's place, such as ``message.publisher.client_id``. What is read is then of the
right types and within MQTT's ranges; whether a topic is a good one is for the broker to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from enum import Enum
from math import isfinite
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from kinmqtt_spi.properties import NO_PROPERTIES, Properties, PropertyValues
from kinmqtt_spi.services.event import Event, EventKind, EventVersion, Recorded
from kinmqtt_spi.services.queue import Entry, InflightEntry, Stage
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import StoredSession
from kinmqtt_spi.values import Address, Client, Message, MessageId, Publisher, RetainHandling, Subscription, Will

T = TypeVar("T")

Storable: TypeAlias = (
    Message | Will | Subscription | StoredSession | Entry | InflightEntry | RetainWrite | Recorded | Client
)
"""What has a plain form."""

Plain: TypeAlias = Any
"""What JSON can say: a dict with strings as keys, a list, a string, a number, a boolean or ``None``."""


def to_plain(value: Storable) -> dict[str, Plain]:
    """The plain form of a value.

    A message's ``frame`` is left out: it is how the message came in, and no part of what it is.

    Raises ``ValueError`` for what has no plain form: a number that is not finite, or a plugin's own object in the
    data of an event. The text begins with the place, as in :func:`from_plain`.
    """
    form = _FORMS[type(value)]
    written: dict[str, Plain] = form.write(value, form.name)
    return written


def from_plain(type_: type[T], plain: Plain, place: str | None = None) -> T:
    """The value of a plain form; ``type_`` is its class, one of :data:`Storable`.

    Raises ``ValueError`` for what is no such form; the text begins with the field's place, below ``place`` where that
    is given, else below the name of the sort.
    """
    form = _FORMS[type_]
    made: T = form.read(plain, form.name if place is None else place)
    return made


class _Form(ABC):
    """How one sort of value is written and read."""

    @abstractmethod
    def write(self, value: Any, place: str) -> Plain:
        """The plain form."""

    @abstractmethod
    def read(self, plain: Plain, place: str) -> Any:
        """The value; raises ``ValueError`` with the place."""


class _Text(_Form):
    def write(self, value: Any, place: str) -> Plain:
        return str.__str__(value)

    def read(self, plain: Plain, place: str) -> str:
        if not isinstance(plain, str):
            raise _wrong(place, "a string", plain)
        return plain


class _Flag(_Form):
    def write(self, value: Any, place: str) -> Plain:
        return bool(value)

    def read(self, plain: Plain, place: str) -> bool:
        if not isinstance(plain, bool):
            raise _wrong(place, "true or false", plain)
        return plain


class _Whole(_Form):
    """A whole number within bounds."""

    def __init__(self, lowest: int = 0, highest: int | None = None) -> None:
        self._lowest = lowest
        self._highest = highest

    def write(self, value: Any, place: str) -> Plain:
        return int(value)

    def read(self, plain: Plain, place: str) -> int:
        if not isinstance(plain, int) or isinstance(plain, bool):
            raise _wrong(place, "a whole number", plain)
        if plain < self._lowest or (self._highest is not None and plain > self._highest):
            bounds = (
                f"not below {self._lowest}" if self._highest is None else f"from {self._lowest} to {self._highest}"
            )
            raise ValueError(f"{place}: expected a whole number {bounds}, not {plain}")
        return plain


class _Time(_Form):
    """Seconds."""

    def write(self, value: Any, place: str) -> Plain:
        return _finite(float(value), place)

    def read(self, plain: Plain, place: str) -> float:
        if not isinstance(plain, int | float) or isinstance(plain, bool):
            raise _wrong(place, "a number of seconds", plain)
        try:
            return _finite(float(plain), place)
        except OverflowError:
            raise ValueError(f"{place}: the number is too large") from None


class _Bytes(_Form):
    def write(self, value: Any, place: str) -> Plain:
        return b64encode(value).decode("ascii")

    def read(self, plain: Plain, place: str) -> bytes:
        if not isinstance(plain, str):
            raise _wrong(place, "a string of base64", plain)
        try:
            return b64decode(plain, validate=True)
        except ValueError as error:
            raise ValueError(f"{place}: expected base64: {error}") from None


class _OneOf(_Form):
    """A member of an enum, by its value."""

    def __init__(self, enum: type[Enum]) -> None:
        self._enum = enum

    def write(self, value: Any, place: str) -> Plain:
        return value.value

    def read(self, plain: Plain, place: str) -> Enum:
        for member in self._enum:
            if isinstance(plain, str) and member.value == plain:
                return member
        words = ", ".join(f'"{member.value}"' for member in self._enum)
        raise ValueError(f"{place}: expected one of {words}")


class _Optional(_Form):
    def __init__(self, form: _Form) -> None:
        self._form = form

    def write(self, value: Any, place: str) -> Plain:
        return None if value is None else self._form.write(value, place)

    def read(self, plain: Plain, place: str) -> Any:
        return None if plain is None else self._form.read(plain, place)


class _Several(_Form):
    """A tuple, all of one sort."""

    def __init__(self, form: _Form) -> None:
        self._form = form

    def write(self, value: Any, place: str) -> Plain:
        return [self._form.write(each, f"{place}[{number}]") for number, each in enumerate(value)]

    def read(self, plain: Plain, place: str) -> tuple[Any, ...]:
        if not isinstance(plain, list):
            raise _wrong(place, "a list", plain)
        return tuple(self._form.read(each, f"{place}[{number}]") for number, each in enumerate(plain))


class _Pair(_Form):
    """Two strings: a user property."""

    def write(self, value: Any, place: str) -> Plain:
        return [_TEXT.write(each, place) for each in value]

    def read(self, plain: Plain, place: str) -> tuple[str, str]:
        if not isinstance(plain, list) or len(plain) != 2:
            raise _wrong(place, "a list of two strings", plain)
        first, second = (_TEXT.read(each, f"{place}[{number}]") for number, each in enumerate(plain))
        return first, second


class _Texts(_Form):
    """Strings by name."""

    def write(self, value: Any, place: str) -> Plain:
        for name, each in value.items():
            if not isinstance(each, str):
                raise ValueError(f"{place}.{name}: expected a string, not a {type(each).__name__}")
        return {_key(name, place): str.__str__(each) for name, each in value.items()}

    def read(self, plain: Plain, place: str) -> dict[str, str]:
        if not isinstance(plain, dict):
            raise _wrong(place, "an object", plain)
        return {name: _TEXT.read(each, f"{place}.{name}") for name, each in plain.items()}


class _Properties(_Form):
    """The properties that are present, by name, in their order."""

    def write(self, value: Any, place: str) -> Plain:
        return {name: _PROPERTIES[name].write(each, f"{place}.{name}") for name, each in value.present.items()}

    def read(self, plain: Plain, place: str) -> Properties:
        if not isinstance(plain, dict):
            raise _wrong(place, "an object", plain)
        present: dict[str, Any] = {}
        for name, each in plain.items():
            if name not in _PROPERTIES:
                raise ValueError(f"{place}: no such MQTT property: {name}")
            present[name] = _PROPERTIES[name].read(each, f"{place}.{name}")
        return Properties.from_wire(present) if present else NO_PROPERTIES


class _Data(_Form):
    """The data of an event: whatever JSON can say, and bytes.

    Bytes are an object with the only key ``$base64``. A mapping that looks like that itself, or like what is
    said of it here, is wrapped: an object with the only key ``$object``. Tuples and sets come back as lists.
    """

    def write(self, value: Any, place: str) -> Plain:
        if not isinstance(value, Mapping):
            raise ValueError(f"{place}: expected a mapping, not a {type(value).__name__}")
        return {
            _key(name, place): self._write(each, f"{place}.{name}") for name, each in value.items()
        }  # an event's data is an object in any case, and needs no wrapping

    def read(self, plain: Plain, place: str) -> dict[str, object]:
        if not isinstance(plain, dict):
            raise _wrong(place, "an object", plain)
        return {name: self._read(each, f"{place}.{name}") for name, each in plain.items()}

    def _write(self, value: Any, place: str) -> Plain:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Enum) and not isinstance(value, int | str):
            return self._write(value.value, place)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return _finite(float(value), place)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return {_BASE64: _BYTES.write(value, place)}
        if isinstance(value, Mapping):
            written = self.write(value, place)
            return {_OBJECT: written} if written.keys() in _WRAPPED else written
        if isinstance(value, set | frozenset):
            return self._write(sorted(value, key=repr), place)
        if isinstance(value, Sequence):
            return [self._write(each, f"{place}[{number}]") for number, each in enumerate(value)]
        raise ValueError(f"{place}: a {type(value).__name__} is no plain value")

    def _read(self, plain: Plain, place: str) -> object:
        if isinstance(plain, dict):
            if plain.keys() == {_BASE64}:
                return _BYTES.read(plain[_BASE64], place)
            if plain.keys() == {_OBJECT}:
                return self.read(plain[_OBJECT], place)
            return self.read(plain, place)
        if isinstance(plain, list):
            return [self._read(each, f"{place}[{number}]") for number, each in enumerate(plain)]
        if isinstance(plain, float):
            return _finite(plain, place)
        if plain is None or isinstance(plain, bool | int | str):
            return plain
        raise ValueError(f"{place}: a {type(plain).__name__} is no plain value")


class _Record(_Form):
    """A value with named fields."""

    def __init__(self, made: type[Any], name: str, **fields: _Form) -> None:
        self.name = name
        self._made = made
        self._fields = fields

    def write(self, value: Any, place: str) -> Plain:
        return {name: form.write(getattr(value, name), f"{place}.{name}") for name, form in self._fields.items()}

    def read(self, plain: Plain, place: str) -> Any:
        if not isinstance(plain, dict):
            raise _wrong(place, "an object", plain)
        for name in plain:
            if name not in self._fields:
                raise ValueError(f"{place}.{name} is no known field")
        found: dict[str, Any] = {}
        for name, form in self._fields.items():
            if name not in plain:
                raise ValueError(f"{place}.{name} is missing")
            found[name] = form.read(plain[name], f"{place}.{name}")
        return self._made(**found)


class _Session(_Record):
    """A session. Where it is not said whether its user was verified, as there was no such field, it was not."""

    def read(self, plain: Plain, place: str) -> StoredSession:
        if isinstance(plain, dict) and "username_unverified" not in plain:
            plain = {**plain, "username_unverified": True}
        made: StoredSession = super().read(plain, place)
        return made


class _Inflight(_Record):
    """An entry in flight, whose stage says whether there is still a message."""

    def read(self, plain: Plain, place: str) -> InflightEntry:
        made: InflightEntry = super().read(plain, place)
        if made.stage is Stage.QUEUED:
            raise ValueError(f'{place}.stage: expected "sent" or "released": what is queued has no packet identifier')
        if (made.entry is None) is not (made.stage is Stage.RELEASED):
            raise ValueError(f'{place}.entry: expected null exactly where the stage is "released"')
        if made.entry is not None and made.entry.sequence != made.sequence:
            raise ValueError(f"{place}.entry.sequence: expected {made.sequence}, not {made.entry.sequence}")
        return made


_WORDS: Final[Mapping[type[Any], str]] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def _wrong(place: str, expected: str, plain: Plain) -> ValueError:
    # What there is instead is told of by its sort only: it may be a payload or a password.
    return ValueError(f"{place}: expected {expected}, not {_WORDS.get(type(plain), type(plain).__name__)}")


def _finite(value: float, place: str) -> float:
    if not isfinite(value):
        raise ValueError(f"{place}: expected a finite number, not {value}")
    return value


def _key(name: object, place: str) -> str:
    if not isinstance(name, str):
        raise ValueError(f"{place}: expected strings as keys, not a {type(name).__name__}")
    return str.__str__(name)


_BASE64: Final = "$base64"
_OBJECT: Final = "$object"
_WRAPPED: Final = ({_BASE64}, {_OBJECT})

_TEXT: Final = _Text()
_MAYBE_TEXT: Final = _Optional(_TEXT)
_FLAG: Final = _Flag()
_COUNT: Final = _Whole()
_QOS: Final = _Whole(0, 2)
_UINT32: Final = _Whole(0, 0xFFFF_FFFF)
_PACKET_ID: Final = _Whole(1, 0xFFFF)
_IDENTIFIER: Final = _Whole(1, 268_435_455)
_VERSION: Final = _Whole(3, 5)
_TIME: Final = _Time()
_MAYBE_TIME: Final = _Optional(_TIME)
_BYTES: Final = _Bytes()


def _property(type_: Any) -> _Form:
    """How a property of that type is written and read."""
    if get_origin(type_) is tuple:
        return _Several(_COUNT if get_args(type_)[0] is int else _Pair())
    forms: Mapping[Any, _Form] = {int: _UINT32, str: _TEXT, bytes: _BYTES}
    return forms[type_]


_PROPERTIES: Final[Mapping[str, _Form]] = {
    name: _property(type_) for name, type_ in get_type_hints(PropertyValues).items()
}

_MESSAGE: Final = _Record(
    Message,
    "message",
    topic=_TEXT,
    payload=_BYTES,
    qos=_QOS,
    retain=_FLAG,
    properties=_Properties(),
    publisher=_Record(Publisher, "publisher", client_id=_TEXT, username=_MAYBE_TEXT),
    id=_Record(MessageId, "id", node=_COUNT, counter=_COUNT),
    received_at=_TIME,
    expires_at=_MAYBE_TIME,
)
_WILL: Final = _Record(Will, "will", message=_MESSAGE, delay_s=_UINT32)
_SUBSCRIPTION: Final = _Record(
    Subscription,
    "subscription",
    filter=_TEXT,
    qos=_QOS,
    share_group=_MAYBE_TEXT,
    no_local=_FLAG,
    retain_as_published=_FLAG,
    retain_handling=_Whole(min(RetainHandling), max(RetainHandling)),
    identifier=_Optional(_IDENTIFIER),
)
_SESSION: Final = _Session(
    StoredSession,
    "session",
    client_id=_TEXT,
    expiry_s=_UINT32,
    subscriptions=_Several(_SUBSCRIPTION),
    will=_Optional(_WILL),
    created_at=_TIME,
    username=_MAYBE_TEXT,
    protocol_version=_VERSION,
    expires_at=_MAYBE_TIME,
    will_due_at=_MAYBE_TIME,
    username_unverified=_FLAG,
)
_ENTRY: Final = _Record(
    Entry,
    "entry",
    sequence=_COUNT,
    message=_MESSAGE,
    qos=_QOS,
    retain=_FLAG,
    identifiers=_Several(_IDENTIFIER),
    shared_filter=_MAYBE_TEXT,
)
_INFLIGHT: Final = _Inflight(
    InflightEntry,
    "inflight",
    sequence=_COUNT,
    packet_id=_PACKET_ID,
    stage=_OneOf(Stage),
    entry=_Optional(_ENTRY),
)
_RETAINED: Final = _Record(
    RetainWrite,
    "retained",
    message=_MESSAGE,
    version=_Record(RetainVersion, "version", received_at=_TIME, node=_COUNT, counter=_COUNT),
)
_RECORDED: Final = _Record(
    Recorded,
    "recorded",
    offset=_COUNT,
    event=_Record(
        Event,
        "event",
        kind=_OneOf(EventKind),
        client_id=_TEXT,
        version=_Record(EventVersion, "version", epoch=_COUNT, counter=_COUNT),
        at=_TIME,
        data=_Data(),
        schema_version=_COUNT,
    ),
)

_CLIENT: Final = _Record(
    Client,
    "client",
    client_id=_TEXT,
    username=_MAYBE_TEXT,
    address=_Record(Address, "address", host=_TEXT, port=_Optional(_COUNT)),
    listener=_TEXT,
    protocol_version=_VERSION,
    certificate_subject=_MAYBE_TEXT,
    attributes=_Texts(),
)

_FORMS: Final[Mapping[type[Any], _Record]] = {
    Message: _MESSAGE,
    Will: _WILL,
    Subscription: _SUBSCRIPTION,
    StoredSession: _SESSION,
    Entry: _ENTRY,
    InflightEntry: _INFLIGHT,
    RetainWrite: _RETAINED,
    Recorded: _RECORDED,
    Client: _CLIENT,
}
