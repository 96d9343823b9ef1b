"""Seeds: the addresses of brokers by which a new one joins."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Protocol

from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.settings import MAX_SEEDS, SECTION, AkkaSettings
from kinmqtt_spi.errors import SettingsError
from kinmqtt_spi.services.plugin import Log
from kinmqtt_spi.settings import read_file

MAX_FILE_BYTES: Final = 64 << 10
MAX_PROBLEMS: Final = 10
"""So many problems of a file are logged."""

Resolve = Callable[[str, int], Awaitable[Sequence[Any]]]
"""Looks up a name; returns what ``socket.getaddrinfo`` does, and raises ``OSError``."""


class Seeds(Protocol):
    """A way to find other brokers."""

    async def addresses(self) -> list[str]:
        """Return the addresses known now, in their only spelling. The first one is that of the first seed."""


class StaticSeeds:
    """The addresses of the settings, in that order."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Raises ``ValueError`` for a malformed address."""
        self._addresses = _distinct(str(Endpoint.parse(text)) for text in addresses)

    async def addresses(self) -> list[str]:
        """Return the addresses."""
        return list(self._addresses)


class DnsSeeds:
    """All addresses of one name, asked for at each call. The lowest one is the first seed, so that all agree."""

    def __init__(self, name: str, port: int, log: Log, resolve: Resolve | None = None) -> None:
        """``resolve`` takes the place of the system's resolver."""
        self._name = name
        self._port = port
        self._log = log
        self._resolve = resolve or _resolve
        self._failed = False

    async def addresses(self) -> list[str]:
        """Return the addresses in their order as numbers, IPv4 first; none if the name can't be resolved."""
        try:
            found = await self._resolve(self._name, self._port)
        except (OSError, UnicodeError) as error:
            if not self._failed:
                self._failed = True
                self._log.warn(
                    "{section}.dns: {name} can't be resolved: {error}; it is asked again",
                    section=SECTION,
                    name=self._name,
                    error=getattr(error, "strerror", None) or str(error),
                )
            return []
        self._failed = False
        hosts = {ip_address(address[0]) for *_, address in found if "%" not in address[0]}
        ordered = sorted(hosts, key=lambda host: (host.version, int(host)))
        return [str(Endpoint(str(host), self._port)) for host in ordered[:MAX_SEEDS]]


class FileSeeds:
    """The addresses in a file, one a line, read at each call. Empty lines are skipped, and what follows a ``#``."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._log = log
        self._reported: set[str] = set()

    async def addresses(self) -> list[str]:
        """Return the addresses in the file's order; none if it can't be read. Each problem is logged once."""
        problems: list[str] = []
        addresses: list[str] = []
        try:
            content = await asyncio.to_thread(read_file, self._path, max_bytes=MAX_FILE_BYTES)
        except SettingsError as error:
            problems.extend(error.problems)
        else:
            addresses = self._parsed(content.decode(errors="replace"), problems)
        for problem in problems[:MAX_PROBLEMS]:
            if problem not in self._reported:
                self._log.warn("{section}.seeds_file: {problem}; it is read again", section=SECTION, problem=problem)
        # A problem that went away and comes back is logged again.
        self._reported = set(problems)
        return addresses

    def _parsed(self, text: str, problems: list[str]) -> list[str]:
        addresses = []
        for number, line in enumerate(text.splitlines(), start=1):
            written = line.partition("#")[0].strip()
            if not written:
                continue
            try:
                addresses.append(str(Endpoint.parse(written)))
            except ValueError as error:
                problems.append(f"{self._path}:{number}: {error}")
        distinct = _distinct(addresses)
        if len(distinct) > MAX_SEEDS:
            problems.append(f"{self._path}: has {len(distinct)} addresses, only the first {MAX_SEEDS} are used")
        return distinct[:MAX_SEEDS]


def make_seeds(settings: AkkaSettings, log: Log) -> Seeds:
    """Return the way of seeds that the settings choose; without any there are no seeds."""
    if settings.seeds_file is not None:
        return FileSeeds(settings.seeds_file, log)
    if settings.dns:
        endpoint = Endpoint.parse(settings.dns)
        return DnsSeeds(endpoint.host, endpoint.port, log)
    return StaticSeeds(settings.seeds)


async def _resolve(name: str, port: int) -> Sequence[Any]:
    return await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)


def _distinct(addresses: Any) -> list[str]:
    return list(dict.fromkeys(addresses))
