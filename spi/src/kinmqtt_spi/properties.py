"""MQTT 5.0 properties (section 2.2.2) as one immutable, typed object.

A packet has few of the 27 properties, often none. So an instance stores only those that are present, and a class
attribute is the value of an absent one: reading is typed and fast, and all messages without properties share
:data:`NO_PROPERTIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypedDict, Unpack

# Sizes with CPython 3.11 on 64 bits, measured with tracemalloc. tests/test_held_memory.py compares these estimates
# with the real memory.

PROPERTIES_BYTES: Final = 240
"""The memory of a packet's properties without their values: the object and its dict."""

TEXT_BYTES: Final = 50
"""The memory of a text without its characters. Texts of at most one character are shared."""

BINARY_BYTES: Final = 40
"""The memory of binary data without its bytes."""

TUPLE_BYTES: Final = 48
"""The memory of a repeatable property without its values."""

PAIR_BYTES: Final = 64
"""The memory of a User Property without the characters of its two texts."""

NUMBER_BYTES: Final = 32
"""The memory of a number."""

_ASCII_BYTES: Final = 1
_WIDEST_BYTES: Final = 4


def text_bytes(text: str) -> int:
    """Return the memory of a text's characters: one byte each in ASCII, else four.

    CPython stores all characters of a text in the width of the widest, so one emoji makes a long text four times as
    large. The widest character is not searched: any text that is not ASCII counts with four bytes.
    """
    return len(text) * (_ASCII_BYTES if text.isascii() else _WIDEST_BYTES)


class PropertyValues(TypedDict, total=False):
    """The keyword arguments of :class:`Properties`."""

    payload_format_indicator: int
    message_expiry_interval: int
    content_type: str
    response_topic: str
    correlation_data: bytes
    subscription_identifier: tuple[int, ...]
    session_expiry_interval: int
    assigned_client_identifier: str
    server_keep_alive: int
    authentication_method: str
    authentication_data: bytes
    request_problem_information: int
    will_delay_interval: int
    request_response_information: int
    response_information: str
    server_reference: str
    reason_string: str
    receive_maximum: int
    topic_alias_maximum: int
    topic_alias: int
    maximum_qos: int
    retain_available: int
    user_property: tuple[tuple[str, str], ...]
    maximum_packet_size: int
    wildcard_subscription_available: int
    subscription_identifier_available: int
    shared_subscription_available: int


class Properties:
    """The properties of one packet; an absent property is ``None`` or an empty tuple.

    Intervals are in seconds, sizes in bytes, as in the specification. ``user_property`` preserves order and
    repetitions; ``subscription_identifier`` has every identifier of a PUBLISH.
    """

    __slots__ = ("__dict__", "_size_bytes")

    _size_bytes: int
    """The cached size, because a packet may have a hundred thousand User Properties."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifier: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_property: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None

    def __init__(self, **present: Unpack[PropertyValues]) -> None:
        unknown = present.keys() - PROPERTY_NAMES
        if unknown:
            raise TypeError(f"no such MQTT property: {', '.join(sorted(unknown))}")
        self.__dict__.update(present)

    @classmethod
    def from_wire(cls, present: dict[str, Any]) -> Properties:
        """Make properties from values that a decoder has checked. The dict is not copied."""
        properties = cls.__new__(cls)
        object.__setattr__(properties, "__dict__", present)
        return properties

    @property
    def present(self) -> Mapping[str, Any]:
        """Return the present properties by name, in their original order."""
        return self.__dict__

    def replace(self, **changes: Unpack[PropertyValues]) -> Properties:
        """Return a copy with some properties changed."""
        return Properties(**{**self.__dict__, **changes})

    def without(self, *names: str) -> Properties:
        """Return a copy without the named properties."""
        kept = {name: value for name, value in self.__dict__.items() if name not in names}
        return Properties.from_wire(kept) if kept else NO_PROPERTIES

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory: texts, binary data and objects."""
        try:
            return self._size_bytes
        except AttributeError:
            pass
        present = self.__dict__
        size_bytes = PROPERTIES_BYTES + sum(map(_value_bytes, present.values())) if present else 0
        object.__setattr__(self, "_size_bytes", size_bytes)
        return size_bytes

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __bool__(self) -> bool:
        return bool(self.__dict__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Properties) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(frozenset(self.__dict__.items()))

    def __repr__(self) -> str:
        return f"Properties({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Properties are immutable; use replace({name}=...)")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Properties are immutable; use without({name!r})")


def _value_bytes(value: object) -> int:
    if isinstance(value, str):
        return TEXT_BYTES + text_bytes(value)
    if isinstance(value, bytes):
        return BINARY_BYTES + len(value)
    if not isinstance(value, tuple):
        return NUMBER_BYTES
    size_bytes = TUPLE_BYTES
    for each in value:
        if isinstance(each, int):
            size_bytes += NUMBER_BYTES
            continue
        size_bytes += PAIR_BYTES
        for text in each:
            if len(text) > 1:
                size_bytes += TEXT_BYTES + text_bytes(text)
    return size_bytes


PROPERTY_NAMES: Final = frozenset(PropertyValues.__annotations__)

NO_PROPERTIES: Final = Properties()
