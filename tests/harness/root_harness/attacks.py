"""Attacks on a broker, each bounded in what it sends and in how long it lasts.

Each is a function that does its worst and returns; its connections stay open until the process ends.
What a broker refuses is a success of the broker: an attack goes on with whatever it still can do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice, product

from root_harness.rawclient import (
    PUBACK,
    SUBACK,
    UNSUBACK,
    Client,
    connect,
    length_of,
    publish,
    subscribe,
    unsubscribe,
    user_properties,
)

LONGEST_STRING = 65_535
PACKET_BYTES = 8 << 20
"""The largest packet that a broker takes by default."""


class Attack:
    """Connections of one attack, and what several attacks do."""

    def __init__(self, port: int, lasts_s: float) -> None:
        """``lasts_s`` is how long an attack goes on at most, in seconds."""
        self.port = port
        self._ends_at = asyncio.get_running_loop().time() + lasts_s
        self.clients: list[Client] = []

    async def open(self, first: bytes = b"", host: str | None = None) -> Client | None:
        """A connection that stays open until the attack ends; ``None`` where it is refused."""
        try:
            client = await Client.open(self.port, first, host=host)
        except OSError:
            return None
        self.clients.append(client)
        return client

    async def accepted(self, connect: bytes) -> Client | None:
        """A connection with its CONNACK."""
        client = await Client.accepted(self.port, connect)
        if client is not None:
            self.clients.append(client)
        return client

    async def many(self, number: int, one: Callable[[int], Awaitable[object]], at_once: int = 50) -> None:
        """Do something many times, fifty at a time."""
        gate = asyncio.Semaphore(at_once)

        async def do(index: int) -> None:
            async with gate:
                await one(index)

        await asyncio.gather(*(do(index) for index in range(number)))

    @property
    def over(self) -> bool:
        """Whether the attack's time is over."""
        return asyncio.get_running_loop().time() >= self._ends_at

    # What connections hold

    async def unfinished_connects(self) -> None:
        """2,000 clients send a CONNECT of the largest size, but for its last byte."""

        async def one(index: int) -> None:
            whole = connect(
                f"c{index}", will=("t", bytes(LONGEST_STRING)), username="u" * 60_000, password=bytes(60_000)
            )
            client = await self.open(whole[:-1])
            if client is not None:
                await client.sent()

        await self.many(2000, one)

    async def unfinished_packets(self) -> None:
        """150 clients send a PUBLISH of 8 MB, but for its last byte."""

        async def one(index: int) -> None:
            client = await self.accepted(connect(f"c{index}"))
            if client is not None:
                client.send(publish("t", bytes(PACKET_BYTES - 100))[:-1])
                await client.sent(3.0)

        await self.many(150, one)

    async def slow_packets(self) -> None:
        """500 clients send a packet byte by byte."""

        async def one(index: int) -> None:
            client = await self.accepted(connect(f"c{index}"))
            if client is None:
                return
            client.send(b"\x30" + length_of(60_000))
            while not self.over and await client.sent():
                client.send(b"x")
                await asyncio.sleep(0.1)

        await self.many(500, one, 500)

    async def no_readers(self) -> None:
        """120 subscribers read nothing while ten publishers send 64 KB messages, QoS 0 and 1 in turn."""

        async def one(index: int) -> None:
            client = await self.accepted(connect(f"s{index}"))
            if client is not None:
                client.send(subscribe(["flood"], qos=index % 2))
                await client.answer(SUBACK)
                client.stop_reading()

        await self.many(120, one)

        async def push(index: int) -> None:
            client = await self.accepted(connect(f"p{index}"))
            payload = bytes(LONGEST_STRING)
            while client is not None and not self.over:
                client.send(publish("flood", payload))
                client.send(publish("flood", payload, qos=1))
                if await client.answer(PUBACK) is None:
                    return

        await self.many(10, push)

    async def large_to_no_readers(self) -> None:
        """120 subscribers read nothing, and each of ten messages to all of them has 8 MB."""

        async def one(index: int) -> None:
            client = await self.accepted(connect(f"s{index}"))
            if client is not None:
                client.send(subscribe(["flood"], qos=1))
                await client.answer(SUBACK)
                client.stop_reading()

        await self.many(120, one)
        publisher = await self.accepted(connect("p"))
        for _ in range(10):
            if publisher is None or self.over:
                return
            publisher.send(publish("flood", bytes(PACKET_BYTES - 100), qos=1))
            await publisher.sent()
            await publisher.answer(PUBACK)

    async def unread_answers(self) -> None:
        """50 clients ask and ask, with PINGREQ and SUBSCRIBE, and read no answer."""

        async def one(index: int) -> None:
            client = await self.accepted(connect(f"c{index}"))
            if client is None:
                return
            client.stop_reading()
            asks = b"\xc0\0" * 10_000 + subscribe([f"a/{n}" for n in range(100)])
            while not self.over and await client.sent(1.0):
                client.send(asks)

        await self.many(50, one)

    # What sessions and stores hold

    async def long_filters(self) -> None:
        """20 clients subscribe to filters of 64 KB, 10,000 in all, and to as many as fit of 4 KB."""

        async def one(index: int) -> None:
            for size, number in ((LONGEST_STRING - 20, 500), (4000, 500)):
                client = await self.accepted(connect(f"c{index}-{size}"))
                for n in range(number):
                    if client is None or self.over:
                        break
                    client.send(subscribe([f"{index}/{n}/".ljust(size, "x")]))
                    if await client.answer(SUBACK) is None:
                        break

        await self.many(20, one)

    async def deep_filters(self) -> None:
        """20 clients subscribe to filters of 200 levels that have no level in common."""

        async def one(index: int) -> None:
            client = await self.accepted(connect(f"c{index}"))
            for n in range(2000):
                if client is None or self.over:
                    return
                client.send(subscribe(["/".join(f"{index}.{n}.{level}" for level in range(199))]))
                if await client.answer(SUBACK) is None:
                    return

        await self.many(20, one)

    async def filters_that_come_and_go(self) -> None:
        """One client subscribes to filters of 64 KB and gives them up again, 15,000 times."""
        await self._come_and_go(LONGEST_STRING - 20, 7000)
        await self._come_and_go(4000, 8000)

    async def _come_and_go(self, size: int, times: int) -> None:
        client = await self.accepted(connect(f"c{size}"))
        for n in range(times):
            if client is None or self.over:
                return
            filter = f"{n}/".ljust(size, "x")
            client.send(subscribe([filter]) + unsubscribe([filter]))
            if await client.answer(UNSUBACK) is None:
                return

    async def wills(self) -> None:
        """2,000 clients leave the largest will that fits into a CONNECT, to be published a day later."""
        delay = b"\x05\x18\x00\x01\x51\x80"

        async def one(index: int) -> None:
            for size in (LONGEST_STRING, 60_000):
                will = (f"will/{index}", bytes(size))
                client = await Client.accepted(
                    self.port, connect(f"c{index}", expiry_s=86_400, will=will, will_properties=delay)
                )
                if client is not None:
                    client.abort()

        await self.many(2000, one)

    async def retained_properties(self) -> None:
        """One client retains messages with 100,000 empty user properties, and with as many as are taken."""
        for number, times in ((100_000, 200), (100, 20_000)):
            client = await self.accepted(connect(f"c{number}"))
            for n in range(times):
                if client is None or self.over:
                    break
                client.send(publish(f"r/{number}/{n}", b"x", qos=1, retain=True, properties=user_properties(number)))
                if await client.answer(PUBACK) is None:
                    break

    async def delayed(self) -> None:
        """One client delays 10,000 messages for more than a year."""
        client = await self.accepted(connect("c"))
        for n in range(10_000):
            if client is None or self.over:
                return
            client.send(publish(f"$delayed/42949670/x/{n}", b"x" * 100, qos=1))
            if await client.answer(PUBACK) is None:
                return

    async def sessions(self) -> None:
        """5,000 sessions are left behind that outlive their connections, each with a queue that fills."""

        async def one(index: int) -> None:
            client = await Client.accepted(self.port, connect(f"c{index}", expiry_s=86_400))
            if client is not None:
                client.send(subscribe(["away/#"], qos=1))
                await client.answer(SUBACK)
                client.abort()

        await self.many(5000, one)
        client = await self.accepted(connect("p"))
        for n in range(50):
            if client is None:
                return
            client.send(publish(f"away/{n}", bytes(50_000), qos=1))
            if await client.answer(PUBACK) is None:
                return

    # What takes time

    async def property_floods(self) -> None:
        """PUBLISH packets with 500 KB of empty user properties, and with as many as are taken."""
        for number in (100_000, 100):
            client = await self.accepted(connect(f"c{number}"))
            while client is not None and not self.over:
                client.send(publish("p", properties=user_properties(number)))
                if not await client.sent():
                    break

    async def subscribing_over_quota(self) -> None:
        """SUBSCRIBE packets with 10,000 filters, and with 1,000, of which none fits any more."""
        for number in (10_000, 1000):
            client = await self.accepted(connect(f"c{number}"))
            for n in range(100):
                if client is None or self.over:
                    break
                client.send(subscribe([f"{n}/{m}/a/b" for m in range(number)]))
                if await client.answer(SUBACK) is None:
                    break

    async def overlapping_filters(self) -> None:
        """Three clients have 24,576 filters of ``+`` and ``a`` that all match one topic, published to for a while."""
        every = product(*[("a", "+")] * 13)
        for client_number in range(3):
            client = await self.accepted(connect(f"c{client_number}"))
            while client is not None and (some := list(islice(every, 500))):
                client.send(subscribe([f"{client_number}/" + "/".join(levels) for levels in some]))
                if await client.answer(SUBACK) is None:
                    break
            every = product(*[("a", "+")] * 13)
        publisher = await self.accepted(connect("p"))
        other = await self.accepted(connect("other"))
        topic = "/".join(["a"] * 13)
        for n in range(1000):
            if publisher is None or other is None or self.over:
                return
            other.send(subscribe([f"elsewhere/{n}"]))
            await other.answer(SUBACK)
            publisher.send(publish(f"{n % 3}/{topic}", b"x", qos=1))
            await publisher.answer(PUBACK)

    async def filters_over_retained(self) -> None:
        """20,000 filters that find nothing look through 20,000 retained messages."""
        client = await self.accepted(connect("c"))
        for start in range(0, 20_000, 100):
            if client is None:
                return
            client.send(b"".join(publish(f"x/{n % 100}/{n}", b"x", retain=True) for n in range(start, start + 100)))
        if client is not None:
            await client.sent()
        searcher = await self.accepted(connect("s"))
        for start in range(0, 20_000, 500):
            if searcher is None or self.over:
                return
            searcher.send(subscribe([f"+/+/+/n{n}" if n % 2 else f"x/+/n{n}" for n in range(start, start + 500)]))
            if await searcher.answer(SUBACK) is None:
                return

    async def small_packets(self) -> None:
        """Five clients send as many of the smallest packets as the broker takes."""
        flood = (b"\xc0\0" + b"\x40\2\0\1" + publish("f", b"x", qos=1) + publish("f")) * 3000

        async def one(index: int) -> None:
            client = await self.accepted(connect(f"c{index}"))
            if client is None:
                return
            reading = asyncio.create_task(self._read(client))
            while not self.over and await client.sent():
                client.send(flood)
            reading.cancel()

        await self.many(5, one)

    @staticmethod
    async def _read(client: Client) -> None:
        while await client.next_packet() is not None:
            pass

    async def storm(self) -> None:
        """Clients connect and are gone at once, 100 at a time."""

        async def one(index: int) -> None:
            if not self.over:
                client = await Client.accepted(self.port, connect(f"c{index}"))
                if client is not None:
                    client.abort()

        await self.many(20_000, one, 100)


_MEANS = ("open", "accepted", "many")
"""What attacks are made of."""


def attacks() -> Iterator[tuple[str, str]]:
    """The name of each attack, and what it does in one sentence."""
    for name, member in vars(Attack).items():
        if (
            asyncio.iscoroutinefunction(member)
            and not name.startswith("_")
            and name not in ("open", "accepted", "many")
        ):
            yield name, (member.__doc__ or "").strip()
