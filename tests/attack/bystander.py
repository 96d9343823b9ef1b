"""A client that has nothing to do with an attack, in a process of its own: how long do its messages take?

    python bystander.py PORT

It publishes to itself with QoS 1, 200 messages a second, one after the other. A message's time runs from when it is
due, so that a broker that stalls delays all that were due meanwhile. Each line on standard input is a number: once
so many messages have come back since the line before, it prints what it has seen of them, as JSON: ``trips``,
``p50_ms``, ``p99_ms``, ``longest_ms``, ``lost``. A connection that ends is opened again, and counted as lost.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys

from rawclient import PUBLISH, SUBACK, Client, connect, publish, subscribe

PERIOD_S = 0.005
PUBACK = b"\x40\x02"


class Bystander:
    """What one bystander has seen."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._taken_s: list[float] = []
        self._lost = 0
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
            await asyncio.sleep(PERIOD_S)

    async def _talk(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            client.send(publish("bystander/said", b"x", qos=1))
            while (found := await client.next_packet()) is not None:
                if found[0] >> 4 == PUBLISH:
                    client.send(PUBACK + found[1][16:18])
                    break
            if found is None:
                return
            now = loop.time()
            self._taken_s.append(now - due)
            async with self._came_back:
                self._came_back.notify_all()
            due += PERIOD_S
            await asyncio.sleep(max(0.0, due - now))

    def report(self) -> dict[str, float]:
        """What was seen since this was asked last."""
        taken_ms = sorted(1000 * taken for taken in self._taken_s)
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
