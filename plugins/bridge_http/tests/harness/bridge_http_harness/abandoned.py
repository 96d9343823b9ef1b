"""What aiohttp leaves behind."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def abandoned_connections() -> Iterator[None]:
    """aiohttp leaves the socket of an attempt to connect that was cancelled to the garbage collector.

    Without this, whichever test comes when that is found would fail with its warning.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
