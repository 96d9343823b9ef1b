"""The settings ``[plugins.akka_like_cluster]``."""

from __future__ import annotations

import json
import stat
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

from attrs import frozen

from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.net.handshake import MIN_COOKIE_BYTES
from kinmqtt_akka_like_cluster.net.hello import MAX_CLUSTER_BYTES, check_name
from kinmqtt_spi.errors import NotConfigured, SettingsError
from kinmqtt_spi.settings import read_file, setting

SECTION: Final = "plugins.akka_like_cluster"
MAX_COOKIE_BYTES: Final = 4096
MAX_SEEDS: Final = 64
MAX_FRAME_ROOM_BYTES: Final = 16 << 20
"""A link must have room for the largest frame."""

_MAKE: Final = "`kinmqtt cluster keys` makes one"
_OF_A_CLUSTER: Final = ("advertise", "seeds", "dns", "seeds_file", "cookie_file", "tls")
_NEEDS_TLS: Final = (
    f"others could read and forge what brokers tell each other; add [{SECTION}.tls], or use a loopback address or "
    "unix:PATH"
)


def _endpoint(text: str) -> Endpoint | None:
    """Return the endpoint; ``None`` for a malformed one, which has a problem of its own."""
    try:
        return Endpoint.parse(text)
    except ValueError:
        return None


def _check_peers(settings: TlsSettings, attribute: object, names: tuple[str, ...]) -> None:
    if not names:
        raise ValueError("is empty: name the brokers, or any certificate of the authority would be accepted")
    for name in names:
        rest = name.removeprefix("*.")
        if "*" in rest or (rest != name and "." not in rest):
            raise ValueError(f"{name!r}: a * stands for the first label of a name, as in *.brokers.example")
        try:
            ip_address(name)
        except ValueError:
            if _endpoint(f"{rest}:1") is None:
                raise ValueError(f"{name!r} is neither a host name nor an IP address") from None


def _check_cluster(settings: AkkaSettings, attribute: object, name: str) -> None:
    check_name(name, "the name", MAX_CLUSTER_BYTES)


def _check_listen(settings: AkkaSettings, attribute: object, text: str) -> None:
    if not text:
        given = [name for name in _OF_A_CLUSTER if getattr(settings, name)]
        if given:
            raise ValueError(f'is missing beside {", ".join(given)}: where other brokers connect, as "10.0.0.1:4883"')
        return
    endpoint = Endpoint.parse(text)
    if endpoint.is_wildcard and not settings.advertise:
        raise ValueError(f"{text} is every address of this machine: set advertise to the one that others connect to")
    if settings.tls is None and not endpoint.is_local:
        raise ValueError(f"{text} is no loopback address: {_NEEDS_TLS}")


def _check_advertise(settings: AkkaSettings, attribute: object, text: str) -> None:
    if not text:
        return
    endpoint, listen = Endpoint.parse(text), _endpoint(settings.listen)
    if endpoint.is_wildcard:
        raise ValueError(f"{text} is no address that others can connect to: name one of this machine's")
    if listen is not None and endpoint.is_unix != listen.is_unix:
        raise ValueError(f"{text} can't lead to listen, {settings.listen}: one is a Unix socket, the other is not")
    if settings.tls is None and not endpoint.is_local:
        raise ValueError(f"{text} is no loopback address: {_NEEDS_TLS}")


def _check_seeds(settings: AkkaSettings, attribute: object, seeds: tuple[str, ...]) -> None:
    if len(seeds) > MAX_SEEDS:
        raise ValueError(f"has {len(seeds)} addresses, {MAX_SEEDS} at most: a new broker needs one that answers")
    for text in seeds:
        endpoint = Endpoint.parse(text)
        if endpoint.is_wildcard:
            raise ValueError(f"{text} is no address that others can connect to: name one machine's")
        if settings.tls is None and not endpoint.is_local:
            raise ValueError(f"{text} is no loopback address: {_NEEDS_TLS}")


