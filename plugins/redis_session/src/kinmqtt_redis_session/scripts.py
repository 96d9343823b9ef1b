"""The Lua scripts, called by their SHA. Each performs one atomic step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final, TypeAlias

Part: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Part, ...]
Execute: TypeAlias = Callable[[Sequence[Command]], Awaitable[list[Any]]]
"""Runs commands in order and returns their answers; raises ServiceUnavailable."""


class Script:
    """One script."""

    def __init__(self, name: str) -> None:
        self.source = files("kinmqtt_redis_session").joinpath("lua", f"{name}.lua").read_bytes()
        # Redis identifies scripts by SHA-1; it is not used for security.
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest()

    def __call__(self, keys: Sequence[bytes], *arguments: Part) -> Command:
        """The command that runs the script."""
        return ("EVALSHA", self.sha, len(keys), *keys, *arguments)


CLIENT: Final = Script("client")
CLAIM: Final = Script("claim")
UNDO_CLAIM: Final = Script("undo_claim")
RELEASE: Final = Script("release")
SESSION: Final = Script("session")
SIZES: Final = Script("sizes")
LOAD: Final = Script("load")
READ: Final = Script("read")
KNOWN: Final = Script("known")
EXPIRE: Final = Script("expire")
RETAIN: Final = Script("retain")
RETAIN_EXPIRE: Final = Script("retain_expire")
HAND_OVER: Final = Script("hand_over")
FORGET: Final = Script("forget")
CLUSTER_ARBITER: Final = Script("cluster_arbiter")
CLUSTER_MEMBERS: Final = Script("cluster_members")

ALL: Final = (
    CLIENT,
    CLAIM,
    UNDO_CLAIM,
    RELEASE,
    SESSION,
    SIZES,
    LOAD,
    READ,
    KNOWN,
    EXPIRE,
    RETAIN,
    RETAIN_EXPIRE,
    HAND_OVER,
    FORGET,
    CLUSTER_ARBITER,
    CLUSTER_MEMBERS,
)
