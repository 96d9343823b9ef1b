"""`kinmqtt` as its next release might be: `python newer_release.py run ...`.

It speaks one version more of both protocols between brokers, has a feature that this release does not know, and
appends to each message that may be longer in later versions. It prints which version it speaks with whom.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from struct import Struct
from typing import Any, Final
from unittest.mock import patch

from attrs import evolve

from kinmqtt_akka_like_cluster import control_links
from kinmqtt_akka_like_cluster.net import hello
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.network_config import NetworkConfig
from kinmqtt_akka_like_cluster.pure import joining, messages
from kinmqtt_akka_like_cluster.pure.versions import HIGHEST_VERSION, LOWEST_VERSION
from kinmqtt_spi.mesh import frames, link

APPENDED: Final = b"what this release does not know"
FEATURE: Final = 1 << 63
NEWER: Final = HIGHEST_VERSION + 1
_LENGTH: Final = Struct(">I")


def become_newer() -> None:
    """Change this process, for as long as it lives."""
    # `messages` keeps its version: so it reads past what is appended to a JOIN, as the newer release would read it.
    patch.object(joining, "HIGHEST_VERSION", NEWER).start()
    patch.object(link, "HIGHEST_VERSION", link.HIGHEST_VERSION + 1).start()
    patch.object(NetworkConfig, "of", _newer(NetworkConfig.of)).start()
    patch.object(control_links, "encode", _with_longer_join(messages.encode)).start()
    for cls in (hello.Hello, frames.Hello):
        patch.object(cls, "pack", _longer(cls.pack)).start()
    patch.object(Established, "__init__", _telling(Established.__init__)).start()


def _newer(of: Callable[..., NetworkConfig]) -> Callable[..., NetworkConfig]:
    return lambda *given: evolve(of(*given, features=FEATURE), versions=(LOWEST_VERSION, NEWER))


def _longer(pack: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    return lambda message: pack(message) + APPENDED


def _with_longer_join(encode: Callable[[messages.Message], bytes]) -> Callable[[messages.Message], bytes]:
    def encoded(message: messages.Message) -> bytes:
        if not isinstance(message, messages.Join):
            return encode(message)
        frame = encode(evolve(message, highest=NEWER)) + APPENDED
        return _LENGTH.pack(len(frame) - messages.HEADER_BYTES) + frame[_LENGTH.size :]

    return encoded


def _telling(init: Callable[..., None]) -> Callable[..., None]:
    def told(established: Established, *given: Any, **named: Any) -> None:
        init(established, *given, **named)
        print(f"version {established.version} with {established.peer.name}", flush=True)

    return told


def main() -> None:
    """Run the command."""
    become_newer()
    runpy.run_module("kinmqtt", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