def _check_dns(settings: AkkaSettings, attribute: object, text: str) -> None:
    if not text:
        return
    endpoint = Endpoint.parse(text)
    if settings.seeds:
        raise ValueError("and seeds are mutually exclusive: remove one of them")
    if endpoint.is_unix or endpoint.ip is not None:
        raise ValueError(f"{text} is not name:port; seeds takes addresses")
    if settings.tls is None and not endpoint.is_local:
        raise ValueError(f"{text} may have addresses beyond this machine: {_NEEDS_TLS}")
    own = _endpoint(settings.advertise or settings.listen)
    if own is not None and own.ip is None:
        raise ValueError(
            f"gives IP addresses, where this broker would not find {own}, itself: advertise an IP address"
        )


def _check_seeds_file(settings: AkkaSettings, attribute: object, path: Path | None) -> None:
    others = [name for name in ("seeds", "dns") if getattr(settings, name)]
    if path is not None and others:
        raise ValueError(f"and {' and '.join(others)} are mutually exclusive: keep one of them")


def _check_cookie_file(settings: AkkaSettings, attribute: object, path: Path | None) -> None:
    if settings.listen and path is None:
        raise ValueError(f"is missing: a file with the secret of this cluster, the same on all brokers; {_MAKE}")


def _check_quorum(settings: AkkaSettings, attribute: object, quorum: int | None) -> None:
    if (settings.downing == "static_quorum") == (quorum is not None):
        return
    if quorum is None:
        raise ValueError('is missing: downing = "static_quorum" needs the number of brokers that may go on')
    raise ValueError('is for downing = "static_quorum" only: set that, or remove quorum')


def _check_stable_after(settings: AkkaSettings, attribute: object, stable_after_s: float | str) -> None:
    least_s = settings.heartbeat_s + settings.pause_s
    if not isinstance(stable_after_s, str) and stable_after_s < least_s:
        raise ValueError(
            f"{stable_after_s:g} s is below heartbeat_s + pause_s ({least_s:g} s), within which brokers notice the "
            'same failure; raise it, or set "auto"'
        )


def _check_pause(settings: AkkaSettings, attribute: object, pause_s: float) -> None:
    if pause_s < settings.heartbeat_s:
        raise ValueError(f"is below heartbeat_s ({settings.heartbeat_s:g} s): raise it, or lower heartbeat_s")


@frozen(slots=True)
class TlsSettings:
    """``[plugins.akka_like_cluster.tls]``: TLS 1.3 between brokers; each side shows a certificate."""

    certificate: Path = setting(
        path="file", help="this broker's certificate and its intermediates, PEM; for servers and for clients"
    )
    private_key: Path = setting(path="file", help="its private key, PEM; it may be the same file")
    ca: Path = setting(path="file", help="the authorities that brokers' certificates must come from, PEM")
    peers: tuple[str, ...] = setting(
        help="the brokers that are accepted: one of these is a subject alternative name (SAN) of the certificate; "
        "`*.brokers.example` stands for all names with one label more",
        validator=_check_peers,
    )


