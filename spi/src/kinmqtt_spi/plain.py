"""Converts the SPI's values to JSON values and back, for copying the contents of stores.

:func:`to_plain` converts a value to dicts, lists, strings, numbers, booleans and ``None``, and :func:`from_plain`
converts them back. Every field is written under its name, even with its default value. Bytes become base64, enums
their value, and times stay seconds since the epoch (UTC).

Reading is strict: a field that is missing, unknown or of a wrong type raises ``ValueError``, whose text begins with
the field's place, such as ``message.publisher.client_id``. The types and MQTT's ranges of numbers are checked; topics
are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

from kinmqtt_spi._forms import (
    BYTES,
    COUNT,
    FLAG,
    IDENTIFIER,
    MAYBE_TEXT,
    MAYBE_TIME,
    PACKET_ID,
    QOS,
    TEXT,
    TIME,
    UINT32,
    VERSION,
    DataForm,
    OneOfForm,
    OptionalForm,
    Plain,
    PropertiesForm,
    RecordForm,
    SeveralForm,
    TextsForm,
    WholeForm,
)
from kinmqtt_spi.services.event import Event, EventKind, EventVersion, Recorded
from kinmqtt_spi.services.queue import Entry, InflightEntry, Stage
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import StoredSession
from kinmqtt_spi.values import Address, Client, Message, MessageId, Publisher, RetainHandling, Subscription, Will

T = TypeVar("T")

Storable: TypeAlias = (
    Message | Will | Subscription | StoredSession | Entry | InflightEntry | RetainWrite | Recorded | Client
)
"""The values with a plain form."""


def to_plain(value: Storable) -> dict[str, Plain]:
    """Return the plain form of a value, without the ``frame`` of messages.

    Raises ``ValueError`` for a number that is not finite, and for an object of another type in the data of an event.
    The text begins with the place, as in :func:`from_plain`.
    """
    form = _FORMS[type(value)]
    written: dict[str, Plain] = form.write(value, form.name)
    return written


def from_plain(type_: type[T], plain: Plain, place: str | None = None) -> T:
    """Return the value of a plain form. ``type_`` is its class, one of :data:`Storable`.

    Raises ``ValueError`` for a malformed form. The text begins with the field's place, below ``place`` if given, else
    below the name of the type.
    """
    form = _FORMS[type_]
    made: T = form.read(plain, form.name if place is None else place)
    return made


class _Session(RecordForm):
    """A session. In exports of earlier versions, without ``username_unverified``, the user counts as unverified."""

    def read(self, plain: Plain, place: str) -> StoredSession:
        if isinstance(plain, dict) and "username_unverified" not in plain:
            plain = {**plain, "username_unverified": True}
        made: StoredSession = super().read(plain, place)
        return made


class _Inflight(RecordForm):
    """An entry in flight. Its stage determines whether it has a message."""

    def read(self, plain: Plain, place: str) -> InflightEntry:
        made: InflightEntry = super().read(plain, place)
        if made.stage is Stage.QUEUED:
            raise ValueError(f'{place}.stage: expected "sent" or "released": what is queued has no packet identifier')
        if (made.entry is None) is not (made.stage is Stage.RELEASED):
            raise ValueError(f'{place}.entry: expected null exactly where the stage is "released"')
        if made.entry is not None and made.entry.sequence != made.sequence:
            raise ValueError(f"{place}.entry.sequence: expected {made.sequence}, not {made.entry.sequence}")
        return made


_MESSAGE: Final = RecordForm(
    Message,
    "message",
    topic=TEXT,
    payload=BYTES,
    qos=QOS,
    retain=FLAG,
    properties=PropertiesForm(),
    publisher=RecordForm(Publisher, "publisher", client_id=TEXT, username=MAYBE_TEXT),
    id=RecordForm(MessageId, "id", node=COUNT, counter=COUNT),
    received_at=TIME,
    expires_at=MAYBE_TIME,
)
_WILL: Final = RecordForm(Will, "will", message=_MESSAGE, delay_s=UINT32)
_SUBSCRIPTION: Final = RecordForm(
    Subscription,
    "subscription",
    filter=TEXT,
    qos=QOS,
    share_group=MAYBE_TEXT,
    no_local=FLAG,
    retain_as_published=FLAG,
    retain_handling=WholeForm(min(RetainHandling), max(RetainHandling)),
    identifier=OptionalForm(IDENTIFIER),
)
_SESSION: Final = _Session(
    StoredSession,
    "session",
    client_id=TEXT,
    expiry_s=UINT32,
    subscriptions=SeveralForm(_SUBSCRIPTION),
    will=OptionalForm(_WILL),
    created_at=TIME,
    username=MAYBE_TEXT,
    protocol_version=VERSION,
    expires_at=MAYBE_TIME,
    will_due_at=MAYBE_TIME,
    username_unverified=FLAG,
)
_ENTRY: Final = RecordForm(
    Entry,
    "entry",
    sequence=COUNT,
    message=_MESSAGE,
    qos=QOS,
    retain=FLAG,
    identifiers=SeveralForm(IDENTIFIER),
    shared_filter=MAYBE_TEXT,
)
_INFLIGHT: Final = _Inflight(
    InflightEntry,
    "inflight",
    sequence=COUNT,
    packet_id=PACKET_ID,
    stage=OneOfForm(Stage),
    entry=OptionalForm(_ENTRY),
)
_RETAINED: Final = RecordForm(
    RetainWrite,
    "retained",
    message=_MESSAGE,
    version=RecordForm(RetainVersion, "version", received_at=TIME, node=COUNT, counter=COUNT),
)
_RECORDED: Final = RecordForm(
    Recorded,
    "recorded",
    offset=COUNT,
    event=RecordForm(
        Event,
        "event",
        kind=OneOfForm(EventKind),
        client_id=TEXT,
        version=RecordForm(EventVersion, "version", epoch=COUNT, counter=COUNT),
        at=TIME,
        data=DataForm(),
        schema_version=COUNT,
    ),
)

_CLIENT: Final = RecordForm(
    Client,
    "client",
    client_id=TEXT,
    username=MAYBE_TEXT,
    address=RecordForm(Address, "address", host=TEXT, port=OptionalForm(COUNT)),
    listener=TEXT,
    protocol_version=VERSION,
    certificate_subject=MAYBE_TEXT,
    attributes=TextsForm(),
)

_FORMS: Final[Mapping[type[Any], RecordForm]] = {
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
