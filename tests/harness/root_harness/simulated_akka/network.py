"""The plugin's connections over simulated ones: handshakes, limits and keepers are the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.net.attempts import cancel_all, start
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.hello import NONCE_BYTES, PeerInfo
from kinmqtt_akka_like_cluster.net.network_config import NetworkConfig
from kinmqtt_akka_like_cluster.net.opening import DialFailed
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused
from kinmqtt_akka_like_cluster.net.transport import Network
from kinmqtt_spi.mesh.pipes import PipeEnd
from kinmqtt_spi.services.plugin import Clock, Log
from root_harness.simulated_akka.ether import Ether, Process


class SimulatedNetwork(Network):
    """The connections of one simulated process."""

    def __init__(
        self,
        ether: Ether,
        process: Process,
        random: Random,
        config: NetworkConfig,
        own: PeerInfo,
        log: Log,
        clock: Clock,
    ) -> None:
        super().__init__(config, own, log, clock, partial(random.randbytes, NONCE_BYTES))
        self._ether = ether
        self._process = process
        self._own_address = str(config.listen)
        self._on_connection: Callable[[Established], object] = Established.close
        self._serving: set[asyncio.Task[None]] = set()

    async def start_listening(self, on_connection: Callable[[Established], object]) -> None:
        """Accept connections from now on."""
        self._on_connection = on_connection
        self._ether.listen(self._own_address, self._process, self._accept)

    async def close(self) -> None:
        """Accept no more, and close all connections."""
        self._ether.unlisten(self._own_address, self._process)
        await cancel_all(self._serving)
        await super().close()

    async def _connect(self, endpoint: Endpoint, opening: asyncio.Protocol, tls: Any) -> None:
        await self._ether.connect(self._process, str(endpoint), opening)

    def _accept(self, end: PipeEnd) -> None:
        start(self._serve(end), self._serving)

    async def _serve(self, end: PipeEnd) -> None:
        opening = self._attempts.opening("a simulated broker", None, None, None)

        async def connect() -> None:
            self._ether.accepted(self._process, end, opening)

        try:
            established = await self._attempts.run(opening, connect)
        except (HandshakeRefused, DialFailed):
            return
        self._on_connection(established)
