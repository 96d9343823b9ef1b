"""The Lua scripts, called by their SHA: each carries out in one step what must not be seen or kept by half."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Final, TypeAlias

Part: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Part, ...]


class Script:
    """One script."""

    def __init__(self, name: str) -> None:
        self.source = files("kinmqtt_redis_session").joinpath("lua", f"{name}.lua").read_bytes()
        # Redis names a script so; nothing is protected by it.
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest()

    def __call__(self, keys: Sequence[bytes], *arguments: Part) -> Command:
        """The command that runs it."""
        return ("EVALSHA", self.sha, len(keys), *keys, *arguments)


CLIENT: Final = Script("client")
CLAIM: Final = Script("claim")
UNDO: Final = Script("undo")
RELEASE: Final = Script("release")
SESSION: Final = Script("session")
SIZES: Final = Script("sizes")
LOAD: Final = Script("load")
READ: Final = Script("read")
EXPIRE: Final = Script("expire")
RETAIN: Final = Script("retain")
RETAIN_EXPIRE: Final = Script("retain_expire")
HAND: Final = Script("hand")
FORGET: Final = Script("forget")

ALL: Final = (CLIENT, CLAIM, UNDO, RELEASE, SESSION, SIZES, LOAD, READ, EXPIRE, RETAIN, RETAIN_EXPIRE, HAND, FORGET)
