"""Checks the settings of a broker that does not run: its files, and whether the seeds let it in."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from time import monotonic, time
from typing import Any

from kinmqtt_akka_like_cluster.net.hello import ConnectionKind, PeerInfo
from kinmqtt_akka_like_cluster.net.opening import DialFailed
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused, Refusal
from kinmqtt_akka_like_cluster.net.seeds import make_seeds
from kinmqtt_akka_like_cluster.net.tls import load_tls
from kinmqtt_akka_like_cluster.net.transport import Network, NetworkConfig
from kinmqtt_akka_like_cluster.settings import AkkaSettings, read_cookie, validated
from kinmqtt_spi.services.plugin import Timer


class _Clock:
    """The system's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time()

    def monotonic(self) -> float:
        """Seconds of a clock that is never set."""
        return monotonic()

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Make a call after a time."""
        return asyncio.get_running_loop().call_later(delay_s, call)


class _Silent:
    """A log for what is told by the result anyway."""

    def debug(self, format: str, **values: object) -> None:
        """Log nothing."""

    info = warn = error = debug


async def check(settings: AkkaSettings, tell: Callable[[str], Any]) -> int:
    """Tell what is wrong, in sentences; returns 0 if each seed is in order, else 1.

    Raises :class:`~kinmqtt_spi.errors.SpiError` for files that can't be used.
    """
    settings = validated(settings)
    assert settings.cookie_file is not None
    config = NetworkConfig.of(
        settings, read_cookie(settings.cookie_file), None if settings.tls is None else load_tls(settings.tls)
    )
    own = str(settings.advertised)
    network = Network(config, PeerInfo("check", secrets.randbits(64), own, votes=False), _Silent(), _Clock())
    seeds = await make_seeds(settings, _Silent()).addresses()
    bad = 0
    for seed in seeds:
        if seed == own:
            tell(f"{seed}: is this broker itself" + (", the first seed" if seed == seeds[0] else ""))
            continue
        is_good, found = await _try(network, seed)
        bad += not is_good
        tell(f"{seed}: {found}")
    if not seeds:
        tell("there are no seeds: this broker starts a cluster of its own")
    await network.close()
    return 1 if bad else 0


async def _try(network: Network, seed: str) -> tuple[bool, str]:
    """Return whether a seed can be used, as far as one can tell from here, and what to say of it."""
    try:
        connection = await network.dial(seed, ConnectionKind.CONTROL)
    except HandshakeRefused as refused:
        if refused.refusal is Refusal.SETTINGS:
            # Which strategy "auto" is depends on the plugins of a running broker.
            return True, 'answers; its settings differ, unless only "auto" stands for the arbiter of a plugin there'
        return False, f"refuses: {refused}"
    except DialFailed as failed:
        return False, str(failed)
    connection.close()
    return True, "answers, and has the same cookie and settings"
