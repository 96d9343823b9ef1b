"""``twistd kinmqtt``: the broker as a twistd plugin."""

from __future__ import annotations

import atexit
import os
import sys
from asyncio import AbstractEventLoop, new_event_loop, set_event_loop
from pathlib import Path
from typing import Any, ClassVar

from twisted.application.service import IService
from twisted.python import usage

from kinmqtt.config import Overrides, load
from kinmqtt.settings import EventLoop
from kinmqtt_spi.errors import AssemblyError, SettingsError


def install_asyncio_reactor(choice: EventLoop) -> None:
    """Install the asyncio reactor, so that plugins can use asyncio libraries, unless a reactor is installed already.

    ``twistd`` reads a subcommand's options before it imports a reactor; this runs in between. With
    ``twistd --reactor=NAME`` the operator chooses. Raises :class:`~kinmqtt_spi.errors.AssemblyError` if uvloop is
    wanted but not installed.
    """
    if "twisted.internet.reactor" not in sys.modules:
        from twisted.internet import asyncioreactor

        loop = _event_loop(choice)
        set_event_loop(loop)
        asyncioreactor.install(loop)


def _event_loop(choice: EventLoop) -> AbstractEventLoop:
    if choice != "asyncio":
        try:
            import uvloop
        except ImportError as error:
            if choice == "uvloop":
                raise AssemblyError(
                    "broker.event_loop: uvloop is not installed: pip install 'kinmqtt-core[uvloop]'"
                ) from error
        else:
            return uvloop.new_event_loop()
    return new_event_loop()


class Options(usage.Options):
    """The options of ``twistd kinmqtt``."""

    optParameters: ClassVar[list[list[Any]]] = [
        ["config", "c", None, "The settings file (TOML)."],
        ["data", None, None, "The data directory; memory for no persistence."],
    ]
    optFlags: ClassVar[list[list[Any]]] = [
        ["allow-anonymous", None, "Accept clients that no authenticator decides on."]
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self["listen"] = []

    def opt_listen(self, endpoint: str) -> None:
        """A listener that replaces those of the settings; may be given several times."""
        self["listen"].append(endpoint)

    opt_l = opt_listen

    def postOptions(self) -> None:
        """Check the settings, and install the reactor before twistd does."""
        try:
            settings = self["settings"] = load(
                None if self["config"] is None else Path(self["config"]),
                Overrides(tuple(self["listen"]), self["data"], True if self["allow-anonymous"] else None),
                os.environ,
            )
            install_asyncio_reactor(settings.broker.event_loop)
        except SettingsError as error:
            # Not as a usage error, which would print the usage before the message.
            raise SystemExit("\n".join(f"kinmqtt: {problem}" for problem in error.problems)) from error
        except AssemblyError as error:
            raise SystemExit(f"kinmqtt: {error}") from error


def makeService(options: Options) -> IService:
    """Return the assembled broker's service; an error ends the process with one message and exit status 1."""
    from twisted.internet import reactor

    from kinmqtt.cli.run import bear_further_signals, build_service

    try:
        service: Any = build_service(options["settings"], reactor)
    except (AssemblyError, SettingsError) as error:
        raise SystemExit(f"kinmqtt: {error}") from error
    bear_further_signals(reactor)
    reactor.addSystemEventTrigger("after", "shutdown", _exit_with_failure, service)
    checked: IService = service
    return checked


def _exit_with_failure(service: Any) -> None:
    """Exit with status 1 if the broker could not start, or is out of its cluster, so that a supervisor restarts it.

    twistd itself can't set its exit status.
    """
    why = service.failed or service.expelled
    if why is not None:
        sys.stderr.write(f"kinmqtt: {why}\n")
        sys.stderr.flush()
        # At the interpreter's exit, so that twistd can remove its pidfile first.
        atexit.register(os._exit, 1)
