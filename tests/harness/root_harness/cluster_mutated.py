"""``kinmqtt`` with a mistake that breaks a promise of a cluster: ``cluster_mutated.py NAME run ...``."""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Callable, Mapping
from hashlib import sha1
from typing import Final
from unittest.mock import patch

from kinmqtt.testing.world import mutations
from kinmqtt_redis_session.scripts import CLIENT
from kinmqtt_redis_session.write_pipeline import WritePipeline
from kinmqtt_spi.values import Commit

_FENCE: Final = b"local good = height >= epoch"


def _acknowledge_before_commit() -> None:
    """Writes are committed for the broker as soon as they are on their way to Redis."""
    commit = WritePipeline.commit

    def hasty(pipeline: WritePipeline) -> Commit:
        answer = commit(pipeline)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return None

    patch.object(WritePipeline, "commit", hasty).start()


def _no_barrier() -> None:
    """SUBACK does not wait until the other brokers know the route."""
    for owner, method, new in mutations.MUTATIONS["no barrier"]():
        patch.object(owner, method, new).start()


def _no_fencing() -> None:
    """Redis takes writes of any epoch, also of brokers from which a newer owner has taken the session."""
    assert CLIENT.source.count(_FENCE) == 1
    CLIENT.source = CLIENT.source.replace(_FENCE, b"local good = true")
    # Redis identifies scripts by SHA-1; it is not used for security.
    CLIENT.sha = sha1(CLIENT.source, usedforsecurity=False).hexdigest()


MUTATIONS: Final[Mapping[str, Callable[[], None]]] = {
    "ack-before-commit": _acknowledge_before_commit,
    "no-barrier": _no_barrier,
    "no-fencing": _no_fencing,
}
"""By name: what puts the mistake into this process."""


if __name__ == "__main__":
    MUTATIONS[sys.argv.pop(1)]()
    runpy.run_module("kinmqtt", run_name="__main__", alter_sys=True)
