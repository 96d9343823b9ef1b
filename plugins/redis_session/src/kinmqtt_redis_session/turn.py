"""The writes of turns on their way to Redis: what a turn hands over is gathered, and goes in one pipeline.

While one pipeline is on its way the turns behind it gather, and go together in the next: so order is kept, and the
more there is to do the fewer round trips each turn costs. Where one fails, all behind it are told so as well.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import define, field

from kinmqtt_redis_session import codec
from kinmqtt_redis_session.codec import Messages
from kinmqtt_redis_session.connection import Link
from kinmqtt_redis_session.keys import Keys, encoded, topic_shard
from kinmqtt_redis_session.mirror import Mirror
from kinmqtt_redis_session.phases import Numbered, Targets, phases, targets_of, without_refused
from kinmqtt_redis_session.scripts import RETAIN, Command
from kinmqtt_redis_session.writes import Call, ClientWrite, Expected, Marks, parts_of
from kinmqtt_spi.errors import Fenced, ServiceUnavailable
from kinmqtt_spi.plain import to_plain
from kinmqtt_spi.services.plugin import Log
from kinmqtt_spi.services.queue import InboundOpen
from kinmqtt_spi.services.retain import RetainWrite, retained_bytes
from kinmqtt_spi.services.session import DiscardSession
from kinmqtt_spi.values import Commit

RETAIN_PARTS: Final = (b"m", b"t", b"x", b"d", b"dx", b"c")

NEVER_THERE_S: Final = 3600.0
"""How long a deletion is remembered where there was nothing: else topics that nobody uses would fill Redis."""

Touched = set[str | int]
"""Client ids, and parts of the retained messages."""


@define(slots=True)
class Turn:
    """What one turn of the broker wants kept."""

    clients: list[ClientWrite]
    retain: list[RetainWrite]
    answer: asyncio.Future[None]

    @property
    def touches(self) -> Touched:
        """What it writes to."""
        parts: Touched = {topic_shard(codec.text(write.message.topic)) for write in self.retain}
        return parts.union(write.client_id for write in self.clients)


@define(slots=True)
class Group:
    """Turns that go together."""

    turns: list[Turn] = field(factory=list)
    clients: dict[str, Numbered] = field(factory=dict)
    retain: list[RetainWrite] = field(factory=list)
    retained_count: int = 0
    retained_bytes: int = 0
    """What is to be retained, as if it took no other's place."""
    writes: int = 0

    def add(self, turn: Turn) -> None:
        """Have one more turn go with the others."""
        number = len(self.turns)
        self.turns.append(turn)
        for write in turn.clients:
            self.clients.setdefault(write.client_id, []).append((number, write))
        self.retain += turn.retain
        for kept in turn.retain:
            if kept.message.payload:
                self.retained_count += 1
                self.retained_bytes += retained_bytes(kept.message)
        self.writes += len(turn.clients) + len(turn.retain)

    def fail(self, touched: Touched, error: Exception) -> Group:
        """Tell the turns that write to what was not kept, and those behind that write to what these did; answers the
        others.
        """
        others = Group()
        for turn in self.turns:
            its = turn.touches
            if its & touched:
                touched |= its
                if not turn.answer.done():
                    turn.answer.set_exception(error)
            else:
                others.add(turn)
        return others


