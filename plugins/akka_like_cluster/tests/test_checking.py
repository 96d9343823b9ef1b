"""`kinmqtt cluster check`: whether the seeds let a broker in that does not run yet."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from akka_harness.backends import made
from akka_harness.relays import free_port
from kinmqtt_akka_like_cluster.checking import check
from kinmqtt_akka_like_cluster.settings import AkkaSettings
from kinmqtt_spi.testing.build import HERE
from kinmqtt_spi.testing.cluster_base import News


def secret(path: Path, byte: bytes) -> Path:
    """A cookie in a file."""
    path.write_bytes(byte * 32)
    path.chmod(0o600)
    return path


def checked(folder: Path, there: dict[str, Any], here: dict[str, Any]) -> tuple[int, list[str]]:
    """Check settings against a running first seed; what is said begins without the seed's address."""
    secret(folder / "cookie", b"c")

    async def scene() -> tuple[int, list[str]]:
        seed = f"127.0.0.1:{free_port()}"
        backend, _ = made(folder, HERE, seed, seed, **there)
        await backend.start(HERE, News())
        try:
            own = f"127.0.0.1:{free_port()}"
            settings = AkkaSettings(listen=own, seeds=(seed, own), cookie_file=folder / "cookie", downing="auto")
            said: list[str] = []
            status = await check(evolve(settings, **here), said.append)
            return status, [each.removeprefix(f"{seed}: ") for each in said if each.startswith(seed)]
        finally:
            await backend.stop()

    return asyncio.run(scene())


@pytest.mark.parametrize("downing", ["auto", "keep_majority"])
def test_equal_settings_are_confirmed(tmp_path: Path, downing: str) -> None:
    """Also where "auto" stands for the strategy of a broker that runs."""
    status, [said] = checked(tmp_path, {"downing": "auto"}, {"downing": downing})

    assert status == 0
    assert said.startswith("answers, and has the same cookie and settings; downing is keep_majority there")


@pytest.mark.parametrize("downing", ["auto", "keep_majority"])
def test_a_wrong_cookie_is_named(tmp_path: Path, downing: str) -> None:
    """It is not taken for a difference of settings."""
    other = secret(tmp_path / "other", b"d")

    status, [said] = checked(tmp_path, {"downing": "auto"}, {"downing": downing, "cookie_file": other})

    assert status == 1
    assert said.startswith("refuses: not authenticated; the cookies differ (cookie_file)")


@pytest.mark.parametrize(
    ("here", "words"),
    [
        ({"downing": "down_all"}, "refuses: the settings differ: downing is keep_majority there, down_all here"),
        ({"stable_after_s": 30.0}, "refuses: the settings differ: stable_after_s, quorum, or downing"),
        ({"cluster": "other"}, f"refuses: the names of the cluster differ: 'kinmqtt' of '{HERE.name}', 'other' of"),
    ],
)
def test_settings_that_differ_are_named_as_far_as_they_are_known(
    tmp_path: Path, here: dict[str, Any], words: str
) -> None:
    """Brokers exchange a digest of them only."""
    status, [said] = checked(tmp_path, {}, here)

    assert status == 1
    assert said.startswith(words)


@pytest.mark.parametrize(("is_first", "status"), [(True, 0), (False, 1)])
def test_a_seed_that_does_not_answer(tmp_path: Path, is_first: bool, status: int) -> None:
    """The first seed starts the cluster then; any other broker needs one that answers. The address is said once."""
    cookie = secret(tmp_path / "cookie", b"c")
    own, other = (f"127.0.0.1:{free_port()}" for _ in range(2))
    seeds = (own, other) if is_first else (other, own)
    said: list[str] = []

    got = asyncio.run(check(AkkaSettings(listen=own, seeds=seeds, cookie_file=cookie), said.append))

    assert got == status
    [line] = [each for each in said if each.startswith(other)]
    assert line.count(other) == 1
    assert ("this broker starts the cluster" in line) is is_first
