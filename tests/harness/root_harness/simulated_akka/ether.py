"""Connections between simulated processes: in order, with a delay, and broken in the ways of TCP.

Faults belong to hosts, not to processes: a process that starts again on a host that is cut off is cut off, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Final

from attrs import frozen

from kinmqtt.testing.world.links import Undo
from kinmqtt.testing.world.schedule import NodeClock, Schedule
from kinmqtt_spi.mesh.pipes import Pipe, PipeEnd
from root_harness.simulated_akka.transport import PipeTransport

RESENT_S: Final = 1.0
"""How long it takes at most until what was not delivered is sent again."""
LOST_SHARE: Final = 0.3
FIRST_RESENT_S: Final = 0.2
"""How soon a packet that was lost on a bad path is sent again: then after twice that time, and so on."""
MOST_RESENT: Final = 4


@frozen(eq=False)
class Process:
    """A process on a host."""

    host: str
    clock: NodeClock


@frozen(eq=False)
class _Listener:
    process: Process
    accept: Callable[[PipeEnd], object]


@frozen(eq=False)
class Line:
    """A connection, with the processes at its two ends."""

    pipe: Pipe
    dialler: Process
    acceptor: Process

    def ends(self) -> Iterator[tuple[PipeEnd, Process, Process]]:
        """Yield each end with its process, and the one that sends to it."""
        yield self.pipe.left, self.dialler, self.acceptor
        yield self.pipe.right, self.acceptor, self.dialler

    def connects(self, one: str, other: str) -> bool:
        """Tell whether it is between two hosts."""
        return {self.dialler.host, self.acceptor.host} == {one, other}


class Ether:
    """All hosts, and what is between them."""

    def __init__(self, schedule: Schedule, delay_s: float, random: Random) -> None:
        """``delay_s`` is how long bytes take; ``random`` says what is lost."""
        self._schedule = schedule
        self._delay_s = delay_s
        self._random = random
        self._hosts: dict[str, str] = {}
        """By address."""
        self._listeners: dict[str, _Listener] = {}
        self._lines: list[Line] = []
        self._silent: Counter[tuple[str, str]] = Counter()
        """From which host to which nothing arrives, and because of how many faults."""
        self._severed: Counter[frozenset[str]] = Counter()
        self._lossy: Counter[str] = Counter()
        self._vanished: set[str] = set()
        """The hosts that answer nothing, as their machines are off."""

    # Connections

    def listen(self, address: str, process: Process, accept: Callable[[PipeEnd], object]) -> None:
        """Let a process accept the connections to an address."""
        self._hosts[address] = process.host
        self._listeners[address] = _Listener(process, accept)

    def unlisten(self, address: str, process: Process) -> None:
        """Accept no more."""
        listener = self._listeners.get(address)
        if listener is not None and listener.process is process:
            del self._listeners[address]

    async def connect(self, process: Process, address: str, protocol: asyncio.Protocol) -> None:
        """Connect; waits for as long as nothing comes back. Raises ``ConnectionRefusedError``."""
        await asyncio.sleep(2 * self._delay_s)
        host = self._hosts.get(address)
        while host is not None and (self._is_silent(process.host, host) or host in self._vanished):
            await asyncio.sleep(RESENT_S)
        listener = self._listeners.get(address)
        if (
            host is None
            or listener is None
            or listener.process.clock.is_dead
            or frozenset((process.host, host)) in self._severed
        ):
            raise ConnectionRefusedError("connection refused")
        pipe = Pipe(self._schedule, self._delay_s)
        line = Line(pipe, process, listener.process)
        self._lines = [each for each in self._lines if each.pipe.left.is_open or each.pipe.right.is_open]
        self._lines.append(line)
        accept: Callable[[], object] = partial(listener.accept, pipe.right)
        self._schedule.later(0.0, partial(listener.process.clock.run, accept))
        protocol.connection_made(PipeTransport(pipe.left, process.clock, protocol, self.delay_of(line)))

    def accepted(self, process: Process, end: PipeEnd, protocol: asyncio.Protocol) -> None:
        """Let a protocol use an accepted connection. Raises ``ConnectionResetError`` if it is over."""
        line = next((each for each in self._lines if each.pipe.right is end), None)
        if line is None:
            raise ConnectionResetError("connection reset by peer")
        protocol.connection_made(PipeTransport(end, process.clock, protocol, self.delay_of(line)))

    def delay_of(self, line: Line) -> Callable[[], float]:
        """Return what says how long the next bytes are on their way."""
        hosts = line.dialler.host, line.acceptor.host

        def delay_s() -> float:
            total_s = self._delay_s
            if self._lossy and (hosts[0] in self._lossy or hosts[1] in self._lossy):
                resent_s = FIRST_RESENT_S
                for _ in range(MOST_RESENT):
                    if self._random.random() >= LOST_SHARE:
                        break
                    total_s += resent_s
                    resent_s *= 2
            return total_s

        return delay_s

    def between(self, one: str, other: str) -> list[Pipe]:
        """Return the connections of two hosts."""
        return [line.pipe for line in self._lines if line.connects(one, other) and line.pipe.is_open]

    def ended(self, process: Process, vanished: bool) -> None:
        """A process has ended. Its system closes its connections, unless the machine is off, too."""
        self._listeners = {address: each for address, each in self._listeners.items() if each.process is not process}
        if vanished:
            self._vanished.add(process.host)
        else:
            self._close_dead(process.host)

    def started(self, host: str) -> None:
        """A process starts on a host. What belonged to an earlier one is answered with a reset."""
        self._vanished.discard(host)
        self._close_dead(host)

    def _close_dead(self, host: str) -> None:
        for line in self._lines:
            for end, process, _ in line.ends():
                if process.host == host and process.clock.is_dead:
                    end.close()

    # Faults

    def silence(self, ways: Iterable[tuple[str, str]]) -> Undo:
        """Let nothing arrive from the first host of each pair at the second one, and nobody notice."""
        silent = list(ways)
        self._silent.update(silent)
        self._refresh()

        def resend() -> None:
            self._silent = self._silent - Counter(silent)
            silent.clear()
            self._refresh()

        return lambda: self._schedule.later(self._random.uniform(0.0, RESENT_S), resend)

    def sever(self, pairs: Iterable[tuple[str, str]]) -> Undo:
        """Break the connections of each pair of hosts, and refuse new ones."""
        severed = [frozenset(pair) for pair in pairs]
        self._severed.update(severed)
        for line in self._lines:
            if frozenset((line.dialler.host, line.acceptor.host)) in severed:
                line.pipe.cut()

        def mend() -> None:
            self._severed = self._severed - Counter(severed)
            severed.clear()

        return mend

    def lose(self, host: str) -> Undo:
        """Lose a part of what a host sends and receives; it is sent again, so it comes later."""
        lossy = [host]
        self._lossy.update(lossy)

        def mend() -> None:
            self._lossy = self._lossy - Counter(lossy)
            lossy.clear()

        return mend

    def _is_silent(self, one: str, other: str) -> bool:
        return (one, other) in self._silent or (other, one) in self._silent

    def _refresh(self) -> None:
        for line in self._lines:
            for end, to, sender in line.ends():
                if (sender.host, to.host) in self._silent:
                    end.stall()
                else:
                    end.resume()
