"""Networks of brokers on loopback, on one event loop, with clocks that only tests turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any

from attrs import define, evolve, field

from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind, PeerInfo
from kinmqtt_akka_like_cluster.net.network_config import NetworkConfig
from kinmqtt_akka_like_cluster.net.transport import Network
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock

LIMIT_S = 30.0
"""How long anything may take before a test gives up on it."""

LOOPS = ["asyncio", "uvloop"] if find_spec("uvloop") else ["asyncio"]
"""The event loops of brokers; uvloop is where the core has it installed."""

LOOPBACK = Endpoint("127.0.0.1", 0)
"""The system chooses the port."""

CONFIG = NetworkConfig(listen=LOOPBACK, cluster="test", cookie=b"c" * 32, digest=b"d" * 32)


def run_on(loop: str, scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario, and fail if anything raised into the event loop."""
    raised: list[dict[str, Any]] = []

    def made() -> asyncio.AbstractEventLoop:
        if loop == "uvloop":
            import uvloop

            event_loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        else:
            event_loop = asyncio.new_event_loop()
        event_loop.set_exception_handler(lambda _, context: raised.append(context))
        return event_loop

    with asyncio.Runner(loop_factory=made) as runner:
        runner.run(asyncio.wait_for(scenario, LIMIT_S))
    assert not raised


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop run until a condition holds."""
    async with asyncio.timeout(LIMIT_S / 2):
        while not condition():
            await asyncio.sleep(0.001)


@define(eq=False)
class Wire:
    """One end of an established connection, and what it has seen."""

    connection: Established
    received: bytearray = field(factory=bytearray)
    losses: int = 0

    def attach(self) -> Wire:
        """Read from now on."""
        self.connection.on_data = self.received.extend
        self.connection.on_lost = self._lost
        return self

    def _lost(self) -> None:
        self.losses += 1


class Broker:
    """A network with its clock and log; what it accepts is read."""

    def __init__(self, name: str, uid: int, config: NetworkConfig = CONFIG, **changes: Any) -> None:
        self.clock = TurnableClock()
        self.log = RecordingLog()
        self.config = evolve(config, **changes)
        self.network = Network(self.config, PeerInfo(name, uid, f"127.0.0.1:{uid}"), self.log, self.clock)
        self.accepted: list[Wire] = []

    async def listen(self) -> Broker:
        """Listen, and read what comes."""
        await self.network.start_listening(lambda connection: self.accepted.append(Wire(connection).attach()))
        return self

    @property
    def address(self) -> str:
        """The address that it listens on."""
        return str(self.network.listening[0])

    async def dial(
        self, other: Broker, kind: ConnectionKind = ConnectionKind.CONTROL, expected_uid: int | None = None
    ) -> Wire:
        """Dial another broker, and read."""
        return Wire(await self.network.dial(other.address, kind, expected_uid)).attach()


async def close_all(*brokers: Broker) -> None:
    """Close networks, as brokers that stop."""
    await asyncio.gather(*(broker.network.close() for broker in brokers))
