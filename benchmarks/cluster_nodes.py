"""Clusters that are measured: brokers of ``akka_like_cluster`` over one Redis, as processes of this machine."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from brokers import Broker, Failed, Kind, Redis, free_ports, redis, start

from kinmqtt_akka_like_cluster.control import ask
from kinmqtt_spi.errors import SpiError

WHOLE_S: Final = 60.0
"""How long brokers may take until all of them are UP for all."""

SETTINGS: Final = """
[broker]
node_name = "{name}"
data = "memory"
leave_s = 1

[limits]
max_queued_messages = 20000

[listeners.tcp]
endpoint = "tcp:{port}:interface=127.0.0.1"

[services]
session = "redis_session"
queue = "redis_session"
retain = "redis_session"

[plugins.redis_session]
socket = "{redis}"

[plugins.akka_like_cluster]
listen = "{address}"
seeds = ["{seed}"]
cookie_file = "{cookie}"
control = "{control}"
"""


class Node:
    """One broker of a cluster."""

    def __init__(self, broker: Broker, control: Path) -> None:
        self.broker = broker
        self._control = control

    @property
    def port(self) -> int:
        """Where its clients connect."""
        return self.broker.port

    def sees(self, count: int) -> bool:
        """Tell whether so many members are UP and reachable for it."""
        try:
            members = ask(self._control, {"command": "members"}, 10.0)
        except SpiError:
            return False
        return [(each["state"], each["reachable"]) for each in members] == [("up", True)] * count


class Cluster:
    """Some brokers, and their Redis. More may be started."""

    def __init__(self, stack: ExitStack, count: int) -> None:
        """Start the brokers; all ends with the stack. Raises :class:`Failed`."""
        self._stack = stack
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-")))
        self._cookie = self._folder / "cookie"
        self._cookie.write_text("c" * 64)
        self._cookie.chmod(0o600)
        self._seed = ""
        self.redis: Redis = stack.enter_context(redis(self._folder))
        # The first one has formed the cluster before the others look for it.
        self.nodes = [self.start_node("n1", stack)]
        self.nodes += [self._begin(f"n{number}", stack) for number in range(2, count + 1)]
        stack.callback(self._kill)
        for node in self.nodes:
            node.broker.wait()
        self._wait_until_whole()

    def start_node(self, name: str, stack: ExitStack, pace_s: float = 0.05) -> Node:
        """Start another broker, which ends with that stack, and wait until it takes clients: then it is UP.

        ``pace_s`` is how often that is tried.
        """
        node = self._begin(name, stack)
        node.broker.wait(pace_s)
        return node

    def _begin(self, name: str, stack: ExitStack) -> Node:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        self._seed = self._seed or address
        control = self._folder / f"{name}.sock"

        def command(folder: Path, ports: dict[str, int], keeps: str) -> list[str]:
            (folder / "kinmqtt.toml").write_text(
                SETTINGS.format(
                    name=name,
                    port=ports["tcp"],
                    redis=self.redis.socket,
                    address=address,
                    seed=self._seed,
                    cookie=self._cookie,
                    control=control,
                )
            )
            return [sys.executable, "-m", "kinmqtt", "run", "-c", "kinmqtt.toml", "--log-level", "error"]

        return Node(start(Kind(name, "", command), stack, wait=False), control)

    @property
    def ports(self) -> list[int]:
        """Where the clients of each broker connect."""
        return [node.port for node in self.nodes]

    @property
    def cpu_s(self) -> float:
        """The CPU time that all brokers have used, in seconds."""
        return sum(node.broker.cpu_s for node in self.nodes)

    def _kill(self) -> None:
        """End all brokers at once: leaving in good order takes its time."""
        for node in self.nodes:
            node.broker.send(signal.SIGKILL)

    def _wait_until_whole(self) -> None:
        until = time.monotonic() + WHOLE_S
        while not all(node.sees(len(self.nodes)) for node in self.nodes):
            if time.monotonic() > until:
                raise Failed("the brokers did not find each other:\n" + "\n".join(self._logs()))
            time.sleep(0.1)

    def _logs(self) -> list[str]:
        return [f"{node.broker.name}: {node.broker.output}" for node in self.nodes]
