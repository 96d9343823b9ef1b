"""What a message is in JSON, and how several make a body."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as text_json
from typing import Final, TypeAlias

from kinmqtt_bridge_http.settings import SinkSettings
from kinmqtt_bridge_http.templates import body_maker, identity
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.values import Message, Publisher

CLOUD_EVENT_TYPE: Final = "io.kinmqtt.message"
"""The ``type`` of messages as CloudEvents."""

TEXT: Final = '"data":'

CACHED_HEADS: Final = 4096
"""The messages' beginnings that are cached. Clients choose topics, so the memory for them must be bounded."""

LONGEST_CACHED_TOPIC: Final = 256
"""In characters."""

Line: TypeAlias = Callable[[Message], bytes]
"""Makes the part of a body that is one message; raises ``ValueError`` if the message makes none."""


def line_maker(settings: SinkSettings) -> Line:
    """Return what makes a message's part of a body."""
    if settings.body:
        return body_maker(settings.body, settings.is_json)
    return MessageJson().line if settings.json == "message" else cloud_event


def join(lines: Sequence[bytes], format: str) -> bytes:
    """Return a body of some messages, of which there is one in the format ``one``."""
    if format == "one":
        return lines[0]
    return b"[" + b",".join(lines) + b"]" if format == "json_array" else b"\n".join((*lines, b""))


class MessageJson:
    """Makes JSON of messages, with our own names."""

    def __init__(self) -> None:
        self._heads: dict[tuple[str, int, bool, Publisher], str] = {}

    def line(self, message: Message) -> bytes:
        """Return a message as JSON, in one line."""
        kind = (message.topic, message.qos, message.retain, message.publisher)
        head = self._heads.get(kind) or self._head(kind)
        more = _of_properties(message.properties) if message.properties else ""
        id = message.id
        return (
            f'{{"id":"{id.node:016x}-{id.counter}",{head},"received_at":{message.received_at!r},{more}'
            f"{_data(message.payload, 'payload')}}}"
        ).encode("ascii")

    def _head(self, kind: tuple[str, int, bool, Publisher]) -> str:
        topic, qos, retain, publisher = kind
        username = "null" if publisher.username is None else text_json(publisher.username)
        head = (
            f'"topic":{text_json(topic)},"qos":{qos},"retain":{"true" if retain else "false"},'
            f'"clientid":{text_json(publisher.client_id)},"username":{username}'
        )
        if len(topic) <= LONGEST_CACHED_TOPIC:
            if len(self._heads) >= CACHED_HEADS:
                self._heads.clear()
            self._heads[kind] = head
        return head


def _data(payload: bytes, name: str) -> str:
    """Return the payload as a text if it is UTF-8, else in base64 under another name."""
    try:
        return f'"{name}":{text_json(payload.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64":"{b64encode(payload).decode("ascii")}"'


def _of_properties(properties: Properties) -> str:
    found = []
    if properties.content_type is not None:
        found.append(f'"content_type":{text_json(properties.content_type)},')
    if properties.response_topic is not None:
        found.append(f'"response_topic":{text_json(properties.response_topic)},')
    if properties.correlation_data is not None:
        found.append(f'"correlation_data":"{b64encode(properties.correlation_data).decode("ascii")}",')
    if properties.user_property:
        pairs = ",".join(f"[{text_json(name)},{text_json(text)}]" for name, text in properties.user_property)
        found.append(f'"user_properties":[{pairs}],')
    return "".join(found)


def cloud_event(message: Message) -> bytes:
    """Return a message as a CloudEvent 1.0 in JSON, in one line."""
    content_type = message.properties.content_type
    time = datetime.fromtimestamp(message.received_at, UTC).isoformat().replace("+00:00", "Z")
    client = message.publisher.client_id
    # Extensions must not be empty.
    who = f'"mqttclientid":{text_json(client)},' if client else ""
    return (
        f'{{"specversion":"1.0","id":"{identity(message.id)}","source":"kinmqtt/{message.id.node:016x}",'
        f'"type":"{CLOUD_EVENT_TYPE}","subject":{text_json(message.topic)},"time":"{time}",{who}'
        f'"mqttqos":{message.qos},"mqttretain":{"true" if message.retain else "false"},'
        f"{_cloud_data(message.payload, content_type)}}}"
    ).encode("ascii")


def _cloud_data(payload: bytes, content_type: str | None) -> str:
    """Return data and its content type. A text that is said to be JSON would have to be a value: it is in base64."""
    kind = "" if content_type is None else f'"datacontenttype":{text_json(content_type)},'
    if "json" in kind:
        return f'{kind}"data_base64":"{b64encode(payload).decode("ascii")}"'
    data = _data(payload, "data")
    if not kind:
        kind = f'"datacontenttype":"{"text/plain" if data.startswith(TEXT) else "application/octet-stream"}",'
    return kind + data
