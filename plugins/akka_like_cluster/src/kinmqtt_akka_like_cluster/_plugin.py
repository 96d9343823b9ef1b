"""The plugin: implements the hooks, and owns the backend and its control socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attrs import evolve

from kinmqtt_akka_like_cluster.backend import AkkaBackend
from kinmqtt_akka_like_cluster.control import ControlSocket
from kinmqtt_akka_like_cluster.net.tls import load_tls
from kinmqtt_akka_like_cluster.operations import Operations
from kinmqtt_akka_like_cluster.settings import SECTION, AkkaSettings, validated
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import SpiError
from kinmqtt_spi.services.cluster import ClusterBackend, MemberState
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements

SOCKET_NAME: Final = "control.sock"


class AkkaLikeCluster:
    """Makes this broker a member of a cluster."""

    def __init__(self, make_backend: Callable[[Context, AkkaSettings], AkkaBackend] = AkkaBackend) -> None:
        self._make_backend = make_backend
        self._settings: AkkaSettings | None = None
        self._backend: AkkaBackend | None = None
        self._control: ControlSocket | None = None
        self._serves = False

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI, and the asyncio reactor that the connections need."""
        return Requirements(spi_version=2, reactor="asyncio")

    @hookimpl
    def settings_class(self) -> type[AkkaSettings]:
        """The class that the settings section is parsed into."""
        return AkkaSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings. Nothing is opened before the start."""
        settings = self._settings = validated(context.settings)
        self._backend = self._make_backend(context, settings)
        self._measure(context, self._backend)

    @hookimpl
    def cluster_backend(self) -> ClusterBackend:
        """The cluster backend."""
        assert self._backend is not None  # `configure` comes first.
        self._serves = True
        return self._backend

    @hookimpl
    async def start(self, context: Context) -> None:
        """Open the control socket; the backend itself is started by the broker."""
        path = _control_path(self._settings, context)
        if self._backend is None or not self._serves or path is None:
            return
        control = ControlSocket(path, Operations(self._backend).answers, context.log)
        await control.open()
        context.log.info("`kinmqtt cluster` reaches this broker at --socket {path}", path=path.absolute())
        self._control = control

    @hookimpl
    def health(self) -> Health:
        """Report whether this broker is a member, and reaches all others."""
        backend = self._backend
        if backend is None or not self._serves:
            return Health(HealthState.HEALTHY)
        members = backend.members()
        own = next((each for each in members if backend.is_own(each.node)), None)
        if own is None or own.state is not MemberState.UP:
            return Health(HealthState.DEGRADED, f"is {own.state.value if own else 'no member'} in the cluster")
        lost = [each.node.name for each in members if not each.reachable and each.state is not MemberState.DOWN]
        if lost:
            return Health(HealthState.DEGRADED, f"can't reach {', '.join(lost)}")
        return Health(HealthState.HEALTHY)

    @hookimpl
    async def reload(self, settings: AkkaSettings) -> tuple[str, ...]:
        """Read the certificates again; any other change needs a restart."""
        before, backend = self._settings, self._backend
        if before is None or backend is None or not self._serves:
            return ()
        left = []
        if settings.tls is not None and before.tls is not None:
            try:
                backend.use_tls(await asyncio.to_thread(load_tls, settings.tls))
                self._settings = before = evolve(before, tls=settings.tls)
            except SpiError as error:
                left.append(f"{error}; the old certificate stays in effect")
        if settings != before:
            left.append(f"{SECTION}: a change needs a restart")
        return tuple(left)

    @hookimpl
    async def stop(self) -> None:
        """Close the control socket."""
        control, self._control = self._control, None
        if control is not None:
            await control.close()

    def _measure(self, context: Context, backend: AkkaBackend) -> None:
        metrics = context.metrics
        metrics.gauge("cluster.refused", "connections", lambda: backend.network.refused if backend.network else 0)
        metrics.gauge("cluster.malformed", "connections", lambda: backend.malformed_input)
        metrics.gauge("cluster.takeovers", "sessions", lambda: backend.takeovers)
        metrics.gauge("cluster.suspicion", "phi", backend.suspicion)


def _control_path(settings: AkkaSettings | None, context: Context) -> Path | None:
    """Return where the control socket is; ``None`` if there is none."""
    if settings is not None and settings.control is not None:
        return settings.control
    return None if context.data is None else context.data / "plugins" / context.name / SOCKET_NAME
