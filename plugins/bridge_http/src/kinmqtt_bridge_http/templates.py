"""Templates of URLs, headers and bodies: what a client chooses is escaped for the place where it goes."""

from __future__ import annotations

import re
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Final
from urllib.parse import quote, urlsplit

from kinmqtt_spi.templates import MESSAGE_NAMES, Part, Template, part_of_message
from kinmqtt_spi.values import Message, MessageId

MAX_URL_CHARACTERS: Final = 8000
MAX_HEADER_CHARACTERS: Final = 8000

BODY_NAMES: Final = MESSAGE_NAMES.replace(" or ", ", ") + ", ${id}, ${qos}, ${retain} or ${payload}"
PAYLOAD: Final = "${payload}"

_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F)))
_KEPT_IN_HEADERS: Final = _PRINTABLE.replace("%", "")
_PLACEHOLDER: Final = re.compile(r"\$\{[^{}]*\}")

Find = Callable[[str], Part[Message] | None]


def identity(id: MessageId) -> str:
    """Return a message's id as text: 16 hexadecimal digits of the node, a hyphen, and the node's counter."""
    return f"{id.node:016x}-{id.counter}"


def is_printable(text: str) -> bool:
    """Tell whether a text has printable ASCII characters only."""
    return all(character in _PRINTABLE for character in text)


def _escaped(find: Find, escape: Callable[[str], str]) -> Find:
    def find_escaped(name: str) -> Part[Message] | None:
        part = find(name)
        if part is None:
            return None

        def escaped(message: Message) -> str | None:
            text = part(message)
            return None if text is None else escape(text)

        return escaped

    return find_escaped


def _in_url(text: str) -> str:
    return quote(text, safe="/", errors="surrogatepass")


def _in_url_level(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


def _in_header(text: str) -> str:
    return quote(text, safe=_KEPT_IN_HEADERS, errors="surrogatepass")


def _in_json(text: str) -> str:
    return encode_basestring_ascii(text)[1:-1]


# URLs


class UrlTemplate:
    """Makes the URLs of messages: one host, and below it a path and a query with placeholders."""

    def __init__(self, text: str) -> None:
        """Raises ``ValueError`` for what is no such URL."""
        _check_url(text)
        self.text = text
        self._template = Template(text, _find_in_url, MESSAGE_NAMES)
        self.is_constant = self._template.is_constant

    def fill_in(self, message: Message) -> str:
        """Return the URL for a message; raises ``ValueError`` if it makes none.

        Of the values only the slashes of ``${topic}`` divide the path, and none can be a level that leads upwards: a
        client must not reach other parts of the server by its choice of a topic.
        """
        url = self._template.fill_in(message)
        if url is None:
            raise ValueError(f"a part of the URL {self.text!r} is missing in the message")
        if _leads_upwards(url):
            raise ValueError(f"a part of the URL {self.text!r} would be '.' or '..'")
        if len(url) > MAX_URL_CHARACTERS:
            raise ValueError(f"the URL would have {len(url)} characters, and {MAX_URL_CHARACTERS} are allowed")
        return url


def _find_in_url(name: str) -> Part[Message] | None:
    return _escaped(part_of_message, _in_url if name == "topic" else _in_url_level)(name)


def _leads_upwards(url: str) -> bool:
    return not {".", ".."}.isdisjoint(url.partition("?")[0].split("/")[3:])


def _check_url(text: str) -> None:
    if not is_printable(text) or " " in text:
        raise ValueError(f"{text!r} is no URL: write other characters than printable ASCII as %XX")
    try:
        parts = urlsplit(text)
        has_port = parts.port is None or parts.port > 0
    except ValueError as error:
        raise ValueError(f"{text!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port:
        raise ValueError(f"{text!r} is no URL: write http://host:port/path, or https://")
    if "$" in parts.netloc:
        raise ValueError(f"{text!r}: the host is fixed: placeholders may stand in the path and in the query only")
    if "@" in parts.netloc:
        raise ValueError("a URL must not have a user or password in it: use secret_headers")
    if "#" in text:
        raise ValueError(f"{text!r}: a fragment (#) is not sent to servers")
    if _leads_upwards(text):
        raise ValueError(f"{text!r}: write the path without . and .. as levels")


# Headers


def header_template(text: str) -> Template[Message]:
    """Return the template of a header's value; raises ``ValueError``.

    Of the values, control characters, ``%`` and what is not ASCII become ``%XX``.
    """
    if not is_printable(_PLACEHOLDER.sub("", text)):
        raise ValueError(f"{text!r}: headers have printable ASCII characters only")
    return Template(text, _escaped(part_of_message, _in_header), MESSAGE_NAMES)


# Bodies


def _payload(message: Message) -> str:
    try:
        return message.payload.decode()
    except UnicodeDecodeError:
        raise ValueError("the payload is not UTF-8, which the template of the body needs") from None


def _find_in_body(name: str) -> Part[Message] | None:
    more: dict[str, Part[Message]] = {
        "id": lambda message: identity(message.id),
        "qos": lambda message: str(message.qos),
        "retain": lambda message: "true" if message.retain else "false",
        "payload": _payload,
    }
    return more.get(name) or part_of_message(name)


def body_maker(text: str, is_json: bool) -> Callable[[Message], bytes]:
    """Return what makes the body of a message; raises ``ValueError``, and so does the maker.

    In JSON the values are escaped, so that they can't leave the string in which they stand. ``${payload}`` alone is
    the payload as it is.
    """
    if text == PAYLOAD:
        return lambda message: message.payload
    template = Template(text, _escaped(_find_in_body, _in_json) if is_json else _find_in_body, BODY_NAMES)

    def make(message: Message) -> bytes:
        return template.fill_in_present(message).encode("utf-8", "surrogatepass")

    return make
