"""The write pipeline: sends the writes of the broker's turns to Redis, one pipeline at a time.

While one pipeline is in flight, later turns are gathered and go together in the next. This keeps their order, and
under load each turn costs fewer round trips. If a pipeline fails, all turns that wait behind it fail too.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from kinmqtt_redis_session.command_builder import CommandBuilder
from kinmqtt_redis_session.connection import Link
from kinmqtt_redis_session.counters import Counters
from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.phases import Numbered, phases, targets_of, without_refused
from kinmqtt_redis_session.scripts import Command
from kinmqtt_redis_session.write_batch import Batch, Touched, TurnWrites
from kinmqtt_redis_session.writes import ClientWrite, IndexUpdates
from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.services.plugin import Log
from kinmqtt_spi.services.retain import RetainWrite
from kinmqtt_spi.services.session import DiscardSession
from kinmqtt_spi.values import Commit


class WritePipeline:
    """Gathers the writes of the three stores and commits them together."""

    def __init__(
        self,
        link: Link,
        keys: Keys,
        counters: Counters,
        log: Log,
        *,
        now: Callable[[], float],
        remember_s: float,
        max_waiting: int,
        replicas: int = 0,
    ) -> None:
        """``max_waiting`` limits the waiting writes; ``replicas`` is how many replicas must have each write."""
        self.link = link
        self.keys = keys
        self.counters = counters
        self.owners: dict[str, int] = {}
        """By client id, the uid of the node under which the client was claimed here."""
        self.epochs: dict[str, int] = {}
        """By client id, the epoch of a claim made here and not released."""
        self.batches = self.writes = self.refused = 0
        """For metrics: pipelines, their writes, and writes refused because a newer owner has a higher epoch."""
        self.skipped = 0
        """For metrics: retained messages that were older than the stored one."""
        self.round_trip: Callable[[float], object] = lambda seconds: None
        self.size: Callable[[float], object] = lambda writes: None
        self._log = log
        self._build = CommandBuilder(keys, now=now, remember_s=remember_s, is_cluster=link.cluster)
        self._max_waiting = max_waiting
        self._replicas = replicas
        self._clients: list[ClientWrite] = []
        self._retain: list[RetainWrite] = []
        self._waiting = Batch()
        self._in_flight = Batch()
        self._lost: list[tuple[str, int]] = []
        """Clients whose sessions Redis has lost, with their last epochs."""
        self._sender: asyncio.Task[None] | None = None
        """Sends batches until none waits; it is running exactly while it is not done."""
        self.loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Remember the running event loop; call this in the loop in which the stores are used."""
        self.loop = asyncio.get_running_loop()

    def gather(self, writes: Sequence[ClientWrite]) -> None:
        """Add session or queue writes to the current turn."""
        self._clients += writes

    def gather_retained(self, writes: Sequence[RetainWrite]) -> None:
        """Add retained messages to the current turn."""
        self._retain += writes

    def commit(self) -> Commit:
        """Commit the current turn: send it now, or after the pipeline in flight; raises ServiceUnavailable."""
        clients, self._clients = self._clients, []
        retain, self._retain = self._retain, []
        if not (clients or retain):
            return None
        if self.loop is None or not self.link.is_up:
            raise self.link.away()
        batch = self._waiting
        count = len(clients) + len(retain)
        if batch.writes and batch.writes + count > self._max_waiting:
            raise ServiceUnavailable(f"more than {self._max_waiting} writes wait for Redis")
        answer: asyncio.Future[None] = self.loop.create_future()
        batch.add(TurnWrites(clients, retain, answer))
        if self._sender is None or self._sender.done():
            self._sender = self.loop.create_task(self._send())
        return answer

    async def drained(self) -> None:
        """Wait until no write waits or is in flight."""
        while self._sender is not None and not self._sender.done():
            await asyncio.gather(self._sender, return_exceptions=True)

    @property
    def waiting(self) -> int:
        """The number of writes that wait for the pipeline in flight."""
        return self._waiting.writes

    @property
    def coming_retained(self) -> tuple[int, int]:
        """Upper bounds of the retained messages not yet confirmed by Redis, and of their bytes."""
        batches = (self._waiting, self._in_flight)
        return sum(batch.retained_count for batch in batches), sum(batch.retained_bytes for batch in batches)

    async def _send(self) -> None:
        while self._waiting.turns:
            batch = self._in_flight = self._waiting
            self._waiting = Batch()
            try:
                await self._commit(batch)
            except Exception as error:
                if not isinstance(error, ServiceUnavailable):
                    # A bug on this side, not a failure of Redis.
                    trace = "".join(traceback.format_exception(error))
                    self._log.error("writes could not be sent to Redis:\n{trace}", trace=trace)
                self.counters.uncertain.update(batch.clients)
                # Later writes must not overtake those that will be sent again.
                behind, self._waiting = self._waiting, Batch()
                batch.fail_all(error)
                behind.fail_all(error)
            finally:
                self._in_flight = Batch()

    async def _commit(self, batch: Batch) -> None:
        assert self.loop is not None
        began = self.loop.time()
        refused: dict[int, set[str]] = {}
        failed: dict[str | int, Exception] = {}
        if self.link.cluster:
            await self._commit_in_phases(batch, refused)
        else:
            failed = await self._commit_at_once(batch, refused)
        self.batches += 1
        self.writes += batch.writes
        self.round_trip(self.loop.time() - began)
        self.size(batch.writes)
        if self._lost:
            await self._purge_lost()
        if failed:
            self._fail_touching(batch, failed)
        for number, turn in enumerate(batch.turns):
            answer = turn.answer
            if answer.done():
                continue
            fenced = refused.get(number)
            if fenced:
                answer.set_exception(Fenced(fenced))
            else:
                answer.set_result(None)

    async def _commit_at_once(self, batch: Batch, refused: dict[int, set[str]]) -> dict[str | int, Exception]:
        """Commit a batch in one transaction; returns the errors by client id or shard."""
        commands, clients = self._build.client_commands(batch.clients, targets_of(batch.clients))
        updates = self._index_updates(batch)
        retained, shards = self._build.retain_commands(batch.retain)
        answers = await self.link.write([*updates, *retained, *commands], self._replicas)
        at = len(updates) + len(retained)
        self._raise_errors(answers[: len(updates)])
        self._apply_retained(shards, answers[len(updates) : at])
        self._apply_answers(batch.clients, clients, answers[at:], refused)
        return _errors(shards, answers[len(updates) : at]) | _errors(clients, answers[at:])

    async def _commit_in_phases(self, batch: Batch, refused: dict[int, set[str]]) -> None:
        updates = self._index_updates(batch)
        if updates:
            self._raise_errors(await self.link.write(updates))
        stored = [write for write in batch.retain if write.message.payload]
        deleted = [write for write in batch.retain if not write.message.payload]
        targets = targets_of(batch.clients)
        for number, clients in enumerate(phases(batch.clients) or [{}]):
            if refused:
                clients = without_refused(clients, targets, refused)
            commands, names = self._build.client_commands(clients)
            retained, shards = self._build.retain_commands(stored if number == 0 else [])
            answers = await self.link.write([*retained, *commands])
            # After a failed phase no other phase may follow.
            self._raise_errors(answers)
            self._apply_retained(shards, answers[: len(retained)])
            self._apply_answers(clients, names, answers[len(retained) :], refused)
        if deleted:
            commands, shards = self._build.retain_commands(deleted)
            answers = await self.link.write(commands)
            self._raise_errors(answers)
            self._apply_retained(shards, answers)
        if updates:
            # Another broker may have swept the indexes between the phases.
            self._raise_errors(await self.link.write(updates))

    def _fail_touching(self, batch: Batch, failed: dict[str | int, Exception]) -> None:
        """Fail the turns that write to what was not stored; the other turns are committed."""
        error = self.link.refused(next(iter(failed.values())))
        touched: Touched = set(failed)
        batch.fail(touched, error)
        # Later writes must not overtake those that will be sent again.
        self._waiting = self._waiting.fail(touched, error)
        self.counters.uncertain.update(each for each in touched if isinstance(each, str))

    def _raise_errors(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            if isinstance(answer, Exception):
                raise self.link.refused(answer)

    def _index_updates(self, batch: Batch) -> list[Command]:
        updates = IndexUpdates(self.keys)
        known = self.counters
        for client_id, writes in batch.clients.items():
            owner = self.owners.get(client_id)
            for _, write in writes:
                updates.note(write, owner, client_id in known)
        return updates.commands()

    def _apply_retained(self, shards: Sequence[int], answers: Sequence[Any]) -> None:
        """Update the counters of retained messages."""
        for shard, answer in zip(shards, answers, strict=True):
            if isinstance(answer, Exception):
                continue
            *numbers, skipped = answer
            self.counters.retained(shard, *numbers)
            if skipped and not self.skipped:
                self._log.warn(
                    "a retained message was not stored because its topic has a newer one: are the clocks of all "
                    "brokers synchronized?"
                )
            self.skipped += skipped

    def _apply_answers(
        self,
        clients: dict[str, Numbered],
        names: Sequence[str],
        answers: Sequence[Any],
        refused: dict[int, set[str]],
    ) -> None:
        """Update the counters of clients, and add the refused writes to ``refused``, by turn."""
        for client_id, answer in zip(names, answers, strict=True):
            if isinstance(answer, Exception):
                continue
            numbers, *sizes = answer
            writes = clients[client_id]
            had_session = self.counters.has_session(client_id)
            self.counters.client(client_id, sizes)
            if not sizes[0] and client_id in self.epochs:
                if had_session and not any(isinstance(write, DiscardSession) for _, write in writes):
                    # Redis was emptied. No one would find what was written for a session that does not exist.
                    self._lost.append((client_id, self.epochs[client_id]))
                    for number, _ in writes:
                        refused.setdefault(number, set()).add(client_id)
                self._forget_discarded(client_id, writes)
            for number in numbers:
                self.refused += 1
                refused.setdefault(clients[client_id][number][0], set()).add(client_id)

    async def _purge_lost(self) -> None:
        """Remove what was just written for sessions that Redis has lost."""
        lost, self._lost = self._lost, []
        self._log.error(
            "Redis has lost {count} sessions: it was emptied, or restarted without them",
            count=len(lost),
        )
        answers = await self.link.write(self._build.purge_commands(lost))
        for (client_id, _), answer in zip(lost, answers, strict=True):
            if not isinstance(answer, Exception):
                self.counters.client(client_id, answer[1:])

    def _forget_discarded(self, client_id: str, writes: Numbered) -> None:
        """Forget the claim of a client whose session was discarded under it."""
        ended = {write.epoch for _, write in writes if isinstance(write, DiscardSession)}
        if self.epochs[client_id] in ended:
            del self.epochs[client_id]
            self.owners.pop(client_id, None)


def _errors(names: Sequence[Any], answers: Sequence[Any]) -> dict[str | int, Exception]:
    return {name: answer for name, answer in zip(names, answers, strict=True) if isinstance(answer, Exception)}
