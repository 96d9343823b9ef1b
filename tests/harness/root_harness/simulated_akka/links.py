"""The links of a world on which the plugin akka_like_cluster finds out who is a member."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, Final

from kinmqtt.testing.world.links import NodeProcess, Surroundings, Undo
from kinmqtt_akka_like_cluster import AkkaLikeCluster
from kinmqtt_akka_like_cluster.backend import AkkaBackend
from kinmqtt_akka_like_cluster.settings import AkkaSettings
from kinmqtt_spi.memory.cluster_arbiter import MemoryClusterArbiter
from kinmqtt_spi.mesh.pipes import Pipe
from kinmqtt_spi.services.plugin import Context
from root_harness.simulated_akka.arbiter import NodeArbiter
from root_harness.simulated_akka.ether import Ether, Process
from root_harness.simulated_akka.loop import NodeLoop
from root_harness.simulated_akka.network import SimulatedNetwork

SEEDS: Final = 2


def address_of(host: str) -> str:
    """Return where the process on a host is dialled: hosts are n0, n1 and so on."""
    number = int(host[1:])
    return f"127.0.{number // 250}.{number % 250 + 1}:4883"


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="kinmqtt-simulated-")
    cookie = Path(folder.name, "cookie")
    cookie.write_bytes(b"c" * 32)
    cookie.chmod(0o600)
    return folder


def cookie_file() -> Path:
    """Return a file with the secret of all simulated clusters, for as long as this process lives."""
    return Path(_folder().name, "cookie")


class AkkaLink:
    """What one process has: an event loop, the plugin, and its way to the arbiter."""

    def __init__(self, links: AkkaLinks, node: NodeProcess) -> None:
        host = node.name
        self.backend: AkkaBackend | None = None
        self.process = Process(host, node.clock)
        self._links = links
        self._loop = NodeLoop(node.clock, node.soon, partial(links.failed, host))
        self.plugins: Mapping[str, Any] = {
            "akka_like_cluster": AkkaLikeCluster(self._make_backend),
            "arbiter": NodeArbiter(links.arbiter, links.world.schedule, node.clock, node.access, links.random),
        }
        self.settings: Mapping[str, Any] = {
            "akka_like_cluster": AkkaSettings(
                listen=address_of(host),
                seeds=tuple(address_of(f"n{number}") for number in range(SEEDS)),
                cookie_file=cookie_file(),
            )
        }
        self.services: Mapping[str, str] = {"cluster": "akka_like_cluster", "arbiter": "arbiter"}

    def _make_backend(self, context: Context, settings: AkkaSettings) -> AkkaBackend:
        links = self._links
        network = partial(SimulatedNetwork, links.ether, self.process, links.random)
        self.backend = AkkaBackend(context, settings, network, links.random)
        return self.backend

    def around(self, call: Callable[[], object]) -> None:
        """Make a call on the process's event loop."""
        self._loop.around(call)

    def crash(self) -> None:
        """Do nothing: its clock stands still, and its host does the rest."""


class AkkaLinks:
    """The hosts, what is between them, and the arbiter."""

    warm_up_s = 12.0
    lease_s: float | None = 10.0
    starts_failed_again = True

    def __init__(self, world: Surroundings, random: Random) -> None:
        self.world = world
        self.random = Random(f"akka {world.plan.seed}")
        """Chooses with whom to gossip, what is lost, and how faults show; ``random`` is the faults' own."""
        self.arbiter = MemoryClusterArbiter(world.schedule.monotonic)
        self.ether = Ether(world.schedule, world.plan.link_delay_s, self.random)
        self._links: dict[int, AkkaLink] = {}
        del random

    def failed(self, host: str, what: str) -> None:
        """Report what was raised into an event loop."""
        self.world.violated(f"liveness: the event loop of {host}: {what}")

    def new_uid(self, serial: int) -> int:
        """Return a number of 64 bits."""
        return self.random.getrandbits(64)

    def link(self, node: NodeProcess) -> AkkaLink:
        """Return what a new process needs."""
        link = self._links[node.identity.uid] = AkkaLink(self, node)
        return link

    def starts(self, node: NodeProcess) -> None:
        """Its host answers again."""
        self.ether.started(node.name)

    def crashed(self, node: NodeProcess) -> None:
        """Let the others find out: its system closes its connections, or the machine is off."""
        self.ether.ended(self._links[node.identity.uid].process, vanished=self.random.random() < 0.5)

    # Faults

    def connections(self, one: NodeProcess, other: NodeProcess) -> Sequence[Pipe]:
        """Return the connections of two hosts."""
        return self.ether.between(one.name, other.name)

    def block(self, pairs: Iterable[tuple[NodeProcess, NodeProcess]]) -> Undo:
        """Let nothing through, or refuse everything."""
        names = [(one.name, other.name) for one, other in pairs]
        if self.random.random() < 0.5:
            return self.ether.sever(names)
        return self.ether.silence([*names, *((other, one) for one, other in names)])

    def isolate(self, node: NodeProcess) -> Undo:
        """Cut a host off."""
        return self.block([(node, other) for other in self.world.nodes if other.name != node.name])

    def one_way(self, one: NodeProcess, other: NodeProcess, random: Random) -> Undo | None:
        """Let nothing through in one direction."""
        pair = (one.name, other.name)
        return self.ether.silence([random.choice((pair, pair[::-1]))])

    def stall(self, node: NodeProcess) -> Undo:
        """Let nothing through between a host and all others; its clients notice nothing."""
        return self.ether.silence(self._ways(node))

    def _ways(self, node: NodeProcess) -> list[tuple[str, str]]:
        others = [other.name for other in self.world.nodes if other.name != node.name]
        return [way for other in others for way in ((node.name, other), (other, node.name))]

    def lose(self, node: NodeProcess, random: Random) -> Undo:
        """Lose some of what a host sends and receives."""
        return self.ether.lose(node.name)

    def give_up(self, node: NodeProcess) -> Undo:
        """Cut a host off, and let an operator mark its process DOWN on another one."""
        undo = self.ether.silence(self._ways(node))
        for other in self.world.nodes:
            driver = None if other is node else self._driver(other)
            if driver is not None and driver.coordinator.info(node.identity.uid) is not None:
                down = partial(driver.coordinator.down, node.identity.uid)
                other.clock.run(lambda: driver.apply(down()))  # noqa: B023 - it returns here
                break
        return undo

    def _driver(self, node: NodeProcess) -> Any:
        backend = self._links[node.identity.uid].backend
        return backend.driver if node.is_alive and backend is not None else None
