"""Ways to Redis: encrypted, by an address, and by sentinels that choose another server."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.testing.build import HERE
from redis_harness.instances import start_instance
from redis_harness.servers import redis_server
from spi_harness.processes import Process, free_port, needed, wait_until


async def claimed(**settings: Any) -> int:
    """The epoch of a claim, by way of these settings."""
    instance = await start_instance(**settings)
    epoch = (await instance.sessions.claim("c", HERE)).epoch
    await instance.plugin.stop()
    return epoch


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that has signed itself, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            needed("openssl", "openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", "2", "-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", str(key), "-out", str(cert),
        ],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    return cert, key


def test_connections_may_be_encrypted(tmp_path: Path) -> None:
    """With TLS the server's certificate is verified; one that nobody has signed is refused."""
    cert, key = certificate(tmp_path)
    port = free_port()
    files = ("--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-auth-clients", "no")

    with redis_server(tmp_path / "redis", "--tls-port", str(port), *files, on_socket=True):
        secure = {"host": "127.0.0.1", "port": port, "tls": True, "timeout_s": 3.0}
        assert asyncio.run(claimed(**secure, ca_file=cert)) > 0
        with pytest.raises(ServiceUnavailable):
            asyncio.run(claimed(**secure))


def test_a_url_contains_all_settings(tmp_path: Path) -> None:
    """The database and the password may stand in a URL."""
    with redis_server(tmp_path / "redis", "--requirepass", "secret") as server:
        assert asyncio.run(claimed(url=f"redis://:secret@127.0.0.1:{server.port}/2")) > 0
        with pytest.raises(ServiceUnavailable):
            asyncio.run(claimed(url=f"redis://:wrong@127.0.0.1:{server.port}/2"))

        assert "{c}:s" in server.ask("-a", "secret", "-n", "2", "keys", "*")


def test_sentinels_choose_another_server(tmp_path: Path) -> None:
    """When the master is gone a replica takes its place, and has what was kept there and decided."""
    port = free_port()
    with (
        redis_server(tmp_path / "one") as one,
        redis_server(tmp_path / "two", "--replicaof", "127.0.0.1", str(one.port)) as two,
    ):
        wait_until(lambda: "state=online" in one.ask("info", "replication"), "the replica has all of it")
        file = tmp_path / "sentinel.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main 127.0.0.1 {one.port} 1\n"
            "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n"
        )
        sentinel = Process([needed("redis-server", "redis-server"), str(file), "--sentinel"], cwd=tmp_path)
        try:
            sentinel.wait_for_line(r"\+monitor")
            sentinel.wait_for_line(r"\+slave ")

            async def run() -> tuple[int, int, list[bool]]:
                instance = await start_instance(
                    sentinels=(f"127.0.0.1:{port}",), sentinel_master="main", durability="wait", timeout_s=2.0
                )
                epoch = (await instance.sessions.claim("c", HERE)).epoch
                arbiter: Any = instance.plugin.cluster_arbiter()
                won = [await arbiter.decide(1, 1)]
                wait_until(lambda: two.ask("hget", "kinmqtt:{c}:s", "e") == str(epoch), "the replica has the claim")
                one.kill()
                with pytest.raises(ServiceUnavailable):
                    await instance.sessions.iterate()
                await instance.parts.link.back()
                again = (await instance.sessions.claim("c", HERE)).epoch
                won.append(await arbiter.decide(1, 2))
                await instance.plugin.stop()
                return epoch, again, won

            epoch, again, won = asyncio.run(run())
        finally:
            sentinel.end()

    assert again > epoch
    assert won == [True, False]
