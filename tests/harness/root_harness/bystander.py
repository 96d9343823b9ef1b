"""A client that has nothing to do with an attack, in a process of its own: how long do its messages take?

    python -m root_harness.bystander PORT

It publishes to itself with QoS 1, 200 messages a second, and waits for none before it sends the next. A message's
time runs from when it is due, so that a broker that stalls delays all that were due meanwhile; what has not come back
when it is asked has taken until then. Each line on standard input is a number: once so many messages have come back
since the line before, it prints what it has seen of them, as JSON: ``trips``, ``p50_ms``, ``p99_ms``, ``longest_ms``,
``lost``. A connection that ends is opened again, and counted as lost.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import struct
import sys

from root_harness.rawclient import PUBLISH, SUBACK, Client, connect, publish, subscribe

PERIOD_S = 0.005
PUBACK = b"\x40\x02"
TIME = struct.Struct("d")
"""What a message says: when it was due, by the clock of the event loop."""


class Bystander:
    """What one bystander has seen."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._taken_s: list[float] = []
        self._lost = 0
        self._under_way: dict[float, None] = {}
        self._came_back = asyncio.Condition()

    async def trips(self, least: int) -> None:
        """Wait until so many messages have come back since the last report."""
        async with self._came_back:
            await self._came_back.wait_for(lambda: len(self._taken_s) >= least)

    async def run(self) -> None:
        """Connect, and send messages, until the process is ended."""
        while True:
            client = await Client.accepted(self._port, connect("bystander"))
            if client is not None:
                client.send(subscribe(["bystander/said"], qos=1))
                if await client.answer(SUBACK) is not None:
                    await self._talk(client)
            self._lost += 1
            self._under_way.clear()
            await asyncio.sleep(PERIOD_S)

    async def _talk(self, client: Client) -> None:
        """Send when a message is due, whether or not those before it have come back, as any client may."""
        loop = asyncio.get_running_loop()
        listening = asyncio.create_task(self._listen(client))
        due = loop.time()
        while not listening.done():
            self._under_way[due] = None
            client.send(publish("bystander/said", TIME.pack(due), qos=1))
            due += PERIOD_S
            await asyncio.wait([listening], timeout=max(0.0, due - loop.time()))
        listening.result()

    async def _listen(self, client: Client) -> None:
        """Take the time of each message that comes back, until the connection ends."""
        loop = asyncio.get_running_loop()
        while (found := await client.next_packet()) is not None:
            if found[0] >> 4 == PUBLISH:
                client.send(PUBACK + found[1][16:18])
                (due,) = TIME.unpack(found[1][-TIME.size :])
                self._under_way.pop(due, None)
                self._taken_s.append(loop.time() - due)
                async with self._came_back:
                    self._came_back.notify_all()

    def report(self) -> dict[str, float]:
        """What was seen since this was asked last."""
        now = asyncio.get_running_loop().time()
        taken_ms = sorted(1000 * taken for taken in (*self._taken_s, *(now - due for due in self._under_way)))
        lost, self._lost, self._taken_s = self._lost, 0, []
        if len(taken_ms) < 2:
            return {"trips": len(taken_ms), "p50_ms": 0, "p99_ms": 0, "longest_ms": 0, "lost": lost}
        return {
            "trips": len(taken_ms),
            "p50_ms": statistics.median(taken_ms),
            "p99_ms": taken_ms[int(len(taken_ms) * 0.99)],
            "longest_ms": taken_ms[-1],
            "lost": lost,
        }


async def main(port: int) -> None:
    """Talk, and answer questions, until standard input ends."""
    bystander = Bystander(port)
    talking = asyncio.create_task(bystander.run())
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        await bystander.trips(int(line))
        print(json.dumps(bystander.report()), flush=True)
    talking.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
