"""Divides a batch of messages into requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from yarl import URL

from kinmqtt_bridge_http.bodies import join, line_maker
from kinmqtt_bridge_http.settings import IDEMPOTENCY_KEY, SinkSettings
from kinmqtt_bridge_http.templates import MAX_HEADER_CHARACTERS, UrlTemplate, header_template, identity
from kinmqtt_spi.services.bridge import Answer, Item, Poison
from kinmqtt_spi.values import Message

FRAME_BYTES = 2
"""What the format adds to a body, beside a byte for each message."""


class Request:
    """Messages that go to one URL with the same headers."""

    __slots__ = ("headers", "key", "lines", "numbers", "size_bytes", "url")

    def __init__(self, url: URL, headers: Mapping[str, str], key: bytes | None) -> None:
        self.url = url
        self.headers = headers
        self.key = key
        """Requests with one key are sent one after the other; those without one are too."""
        self.numbers: list[int] = []
        """The places of the messages in the batch."""
        self.lines: list[bytes] = []
        self.size_bytes = FRAME_BYTES

    def add(self, number: int, line: bytes) -> None:
        """Add a message."""
        self.numbers.append(number)
        self.lines.append(line)
        self.size_bytes += len(line) + 1

    def halves(self) -> tuple[Request, Request]:
        """Return two requests, of the first half of its messages and of the others."""
        middle = len(self.numbers) // 2
        first, second = Request(self.url, self.headers, self.key), Request(self.url, self.headers, self.key)
        for place, (number, line) in enumerate(zip(self.numbers, self.lines, strict=True)):
            (first if place < middle else second).add(number, line)
        return first, second


class RequestMaker:
    """Makes the requests of a sink."""

    def __init__(self, settings: SinkSettings) -> None:
        self.format = settings.format
        self._max_bytes = settings.max_body_bytes
        self._url = UrlTemplate(settings.url)
        self._fixed_url = URL(settings.url, encoded=True) if self._url.is_constant else None
        self._line = line_maker(settings)
        templates = {name: header_template(text) for name, text in settings.headers.items()}
        self._constant_headers = {name: each.text for name, each in templates.items() if each.is_constant}
        self._templates = [(name, each.fill_in_present) for name, each in templates.items() if not each.is_constant]

    @property
    def has_one_url(self) -> bool:
        """Whether all messages go to one URL."""
        return self._fixed_url is not None

    def divide(self, items: Sequence[Item], answers: list[Answer]) -> list[Request]:
        """Return the requests of a batch; messages that can't be sent are answered with ``Poison``."""
        requests: list[Request] = []
        is_single = self.format == "one"
        growing: dict[tuple[str, ...], Request] = {}
        for number, (message, key, _) in enumerate(items):
            try:
                line = self._line(message)
                self._check_size(len(line))
                target = self._target(message)
            except ValueError as error:
                answers[number] = Poison(str(error))
                continue
            request = None if is_single else growing.get(target)
            if request is None or request.size_bytes + len(line) > self._max_bytes:
                request = self._begin(target, key if is_single else None)
                requests.append(request)
                growing[target] = request
            request.add(number, line)
        return requests

    def body(self, request: Request) -> bytes:
        """Return the body of a request."""
        return join(request.lines, self.format)

    def _check_size(self, size_bytes: int) -> None:
        longest = self._max_bytes - FRAME_BYTES
        if size_bytes > longest:
            raise ValueError(
                f"the message has {size_bytes} bytes in its request, and max_body_bytes allows {longest}: raise it, "
                "and the server's limit"
            )

    def _target(self, message: Message) -> tuple[str, ...]:
        """Return what requests of a message differ in: the URL, if it has placeholders, and some headers."""
        url = () if self._fixed_url is not None else (self._url.fill_in(message),)
        if not self._templates:
            return url
        values = []
        for name, fill_in in self._templates:
            value = fill_in(message)
            if len(value) > MAX_HEADER_CHARACTERS:
                raise ValueError(
                    f"the header {name} would have {len(value)} characters, and {MAX_HEADER_CHARACTERS} are allowed"
                )
            values.append(value)
        return (*url, *values)

    def _begin(self, target: tuple[str, ...], key: bytes | None) -> Request:
        url = self._fixed_url
        if url is None:
            url, target = URL(target[0], encoded=True), target[1:]
        if not target:
            return Request(url, self._constant_headers, key)
        names = (name for name, _ in self._templates)
        return Request(url, {**self._constant_headers, **dict(zip(names, target, strict=True))}, key)


def idempotency_key(request: Request, items: Sequence[Item]) -> tuple[str, str]:
    """Return the header by which the server knows a request that comes again.

    Of several messages it has the first and the last one's id and their number. The first and the number would not
    do: a message may expire before the request comes again, with one more at the end, which the server must take.
    """
    first = identity(items[request.numbers[0]].message.id)
    if len(request.numbers) == 1:
        return IDEMPOTENCY_KEY, first
    last = identity(items[request.numbers[-1]].message.id)
    return IDEMPOTENCY_KEY, f"{first}..{last}/{len(request.numbers)}"
