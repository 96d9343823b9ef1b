"""Two brokers on loopback keep the contract of cluster backends: joined by seeds, with and without TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from akka_harness.certificates import Authority
from akka_harness.loop_clock import LoopClock
from akka_harness.relays import Relay, free_port
from kinmqtt_akka_like_cluster.backend import AkkaBackend
from kinmqtt_akka_like_cluster.settings import AkkaSettings, TlsSettings
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.cluster import ClusterBackend
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.cluster import ClusterBackendContract
from kinmqtt_spi.testing.cluster_base import News
from kinmqtt_spi.testing.driving import AsyncioDriver
from kinmqtt_spi.values import NodeIdentity

SHORT: dict[str, Any] = {"heartbeat_s": 0.05, "pause_s": 20.0, "stable_after_s": 60.0, "link_bytes": 16 << 20}
"""They join at once, and don't notice that one is stalled for some seconds."""


class Pair:
    """Brokers that were made for a test, the first of them the seed, each behind a relay."""

    def __init__(self, drive: AsyncioDriver, folder: Path) -> None:
        self._drive = drive
        self._clock = LoopClock(drive.loop)
        self._authority = Authority(folder)
        self._cookie = folder / "cookie"
        self._cookie.write_bytes(b"c" * 32)
        self._cookie.chmod(0o600)
        self._backends: list[AkkaBackend] = []
        self.relays: list[Relay] = []

    def add(self, node: NodeIdentity, tls: bool) -> AkkaBackend:
        """Make the backend of a broker."""
        relay, port = Relay(), free_port()
        self._drive(relay.open(port))
        self.relays.append(relay)
        settings = AkkaSettings(
            listen=f"127.0.0.1:{port}",
            advertise=relay.address,
            seeds=(self.relays[0].address,),
            cookie_file=self._cookie,
            tls=self._tls(node.name) if tls else None,
            **SHORT,
        )
        context = BareContext("akka_like_cluster", settings, node=node, clock=self._clock)
        self._backends.append(AkkaBackend(context, settings))
        return self._backends[-1]

    def stall(self) -> Callable[[], object]:
        """Stop all traffic; returns a call that lets it go on."""
        ends = [relay.stall() for relay in self.relays]
        return lambda: [end() for end in ends]

    def cut(self) -> None:
        """Break all connections."""
        for relay in self.relays:
            relay.cut()

    def close(self) -> None:
        """Stop all that was made."""
        for backend in self._backends:
            self._drive(backend.stop())
        for relay in self.relays:
            self._drive(relay.close())

    def _tls(self, name: str) -> TlsSettings:
        return self._authority.settings(name, [f"{name}.brokers.test"], peers=["*.brokers.test"])


class TestAkkaBackend(ClusterBackendContract):
    """Two brokers, and one alone."""

    reactor = "asyncio"
    has_peers = True
    can_stall = True
    can_cut = True
    uses_tls = False
    brokers: Pair

    @pytest.fixture
    def brokers_of_a_test(self, drive: AsyncioDriver, tmp_path: Path) -> Iterator[Pair]:
        """What the test runs."""
        self.brokers = Pair(drive, tmp_path)
        yield self.brokers
        self.brokers.close()

    @pytest.fixture
    def cluster_backend(self, brokers_of_a_test: Pair) -> AkkaBackend:
        return brokers_of_a_test.add(HERE, self.uses_tls)

    def peer(self, cluster_backend: ClusterBackend) -> AkkaBackend:
        return self.brokers.add(THERE, self.uses_tls)

    def stall(self, cluster_backend: ClusterBackend) -> Callable[[], object]:
        return self.brokers.stall()

    def cut(self, cluster_backend: ClusterBackend) -> None:
        self.brokers.cut()


class TestAkkaBackendOverTls(TestAkkaBackend):
    """The same over TLS."""

    uses_tls = True


class TestAkkaBackendWithoutSharedStores(TestAkkaBackend):
    """The same where each broker has stores of its own, so that brokers tell each other who owns a client id."""

    @pytest.fixture(autouse=True)
    def own_stores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The brokers do not share their stores."""
        monkeypatch.setattr(News, "shares_stores", False)
