"""Clients of a cluster that move between its brokers, also while their last connection is still open, and take notes.

They are those of :mod:`root_harness.crash_clients`; half of them speak MQTT 5, where a broker says why it ends a
connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from attrs import define, field, frozen

from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import (
    PINGREQ,
    V5,
    Connack,
    Connect,
    DisconnectPacket,
    Packet,
    Pingresp,
    Puback,
    Pubrec,
    Subscribe,
    SubscribeRequest,
)
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode
from root_harness.crash_clients import SLOWEST_READ_S, Client, Notes, PublishingClient, SubscribingClient

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial: TypeAlias = Callable[[int], Awaitable[Streams]]
"""Connects to the broker that has a port."""

CONNACK_LIMIT_S: Final = 5.0
"""How long a client waits for CONNACK before it tries another broker."""
STAY_S: Final = 6.0
"""How long a client stays at a broker, on average."""
PING_S: Final = 0.25
"""How often a connection is asked whether it still lives, whose client has gone to another broker."""
PROMPT_S: Final = 1.0
"""An answer within this time shows that a connection was alive when it was asked."""
MAX_LEFT_OPEN: Final = 2
"""The most connections that a client leaves open behind it."""
EXPIRY_S: Final = 3600
WILLS: Final = "will"
"""What topics of wills begin with."""


@frozen
class Overlap:
    """Two connections of a client that were both served."""

    client_id: str
    port: int
    """Of the broker that had the client before."""
    seconds: float


@define(slots=True)
class ClusterNotes(Notes):
    """What a run's clients saw of a cluster."""

    reasons: list[tuple[str, int, ReasonCode]] = field(factory=list)
    """What brokers gave as a reason when they ended a connection: the client, the port, and the reason."""
    overlaps: list[Overlap] = field(factory=list)
    """How long a client's last broker went on serving it, each time that it came to another one."""
    wills: dict[int, bool] = field(factory=dict)
    """By the number of a client that had left a will and is gone: whether it must come, or only may."""
    begun_anew: Counter[str] | None = None
    """How often a client's session was not there; ``None`` where that breaks a promise."""


