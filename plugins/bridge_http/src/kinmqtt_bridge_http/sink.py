"""The sink: batches of messages become requests, and their answers those of the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kinmqtt_bridge_http.answers import meaning
from kinmqtt_bridge_http.client import Client
from kinmqtt_bridge_http.requests import Request, RequestMaker, idempotency_key
from kinmqtt_bridge_http.settings import SinkSettings
from kinmqtt_bridge_http.signing import SIGNATURE, signature
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import Answer, Item, Poison, Retry, Sink
from kinmqtt_spi.services.plugin import Clock

SHARE_OF_TIME: Final = 0.8
"""How much of a batch's time limit may pass before what was not sent yet is left for the next one."""

LAST_SHARE: Final = 0.95
"""How much of it may pass before a request under way is given up: what the server has taken must be acknowledged."""

NOT_SENT: Final = Retry("it was not sent: an earlier message of its batch has to be sent again")


class HttpSink(Sink):
    """Sends messages to one server."""

    def __init__(self, name: str, settings: SinkSettings, clock: Clock) -> None:
        self.name = name
        self._settings = settings
        self._clock = clock
        self._maker = RequestMaker(settings)
        self._client: Client | None = None

    async def open(self) -> None:
        """Read certificates and secrets; raises ``SinkRefused``. Connections are made when messages are sent."""
        await self.close()
        try:
            self._client = Client(self._settings)
        except SinkRefused as refused:
            raise self._located(refused) from refused

    async def send(self, items: Sequence[Item]) -> Sequence[Answer] | None:
        """Send a batch; see :meth:`kinmqtt_spi.services.bridge.Sink.send`."""
        client = self._client
        if client is None:
            raise ServiceUnavailable("the sink is not open")
        sending = _Sending(self._settings, self._maker, client, self._clock, items)
        await sending.run()
        failure = sending.failure
        if failure is not None:
            located = self._located(failure) if isinstance(failure, SinkRefused) else failure
            if not sending.has_taken:
                raise located
            # What was taken must not come again. The next batch begins with what was not, and then raises.
            sending.leave(Retry(str(located), 0.0 if isinstance(failure, SinkRefused) else None))
        answers = sending.answers
        return None if answers.count(None) == len(answers) else answers

    async def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _located(self, refused: SinkRefused) -> SinkRefused:
        """Return a refusal that names the place in the settings."""
        return SinkRefused(f"plugins.bridge_http.sinks.{self.name}: {refused}")


class _Sending:
    """Sends the requests of a batch: in their order, some at a time, up to the first that fails."""

    def __init__(
        self, settings: SinkSettings, maker: RequestMaker, client: Client, clock: Clock, items: Sequence[Item]
    ) -> None:
        self._settings = settings
        self._maker = maker
        self._client = client
        self._clock = clock
        self._items = items
        self.answers: list[Answer] = [NOT_SENT] * len(items)
        """The answers so far: nothing counts as taken before the server says so."""
        self.failure: SinkRefused | ServiceUnavailable | None = None
        """Set if the server refuses this client, or can't be asked."""
        self.has_taken = False
        """Whether the server has judged some messages."""
        self._stops = False

    async def run(self) -> None:
        """Send all, as far as it goes."""
        loop = self._loop = asyncio.get_running_loop()
        limit_s = self._settings.sending.time_limit_s
        self._late_at, self._ends_at = loop.time() + limit_s * SHARE_OF_TIME, loop.time() + limit_s * LAST_SHARE
        requests = self._maker.divide(self._items, self.answers)
        if len(requests) == 1:
            await self._send(requests[0])
            return
        free = asyncio.Semaphore(self._settings.connections)
        last: dict[bytes | None, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            for request in requests:
                await free.acquire()
                if self._stops:
                    break
                before = last.get(request.key)
                last[request.key] = group.create_task(self._send_after(before, request, free))

    def leave(self, answer: Retry) -> None:
        """Give an answer for all messages that were not sent, or that the server has not judged."""
        self.answers = [answer if each is NOT_SENT else each for each in self.answers]

    async def _send_after(self, before: asyncio.Task[None] | None, request: Request, free: asyncio.Semaphore) -> None:
        try:
            if before is not None:
                await before
            await self._send(request)
        finally:
            free.release()

    async def _send(self, request: Request) -> None:
        """Send a request. One that is refused for its content is divided, to find the messages that are to blame."""
        if self._stops:
            return
        if self._loop.time() > self._late_at:
            self._stops = True
            self.leave(Retry("the server is slow: the rest of a batch goes with the next one", 0.0))
            return
        try:
            answer = await self._ask(request)
        except (SinkRefused, ServiceUnavailable) as failure:
            self._stops = True
            # A refusal first: an operator must learn of it.
            if self.failure is None or isinstance(failure, SinkRefused):
                self.failure = failure
            return
        if isinstance(answer, Poison) and len(request.numbers) > 1:
            for half in request.halves():
                await self._send(half)
            return
        if isinstance(answer, Retry):
            self._stops = True
        else:
            self.has_taken = True
        for number in request.numbers:
            self.answers[number] = answer

    async def _ask(self, request: Request) -> Answer:
        client = self._client
        body = self._maker.body(request)
        name, key = idempotency_key(request, self._items)
        headers = {**request.headers, name: key}
        if client.signature_secret is not None:
            headers[SIGNATURE] = signature(client.signature_secret, int(self._clock.now()), body)
        timeout_s = min(self._settings.timeout_s, self._ends_at - self._loop.time())
        reply = await client.send(request.url, headers, body, timeout_s)
        return meaning(reply, self._clock.now(), self._maker.has_one_url, client.secrets)
