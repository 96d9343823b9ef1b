"""The C library's allocator: what is free goes back to the system.

glibc learns from large blocks that are freed to take such blocks from its heap the next time. After an attack with
packets of megabytes the heap is then as large as the attack, and full of holes. With fixed bounds large blocks are
mapped one by one, and are the system's again when they are freed; holes of smaller ones are given back on request.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

MAPPED_BYTES: Final = 1 << 20
"""Blocks of this size are mapped for themselves. What a socket is read into, and what is written at once, is smaller:
to map and to fault in a block costs as much as to copy it."""

KEPT_FREE_BYTES: Final = 8 << 20
"""So much may be free at the heap's end before it is given back at once."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def tune(library: Any = None, environment: Mapping[str, str] = os.environ) -> bool:
    """Fix the bounds; ``False`` where the C library has none, or where the operator has set some.

    Once for the process, before it holds much.
    """
    mallopt = _function("mallopt", library)
    if mallopt is None or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in environment):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES))


def trimmer(library: Any = None) -> Callable[[], object]:
    """What gives free memory back to the system; it does nothing where the C library can't."""
    malloc_trim = _function("malloc_trim", library)
    return _nothing if malloc_trim is None else lambda: malloc_trim(0)


def _function(name: str, library: Any) -> Any:
    if library is None:
        if sys.platform != "linux":
            return None
        library = ctypes.CDLL(None)
    return getattr(library, name, None)


def _nothing() -> None:
    pass
