"""A network of its own for a cluster: a bridge in one network namespace, and a namespace for each host.

No interface of the machine is touched. Each namespace is held by a process that ends with the test, and goes with it.
`tc netem` is not in every kernel: loss and delay come from :mod:`root_harness.cluster_proxy`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from spi_harness.processes import Process, needed

SUBNET: Final = "10.77.0"
"""Only the namespaces know it."""

_HOLDS: Final = ("sh", "-c", "echo ready; exec cat")
"""It ends when the test does, whatever becomes of that: then its standard input ends."""


class Namespace:
    """Namespaces for the processes of one host: their network, and what is mounted."""

    def __init__(self, *, network: bool, outer: Namespace | None = None) -> None:
        """``network``: whether it has a network of its own, too; ``outer`` is one whose rights it gets."""
        is_root = os.geteuid() == 0
        made = [needed("unshare", "util-linux"), "--mount", *(["--net"] if network else [])]
        if not is_root and outer is None:
            made.append("--map-root-user")
        enter_user = [] if is_root else ["--user", "--preserve-credentials"]
        before: list[str] = []
        if not is_root and outer is not None:
            before = [needed("nsenter", "util-linux"), "--target", str(outer.pid), *enter_user]
        self._holder = Process([*before, *made, *_HOLDS])
        self._holder.wait_for_line("ready")
        self.prefix: Sequence[str] = (
            needed("nsenter", "util-linux"), "--target", str(self.pid), *enter_user, "--mount",
            *(["--net"] if network else []),
        )  # fmt: skip
        """A command that runs another one in here."""

    @property
    def pid(self) -> int:
        """The process that holds it."""
        return self._holder.pid

    def run(self, *command: str) -> None:
        """Run a command in here; it has to succeed."""
        done = subprocess.run([*self.prefix, *command], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    def end(self) -> None:
        """Let it go. Processes that still run in it keep it alive."""
        self._holder.end()


class Host(Namespace):
    """A namespace with an address on the bridge."""

    def __init__(self, switch: Namespace, number: int) -> None:
        super().__init__(network=True, outer=switch)
        self.address = f"{SUBNET}.{number}"
        self._switch = switch
        self._port = f"port{number}"
        """The switch's end of its cable."""
        ip = needed("ip", "iproute2")
        switch.run(
            ip, "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid)
        )  # fmt: skip
        switch.run(ip, "link", "set", self._port, "master", "bridge", "up")
        for words in ("link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up"):
            self.run(ip, *words.split())
        self._blocked: set[str] = set()

    def block(self, other: Host) -> None:
        """Let nothing go from here to another host; what comes from there still arrives."""
        if other.address not in self._blocked:
            self._blocked.add(other.address)
            self.run("ip", "route", "add", "blackhole", other.address)

    def unblock(self) -> None:
        """Let everything go out again."""
        while self._blocked:
            self.run("ip", "route", "del", "blackhole", self._blocked.pop())

    def unplug(self) -> None:
        """Pull its cable: nothing goes in or out."""
        self._switch.run("ip", "link", "set", self._port, "down")

    def plug(self) -> None:
        """Put its cable in again."""
        self._switch.run("ip", "link", "set", self._port, "up")


class Network:
    """Hosts on one bridge."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._switch = Namespace(network=True)
        stack.callback(self._switch.end)
        self._switch.run(needed("ip", "iproute2"), "link", "add", "bridge", "type", "bridge")
        self._switch.run("ip", "link", "set", "bridge", "up")
        self.hosts: list[Host] = []

    def host(self) -> Host:
        """Add a host."""
        host = Host(self._switch, len(self.hosts) + 2)
        self._stack.callback(host.end)
        self.hosts.append(host)
        return host

    @staticmethod
    def split(*sides: Sequence[Host]) -> None:
        """Cut all connections between hosts of different sides."""
        for side in sides:
            for other in sides:
                if other is not side:
                    for host in side:
                        for its in other:
                            host.block(its)

    def heal(self) -> None:
        """Let everybody reach everybody."""
        for host in self.hosts:
            host.unblock()
            host.plug()


@contextmanager
def network() -> Iterator[Network]:
    """A network, which is gone in the end."""
    with ExitStack() as stack:
        yield Network(stack)