class Ledger:
    """What the three stores share."""

    def __init__(
        self,
        link: Link,
        keys: Keys,
        mirror: Mirror,
        log: Log,
        *,
        now: Callable[[], float],
        remember_s: float,
        max_waiting: int,
        replicas: int = 0,
    ) -> None:
        self.link = link
        self.keys = keys
        self.mirror = mirror
        self.owners: dict[str, int] = {}
        """The uid of the node under which a client was claimed here."""
        self.epochs: dict[str, int] = {}
        """Under which clients were claimed here, as long as they are here."""
        self.groups = self.writes = self.refused = 0
        """For metrics: pipelines, what went in them, and writes that a newer owner's epoch has refused."""
        self.skipped = 0
        """For metrics: retained messages that were older than what was there."""
        self.round_trip: Callable[[float], object] = lambda seconds: None
        self.size: Callable[[float], object] = lambda writes: None
        self._log = log
        self._now = now
        self._remember_s = remember_s
        self._max_waiting = max_waiting
        self._replicas = replicas
        self._clients: list[ClientWrite] = []
        self._retain: list[RetainWrite] = []
        self._waiting = Group()
        self._on_its_way = Group()
        self._lost: list[tuple[str, int]] = []
        """Clients whose sessions Redis does not hold any more, and the epochs under which it did."""
        self._sender: asyncio.Task[None] | None = None
        """Sends groups, one after the other, until none waits. Whether it is done says whether it still does."""
        self.loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Called in the event loop that the stores are used in."""
        self.loop = asyncio.get_running_loop()

    def gather(self, writes: Sequence[ClientWrite]) -> None:
        """Something of a turn that concerns clients."""
        self._clients += writes

    def gather_retained(self, writes: Sequence[RetainWrite]) -> None:
        """Something of a turn that is to be retained."""
        self._retain += writes

    def commit(self) -> Commit:
        """Send what this turn has gathered, or have it go behind what is on its way."""
        clients, self._clients = self._clients, []
        retain, self._retain = self._retain, []
        if not (clients or retain):
            return None
        if self.loop is None or not self.link.is_up:
            raise self.link.away()
        group = self._waiting
        count = len(clients) + len(retain)
        if group.writes and group.writes + count > self._max_waiting:
            raise ServiceUnavailable(f"more than {self._max_waiting} writes wait for Redis")
        answer: asyncio.Future[None] = self.loop.create_future()
        group.add(Turn(clients, retain, answer))
        if self._sender is None or self._sender.done():
            self._sender = self.loop.create_task(self._send())
        return answer

    async def drained(self) -> None:
        """Wait until nothing is on its way."""
        while self._sender is not None and not self._sender.done():
            await asyncio.gather(self._sender, return_exceptions=True)

    @property
    def waiting(self) -> int:
        """How many writes wait for the pipeline before them."""
        return self._waiting.writes

    @property
    def coming_retained(self) -> tuple[int, int]:
        """Messages to be retained of which Redis has not told yet, and their bytes; at the most."""
        groups = (self._waiting, self._on_its_way)
        return sum(group.retained_count for group in groups), sum(group.retained_bytes for group in groups)

    async def _send(self) -> None:
        while self._waiting.turns:
            group = self._on_its_way = self._waiting
            self._waiting = Group()
            try:
                await self._keep(group)
            except Exception as error:
                if not isinstance(error, ServiceUnavailable):
                    # No fault of Redis's.
                    trace = "".join(traceback.format_exception(error))
                    self._log.error("writes for Redis could not be handed over:\n{trace}", trace=trace)
                self.mirror.doubtful.update(group.clients)
                # What came behind must not overtake what is sent again.
                behind, self._waiting = self._waiting, Group()
                _tell(group, error)
                _tell(behind, error)
            finally:
                self._on_its_way = Group()

    async def _keep(self, group: Group) -> None:
        assert self.loop is not None
        began = self.loop.time()
        refused: dict[int, set[str]] = {}
        failed: dict[str | int, Exception] = {}
        if self.link.cluster:
            await self._in_phases(group, refused)
        else:
            commands, clients = self._of_clients(group.clients, targets_of(group.clients))
            marks = self._marks(group)
            retained, shards = self._of_retained(group.retain)
            answers = await self.link.write([*marks, *retained, *commands], self._replicas)
            at = len(marks) + len(retained)
            self._demand(answers[: len(marks)])
            failed |= _errors(shards, answers[len(marks) : at]) | _errors(clients, answers[at:])
            self._take_retained(shards, answers[len(marks) : at])
            self._take(group.clients, clients, answers[at:], refused)
        self.groups += 1
        self.writes += group.writes
        self.round_trip(self.loop.time() - began)
        self.size(group.writes)
        if self._lost:
            await self._forget_lost()
        if failed:
            self._fail(group, failed)
        for number, turn in enumerate(group.turns):
            answer = turn.answer
            if answer.done():
                continue
            fenced = refused.get(number)
            if fenced:
                answer.set_exception(Fenced(fenced))
            else:
                answer.set_result(None)

    def _fail(self, group: Group, failed: dict[str | int, Exception]) -> None:
        """What was not kept of some is told to their turns; what others want kept is."""
        error = self.link.refused(next(iter(failed.values())))
        touched: Touched = set(failed)
        group.fail(touched, error)
        # What came behind must not overtake what is sent again.
        self._waiting = self._waiting.fail(touched, error)
        self.mirror.doubtful.update(each for each in touched if isinstance(each, str))

    def _demand(self, answers: Sequence[Any]) -> None:
        for answer in answers:
            if isinstance(answer, Exception):
                raise self.link.refused(answer)

    async def _in_phases(self, group: Group, refused: dict[int, set[str]]) -> None:
        marks = self._marks(group)
        if marks:
            self._demand(await self.link.write(marks))
        kept = [write for write in group.retain if write.message.payload]
        deleted = [write for write in group.retain if not write.message.payload]
        targets = targets_of(group.clients)
        for number, clients in enumerate(phases(group.clients) or [{}]):
            if refused:
                clients = without_refused(clients, targets, refused)
            commands, names = self._of_clients(clients)
            retained, shards = self._of_retained(kept if number == 0 else [])
            answers = await self.link.write([*retained, *commands])
            # Where a phase is not kept no other may follow.
            self._demand(answers)
            self._take_retained(shards, answers[: len(retained)])
            self._take(clients, names, answers[len(retained) :], refused)
        if deleted:
            commands, shards = self._of_retained(deleted)
            answers = await self.link.write(commands)
            self._demand(answers)
            self._take_retained(shards, answers)
        if marks:
            # Again: whoever swept the indexes meanwhile did not see it.
            self._demand(await self.link.write(marks))

    def _marks(self, group: Group) -> list[Command]:
        marks = Marks(self.keys)
        known = self.mirror
        for client_id, writes in group.clients.items():
            owner = self.owners.get(client_id)
            for _, write in writes:
                marks.note(write, owner, client_id in known)
        return marks.commands()

    def _of_clients(
        self, clients: dict[str, Numbered], targets: Targets | None = None
    ) -> tuple[list[Command], list[str]]:
        messages = Messages()
        forget = int(self._remember_s * 1000)
        commands = []
        for client_id, writes in clients.items():
            call = Call(forget)
            for number, write in writes:
                expects: Expected = ()
                if targets and isinstance(write, InboundOpen):
                    its = targets.get((number, client_id), {})
                    expects = tuple((self.keys.client(encoded(name), b"s")[0], epoch) for name, epoch in its.items())
                call.add(*parts_of(write, messages), expects)
            commands.append(call.command(self.keys, client_id))
        return commands, list(clients)

    def _of_retained(self, writes: Sequence[RetainWrite]) -> tuple[list[Command], list[int]]:
        now = self._now()
        forgotten_at = codec.moment(now + self._remember_s)
        soon = codec.moment(now + min(NEVER_THERE_S, self._remember_s))
        shards: dict[int, list[Any]] = {}
        for write in writes:
            message = write.message
            topic = codec.text(message.topic)
            json = codec.dumps(to_plain(message)) if message.payload else ""
            shards.setdefault(topic_shard(topic), []).extend(
                (topic, codec.version_hex(write.version), retained_bytes(message), codec.expiry(message), json)
            )
        commands = [
            RETAIN(self.keys.retained(shard, *RETAIN_PARTS), forgotten_at, soon, *parts)
            for shard, parts in shards.items()
        ]
        return commands, list(shards)

    def _take_retained(self, shards: Sequence[int], answers: Sequence[Any]) -> None:
        for shard, answer in zip(shards, answers, strict=True):
            if isinstance(answer, Exception):
                continue
            *numbers, skipped = answer
            self.mirror.retained(shard, *numbers)
            if skipped and not self.skipped:
                self._log.warn(
                    "a retained message was older than what its topic holds, and was not kept: are the clocks of all "
                    "brokers in step?"
                )
            self.skipped += skipped

    def _take(
        self,
        clients: dict[str, Numbered],
        names: Sequence[str],
        answers: Sequence[Any],
        refused: dict[int, set[str]],
    ) -> None:
        for client_id, answer in zip(names, answers, strict=True):
            if isinstance(answer, Exception):
                continue
            numbers, *sizes = answer
            writes = clients[client_id]
            had = self.mirror.has_session(client_id)
            self.mirror.client(client_id, sizes)
            if not sizes[0] and client_id in self.epochs:
                if had and not any(isinstance(write, DiscardSession) for _, write in writes):
                    # Redis was emptied: what was written for a session that is not there would be found by nobody.
                    self._lost.append((client_id, self.epochs[client_id]))
                    for number, _ in writes:
                        refused.setdefault(number, set()).add(client_id)
                self._settle(client_id, writes)
            for number in numbers:
                self.refused += 1
                refused.setdefault(clients[client_id][number][0], set()).add(client_id)

    async def _forget_lost(self) -> None:
        """What was just written of sessions that Redis has lost goes, too."""
        lost, self._lost = self._lost, []
        self._log.error(
            "Redis has lost {count} sessions that it held: it was emptied, or began anew without them",
            count=len(lost),
        )
        commands = []
        for client_id, epoch in lost:
            call = Call(int(self._remember_s * 1000))
            call.add("purge", epoch, [])
            commands.append(call.command(self.keys, client_id))
        for (client_id, _), answer in zip(lost, await self.link.write(commands), strict=True):
            if not isinstance(answer, Exception):
                self.mirror.client(client_id, answer[1:])

    def _settle(self, client_id: str, writes: Numbered) -> None:
        """Nothing is stored of a client any more: remember no claim under which something was."""
        ended = {write.epoch for _, write in writes if isinstance(write, DiscardSession)}
        if self.epochs[client_id] in ended:
            del self.epochs[client_id]
            self.owners.pop(client_id, None)


def _errors(names: Sequence[Any], answers: Sequence[Any]) -> dict[str | int, Exception]:
    return {name: answer for name, answer in zip(names, answers, strict=True) if isinstance(answer, Exception)}


def _tell(group: Group, error: Exception) -> None:
    for turn in group.turns:
        if not turn.answer.done():
            turn.answer.set_exception(
                error if isinstance(error, ServiceUnavailable) else ServiceUnavailable(f"Redis: {error}")
            )
