"""A broker that waits for its cluster is stopped."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

from root_harness.cluster_node import Node
from spi_harness.processes import free_port

SETTINGS = """
[broker]
node_name = "{name}"

[plugins.akka_like_cluster]
listen = "{address}"
seeds = ["127.0.0.1:{nobody}", "{address}"]
cookie_file = "{cookie}"
control = "{control}"
"""
AT_ONCE_S = 5.0
"""Half of what a stop waits for a start: much more than a broker without clients takes."""


def takes_clients(node: Node) -> bool:
    """Tell whether a broker's listener is open."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", node.port)) == 0


async def stopped(node: Node) -> int | None:
    """Start a broker whose first seed is nobody, stop it in good order as soon as it waits, and return its status."""
    await node.start()
    try:
        async with asyncio.timeout(60.0):
            while "can't connect to seed" not in node.output:
                await asyncio.sleep(0.05)
        assert not takes_clients(node)
        async with asyncio.timeout(AT_ONCE_S):
            await node.end(signal.SIGTERM)
        assert node.process is not None
        return node.process.returncode
    finally:
        await node.end(signal.SIGKILL)


def test_a_stop_does_not_wait_for_seeds(tmp_path: Path) -> None:
    """Nobody may ever answer, and no client is taken: the broker ends at once, and leaves no socket behind."""
    node = Node(tmp_path, "n2")
    cookie = tmp_path / "cookie"
    cookie.write_text("c" * 64)
    cookie.chmod(0o600)
    node.settings.write_text(
        SETTINGS.format(
            name=node.name, address=node.advertise, nobody=free_port(), cookie=cookie, control=node.control
        )
    )

    status = asyncio.run(stopped(node))

    assert status == 0, node.output
    assert "stopped: the broker was no member of its cluster yet" in node.output
    assert "Traceback" not in node.output
    assert f"`kinmqtt cluster` reaches this broker at --socket {node.control}" in node.output
    assert not node.control.exists()
