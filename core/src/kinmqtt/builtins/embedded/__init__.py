"""The embedded store: sessions, queues, retained messages and events in a directory, without other software."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attrs import frozen

from kinmqtt.builtins.embedded.directory import DataDirectory, open_to_others
from kinmqtt.builtins.embedded.image import Image, everything
from kinmqtt.builtins.embedded.journal import Journal
from kinmqtt.builtins.embedded.records import CommitGroup
from kinmqtt.builtins.embedded.segment import DataDirectoryError
from kinmqtt.builtins.embedded.stores import Ledger
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import NotWanted
from kinmqtt_spi.services.plugin import Health, HealthState
from kinmqtt_spi.settings import setting

if TYPE_CHECKING:
    from kinmqtt_spi.services.event import EventLog
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.services.queue import QueueStore
    from kinmqtt_spi.services.retain import RetainStore
    from kinmqtt_spi.services.session import SessionStore


@frozen(slots=True)
class EmbeddedSettings:
    """``[plugins.embedded]``."""

    durability: Literal["commit", "fsync"] = setting(
        "commit",
        help="when a write is durable: commit, when the operating system has it (it survives a broker crash; a "
        "loss of power may lose about the last second); fsync, when the disk has it",
    )


class Embedded:
    """Persists everything in one log, and holds it in memory."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._directory: DataDirectory | None = None
        self._journal: Journal | None = None
        self._settings = EmbeddedSettings()
        self._serves = False

    @hookimpl
    def settings_class(self) -> type[EmbeddedSettings]:
        """Return the class of the settings."""
        return EmbeddedSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Read the settings, and the directory if there is one."""
        if context.data is None:
            raise NotWanted("there is no data directory: broker.data (or --data) is memory")
        self._settings = context.settings
        self._ledger = Ledger(context)
        self._directory = DataDirectory(context.data)

    @hookimpl
    def session_store(self) -> SessionStore:
        """Return the session store."""
        return self._shared.sessions

    @hookimpl
    def queue_store(self) -> QueueStore:
        """Return the queue store."""
        return self._shared.queues

    @hookimpl
    def retain_store(self) -> RetainStore:
        """Return the retain store."""
        return self._shared.retained

    @hookimpl
    def event_log(self) -> EventLog:
        """Return the event log."""
        return self._shared.events

    @hookimpl
    async def start(self, context: Context) -> None:
        """Lock the directory, load its contents and open the log; do nothing if no service of this plugin is used."""
        directory = self._directory
        if directory is None or not self._serves:
            return
        ledger = self._shared
        image, segments, number = await context.in_thread(partial(_load, directory))
        for loss in directory.losses:
            context.log.warn("{loss}", loss=loss)
        for file in open_to_others(directory.path)[:1]:
            context.log.warn(
                "{file} can be read by others: `chmod go= {folder}/journal-*`", file=file, folder=directory.path
            )
        ledger.restore(image)
        if image.groups:
            context.log.info(
                "{sessions} sessions, {retained} retained messages and {messages} queued ones read from {folder}",
                sessions=ledger.sessions.count(),
                retained=ledger.retained.count(),
                messages=ledger.queues.totals().queued + ledger.queues.totals().inflight,
                folder=directory.path,
            )
        journal = Journal(directory.path, self._settings.durability == "fsync", context, self._slices, segments)
        try:
            await journal.open(number)
        except (sqlite3.Error, OSError) as error:
            raise DataDirectoryError(
                f"{directory.path} can't be written to: {error}; if the disk is full, free space and start again"
            ) from error
        self._journal = journal
        ledger.append = journal.append
        ledger.after = self._look_after
        metrics = context.metrics
        metrics.gauge("log.size", "bytes", lambda: journal.size_bytes)
        metrics.gauge("log.groups", "groups", lambda: ledger.groups)
        metrics.gauge("failing", "flag", lambda: int(journal.problem is not None))

    @hookimpl
    def health(self) -> Health:
        """Report whether writes succeed."""
        problem = None if self._journal is None else self._journal.problem
        return Health(HealthState.HEALTHY) if problem is None else Health(HealthState.FAILED, problem)

    @hookimpl
    def reload(self, settings: EmbeddedSettings) -> tuple[str, ...]:
        """Report that a change of the durability needs a restart."""
        return () if settings == self._settings else ("durability: a change needs a restart",)

    @hookimpl
    async def stop(self) -> None:
        """Write what is still pending, and close the log."""
        if self._journal is not None:
            try:
                pending = self._shared.commit(all=True)
                if pending is not None:
                    await pending
            finally:
                self._shared.append = None
                try:
                    await self._journal.close()
                finally:
                    self._journal = None
                    if self._directory is not None:
                        self._directory.close()
        elif self._directory is not None:
            self._directory.close()

    @property
    def _shared(self) -> Ledger:
        if self._ledger is None:
            raise RuntimeError("the embedded store was used before it was configured")
        self._serves = True
        return self._ledger

    def _look_after(self) -> None:
        journal = self._journal
        if journal is not None and journal.wants_compaction(self._shared.live_bytes):
            journal.compact()

    def _slices(self) -> Iterator[CommitGroup]:
        ledger = self._shared
        yield ledger.standing()
        yield from ledger.held_events()
        yield from everything(ledger.sessions, ledger.queues, ledger.retained)


def _load(directory: DataDirectory) -> tuple[Image, list[Path], int]:
    directory.open()
    image = directory.load()
    directory.tidy()
    return image, directory.segments(), directory.next_number()