@frozen(slots=True)
class AkkaSettings:
    """Where other brokers are, how they prove who they are, and what happens when some can't be reached."""

    listen: str = setting(
        "", help="where other brokers connect: `host:port`, `[::1]:port` or `unix:PATH`", validator=_check_listen
    )
    advertise: str = setting(
        "", help="the address that others are told, where it is not that of `listen`", validator=_check_advertise
    )
    cluster: str = setting("kinmqtt", help="the cluster's name, the same on all brokers", validator=_check_cluster)
    seeds: tuple[str, ...] = setting(
        (),
        help="brokers to join by; only the first one starts a cluster alone. Without any way of seeds this broker "
        "starts a cluster that others may join",
        validator=_check_seeds,
    )
    dns: str = setting(
        "", help="instead of `seeds`: `name:port`, where each address of the name is a broker", validator=_check_dns
    )
    seeds_file: Path | None = setting(
        None, help="instead of `seeds`: a file with one address a line", validator=_check_seeds_file
    )
    cookie_file: Path | None = setting(
        None,
        path="file",
        help="the cluster's secret, at least 32 bytes, the same on all brokers; `kinmqtt cluster keys` makes one",
        validator=_check_cookie_file,
    )
    votes: bool = setting(True, help="whether this broker counts in a majority")
    downing: Literal["auto", "arbiter", "keep_majority", "static_quorum", "keep_oldest", "down_all"] = setting(
        "auto", help="which side goes on after a split; auto: `arbiter` where a plugin has one, else `keep_majority`"
    )
    stable_after_s: Literal["auto"] | float = setting(
        "auto",
        help="how long the members must be unchanged before some are downed; auto: by their number, 7 to 20 s",
        unit="s",
        minimum=0.1,
        maximum=3600,
        validator=_check_stable_after,
    )
    quorum: int | None = setting(
        None, help="for static_quorum: how many brokers may go on", minimum=1, validator=_check_quorum
    )
    unreachable_owner: Literal["refuse", "clean"] = setting(
        "refuse",
        help="without shared stores, what a client gets whose session is on a broker that can't be reached: 0x88, "
        "or a new session",
    )
    link_bytes: int = setting(
        64 << 20, help="bytes that may wait for one broker", unit="bytes", minimum=MAX_FRAME_ROOM_BYTES
    )
    heartbeat_s: float = setting(1.0, help="the time between heartbeats", unit="s", minimum=0.05, maximum=60)
    pause_s: float = setting(
        2.0,
        help="how long heartbeats may pause before a broker is suspected",
        unit="s",
        minimum=0.05,
        maximum=600,
        validator=_check_pause,
    )
    threshold: float = setting(
        8.0, help="the suspicion (phi) above which a broker is unreachable", minimum=1, maximum=100
    )
    control: Path | None = setting(
        None,
        help="the socket for `kinmqtt cluster`; default: "
        "`plugins/akka_like_cluster/control.sock` in the data directory",
    )
    tls: TlsSettings | None = setting(None, help="TLS, as below; without it only loopback addresses and Unix sockets")

    @property
    def advertised(self) -> Endpoint:
        """The address that others are told. Raises ``ValueError`` where there is none."""
        return Endpoint.parse(self.advertise or self.listen)


def validated(settings: AkkaSettings) -> AkkaSettings:
    """Return the settings; raises NotConfigured if they name no address to listen on."""
    if not settings.listen:
        raise NotConfigured(f"{SECTION} has no listen, the address where other brokers connect")
    return settings


def read_cookie(path: Path) -> bytes:
    """Return the cluster's secret without line ends behind it. It blocks, as reading a file does.

    Raises ``SettingsError`` for a file that can't be read, that other users may read, or that is too short.
    """
    where = f"{SECTION}.cookie_file: "
    try:
        cookie = read_file(path, max_bytes=MAX_COOKIE_BYTES).rstrip(b"\r\n")
        mode = path.stat().st_mode
    except SettingsError as error:
        raise SettingsError(f"{where}{problem}; {_MAKE}" for problem in error.problems) from None
    except OSError as error:
        raise SettingsError([f"{where}{path}: can't be read: {error.strerror or error}; {_MAKE}"]) from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise SettingsError(
            [f"{where}{path}: all users may read or write it (mode {mode & 0o777:o}); `chmod 600` it, or {_MAKE}"]
        )
    if len(cookie) < MIN_COOKIE_BYTES:
        raise SettingsError(
            [f"{where}{path}: it has {len(cookie)} bytes, at least {MIN_COOKIE_BYTES} are needed; {_MAKE}"]
        )
    return cookie


def agreement_digest(settings: AkkaSettings, *, shares_stores: bool = True) -> bytes:
    """Return the SHA-256 of what must agree on all brokers of a cluster: settings, and whether they share stores."""
    stable_after_s = settings.stable_after_s
    agreed = [
        settings.cluster,
        settings.downing,
        settings.quorum,
        # TOML's 7 and 7.0 mean the same.
        stable_after_s if isinstance(stable_after_s, str) else float(stable_after_s),
        *(() if shares_stores else ("own stores",)),
    ]
    return sha256(json.dumps(agreed).encode()).digest()
