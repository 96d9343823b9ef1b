"""The settings ``[plugins.bridge_http]``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from attrs import frozen

from kinmqtt_bridge_http.signing import SIGNATURE
from kinmqtt_bridge_http.templates import PAYLOAD, UrlTemplate, body_maker, header_template
from kinmqtt_spi.services.bridge import SendSettings
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.settings import check_names, checked, problem_with_file, setting
from kinmqtt_spi.templates import key_maker
from kinmqtt_spi.tls import ClientTls
from kinmqtt_spi.topics import check_filters
from kinmqtt_spi.values import Message

IDEMPOTENCY_KEY: Final = "Idempotency-Key"

CONTENT_TYPES: Final[Mapping[tuple[str, str], str]] = {
    ("message", "one"): "application/json",
    ("message", "json_array"): "application/json",
    ("message", "ndjson"): "application/x-ndjson",
    ("cloudevents", "one"): "application/cloudevents+json",
    ("cloudevents", "json_array"): "application/cloudevents-batch+json",
    ("cloudevents", "ndjson"): "application/x-ndjson",
}
"""The content types of bodies, by ``json`` and ``format``."""

_EMPTY: Final = Message("t")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_OURS: Final = {
    *(name.lower() for name in (IDEMPOTENCY_KEY, SIGNATURE)),
    "accept-encoding", "connection", "content-length", "content-type", "expect", "host", "keep-alive", "te",
    "trailer", "transfer-encoding", "upgrade",
}  # fmt: skip
"""Headers that the bridge sets itself, in lower case."""


def _check_header_names(names: Mapping[str, Any]) -> None:
    seen: set[str] = set()
    for name in names:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} can't be the name of a header")
        if name.lower() == "content-type":
            raise ValueError("Content-Type is a key of its own: content_type")
        if name.lower() in _OURS:
            raise ValueError(f"{name!r} is a header that the bridge sets itself")
        if name.lower() in seen:
            raise ValueError(f"{name!r} is there twice: headers have no upper and lower case")
        seen.add(name.lower())


def _check_headers(headers: Mapping[str, str]) -> None:
    _check_header_names(headers)
    for text in headers.values():
        header_template(text)


def _check_secret_headers(instance: Any, attribute: object, files: Mapping[str, Path]) -> None:
    _check_header_names(files)
    twice = {name.lower() for name in files} & {name.lower() for name in instance.headers}
    if twice:
        raise ValueError(f"{min(twice)!r} is in headers too")
    for name, path in files.items():
        _check_file(name, path)


def _check_file(key: str, path: Path | None) -> None:
    problem = None if path is None else problem_with_file(path)
    if problem is not None:
        raise ValueError(f"{key}: {problem}")


def _check_secret_file(path: Path | None) -> None:
    problem = None if path is None else problem_with_file(path)
    if problem is not None:
        raise ValueError(problem)


def _check_tls(instance: Any, attribute: object, tls: ClientTls) -> None:
    if tls != ClientTls() and not instance.is_encrypted:
        raise ValueError("an http:// url is not encrypted: write https://, or leave tls out")


def _check_body(instance: Any, attribute: object, body: str) -> None:
    if not body:
        return
    make = body_maker(body, instance.is_json)
    if instance.format == "one":
        return
    if body == PAYLOAD or "\n" in body or not instance.is_json:
        raise ValueError(
            f'format "{instance.format}" needs a template of JSON in one line, and a content_type that is JSON; '
            'for others use format "one"'
        )
    try:
        json.loads(make(_EMPTY))
    except ValueError as error:
        raise ValueError(f"filled in, {body!r} is no JSON: {error}; placeholders stand within quotes") from None


def _check_content_type(content_type: str) -> None:
    if content_type and not re.fullmatch(r"[!-~]+/[ -~]+", content_type):
        raise ValueError(f"{content_type!r} is no content type, such as application/json")


@frozen(slots=True)
class SinkSettings:
    """Messages that go to a URL."""

    filters: tuple[str, ...] = setting(
        (), help="topic filters of the messages; without any, only rules feed it", validator=checked(check_filters)
    )
    url: str = setting(
        help="where they go; path and query are templates, the host is fixed", validator=checked(UrlTemplate)
    )
    method: Literal["POST", "PUT"] = setting("POST", help="the method of requests")
    format: Literal["one", "ndjson", "json_array"] = setting(
        "one", help="one message in each request, or several: a line of JSON each, or the elements of an array"
    )
    json: Literal["message", "cloudevents"] = setting("message", help="the form of a message without `body`")
    content_type: str = setting(
        "", help="the content type; by default that of the form", validator=checked(_check_content_type)
    )
    body: str = setting("", help="the body of a message instead, a template", validator=_check_body)
    headers: dict[str, str] = setting(
        factory=dict, help="further headers, each a template", validator=checked(_check_headers)
    )
    secret_headers: dict[str, Path] = setting(
        factory=dict,
        help="headers with secrets: files with their values, read when the sink is opened",
        validator=_check_secret_headers,
    )
    signature_secret_file: Path | None = setting(
        None, help="a file with the secret that signs bodies", validator=checked(_check_secret_file)
    )
    tls: ClientTls = setting(factory=ClientTls, help="certificates", validator=_check_tls)
    key: str = setting(
        "${clientid}",
        help="the key of messages, a template: those of one key are sent in their order",
        validator=checked(key_maker),
    )
    connections: int = setting(4, help="requests at a time, at most", minimum=1, maximum=256)
    timeout_s: float = setting(
        10.0,
        help="the time limit for an answer; after it the server counts as away",
        unit="s",
        minimum=0.1,
        maximum=600,
    )
    max_body_bytes: int = setting(
        1 << 20,
        help="batches are divided into bodies not longer than this; a longer message is poison",
        unit="bytes",
        minimum=1024,
        maximum=1 << 30,
    )
    outbox: OutboxSettings = setting(factory=OutboxSettings, help="the bounds of its outbox")
    sending: SendSettings = setting(factory=SendSettings, help="how it is sent")

    @property
    def is_encrypted(self) -> bool:
        """Whether requests go through TLS; a scheme may be written in capitals (RFC 3986, 3.1)."""
        return self.url.lower().startswith("https:")

    @property
    def effective_content_type(self) -> str:
        """The content type of requests."""
        return self.content_type or CONTENT_TYPES[self.json, self.format]

    @property
    def is_json(self) -> bool:
        """Whether a body's template makes JSON, in which values are escaped."""
        return "json" in self.effective_content_type.lower()


@frozen(slots=True)
class BridgeHttpSettings:
    """The sinks."""

    sinks: dict[str, SinkSettings] = setting(
        factory=dict, help="messages that go to URLs, by name", validator=check_names
    )
