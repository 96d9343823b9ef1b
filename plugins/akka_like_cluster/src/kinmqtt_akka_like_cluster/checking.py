"""Checks the settings of a broker that does not run: its files, and whether the seeds let it in."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from time import monotonic, time
from typing import Any, Final

from attrs import evolve

from kinmqtt_akka_like_cluster.net.hello import ConnectionKind, PeerInfo
from kinmqtt_akka_like_cluster.net.opening import DialFailed
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused, Refusal
from kinmqtt_akka_like_cluster.net.seeds import make_seeds
from kinmqtt_akka_like_cluster.net.tls import load_tls
from kinmqtt_akka_like_cluster.net.transport import Network, NetworkConfig
from kinmqtt_akka_like_cluster.settings import AkkaSettings, read_cookie, validated
from kinmqtt_spi.services.plugin import Timer

_AUTO: Final = ("arbiter", "keep_majority")
"""What ``downing = "auto"`` may stand for."""
GUESSED: Final = (*_AUTO, "keep_oldest", "down_all")
"""The strategies that a seed is asked for until one fits."""


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


async def check(settings: AkkaSettings, tell: Callable[[str], Any], *, has_arbiter: bool = False) -> int:
    """Tell what is wrong, in sentences; returns 0 if this broker can join or rightly forms a cluster, else 1.

    ``has_arbiter``: whether a plugin of this broker is likely to have an arbiter, for which "auto" then stands.
    Raises :class:`~kinmqtt_spi.errors.SpiError` for files that can't be used.
    """
    settings = validated(settings)
    assert settings.cookie_file is not None
    cookie = read_cookie(settings.cookie_file)
    tls = None if settings.tls is None else load_tls(settings.tls)
    own = str(settings.advertised)
    info = PeerInfo("check", secrets.randbits(64), own, votes=False)
    probes = [
        (strategy, Network(NetworkConfig.of(meant, cookie, tls), info, _Silent(), _Clock()))
        for strategy, meant in _meanings(settings, has_arbiter)
    ]
    seeds = await make_seeds(settings, _Silent()).addresses()
    is_first = bool(seeds) and seeds[0] == own
    bad = 0
    for seed in seeds:
        if seed == own:
            tell(f"{seed}: is this broker itself" + (", the first seed" if is_first else ""))
            continue
        is_good, found = await _try(probes, seed, settings.downing, is_first)
        bad += not is_good
        tell(f"{seed}: {found}")
    if not seeds:
        tell("there are no seeds: this broker starts a cluster of its own")
    for _, network in probes:
        await network.close()
    return 1 if bad else 0


def _meanings(settings: AkkaSettings, has_arbiter: bool) -> list[tuple[str, AkkaSettings]]:
    """Return the settings once for each strategy, with its name: first those that these settings may mean.

    Which one "auto" is depends on the plugins of a running broker. The others tell by which one a seed differs;
    a quorum is a number that can't be guessed.
    """
    auto = ("arbiter", "keep_majority") if has_arbiter else ("keep_majority", "arbiter")
    own = auto if settings.downing == "auto" else (settings.downing,)
    others = (name for name in GUESSED if name not in own)
    return [
        (name, evolve(settings, downing=name, quorum=settings.quorum if name == "static_quorum" else None))
        for name in (*own, *others)
    ]


async def _try(probes: Sequence[tuple[str, Network]], seed: str, downing: str, is_first: bool) -> tuple[bool, str]:
    """Return whether a seed can be used, as far as one can tell from here, and what to say of it."""
    for strategy, network in probes:
        try:
            connection = await network.dial(seed, ConnectionKind.CONTROL)
        except HandshakeRefused as refused:
            if refused.refusal is Refusal.SETTINGS:
                continue
            return False, f"refuses: {refused}"
        except DialFailed as failed:
            why = str(failed).removeprefix(f"{seed}: ")
            return is_first, f"{why}; if no other seed answers, this broker starts the cluster" if is_first else why
        connection.close()
        if downing in (strategy, "auto") and strategy in (downing, *_AUTO):
            auto = ", for which auto stands here if this broker has the same plugins" if downing == "auto" else ""
            return True, f"answers, and has the same cookie and settings; downing is {strategy} there{auto}"
        return False, f"refuses: the settings differ: downing is {strategy} there, {downing} here"
    return False, (
        "refuses: the settings differ: stable_after_s, quorum, or downing by static_quorum; "
        f"here downing is {downing}. Whether the cookies are the same is seen when the settings are"
    )
