"""A connection of the settings: its sink and its source share one link, for which No Local needs one client id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from attrs import asdict, evolve

from kinmqtt_bridge_mqtt import link as links
from kinmqtt_bridge_mqtt.link import Introduction, Link, Unanswered
from kinmqtt_bridge_mqtt.mapping import Mapping
from kinmqtt_bridge_mqtt.refusals import UnsupportedVersion
from kinmqtt_bridge_mqtt.settings import ConnectionSettings, address
from kinmqtt_spi.errors import ServiceUnavailable, SettingsError, SinkRefused
from kinmqtt_spi.settings import read_file
from kinmqtt_spi.tls import client_context

MAX_PASSWORD_BYTES: Final = 65_535

RETURN_EVERY_S: Final = 30.0
"""How often to see whether the first server is back, while another one is used."""


class Connection:
    """Makes links, one at a time."""

    def __init__(
        self,
        name: str,
        settings: ConnectionSettings,
        broker: str,
        warn: Callable[[str], object] = lambda text: None,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``broker`` is this broker's name; ``warn`` logs a warning; ``wait`` waits for some seconds."""
        self.name = name
        self.settings = settings
        self.client_id = settings.client_id or f"{broker}.{name}"
        self.via = settings.via or broker
        self.mapping = Mapping(settings.lines)
        self._warn = warn
        self._wait = wait
        self._servers = [address(each) for each in settings.servers]
        self._first = 0
        """The place of the server that is tried first."""
        self._place = 0
        """The place of the server that was used last."""
        self._lock = asyncio.Lock()
        self._link: Link | None = None
        self._had_session = False
        self._is_subscribed = False
        self._is_retired = False
        self._return: asyncio.Task[None] | None = None

    @property
    def state_topic(self) -> str:
        """Where the connection's state is published; empty for nowhere."""
        if not self.settings.notifications:
            return ""
        return self.settings.notification_topic or f"$SYS/broker/connection/{self.client_id}/state"

    @property
    def is_up(self) -> bool:
        """Whether there is a link."""
        return self._link is not None and self._link.error is None

    async def join(self) -> Link:
        """Return the link, and use it until :meth:`leave`. Raises ``SinkRefused`` and ``ServiceUnavailable``."""
        async with self._lock:
            if self._is_retired:
                raise ServiceUnavailable("the settings of the connection have changed")
            link = self._link
            if link is None or link.error is not None:
                try:
                    link = await self._connect()
                except SinkRefused as refused:
                    raise self.located(refused) from refused
                self._link = link
            link.users += 1
            return link

    def leave(self, link: Link) -> None:
        """Use a link no longer; the last one closes it."""
        link.users -= 1
        if not link.users:
            link.close()

    def retire(self) -> None:
        """Close the link, and make none any more: another connection takes over the client id."""
        self._is_retired = True
        if self._link is not None:
            self._link.close()

    def located(self, refused: SinkRefused) -> SinkRefused:
        """Return a refusal that names the place in the settings."""
        return SinkRefused(f"plugins.bridge_mqtt.connections.{self.name}: {refused}")

    async def subscribe(self, link: Link) -> None:
        """Subscribe to what comes in, unless the far broker's session has that. Raises as :meth:`join` does."""
        settings = self.settings
        if link.session_present and self._is_subscribed and settings.version != "5":
            return  # MQTT 3.1.1 would send the retained messages again.
        prefix = f"$share/{settings.share}/" if settings.share else ""
        filters = [(prefix + filter, qos) for filter, qos in self.mapping.remote_filters.items()]
        try:
            await link.subscribe(filters, settings.bridge, settings.timeout_s)
        except SinkRefused as refused:
            raise self.located(refused) from refused
        self._is_subscribed = True

    async def _connect(self) -> Link:
        settings = self.settings
        failures: list[SinkRefused | ServiceUnavailable] = []
        count = len(self._servers)
        first = self._first if settings.round_robin else 0
        for place in (number % count for number in range(first, first + count)):
            try:
                link = await self._connect_to(place)
            except (SinkRefused, ServiceUnavailable) as error:
                failures.append(error)
                continue
            self._first = (place + 1) % count
            self._note_session(link, place)
            if place and not settings.round_robin:
                self._watch_for_the_first(link)
            return link
        # A server that is away may be back soon: that is worth another attempt before somebody mends the others.
        is_refused = all(isinstance(each, SinkRefused) for each in failures)
        raise (SinkRefused if is_refused else ServiceUnavailable)("; ".join(map(str, failures)))

    async def _connect_to(self, place: int) -> Link:
        try:
            tls = self.settings.tls
            said, context = self._introduction(), None if tls is None else client_context(**asdict(tls))
        except (OSError, ValueError, SettingsError) as error:
            raise SinkRefused(str(error)) from error
        server, timeout_s = self._servers[place], self.settings.timeout_s
        try:
            return await links.connect(said, server, context, timeout_s)
        except (UnsupportedVersion, Unanswered):
            if not said.is_bridge:
                raise
        link = await links.connect(evolve(said, is_bridge=False), server, context, timeout_s)
        self._warn(f"connection {self.name}: the far broker knows no bridges; it may send our own messages back")
        return link

    def _introduction(self) -> Introduction:
        settings = self.settings
        password = None
        if settings.password_file is not None:
            data = read_file(settings.password_file, max_bytes=MAX_PASSWORD_BYTES)
            password = data.decode().rstrip("\r\n")
        return Introduction(
            self.client_id,
            settings.version == "5",
            settings.bridge and settings.version != "5",
            settings.username,
            password,
            settings.keep_alive_s,
            # Without anything that comes in, the session has nothing that is worth keeping.
            settings.clean_start or not self.mapping.remote_filters,
            0 if settings.clean_start or not self.mapping.remote_filters else settings.session_expiry_s,
            self.state_topic,
            settings.max_inflight,
            settings.max_packet_bytes,
        )

    def _note_session(self, link: Link, place: int) -> None:
        if self._had_session and not link.session_present:
            self._warn(f"connection {self.name}: the far broker has lost the session, and what waited in it")
        if not link.session_present or place != self._place:
            self._is_subscribed = False  # What another server has kept may be older than the settings.
        self._place = place
        self._had_session = not self.settings.clean_start and bool(self.mapping.remote_filters)

    def _watch_for_the_first(self, link: Link) -> None:
        async def watch() -> None:
            while link.error is None:
                await self._wait(RETURN_EVERY_S)
                async with self._lock:
                    await self._move_to_the_first(link)

        task: Any = asyncio.ensure_future(watch())
        self._return = task
        link.on_lost = lambda: None if link.is_moving else task.cancel()

    async def _move_to_the_first(self, link: Link) -> None:
        """Close a link to another server once the first one has accepted this client."""
        link.is_moving = True
        try:
            first = await self._connect_to(0)
        except (SinkRefused, ServiceUnavailable):
            return
        finally:
            link.is_moving = False
        self._link = first
        self._note_session(first, 0)
        if self._is_retired or not link.users:
            first.close()  # Nobody needs it any more.
        link.close("the first server is back")
