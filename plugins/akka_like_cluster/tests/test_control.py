"""The control socket's file."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from kinmqtt_akka_like_cluster.control import ControlSocket, ask
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.memory.plugin import RecordingLog


async def name(request: Any) -> str:
    """Answer a request."""
    return "n1"


def control_at(path: Path) -> ControlSocket:
    """A control socket that knows one request."""
    return ControlSocket(path, {"name": name}, RecordingLog())


async def asked(path: Path) -> Any:
    """Ask for the name."""
    return await asyncio.to_thread(ask, path, {"command": "name"}, 5.0)


def test_only_the_brokers_user_may_use_the_socket(tmp_path: Path) -> None:
    """It answers, its mode is 0600, and it is gone with the broker."""

    async def scene() -> None:
        path = tmp_path / "deeper" / "control.sock"
        control = control_at(path)
        await control.open()

        answer, mode = await asked(path), stat.S_IMODE(path.stat().st_mode)
        await control.close()

        assert (answer, mode, path.exists()) == ("n1", 0o600, False)

    asyncio.run(scene())


def test_the_socket_of_a_broker_that_was_killed_is_replaced(tmp_path: Path) -> None:
    """Nobody listens there any more."""

    async def scene() -> None:
        path = tmp_path / "control.sock"
        killed = control_at(path)
        await killed.open()
        assert killed._server is not None
        killed._server.close()
        control = control_at(path)

        await control.open()

        assert await asked(path) == "n1"
        await control.close()

    asyncio.run(scene())


def test_the_socket_of_a_broker_that_runs_is_left_alone(tmp_path: Path) -> None:
    """The second one says that the path is taken, and how to go on; the first one still answers."""

    async def scene() -> None:
        path = tmp_path / "control.sock"
        control = control_at(path)
        await control.open()

        with pytest.raises(AssemblyError, match="another process listens there; name another path"):
            await control_at(path).open()

        assert await asked(path) == "n1"
        await control.close()

    asyncio.run(scene())


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    """It may be anything."""

    async def scene() -> None:
        path = tmp_path / "control.sock"
        path.write_text("notes")

        with pytest.raises(AssemblyError, match="the file exists, and is no socket"):
            await control_at(path).open()

        assert path.read_text() == "notes"

    asyncio.run(scene())


def test_a_socket_that_another_broker_has_made_meanwhile_stays(tmp_path: Path) -> None:
    """A broker that ends removes only its own file."""

    async def scene() -> None:
        path = tmp_path / "control.sock"
        ending, following = control_at(path), control_at(path)
        await ending.open()
        path.unlink()
        await following.open()

        await ending.close()

        assert await asked(path) == "n1"
        await following.close()

    asyncio.run(scene())
