"""Tunes the C library's allocator to return free memory to the system.

When large blocks are freed, glibc raises its threshold and takes such blocks from its heap from then on. After an
attack with packets of megabytes the heap is as large as the attack, and fragmented. With fixed thresholds, large
blocks are mapped one by one and unmapped when freed; free smaller blocks are returned on request.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

MAPPED_BYTES: Final = 1 << 20
"""Blocks of this size or more are mapped individually. Socket buffers are smaller: mapping and faulting in a block
costs as much as copying it."""

KEPT_FREE_BYTES: Final = 8 << 20
"""The free memory at the heap's end above which it is returned at once."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def tune(library: Any = None, environment: Mapping[str, str] = os.environ) -> bool:
    """Fix the thresholds; ``False`` if the C library has none, or the operator has set some.

    Call it once in a process, early.
    """
    mallopt = _function("mallopt", library)
    if mallopt is None or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in environment):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES))


def trimmer(library: Any = None) -> Callable[[], object]:
    """Return a function that returns free memory to the system; it does nothing if the C library can't."""
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
