"""One server: its connections, and requests to it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp
from attrs import asdict
from yarl import URL

from kinmqtt_bridge_http.answers import Reply
from kinmqtt_bridge_http.settings import SinkSettings
from kinmqtt_bridge_http.templates import is_printable
from kinmqtt_spi.errors import ServiceUnavailable, SettingsError, SinkRefused
from kinmqtt_spi.settings import read_file
from kinmqtt_spi.tls import ClientTls, client_context

MAX_ANSWER_BYTES: Final = 64 << 10
"""More of an answer's body is not read: its connection is closed then."""

MAX_SECRET_BYTES: Final = 16 << 10

IDLE_S: Final = 15.0
"""How long a connection may be idle, in seconds."""

_OWN_HEADERS: Final = {"Accept-Encoding": "identity", "User-Agent": "kinmqtt"}


class Client:
    """Open connections to one server, with the secrets that it wants."""

    def __init__(self, settings: SinkSettings) -> None:
        """Read certificates and secrets; raises ``SinkRefused``. Call it in the event loop."""
        headers = {name: _secret_header(name, path) for name, path in settings.secret_headers.items()}
        self.signature_secret = (
            None
            if settings.signature_secret_file is None
            else _secret("signature_secret_file", settings.signature_secret_file)
        )
        self.secrets = tuple(headers.values())
        """What must not be logged."""
        self._method = settings.method
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=settings.connections,
                keepalive_timeout=IDLE_S,
                ssl=_context(settings.tls) if settings.is_encrypted else True,
            ),
            headers={**_OWN_HEADERS, "Content-Type": settings.effective_content_type, **headers},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def send(self, url: URL, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Reply:
        """Send a request, and return its whole answer; raises ``ServiceUnavailable`` if there is none in time."""
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await self._send(url, headers, body)
                except aiohttp.ClientConnectorError:
                    raise
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    # The server has closed an idle connection meanwhile: another one may do.
                    return await self._send(url, headers, body)
        except TimeoutError:
            raise ServiceUnavailable(f"no answer within {timeout_s:.3g} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise SinkRefused(f"its certificate is not trusted: {_text(error)}; see tls") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServiceUnavailable(_text(error)) from error

    async def close(self) -> None:
        """Disconnect."""
        await self._session.close()

    async def _send(self, url: URL, headers: Mapping[str, str], body: bytes) -> Reply:
        async with self._session.request(
            self._method, url, data=body, headers=headers, allow_redirects=False
        ) as response:
            beginning = bytearray()
            while len(beginning) <= MAX_ANSWER_BYTES:
                piece = await response.content.readany()
                if not piece:
                    break
                beginning += piece
            else:
                response.close()
            return Reply(
                response.status,
                response.reason or "",
                bytes(beginning[:MAX_ANSWER_BYTES]),
                response.headers.get("Location", ""),
                response.headers.get("Retry-After", ""),
            )


def _text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return f"no answer: {ascii(text[:300])[1:-1]}"


def _secret(key: str, path: Path) -> bytes:
    try:
        secret = read_file(path, max_bytes=MAX_SECRET_BYTES).rstrip(b"\r\n")
    except SettingsError as error:
        raise SinkRefused(f"{key}: {'; '.join(error.problems)}") from None
    if not secret:
        raise SinkRefused(f"{key}: {path} is empty")
    return secret


def _secret_header(name: str, path: Path) -> str:
    text = _secret(f"secret_headers.{name}", path).decode("latin-1")
    if not is_printable(text):
        raise SinkRefused(f"secret_headers.{name}: {path} has other characters than printable ASCII in one line")
    return text


def _context(tls: ClientTls) -> ssl.SSLContext:
    try:
        return client_context(**asdict(tls))
    except ValueError as error:
        raise SinkRefused(f"tls.{error}") from None