class Line:
    """One connection of a client that may have several."""

    def __init__(self, port: int, streams: Streams) -> None:
        self.port = port
        self.reader, self.writer = streams
        self.is_gone = False
        """Whether its broker was killed: what has not been read yet is lost."""
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fires with CONNACK."""
        self.overlap_s = 0.0
        """For how long it was served on since its client had another connection."""
        self._asked: deque[float] = deque()
        self._since_s = 0.0
        self._until_s = 0.0

    def send(self, version: int, *packets: Packet) -> None:
        """Send packets."""
        if not self.writer.is_closing():
            self.writer.write(b"".join(encode(packet, version) for packet in packets))

    def leave(self, now: float) -> None:
        """Note that its client has another connection now."""
        self._since_s = self._until_s = now

    def ask(self, version: int, now: float) -> None:
        """Send PINGREQ."""
        self._asked.append(now)
        self.send(version, PINGREQ)

    def answered(self, now: float) -> None:
        """Take PINGRESP. One that is late says nothing: its broker may have stood still."""
        asked_s = self._asked.popleft()
        if now - asked_s > PROMPT_S:
            return
        if asked_s - self._until_s > PROMPT_S:
            self._since_s = asked_s
        self._until_s = now
        self.overlap_s = max(self.overlap_s, now - self._since_s)

    def abort(self) -> None:
        """End it."""
        self.is_gone = True
        self.writer.transport.abort()


class Roaming(Client):
    """Goes to any broker when its connection has ended, and now and then while it still has one."""

    notes: ClusterNotes

    def __init__(self, *arguments: Any, dial: Dial, version: int, stay_s: float) -> None:
        """``arguments`` are those of the client that moves."""
        super().__init__(*arguments)
        self._stay_s = stay_s
        self.version = version
        self._dial = dial
        self._current: Line | None = None
        """The connection that its session has."""
        self._newest: Line | None = None
        """The connection that it has opened last."""
        self._left: list[Line] = []
        """Connections that it has left open."""

    def connect_packet(self) -> Connect:
        """Return what it introduces itself with: its session outlives its connections."""
        properties = Properties(session_expiry_interval=EXPIRY_S) if self.version == V5 else NO_PROPERTIES
        return Connect(self.version, self.name, False, 60, None, None, None, properties)

    async def run(self) -> None:
        """Connect again and again."""
        async with asyncio.TaskGroup() as lines:
            asks = lines.create_task(self._ask_left())
            while not self.over:
                port = self.next_port()
                try:
                    line = self._newest = Line(port, await self._dial(port))
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                self.connections += 1
                serves = lines.create_task(self._serve(line))
                await asyncio.wait({serves, line.accepted}, return_when=asyncio.FIRST_COMPLETED)
                if not line.accepted.done():
                    self.not_answered()
                await asyncio.wait({serves}, timeout=self.chance.expovariate(1 / self._stay_s))
            asks.cancel()
            self.cut()

    def not_answered(self) -> None:
        """No CONNACK was read, or one that refused."""

    def session_lost(self) -> None:
        """Begin anew where that may be."""
        if self.notes.begun_anew is None:
            super().session_lost()
        else:
            self.notes.begun_anew[self.name] += 1

    def cut(self) -> None:
        """End all connections, and forget what is in their sockets."""
        for line in self._lines():
            line.abort()

    def cut_from(self, port: int) -> None:
        """Forget what is in the sockets of connections with a broker that is dead."""
        for line in self._lines():
            if line.port == port:
                line.abort()

    def _lines(self) -> list[Line]:
        return [line for line in (self._current, self._newest, *self._left) if line is not None]

    async def _ask_left(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(PING_S)
            for line in self._left:
                line.ask(self.version, now())

    async def _serve(self, line: Line) -> None:
        line.send(self.version, self.connect_packet())
        framer = Framer()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNACK_LIMIT_S) as limit:
                while not line.is_gone:
                    data = await line.reader.read(4096)
                    if not data or line.is_gone:
                        break
                    for frame, body in framer.feed(data):
                        self._arrived(line, decode(frame, body, self.version))
                    if line is self._current:
                        limit.reschedule(None)
                    await asyncio.sleep(self.chance.random() * SLOWEST_READ_S)
        line.abort()
        if line in self._left:
            self._forget(line)

    def _arrived(self, line: Line, packet: Packet) -> None:
        if isinstance(packet, Connack) and packet.reason:
            return  # Refused for now: the connection ends, and another comes.
        if isinstance(packet, Connack) and line is self._newest:
            self._take_over(line)
        if isinstance(packet, DisconnectPacket):
            self.notes.reasons.append((self.name, line.port, packet.reason))
        elif line is self._current:
            self._take(packet)
        elif isinstance(packet, Pingresp):
            line.answered(asyncio.get_running_loop().time())

    def _take_over(self, line: Line) -> None:
        """Have the session on another connection from now on; the last one stays open."""
        line.accepted.set_result(None)
        left, self._current = self._current, line
        self.port, self._writer = line.port, line.writer
        if left is not None and not left.is_gone:
            left.leave(asyncio.get_running_loop().time())
            self._left.append(left)
        for old in self._left[:-MAX_LEFT_OPEN]:
            old.abort()

    def _forget(self, line: Line) -> None:
        self._left.remove(line)
        self.notes.overlaps.append(Overlap(self.name, line.port, line.overlap_s))


class RoamingPublisher(Roaming, PublishingClient):
    """A publisher that moves; a broker that speaks MQTT 5 may refuse one of its messages."""

    def received(self, packet: Packet) -> None:
        """An acknowledgement, or a refusal."""
        if isinstance(packet, Puback | Pubrec) and packet.reason.is_failure:
            self._under_way.pop(packet.packet_id, None)
            self._go_on()
        else:
            super().received(packet)


class RoamingSubscriber(Roaming, SubscribingClient):
    """A subscriber that moves; it gets wills as well."""

    def not_answered(self) -> None:
        """Subscribe again where a session may begin anew: the CONNACK that was not read may have said so."""
        if self.notes.begun_anew is not None:
            self.known = False

    def connected(self, connack: Connack) -> None:
        """Subscribe until that is acknowledged, and again when the session has begun anew."""
        if not connack.session_present:
            self._taken.clear()
            self.known = False
        if not self.known:
            self.send(Subscribe(1, (SubscribeRequest("crash/#", 2), SubscribeRequest(f"{WILLS}/#", 2))))
